# SPDX-License-Identifier: Apache-2.0
"""Test accuracy over the rounds, one line a rule, with its confidence band over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.errors import InputError
from dpcohort.report.figures.style import LINES, paper_style
from dpcohort.runs.intervals import Interval, mean_interval
from dpcohort.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_band", "accuracy_figure"]


def accuracy_band(runs: Sequence[Run]) -> tuple[IntArray, list[Interval]]:
    """Rounds at which all the runs were evaluated, and the accuracy in per cent there.

    Raises:
        InputError: the runs have no evaluated round in common.
    """
    curves = [run.curve() for run in runs]
    common = set.intersection(*[set(curve.rounds.tolist()) for curve in curves])
    if not common:
        raise InputError.because(
            "these runs were never evaluated after the same round, so they have no common curve."
        )
    rounds = np.array(sorted(common), dtype=np.int64)
    rows = [100 * curve.accuracy[np.isin(curve.rounds, rounds)] for curve in curves]
    return rounds, [mean_interval(column.tolist()) for column in np.array(rows).T]


def accuracy_figure(groups: Mapping[str, Sequence[Run]]) -> Figure:
    """One line a group of runs that differ in their seed only, and a band if there are several.

    Args:
        groups: name of a group to its runs.

    Raises:
        InputError: there is no group, or one was never evaluated.
    """
    from matplotlib.figure import Figure

    if not groups:
        raise InputError("groups", given={}, allowed="at least one group of runs")
    with paper_style():
        figure = Figure(figsize=(4.2, 3.0), layout="constrained")
        axis = figure.subplots()
        for position, (name, runs) in enumerate(groups.items()):
            rounds, found = accuracy_band(runs)
            _draw(axis, name, LINES[position % len(LINES)], rounds, found)
        axis.set_xlabel("round")
        axis.set_ylabel("test accuracy (%)")
        axis.set_ylim(bottom=0)
        axis.legend(loc="lower right")
    return figure


def _draw(axis: Axes, name: str, line: str, rounds: IntArray, found: Sequence[Interval]) -> None:
    mean: FloatArray = np.array([interval.mean for interval in found])
    (drawn,) = axis.plot(
        rounds, mean, line, label=name, marker="." if rounds.size < 30 else "", markersize=4
    )
    if found[0].count > 1:
        low = np.array([interval.low for interval in found])
        high = np.array([interval.high for interval in found])
        axis.fill_between(rounds, low, high, color=drawn.get_color(), alpha=0.18, linewidth=0)
