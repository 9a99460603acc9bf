# SPDX-License-Identifier: Apache-2.0
"""Service that keeps a federated run going: it starts it, and starts it again whatever ended it.

Flower gives a run up when its server app or its SuperLink dies. The service then waits for what is
missing, longer each time, and goes on with the run under its own name, so that nothing is asked for
by another name and nothing is spent twice. A run that somebody started by hand is left alone until
its process is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from dpcohort.deploy._monitoring import LogLine, Metric
from dpcohort.deploy.flower._federation import Federation
from dpcohort.errors import DpcohortError, InputError, WaitingError
from dpcohort.plain_text import one_line
from dpcohort.runs._folder import RESULT, ROUNDS, lock, open_log, read_log
from dpcohort.runs._status import describe, executed_by, read_status

#: Seconds between looks at a run that goes on, and until it is started again, at most.
_LOOK, _LONGEST = 1.0, 60.0


class Superlink(Protocol):
    """What the service asks of a SuperLink; every call says by ``WaitingError`` that it is away."""

    def start(self, app: Path, config: dict[str, Any]) -> int:
        """Start a run; Flower's number of it."""
        ...

    def has_ended(self, run: int) -> bool:
        """Whether Flower has given the run up."""
        ...

    def stop(self, run: int) -> None:
        """Stop a run."""
        ...

    def nodes(self) -> dict[str, tuple[int, str]]:
        """Number and name of the registered nodes, by the fingerprint of their keys."""
        ...

    def register(self, public: str, name: str) -> None:
        """Let the node with this public key in."""
        ...

    def unregister(self, node: int) -> None:
        """Let a node in no more."""
        ...


class Service:
    """Keeps the run of a federation going until it is finished.

    Args:
        path: of ``federation.toml``.
        superlink: starts runs.
        out: the run folder; otherwise the federation's own.
        after: folder of the run that the plan goes on from, if it does.
        say: told in one line what it does or waits for, when that changes.
        sleep: waits.

    Raises:
        InputError: the federation cannot be used.
    """

    def __init__(
        self,
        path: Path,
        superlink: Superlink,
        *,
        out: Path | None = None,
        after: Path | None = None,
        say: Callable[[str], None] = lambda words: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._federation, self._superlink = Federation.load(path), superlink
        self._say, self._sleep, self._said, self._done = say, sleep, "", 0
        self.out = path.parent.resolve() / (out or self._federation.out or "run")
        places = (path.parent / "app", path.parent.parent / "app")
        self._app = next((place for place in places if place.is_dir()), None)
        if self._app is None:
            raise InputError.because(
                f"{places[0]} is not there: copy the kit's folder app beside {path.name}."
            )
        self._config: dict[str, Any] = {
            "federation": str(path.resolve()),
            "out": str(self.out),
            "resume": True,
        }
        if after is not None:
            self._config["after"] = str(after.resolve())

    def run(self) -> None:
        """Keep the run going until it is finished.

        Raises:
            WaitingError: another service does.
            DpcohortError: the run ended with something that waiting does not mend.
        """
        self.out.parent.mkdir(parents=True, exist_ok=True)
        with open_log(self.out.with_name(f"{self.out.name}.lock")) as file:
            lock(file, doing="is a service for this run")
            rest, done = _LOOK, None
            while not (self.out / RESULT).exists():
                try:
                    self._start_and_follow()
                except WaitingError as error:
                    before, done = done, read_status(self.out).get("round")
                    rest = min(2 * rest, _LONGEST) if done == before else _LOOK
                    words = one_line(" ".join(str(error).split()), 600)
                    self._tell(f"waiting: {words}", next_seconds=rest)
                    self._sleep(rest)
            self._tell(f"finished: dpcohort verify {self.out}")

    def metrics(self) -> list[Metric]:
        """Numbers of the run for its operator; nothing in them depends on a record."""
        status, now = read_status(self.out), time.time()
        with suppress(DpcohortError):
            self._done = len(read_log(self.out / ROUNDS))
        executed = executed_by(self.out) is not None
        found = [
            Metric("rounds", "Rounds of the plan.", self._federation.plan.training.rounds),
            Metric("rounds_done", "Rounds that are done.", self._done),
            Metric("run_executed", "Whether a process executes the run.", executed),
            Metric("run_finished", "Whether it is finished.", (self.out / RESULT).exists()),
            Metric("clients_waited_for", "Clients not yet heard.", len(status.get("waiting", []))),
        ]
        for client, one in status.get("missing", {}).items():
            words = "Seconds since a client does not answer."
            found.append(
                Metric("client_missing_seconds", words, now - one["since"], {"client": client})
            )
        return found

    def ill(self) -> str:
        """Why the run does not go on; empty where it does, or is finished."""
        if executed_by(self.out) is not None or (self.out / RESULT).exists():
            return ""
        return self._said or "starts"

    def _start_and_follow(self) -> None:
        """Execute the run, or watch whoever does, to its end."""
        number: int | None = None
        before = read_status(self.out)
        if executed_by(self.out) is None:
            self._register()
            assert self._app is not None
            number = self._superlink.start(self._app, self._config)
            self._tell(f"started run {number} of Flower")
        try:
            status = self._follow(number, before)
        except KeyboardInterrupt:
            if number is not None:
                with suppress(DpcohortError):
                    self._superlink.stop(number)
            raise
        if (self.out / RESULT).exists():
            return
        stopped = status.get("stopped") if status != before else None
        if stopped is None:
            raise WaitingError.because("the server app ended without a word; it is started again.")
        kind = WaitingError if stopped["waits"] else InputError
        raise kind.because(stopped["words"])

    def _follow(self, number: int | None, before: dict[str, Any]) -> dict[str, Any]:
        """The status of the run when nobody executes it any more."""
        seen = number is None
        while True:
            executing = executed_by(self.out)
            status = read_status(self.out)
            if executing is not None:
                seen = True
                is_news = number is None or status != before
                self._tell(describe(status) if is_news else "starts")
            elif seen or status != before or (number and self._superlink.has_ended(number)):
                return status
            self._sleep(_LOOK)

    def _register(self) -> None:
        """Let in the nodes whose keys the federation names, and no other key of these clients."""
        keys, nodes = self._federation.fingerprints, self._superlink.nodes()
        for client, public in (self._federation.clients or {}).items():
            revoked = client in self._federation.revoked
            for key, (node, name) in nodes.items():
                if name == client and (revoked or key != keys[client]):
                    self._superlink.unregister(node)
                    self._say(f"an old or revoked key of {one_line(client)} is let in no more")
            if keys[client] not in nodes and not revoked:
                self._superlink.register(public, client)

    def _tell(self, words: str, **facts: Any) -> None:
        if words != self._said:
            status = read_status(self.out)
            facts = {
                "round": status.get("round"),
                "missing": list(status.get("missing", {})),
            } | facts
            self._say(LogLine(words, run=self._federation.run, **facts))
            self._said = words
