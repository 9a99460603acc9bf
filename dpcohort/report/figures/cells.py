# SPDX-License-Identifier: Apache-2.0
"""Cells of a reproduced table beside the paper's numbers, with their confidence intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort.errors import InputError
from dpcohort.report.figures.style import PALETTE, paper_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpcohort.report.html.reproduction import Reproduction

__all__ = ["cells_figure"]


def cells_figure(found: Reproduction) -> Figure:
    """One row a cell: ours with its interval over seeds, and the paper's number where it has one.

    Args:
        found: a result of ``dpcohort reproduce``.

    Raises:
        InputError: nothing was measured.
    """
    from matplotlib.figure import Figure

    rows = [cell for cell in found.cells if cell.mean is not None]
    if not rows:
        raise InputError.because(f"{found.path} holds no cell that was measured.")
    with paper_style():
        figure = Figure(figsize=(5.2, 1.1 + 0.24 * len(rows)), layout="constrained")
        axis = figure.subplots()
        for row, cell in enumerate(rows):
            if cell.low is not None and cell.high is not None:
                axis.plot([cell.low, cell.high], [row, row], color=PALETTE[0], linewidth=1.2)
        means = [cell.mean for cell in rows if cell.mean is not None]
        axis.plot(means, range(len(rows)), "o", color=PALETTE[0], label="ours, 95 % interval")
        known = [(row, cell.paper) for row, cell in enumerate(rows) if cell.paper is not None]
        if known:
            axis.plot(
                [paper for _, paper in known],
                [row for row, _ in known],
                "D",
                color=PALETTE[1],
                markerfacecolor="none",
                label="paper",
            )
        axis.set_yticks(range(len(rows)), [cell.name for cell in rows], parse_math=False)
        axis.invert_yaxis()
        axis.set_xlabel("test accuracy (%)")
        figure.legend(loc="outside upper right", ncols=2)
    return figure
