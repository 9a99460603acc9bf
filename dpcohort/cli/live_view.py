# SPDX-License-Identifier: Apache-2.0
"""A training as one watches it: a live picture on a terminal, one line a round in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dpcohort.cli.output import console, sparkline

if TYPE_CHECKING:
    from dpcohort.runs.round_log import RoundLine
    from dpcohort.runs.run import Run

__all__ = ["TrainingView", "picture", "round_sentence", "watching"]

_BAR = 24
_TIGHTEST = 10
_COHORT = 8


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

    def on_round(self, record: RoundLine, run: Run) -> None:
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


def picture(title: str, record: RoundLine, run: Run, time_left: str = "") -> RenderableType:
    """A run after a round: how far it is, how good, who was heard, whose budget is used up."""
    done, total = run.rounds_done, run.plan.training.rounds
    head = Text()
    head.append(title, style="bold")
    told = f", {time_left}" if time_left else ""
    head.append(f"\n{_bar(done / total, _BAR * 2)} round {done}/{total}{told}\n")
    curve = run.curve()
    if curve.accuracy.size:
        best = f"{curve.accuracy[-1]:.1%}".replace("%", " %")
        head.append(f"accuracy {sparkline(curve.accuracy.tolist())} {best}", style="green")
    return Group(head, _cohort(record, run), _budgets(run))


def round_sentence(record: RoundLine, run: Run) -> str:
    """One round in one line, for a pipe or a log."""
    total = run.plan.training.rounds
    if record.lost:
        return f"round {record.round + 1}/{total}  lost in a crash; counted, not computed again"
    found = record.test_average or record.test
    accuracy = "" if found is None else f"  accuracy {100 * found.accuracy:.1f} %"
    low, high = min(record.noise_stds), max(record.noise_stds)
    names = [run.plan.population.ids[client] for client in record.clients]
    shown = ", ".join(names[:_COHORT]) + (", ..." if len(names) > _COHORT else "")
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


def _cohort(record: RoundLine, run: Run) -> Table:
    table = Table.grid(padding=(0, 1))
    worst = max(record.noise_stds) or 1.0
    pairs = sorted(zip(record.noise_stds, record.clients, strict=True))
    for std, client in pairs[:_COHORT]:
        epsilon = run.plan.population.epsilon[client]
        budget = "public" if epsilon != epsilon else f"ε {epsilon:.3g}"
        name = Text(run.plan.population.ids[client])
        table.add_row("  heard", name, budget, f"noise {std:.3g}", _bar(std / worst, _BAR))
    if len(pairs) > _COHORT:
        table.add_row("", f"and {len(pairs) - _COHORT} more")
    return table


def _budgets(run: Run) -> Table:
    """How many of their planned draws the strictest clients have used."""
    plan, draws = run.plan, run.ledger.draws
    table = Table.grid(padding=(0, 1))
    held = np.flatnonzero(plan.drawn & ~plan.population.public)
    share_used = draws[held] / plan.schedule.counts[held]
    order = np.lexsort((plan.population.epsilon[held], -share_used))
    for k in held[order[:_TIGHTEST]].tolist():
        used, planned = int(draws[k]), int(plan.schedule.counts[k])
        share = used / planned
        style = "red" if share >= 1 else "yellow" if share > 0.8 else ""
        table.add_row(
            " budget",
            Text(plan.population.ids[k]),
            f"ε {plan.population.epsilon[k]:.3g}",
            f"{used}/{planned} draws",
            Text(_bar(share, _BAR), style=style),
        )
    return table


def _bar(share: float, width: int) -> str:
    """A bar that is filled to a share of its width.

    Example:
        >>> _bar(0.5, 4)
        '██░░'
    """
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)
