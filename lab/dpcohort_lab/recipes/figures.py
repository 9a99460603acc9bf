# SPDX-License-Identifier: Apache-2.0
"""Results drawn in the paper's form: curves in panels, lines over an axis, or bars."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcohort.atomic_file import atomic_writer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"privacy-aware": "#1b6ca8", "unbiased": "#c8553d", "importance-compensated": "#d9a441"}
_OTHERS = (
    *("#6b8f71", "#7a5c9e", "#888888", "#444444", "#b07aa1", "#59a14f", "#e377c2", "#17becf"),
    *("#8c564b", "#bcbd22", "#4e79a7", "#f28e2b", "#e15759", "#76b7b2"),
)
_MARKERS = "osD^vP*X"
#: A legend of more mechanisms does not fit below the bars and stands beside them.
_MOST_BELOW = 5
#: Of a title, as many as surely fit.
_LETTERS_PER_INCH = 12


def result_figure(result: Mapping[str, Any], *, kind: str, across: str | None = None) -> Figure:
    """Draw the result of a recipe.

    Args:
        result: what its file holds.
        kind: ``curves`` (accuracy over rounds, one panel for each value of ``across``), ``lines``
            (accuracy over ``across``) or ``bars`` (cells beside the paper's numbers).
        across: the axis that makes panels or the horizontal axis.
    """
    from matplotlib.figure import Figure

    cells: Sequence[Mapping[str, Any]] = result["cells"]
    if kind == "curves":
        figure = _curves(Figure, cells, across)
    else:
        many = len({cell["mechanism"] for cell in cells}) > _MOST_BELOW
        figure = Figure(figsize=(9.6 if many else 6.4, 4.0), layout="constrained")
        axis = figure.subplots()
        if kind == "lines" and across is not None:
            _lines(axis, cells, across)
        else:
            _bars(axis, cells)
        axis.set_ylabel("test accuracy in %")
    lines = [result["title"]]
    if result["form"] != "full":
        lines.append(result["warning"])
    width = int(_LETTERS_PER_INCH * figure.get_figwidth())
    figure.suptitle("\n".join(textwrap.fill(line, width) for line in lines), fontsize=10)
    return figure


def save_result_figure(
    result: Mapping[str, Any], folder: Path, stem: str, *, kind: str, across: str | None = None
) -> list[Path]:
    """Draw the result into ``stem``.png and ``stem``.pdf."""
    figure = result_figure(result, kind=kind, across=across)
    paths = [folder / f"{stem}.png", folder / f"{stem}.pdf"]
    for path in paths:
        # Without dates the same result gives the same file.
        dates: dict[str, Any] = {"CreationDate": None} if path.suffix == ".pdf" else {}
        with atomic_writer(path, binary=True) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=130, metadata=dates or None)
    return paths


def _colour(name: str, position: int) -> str:
    return _COLOURS.get(name, _OTHERS[position % len(_OTHERS)])


def _series(cells: Sequence[Mapping[str, Any]], leave_out: str | None) -> dict[str, list[Any]]:
    """Cells by what distinguishes them besides one axis."""
    groups: dict[str, list[Any]] = {}
    for cell in cells:
        rest = [f"{k} = {v}" for k, v in cell["axes"].items() if k != leave_out]
        groups.setdefault(", ".join([cell["mechanism"], *rest]), []).append(cell)
    return groups


def _curves(kind: type[Figure], cells: Sequence[Mapping[str, Any]], across: str | None) -> Figure:
    values = list(dict.fromkeys(c["axes"].get(across) for c in cells)) if across else [None]
    columns = min(2, len(values))
    rows = -(-len(values) // columns)
    figure = kind(figsize=(1 + 4.0 * columns, 1 + 2.7 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axis in axes[len(values) :]:
        axis.set_axis_off()
    for axis, value in zip(axes, values, strict=False):
        shown = [c for c in cells if across is None or c["axes"].get(across) == value]
        for position, (name, group) in enumerate(_series(shown, across).items()):
            for cell in group:
                rounds, accuracy = zip(*cell["curve"], strict=True)
                axis.plot(rounds, accuracy, label=name, color=_colour(name, position), lw=1.5)
                if cell["paper"] is not None:
                    axis.axhline(
                        cell["paper"], color=_colour(name, position), ls=":", lw=1,
                        label=f"the paper, {cell['paper']:g} %",
                    )  # fmt: skip
        if across is not None:
            axis.set_title(f"{across} = {value}", fontsize=9)
        axis.grid(alpha=0.25, lw=0.5)
        axis.legend(fontsize=6)
    figure.supxlabel("rounds", fontsize=9)
    figure.supylabel("test accuracy in %", fontsize=9)
    return figure


def _lines(axis: Axes, cells: Sequence[Mapping[str, Any]], across: str) -> None:
    for position, (name, group) in enumerate(_series(cells, across).items()):
        places = [str(cell["axes"][across]) for cell in group]
        means = [cell["mean"] for cell in group]
        spread = [cell["half_width"] or 0.0 for cell in group]
        axis.errorbar(
            places, means, yerr=spread, label=name, color=_colour(name, position),
            marker=_MARKERS[position % len(_MARKERS)], capsize=3, lw=1.5,
        )  # fmt: skip
    axis.set_xlabel(across)
    axis.grid(alpha=0.25, lw=0.5)
    axis.legend(fontsize=7)


def _bars(axis: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    series = list(dict.fromkeys(cell["mechanism"] for cell in cells))
    places = list(dict.fromkeys(_place(cell) for cell in cells))
    width = 0.8 / len(series)
    label: str | None = "the paper"
    for position, name in enumerate(series):
        mine = [cell for cell in cells if cell["mechanism"] == name]
        at = [places.index(_place(cell)) - 0.4 + width * (position + 0.5) for cell in mine]
        axis.bar(
            at,
            [cell["mean"] for cell in mine],
            width=0.92 * width,
            yerr=[cell["half_width"] or 0.0 for cell in mine],
            color=_colour(name, position),
            label=name,
            capsize=2,
        )
        known = [(x, c["paper"]) for x, c in zip(at, mine, strict=True) if c["paper"] is not None]
        if known:
            xs, ys = zip(*known, strict=True)
            axis.scatter(xs, ys, marker="_", s=160, color="black", zorder=3, label=label)
            label = None  # once
    axis.set_xticks(range(len(places)), places, fontsize=8)
    axis.set_ylim(0, 100)
    axis.grid(axis="y", alpha=0.25, lw=0.5)
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.07), "ncols": 4}
    axis.legend(fontsize=7, frameon=False, **(beside if len(series) > _MOST_BELOW else below))


def _place(cell: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in cell["axes"].items())
