# SPDX-License-Identifier: Apache-2.0
"""A training as one watches it: a live picture on a terminal, one line a round in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dpcohort.cli.output import console, sparkline
from dpcohort.plain_text import one_line

if TYPE_CHECKING:
    from dpcohort.round_record import RoundRecord
    from dpcohort.runs.run import Run

__all__ = ["TrainingView", "picture", "round_sentence", "watching"]

_BAR = 24
_TIGHTEST = 10
_COHORT = 8
_NAME = 30


class TrainingView:
    """Shows every round; a callback of ``train``.

    Args:
        title: what is trained.
        live: the picture to update; None prints lines.
        screen: where lines go.
    """

    def __init__(self, title: str, live: Live | None = None, screen: Console = console) -> None:
        self._title, self._live, self._screen = title, live, screen
        self._began, self._first = time.monotonic(), 0

    def on_round(self, record: RoundRecord, run: Run) -> None:
        """Show a round."""
        if self._first == 0:
            self._first = run.rounds_done
        if self._live is None:
            self._screen.print(round_sentence(record, run), markup=False, soft_wrap=True)
        else:
            fresh = max(1, run.rounds_done - self._first + 1)
            pace = (time.monotonic() - self._began) / fresh
            left = pace * (run.plan.training.rounds - run.rounds_done)
            self._live.update(picture(self._title, record, run, f"{left:.0f} s left"))


def picture(title: str, record: RoundRecord, run: Run, time_left: str = "") -> RenderableType:
    """A run after a round: how far it is, how good, who was heard, whose budget is used up."""
    done, total = run.rounds_done, run.plan.training.rounds
    told = f", {time_left}" if time_left else ""
    progress = Table.grid(padding=(0, 1))
    progress.add_column()
    progress.add_column(no_wrap=True)
    progress.add_row(_Bar(done / total, _BAR * 2), f"round {done}/{total}{told}")
    parts: list[RenderableType] = [Text(title, style="bold"), progress]
    curve = run.curve()
    if curve.accuracy.size:
        best = f"{curve.accuracy[-1]:.1%}".replace("%", " %")
        line = f"accuracy {sparkline(curve.accuracy.tolist())} {best}"
        parts.append(Text(line, style="green"))
    return Group(*parts, _cohort(record, run), _budgets(run))


def round_sentence(record: RoundRecord, run: Run) -> str:
    """One round in one line, for a pipe or a log."""
    total = run.plan.training.rounds
    if record.lost:
        return f"round {record.round + 1}/{total}  lost in a crash; counted, not computed again"
    found = record.test_average or record.test
    accuracy = "" if found is None else f"  accuracy {100 * found.accuracy:.1f} %"
    low, high = min(record.noise_stds), max(record.noise_stds)
    names = [run.plan.population.ids[client] for client in record.clients]
    shown = ", ".join(map(one_line, names[:_COHORT])) + (", ..." if len(names) > _COHORT else "")
    return f"round {record.round + 1}/{total}{accuracy}  noise {low:.3g} to {high:.3g}  {shown}"


@contextmanager
def watching(title: str, *, quiet: bool = False) -> Iterator[list[TrainingView]]:
    """Callbacks that show a training; none where only the result is wanted."""
    if quiet:
        yield []
    elif console.is_terminal:
        with Live(Text(title), console=console, refresh_per_second=8, transient=True) as live:
            yield [TrainingView(title, live)]
    else:
        yield [TrainingView(title)]


def _rows() -> Table:
    """Rows of one line each: on a narrow screen first the bars become short, then the names."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, max_width=_NAME)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    return table


def _cohort(record: RoundRecord, run: Run) -> Table:
    table = _rows()
    worst = max(record.noise_stds) or 1.0
    pairs = sorted(zip(record.noise_stds, record.clients, strict=True))
    for std, client in pairs[:_COHORT]:
        epsilon = run.plan.population.epsilon[client]
        budget = "public" if epsilon != epsilon else f"ε {epsilon:.3g}"
        name = Text(one_line(run.plan.population.ids[client]))
        table.add_row("  heard", name, budget, f"noise {std:.3g}", _Bar(std / worst))
    if len(pairs) > _COHORT:
        table.add_row("", f"and {len(pairs) - _COHORT} more")
    return table


def _budgets(run: Run) -> Table:
    """How many of their planned draws the strictest clients have used."""
    plan, draws = run.plan, run.ledger.draws
    table = _rows()
    held = np.flatnonzero(plan.drawn & ~plan.population.public)
    share_used = draws[held] / plan.schedule.counts[held]
    order = np.lexsort((plan.population.epsilon[held], -share_used))
    for k in held[order[:_TIGHTEST]].tolist():
        used, planned = int(draws[k]), int(plan.schedule.counts[k])
        share = used / planned
        style = "red" if share >= 1 else "yellow" if share > 0.8 else ""
        table.add_row(
            " budget",
            Text(one_line(plan.population.ids[k])),
            f"ε {plan.population.epsilon[k]:.3g}",
            f"{used}/{planned} draws",
            _Bar(share, style=style),
        )
    return table


class _Bar:
    """A bar that takes the room there is, up to its width."""

    def __init__(self, share: float, width: int = _BAR, *, style: str = "") -> None:
        self.share, self.width, self.style = share, width, style

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(_bar(self.share, min(self.width, options.max_width)), style=self.style)

    def __rich_measure__(self, screen: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(self.width, options.max_width))


def _bar(share: float, width: int) -> str:
    """A bar that is filled to a share of its width.

    Example:
        >>> _bar(0.5, 4)
        '██░░'
    """
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)
