# SPDX-License-Identifier: Apache-2.0
"""``dpcohort watch``: look at a run from another shell, while it trains or afterwards."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.text import Text

from dpcohort.cli.live_view import picture, round_sentence
from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import JsonOption
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from dpcohort.runs.run import Run

__all__ = ["command"]

_QUIET_SECONDS = 60.0  # without a new round it says so


def command(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Say how it stands and end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch a run; it ends with the run, or with Ctrl-C, and never touches the run's files."""
    if once or as_json:
        _tell(_load(path), as_json=as_json)
        return
    try:
        if console.is_terminal:
            _watch_live(path, interval)
        else:
            _watch_lines(path, interval)
    except KeyboardInterrupt:
        console.print("Stopped watching; the run goes on by itself.", markup=False)


def _load(path: Path) -> Run:
    from dpcohort.runs.run import Run

    return Run.load(path)


def _states(path: Path, interval: float) -> Iterator[tuple[Run, float]]:
    """The run each time it was looked at, and the seconds since its last round."""
    seen, since = -1, time.monotonic()
    while True:
        run = _load(path)
        if run.rounds_done != seen:
            seen, since = run.rounds_done, time.monotonic()
        yield run, time.monotonic() - since
        if run.is_finished:
            return
        time.sleep(interval)


def _watch_live(path: Path, interval: float) -> None:
    with Live(Text(str(path)), console=console, refresh_per_second=4, transient=True) as live:
        for run, quiet in _states(path, interval):
            if run.history:
                live.update(picture(_title(run), run.history[-1], run, _time_left(run, quiet)))
    _tell(run, as_json=False)


def _watch_lines(path: Path, interval: float) -> None:
    told, warned = 0, False
    for run, quiet in _states(path, interval):
        for line in run.history[told:]:
            console.print(round_sentence(line, run), markup=False, soft_wrap=True)
        told, warned = run.rounds_done, warned and run.rounds_done == told
        if quiet > _QUIET_SECONDS and not warned:
            warned = True
            console.print(_quiet_words(quiet), markup=False)
    _tell(run, as_json=False)


def _title(run: Run) -> str:
    model, data = run.settings.get("model"), run.settings.get("data")
    name = data.get("name", "its data") if isinstance(data, dict) else "its data"
    trained = model.get("name", "a model") if isinstance(model, dict) else model or "a model"
    return f"{run.settings.get('label') or run.plan.selection.rule}: {trained} on {name}"


def _time_left(run: Run, quiet: float) -> str:
    if quiet > _QUIET_SECONDS:
        return _quiet_words(quiet)
    seconds = [line.seconds for line in run.history if math.isfinite(line.seconds)]
    if not seconds or run.is_finished:
        return ""
    recent = seconds[-20:]
    left = sum(recent) / len(recent) * (run.plan.training.rounds - run.rounds_done)
    return f"{left:.0f} s left"


def _quiet_words(quiet: float) -> str:
    return f"no new round for {quiet:.0f} s; is the training still running?"


def _tell(run: Run, *, as_json: bool) -> None:
    accuracy = _accuracy(run)
    total = run.plan.training.rounds
    if as_json:
        print_json(
            {
                "run": str(run.path),
                "rounds_done": run.rounds_done,
                "rounds": total,
                "finished": run.is_finished,
                "test_accuracy": accuracy,
                "private": run.is_private,
            }
        )
        return
    state = "finished" if run.is_finished else "not finished"
    found = "" if accuracy is None else f", test accuracy {100 * accuracy:.1f} %"
    console.print(f"{_title(run)}: {state}, round {run.rounds_done}/{total}{found}.", markup=False)
    step = "verify" if run.is_finished else "train CONFIG --resume --out"
    console.print(f"Next: dpcohort {step} {run.path}", markup=False, soft_wrap=True)


def _accuracy(run: Run) -> float | None:
    try:
        found = run.test_accuracy
    except InputError:  # not evaluated yet
        return None
    return found if math.isfinite(found) else None
