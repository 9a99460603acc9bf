# SPDX-License-Identifier: Apache-2.0
"""Figures for papers, drawn from runs and plans: one style for all, readable in grey.

The selection figure shows clients as points, size across and epsilon up, coloured by probability:
one panel a selection, side by side on one colour scale. The paper's is three of them, two values of
eta beside unbiased.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from dpcohort._validate import FloatArray, IntArray
from dpcohort.atomic_file import atomic_writer
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.plan import Plan
from dpcohort.runs import Interval, Run, mean_interval

if TYPE_CHECKING:
    from dpcohort.tuning import Worth  # loads torch

#: Colours that stay apart with every common kind of colour blindness (Okabe and Ito, 2008).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

#: Beside the colour, so that a grey print can be read.
LINES = ("-", "--", "-.", ":")

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.framealpha": 0.9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.5,
    "pdf.fonttype": 42,  # text stays text, as publishers ask
    "ps.fonttype": 42,
    "svg.fonttype": "none",
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw in this style meanwhile; matplotlib's own settings are left as they were.

    Example:
        >>> import matplotlib
        >>> with paper_style():
        ...     matplotlib.rcParams["pdf.fonttype"]
        42
    """
    with matplotlib.rc_context({**_STYLE, "axes.prop_cycle": cycler(color=PALETTE)}):
        yield


@contextmanager
def one_panel(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure of this size in inches with one panel, drawn in the style of papers.

    Args:
        width: in inches.
        height: in inches.
    """

    class Picture(Figure):
        """Shows itself in a notebook, whatever backend is in use there."""

        def _repr_png_(self) -> bytes:
            content = BytesIO()
            self.savefig(content, format="png", dpi=120)
            return content.getvalue()

    with paper_style():
        figure = Picture(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots()


def log_scale(*axes: Axis) -> None:
    """Logarithmic axes with plain numbers at 1, 2 and 5 times a power of ten.

    Example:
        >>> from matplotlib.figure import Figure
        >>> axis = Figure().subplots()
        >>> log_scale(axis.xaxis)
        >>> axis.get_xscale()
        'log'
    """
    for axis in axes:
        across = axis is axis.axes.xaxis
        (axis.axes.set_xscale if across else axis.axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_formatter(NullFormatter())


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, PDF or SVG, by the ending of its name; the file is whole or absent.

    Raises:
        InputError: for another ending.
    """
    kind = picture_format(path)
    # Without the date the same figure is the same file.
    dated = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}[kind]
    with paper_style(), atomic_writer(path, binary=True) as file:
        figure.savefig(file, format=kind, dpi=200, metadata={dated: None})


def accuracy_band(runs: Sequence[Run]) -> tuple[IntArray, list[Interval]]:
    """Rounds at which all the runs were evaluated, and their main metric there.

    An accuracy is in per cent.

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
    scale = runs[0].metric.scale
    rows = [scale * curve.score[np.isin(curve.rounds, rounds)] for curve in curves]
    return rounds, [mean_interval(column.tolist()) for column in np.array(rows).T]


def accuracy_figure(groups: Mapping[str, Sequence[Run]]) -> Figure:
    """One line a group of runs that differ in their seed only, and a band if there are several.

    Args:
        groups: name of a group to its runs.

    Raises:
        InputError: there is no group, or one was never evaluated.
    """
    if not groups:
        raise InputError("groups", given={}, allowed="at least one group of runs")
    with one_panel(4.2, 3.0) as (figure, axis):
        for position, (name, runs) in enumerate(groups.items()):
            rounds, found = accuracy_band(runs)
            dots: Any = {"marker": "." if rounds.size < 30 else "", "markersize": 4}
            _draw_band(axis, name, position, rounds.tolist(), found, **dots)
        metric = next(iter(groups.values()))[0].metric
        percent = " (%)" if metric.is_share else ""
        axis.set(xlabel="round", ylabel=f"test {metric.words}{percent}")
        axis.set_ylim(bottom=0)
        axis.legend(loc="lower right")
    return figure


def _draw_band(
    axis: Axes, name: str, position: int, x: list[float], found: Sequence[Interval], **style: Any
) -> None:
    """A line through the means, and a band over their intervals where there are several seeds."""
    line = LINES[position % len(LINES)]
    (drawn,) = axis.plot(x, [point.mean for point in found], line, label=name, **style)
    if found[0].count > 1:
        ends = [point.low for point in found], [point.high for point in found]
        axis.fill_between(x, *ends, color=drawn.get_color(), alpha=0.18, linewidth=0)


def worth_figure(found: Worth) -> Figure:
    """Predicted accuracy against a common factor on all budgets, one line a kind of data set."""
    with one_panel(4.2, 3.0) as (figure, axis):
        log_scale(axis.xaxis)
        for position, name in enumerate(dict.fromkeys(found.sets)):
            shown = [
                replace(p, mean=100 * p.mean, low=100 * max(0, p.low), high=100 * min(1, p.high))
                for p in found.curve(name)
            ]
            _draw_band(axis, name, position, list(found.factors), shown, marker=".")
        words = "predicted loss saved (%)"
        axis.set(xlabel="factor on every epsilon", ylabel=words, ylim=(0, 100))
        axis.legend(loc="upper left")
    return figure


_FORMATS = ("png", "pdf", "svg")
#: Above this many clients a scatter is a blot; a sample shows the same picture.
_MOST_POINTS = 5_000


def selection_figure(
    population: Population,
    panels: Mapping[str, FloatArray],
    *,
    scale_name: str = "selection probability",
) -> Figure:
    """Draw one panel for each named vector of probabilities.

    Args:
        population: sizes and budgets of the clients.
        panels: title to probabilities, from left to right.
        scale_name: what the colours stand for.

    Example:
        >>> clients = Population.from_arrays(sizes=[100, 200], epsilon=[1, 2], delta=1e-5)
        >>> figure = selection_figure(clients, {"unbiased": clients.unbiased})
        >>> len(figure.axes)  # one panel and the colour bar
        2
    """
    shown = _shown_clients(len(population))
    # One client with half of all draws must not turn all others into one colour.
    most = np.quantile(np.concatenate([p[shown] for p in panels.values()]), 0.97)
    scale = Normalize(vmin=0, vmax=float(most) or 1.0)
    figure = Figure(figsize=(1.2 + 3.4 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for position, (axis, (title, p)) in enumerate(zip(axes, panels.items(), strict=True)):
        _draw_panel(axis, population, shown, p[shown], scale)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("records")
        if position == 0:
            axis.set_ylabel("privacy budget ε")
    bar = figure.colorbar(
        ScalarMappable(norm=scale, cmap="RdYlBu"), ax=list(axes), pad=0.01, extend="max"
    )
    bar.set_label(scale_name)
    return figure


def save_selection_figure(
    population: Population, panels: Mapping[str, FloatArray], path: str | Path
) -> None:
    """Draw the panels into a PNG, PDF or SVG file, by the ending of its name."""
    kind = picture_format(path)
    with atomic_writer(path, binary=True) as file:
        selection_figure(population, panels).savefig(file, format=kind, dpi=160)


def save_plan_figure(plan: Plan, path: str | Path) -> None:
    """Draw the probabilities of a plan beside those by size, into a PNG, PDF or SVG file.

    Raises:
        InputError: it has none, as its rule chooses each cohort during the training.
    """
    panels = {
        "unbiased": plan.population.unbiased,
        plan.rule: plan.participation.probabilities,
    }
    save_selection_figure(plan.population, panels, path)


def picture_format(path: str | Path) -> str:
    """The format of a picture by the ending of its name.

    Example:
        >>> picture_format("figure.PDF")
        'pdf'
    """
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in _FORMATS:
        raise InputError(
            "picture", given=str(path), allowed="a file name ending in .png, .pdf or .svg"
        )
    return kind


def _shown_clients(count: int) -> IntArray:
    if count <= _MOST_POINTS:
        return np.arange(count)
    return np.random.default_rng(0).choice(count, _MOST_POINTS, replace=False)


def _draw_panel(
    axis: Axes, population: Population, shown: IntArray, p: FloatArray, scale: Normalize
) -> None:
    size, epsilon = population.sizes[shown], population.epsilon[shown]
    public = population.public[shown]
    left_out = (p == 0) & ~public
    heard = ~left_out & ~public
    style: dict[str, Any] = {
        "cmap": "RdYlBu",
        "norm": scale,
        "edgecolors": "#333333",
        "linewidths": 0.4,
    }
    axis.scatter(size[heard], epsilon[heard], c=p[heard], s=34, **style)
    if left_out.any():
        axis.scatter(
            size[left_out], epsilon[left_out], marker="x", c="#777777", s=22, label="left out"
        )
    if public.any():
        # A public client has no epsilon: it stands at the top edge, whatever the scale.
        axis.scatter(
            size[public],
            np.full(int(public.sum()), 0.96),
            c=p[public],
            s=110,
            marker="*",
            transform=axis.get_xaxis_transform(),
            label="public",
            **style,
        )
    if left_out.any() or public.any():
        axis.legend(fontsize=7, loc="lower right", framealpha=0.8)
    axis.grid(alpha=0.25, linewidth=0.5)
