# SPDX-License-Identifier: Apache-2.0
"""A whole federation on one machine, each part a process of its own: for the demo and for tests.

SuperLink, nodes and guards are started as a kit's units would start them, with TLS and
authentication, on free ports of the loopback address. Guards run as the same user here, which a
real client's owner would not do.

Each process has its output in a file, so that a failure can be read afterwards. It and what it
starts in turn, in whatever group or session, are known by a word in their environment that no other
process has, and are ended together.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.accounting import Contract
from dpcohort.clients import Population
from dpcohort.data import Dataset, Partition, load_dataset, paper_partition
from dpcohort.deploy.flower._adapter import FLOWER_VERSION, QUIET
from dpcohort.deploy.flower._federation import drawn_clients
from dpcohort.deploy.flower._kit import client_folder, write_kit
from dpcohort.deploy.guard._files import write_secret
from dpcohort.deploy.guard._terms import ModelTerms
from dpcohort.deploy.ledger import read_state
from dpcohort.errors import DpcohortError, InputError, VerificationError
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan, make_plan
from dpcohort.runs import verify_run
from dpcohort.runs._folder import read_json, read_log
from dpcohort.runs._success import check_of
from dpcohort.training import Training

_PATIENCE = 5.0
_MARK = "DPCOHORT_PROCESSES"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now.

    Example:
        >>> len(set(free_ports(3)))
        3
    """
    found = []
    with contextlib.ExitStack() as stack:
        # All are held until all are found, so that none comes twice.
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found.append(int(listener.getsockname()[1]))
    return found


class Processes(contextlib.AbstractContextManager["Processes"]):
    """Processes by name; leaving the block ends them and all that they started (on Linux).

    Args:
        logs: folder for their output, one file each.

    Example:
        >>> import sys, tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        ...     processes.start("one", [sys.executable, "-c", "print('here')"])
        ...     processes.wait("one", seconds=30)
        ...     processes.tail("one")
        0
        'here'
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._token = secrets.token_hex(16)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> None:
        """Start a process; one of the same name must have ended.

        Raises:
            InputError: the program is not there.
        """
        if self.is_running(name):
            raise InputError("name", given=name, allowed="one that is not running")
        self._logs.mkdir(parents=True, exist_ok=True)
        with open(self._logs / f"{name}.log", "ab") as log:
            try:
                self._running[name] = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(env or {}), _MARK: self._token},
                    start_new_session=True,
                )
            except OSError as error:
                raise InputError.because(
                    f"{command[0]} cannot be started: {error.strerror or error}."
                ) from None

    def pid(self, name: str) -> int:
        """The number of a process."""
        return self._running[name].pid

    def is_running(self, name: str) -> bool:
        """Whether it has not ended; asking also takes it off the system's list when it has."""
        return name in self._running and self._running[name].poll() is None

    def wait(self, name: str, *, seconds: float) -> int | None:
        """The exit code of a process, or None if it is still running after so long."""
        try:
            return self._running[name].wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self, name: str) -> None:
        """End a process alone, without warning; what it started is left behind (a crash)."""
        process = self._running[name]
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()

    def close(self) -> None:
        """End them all, and what they started: asked first, made to after a few seconds."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _PATIENCE
            asked: set[int] = set()
            while (left := self.descendants()) and time.monotonic() < deadline:
                for pid in left - asked:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
                asked |= left
                time.sleep(0.02)
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def await_port(self, name: str, port: int, *, seconds: float) -> None:
        """Wait until a process listens on a port of the loopback address.

        Raises:
            DpcohortError: it ended, or does not listen after so long; with its last words.
        """
        self.await_that(name, lambda: _listens(port), f"listen on port {port}", seconds=seconds)

    def await_that(
        self, name: str, happened: Callable[[], bool], words: str, *, seconds: float
    ) -> None:
        """Wait until something has happened that a process was started for.

        Raises:
            DpcohortError: it ended, or nothing happened after so long; with its last words.
        """
        deadline = time.monotonic() + seconds
        while not happened():
            if not self.is_running(name):
                raise DpcohortError(f"{name} ended before it could {words}:\n{self.tail(name)}")
            if time.monotonic() > deadline:
                raise DpcohortError(
                    f"{name} did not {words} within {seconds:g} s:\n{self.tail(name)}"
                )
            time.sleep(0.1)

    def tail(self, name: str, *, lines: int = 12) -> str:
        """The last words of a process."""
        try:
            text = (self._logs / f"{name}.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-lines:])

    def descendants(self) -> set[int]:
        """All processes alive that we started, and all that those started."""
        mark = f"{_MARK}={self._token}".encode()
        found = set()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
        return found


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


_START = 90.0
_DPCOHORT = (sys.executable, "-m", "dpcohort")
Records = tuple[NDArray[Any], NDArray[np.int64]]


def write_client_data(kit: Path, records: Mapping[str, Records]) -> None:
    """Put each client's records where its guard looks for them, readable by the owner alone."""
    for client, (inputs, labels) in records.items():
        content = BytesIO()
        np.savez(content, inputs=inputs, labels=labels)
        write_secret(client_folder(kit, client) / "data.npz", content.getvalue())


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The processes of a federation.

    Attributes:
        kit: what they are started from.
        processes: where they run.
        sockets: where each client's guard listens, in the plan's order; paths must be short.
        superlink_port: as in the kit.
    """

    kit: Path
    processes: Processes
    sockets: Mapping[str, Path]
    superlink_port: int

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients, in the plan's order."""
        return tuple(self.sockets)

    def start_superlink(self) -> None:
        """Start the SuperLink; return when it listens."""
        tls = self.kit / "server" / "tls"
        self.start("superlink", [
            program("flower-superlink"), "--host", "127.0.0.1", "--port", self.superlink_port,
            "--database", self.kit / "server" / "state.db",
            "--disable-runtime-dependency-installation", "--enable-supernode-auth",
            "--ssl-ca-certfile", tls / "ca.crt", "--ssl-certfile", tls / "server.pem",
            "--ssl-keyfile", tls / "server.key",
        ])  # fmt: skip
        self.processes.await_port("superlink", self.superlink_port, seconds=_START)

    def start_guard(self, client: str, *, new_ledger: bool = False) -> None:
        """Start a client's guard, without waiting for it; the first time with a new ledger."""
        folder = client_folder(self.kit, client)
        self.sockets[client].unlink(missing_ok=True)
        self.start(self.named("guard", client), [
            *_DPCOHORT, "guard", "--terms", folder / "terms.toml", "--data", folder / "data.npz",
            "--ledger", folder / "client.ledger", "--socket", self.sockets[client],
            *(["--new-ledger"] if new_ledger else []),
        ])  # fmt: skip

    def start_node(self, client: str) -> None:
        """Start a client's node."""
        folder = client_folder(self.kit, client)
        self.start(self.named("node", client), [
            *_DPCOHORT, "flower", "node", "--superlink", f"127.0.0.1:{self.superlink_port}",
            "--authority", folder / "ca.crt", "--key", folder / "node.key",
            "--guard", self.sockets[client],
        ], home=folder / "flwr")  # fmt: skip

    def start_run(self, out: Path) -> None:
        """Start the service that executes the run, and goes on with it whatever dies."""
        federation = self.kit / "server" / "federation.toml"
        command = [*_DPCOHORT, "flower", "serve", federation, "--out", out.resolve()]
        self.start("run", [*command, "--superlink", f"127.0.0.1:{self.superlink_port}"])

    def await_run(
        self, out: Path, *, seconds: float, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for the run to be finished.

        Args:
            out: the run folder.
            seconds: how long at most.
            meanwhile: called now and then, and once at the end.

        Raises:
            DpcohortError: it failed, or takes longer; with the server's last words.
        """
        deadline = time.monotonic() + seconds
        while not (out / "result.json").exists():
            meanwhile()
            if not self.processes.is_running("run"):
                raise DpcohortError(f"the run failed.\n{self.processes.tail('run')}")
            if not self.processes.is_running("superlink"):
                raise DpcohortError(f"the SuperLink ended:\n{self.processes.tail('superlink')}")
            if time.monotonic() > deadline:
                raise DpcohortError(
                    f"the run did not finish within {seconds:g} s.\n{self.processes.tail('run')}"
                )
            time.sleep(0.2)
        meanwhile()

    def named(self, part: str, client: str) -> str:
        """What a process of a client is called."""
        return f"{part}-{self.clients.index(client)}"

    def start(self, name: str, command: Sequence[object], *, home: Path | None = None) -> None:
        """Start a process, with a home of Flower's that is the server's if it is not given."""
        if home is not None:
            home.mkdir(exist_ok=True)
        environment = {
            **QUIET,
            "FLWR_HOME": str(home or self.kit / "server" / "flwr"),
            # Flower starts its own programs by name.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.processes.start(name, list(map(str, command)), env=environment)


def program(name: str) -> str:
    """Where one of Flower's programs is.

    Raises:
        InputError: it is not there.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError.because(
            f"Flower's program {name} is not there. "
            'Get it with: python -m pip install "dpcohort[flower]"'
        )
    return found


#: Name and epsilon of each client; all have the same delta.
DEMO_CLIENTS = {"north": 2.0, "east": 4.0, "south": 8.0}
_SEED = 5
_RUN = "demo"
#: One client after the other starts its programs, so that a small machine keeps up.
_SAY = Callable[[str], None]


def demo_settings(
    *,
    rounds: int = 3,
    superlink_port: int = 8000,
    timeout: float = 120.0,
    distributed: int = 0,
) -> tuple[dict[str, Any], dict[str, Records]]:
    """What the demo's kit is made from, and each client's records: a third of the digits each.

    Args:
        rounds: how many.
        superlink_port: where the SuperLink listens.
        timeout: seconds for an exchange.
        distributed: not 0: so many clients, with budgets as those of the three, who pool their
            noise and are in every cohort; one may collude with the server if there are more than
            three, and one in five may vanish.

    Example:
        >>> settings, records = demo_settings(rounds=2)
        >>> sorted(records), settings["plan"].training.rounds
        (['east', 'north', 'south'], 2)
    """
    data = load_dataset("digits")
    budgets = list(DEMO_CLIENTS.values())
    names = list(DEMO_CLIENTS)
    if distributed > len(names):
        names += [f"client-{i}" for i in range(len(names) + 1, distributed + 1)]
    sizes = np.full(len(names), len(data) // len(names))
    population = Population.from_arrays(
        ids=names,
        sizes=sizes,
        epsilon=[budgets[i % len(budgets)] for i in range(len(names))],
        delta=1e-5,
    )
    training = Training(
        rounds=rounds,
        cohort_size=len(names) if distributed else 4,
        local_steps=1 if distributed else 4,
        sampling_rate=0.25,
        clip=1.0,
        dimension=650,
    )
    contract = Contract()
    if distributed:
        colluding, dropouts = int(len(names) > 3), len(names) // 5
        contract = Contract(trust="distributed", colluding=colluding, dropouts=dropouts)
    plan = make_plan(population, training, seed=_SEED, accountant=contract)
    settings = {
        "plan": plan,
        "model": ModelTerms(name="logistic", input_shape=data.input_shape, classes=data.classes),
        "run": _RUN,
        "optimiser": {"learning_rate": 2.0},
        "normalisation": data.normalisation,
        "test": "digits",
        "superlink_port": superlink_port,
        "timeout": timeout,
        "trial": True,
    }
    return settings, demo_records(plan, data)


def demo_partition(plan: Plan, data: Dataset) -> Partition:
    """Who holds which records: shared out at random, the same in every run of the demo."""
    rng = np.random.default_rng([_SEED, 1])
    return paper_partition(data.train_labels, sizes=plan.population.sizes, rng=rng)


def demo_records(plan: Plan, data: Dataset) -> dict[str, Records]:
    """The records of each client of a plan."""
    partition = demo_partition(plan, data)
    return {
        client: (data.train_inputs[partition.client(k)], data.train_labels[partition.client(k)])
        for k, client in enumerate(plan.population.ids)
    }


@contextlib.contextmanager
def trial(
    settings: Mapping[str, Any], records: Mapping[str, Records], folder: Path
) -> Iterator[Trial]:
    """A kit written and its processes ready to be started; all of them end with the block.

    Args:
        settings: what ``write_kit`` takes, with free ports.
        records: of each client.
        folder: where the kit and the logs go; its path must be short.
    """
    kit = write_kit(folder / "kit", **settings)
    write_client_data(kit, records)
    sockets = folder / "sockets"
    sockets.mkdir(mode=0o755)
    clients = drawn_clients(settings["plan"])
    with Processes(folder / "logs") as processes:
        yield Trial(
            kit=kit,
            processes=processes,
            sockets={client: sockets / f"{i}.sock" for i, client in enumerate(clients)},
            superlink_port=settings["superlink_port"],
        )


def start_all(
    federation: Trial, say: _SAY, start_node: Callable[[Trial, str], None] = Trial.start_node
) -> None:
    """Start guards, SuperLink and nodes, in the order in which they need each other.

    Args:
        federation: whose.
        say: told how far it is.
        start_node: starts the node of a client.
    """
    for client in federation.clients:
        federation.start_guard(client, new_ledger=True)
    federation.start_superlink()
    say(f"SuperLink on 127.0.0.1:{federation.superlink_port}")
    for client, place in federation.sockets.items():
        name = federation.named("guard", client)
        federation.processes.await_that(
            name, place.is_socket, "listen on its socket", seconds=_START
        )
        start_node(federation, client)
    many = len(federation.clients)
    say(f"{many} guards listen; {many} nodes start, with TLS and their own keys")


def run_demo(
    out: Path,
    *,
    rounds: int = 3,
    say: _SAY = lambda words: None,
    keep: Path | None = None,
    distributed: bool = False,
) -> dict[str, Any]:
    """Run the demo; nothing it started is left when it returns or fails.

    Args:
        out: the run folder.
        rounds: how many.
        say: told how far it is, a line at a time.
        keep: where to keep kit and logs; otherwise they go when all is well.
        distributed: pool the clients' noise: the server sees masked sums only.

    Returns:
        The run folder, the test accuracy after the last round, the model beside the best constant
        in words, each client's draws (planned, and
        counted by its own ledger), the verification of the run, and how long it took.

    Raises:
        InputError: no Flower, or the folder is in use.
        DpcohortError: something failed; logs are kept and named.
    """
    began = time.monotonic()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError.because(f"{out} exists and is not empty. Choose another --out.")
    (port,) = free_ports(1)
    settings, records = demo_settings(
        rounds=rounds, superlink_port=port, distributed=3 if distributed else 0
    )
    plan = settings["plan"]
    say(
        f"plan for {len(plan.population)} clients, {rounds} rounds of {plan.training.cohort_size} "
        f"draws (Flower {FLOWER_VERSION})"
    )
    for sentence in plan.noise.assumptions(plan.contract, plan.training.cohort_size):
        say(sentence)
    told: list[Any] = []

    def tell() -> None:
        """Of the rounds that the server has written down since."""
        with contextlib.suppress(Exception):
            for entry in read_log(out / "rounds.jsonl")[len(told) :]:
                accuracy = 100 * entry["test"]["accuracy"]
                say(f"round {entry['round'] + 1} of {rounds}: test accuracy {accuracy:.1f} %")
                told.append(entry)

    folder = Path(tempfile.mkdtemp(prefix="dpcohort-"))
    try:
        with trial(settings, records, folder) as federation:
            start_all(federation, say)
            federation.start_run(out)
            say("run started; every guard is asked for its owner's terms before the first draw")
            federation.await_run(out, seconds=120 + 60 * rounds, meanwhile=tell)
            counted = _counted(federation, out, plan)
    except BaseException:
        say(f"kit and logs are kept in {folder}")
        raise
    verification = verify_run(out)
    if keep is not None:
        shutil.move(folder, keep)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if not verification.holds:
        found = "; ".join(f.message for f in verification.findings if f.kind != "note")
        raise VerificationError(f"the run does not verify: {found}")
    result = read_json(out / "result.json")
    check = check_of(result)
    return {
        "out": str(out),
        "accuracy": float(result["test"]["accuracy"]),
        "check": "" if check is None else check.sentence,
        "draws": counted,
        "verification": verification.to_dict(),
        "seconds": time.monotonic() - began,
    }


def _counted(federation: Trial, out: Path, plan: Plan) -> dict[str, dict[str, int]]:
    """Draws planned, and counted by each client's own ledger."""
    found = {}
    told = read_json(out / "client-ledgers.json")
    for client in federation.clients:
        planned = int(plan.counts[plan.population.index_of(client)])
        state = read_state(client_folder(federation.kit, client) / "client.ledger")
        accounts = next(iter(state.accounts.values()))
        counted, said = len(accounts[_RUN].draws), told[client]["spending"]
        unmasked = said.get("pool", {}).get("unmasked", 0)
        if (said["counted_draws"], unmasked) != (counted, len(accounts[_RUN].unmasked)):
            raise VerificationError(
                f"{one_line(client)}: the server was told another count than its ledger's."
            )
        found[client] = {"planned": planned, "counted": counted}
    return found
