# SPDX-License-Identifier: Apache-2.0
"""Clients as points, size across and epsilon up, coloured by selection probability.

One panel a selection, side by side on one colour scale: the paper's selection figure is three of
them, two values of eta beside unbiased.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcohort._validate import FloatArray, IntArray
from dpcohort.clients import Population
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

__all__ = ["picture_format", "save_selection_figure", "selection_figure"]

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
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

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
    from dpcohort.atomic_file import atomic_writer

    kind = picture_format(path)
    with atomic_writer(path, binary=True) as file:
        selection_figure(population, panels).savefig(file, format=kind, dpi=160)


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
