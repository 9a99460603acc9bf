# SPDX-License-Identifier: Apache-2.0
"""The two Flower apps, ready made: the modules of a kit's app are a line each that calls these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpcohort.deploy.flower._adapter import FlowerGrid, make_client_app, make_server_app
from dpcohort.deploy.flower._federation import Federation
from dpcohort.deploy.flower.client_app import carry
from dpcohort.errors import DpcohortError, InputError
from dpcohort.limits import exhausted
from dpcohort.plain_text import visible
from dpcohort.round_record import RoundRecord
from dpcohort.runs import Run
from dpcohort.runs._paid_evaluation import in_words
from dpcohort.runs._status import Status


def server_app() -> Any:
    """The ServerApp; its run-config names the federation.

    ``federation`` is the path of ``federation.toml``, ``out`` the run folder (the federation's own
    if empty), ``resume`` goes on with the run there, ``after`` names the run that a plan of
    ``dpcohort replan`` goes on from, ``guards`` is for a simulation (see
    :mod:`dpcohort.deploy.flower.client_app`).
    """
    return make_server_app(serve)


def client_app() -> Any:
    """The ClientApp: a client app between the server's messages and the client's guard."""
    return make_client_app(carry)


def serve(grid: Any, run_config: Mapping[str, Any]) -> None:
    """Execute the federation that a run-config names, over Flower's grid.

    Raises:
        DpcohortError: it cannot be executed; Flower then shows the run as failed.
    """
    try:
        run = _federated(grid, run_config)
    except (DpcohortError, MemoryError, RecursionError) as error:
        raise told(error) from None
    for words in run.warnings:
        print(f"note: {visible(words)}", flush=True)
    for words in run.judged.get("warnings", []):
        print(f"WARNING: {visible(words)}", flush=True)
    for name, metric in in_words((run.evaluation or {}).get("in_all", {})).items():
        print(f"dpcohort: {name} {metric}, paid for by the clients", flush=True)
    check = run.check
    found = "" if check is None else f" {visible(check.sentence)}."
    last = f"dpcohort: finished, {run.rounds_done} rounds.{found} dpcohort verify {run.path}"
    print(last, flush=True)


def told(error: Exception) -> Exception:
    """Say an error in the server's log, and give back what Flower is to show of it."""
    words = exhausted(error)
    shown = error if words is None else InputError.because(words)
    print(f"error: {visible(str(shown))}", flush=True)
    # Flower prints where an error came from; where in here is no news to an operator.
    return shown.with_traceback(None)


def _federated(grid: Any, run_config: Mapping[str, Any]) -> Run:
    from dpcohort.deploy.flower._rounds import federate  # loads torch, and clients have this module

    path = str(run_config.get("federation", ""))
    if not path:
        raise InputError("federation", given=path, allowed="the path of federation.toml")
    federation = Federation.load(path)
    out = str(run_config.get("out", "")) or federation.out
    if not out:
        raise InputError("out", given=out, allowed="the run folder to write")
    # A path in a file starts from the file's own folder.
    folder = Path(path).parent / out
    by_key = not str(run_config.get("guards", ""))
    after = str(run_config.get("after", ""))
    with Status(folder, rounds=federation.plan.training.rounds) as status:
        return federate(
            federation,
            FlowerGrid(grid, by_key=by_key),
            out=folder,
            resume=bool(run_config.get("resume", False)),
            callbacks=(RoundPrinter(),),
            by_place=not by_key,
            after=Path(path).parent / after if after else None,
            tell=status.asks,
        )


class RoundPrinter:
    """One line a round in the server's log.

    Args:
        more: what else to say after so many rounds.
    """

    def __init__(self, more: Callable[[int], str] = lambda done: "") -> None:
        self._more = more

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Say how far it is."""
        test = record.test_average or record.test
        shown = "" if test is None else f", test {run.metric.words} {run.metric.text(test.score)}"
        over = " (passed over: too few answers)" if record.lost else ""
        total, more = run.plan.training.rounds, visible(self._more(record.round + 1))
        print(f"dpcohort: round {record.round + 1} of {total}{shown}{over}{more}", flush=True)
