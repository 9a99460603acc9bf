# SPDX-License-Identifier: Apache-2.0
"""What every client promised and what it spent, certified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpcohort.errors import InputError
from dpcohort.report.figures.style import PALETTE, log_scale, paper_style
from dpcohort.runs.receipts import Receipt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["budgets_figure"]


def budgets_figure(receipts: Sequence[Receipt]) -> Figure:
    """Certified against promised epsilon; a point above the line would be a broken promise.

    Args:
        receipts: of a run; public clients are left out.

    Raises:
        InputError: no receipt has a budget.
    """
    from matplotlib.figure import Figure

    pairs = [
        (receipt.promised_epsilon, receipt.certified_epsilon, receipt.holds)
        for receipt in receipts
        if receipt.promised_epsilon and receipt.certified_epsilon is not None
    ]
    if not pairs:
        raise InputError.because("no receipt has a budget, so there is nothing to show.")
    with paper_style():
        figure = Figure(figsize=(3.4, 3.2), layout="constrained")
        axis = figure.subplots()
        low, high = min(min(p[:2]) for p in pairs), max(max(p[:2]) for p in pairs)
        axis.plot(
            [low, high], [low, high], color="#555555", linewidth=0.8, label="promised = spent"
        )
        for kept, word, marker, colour in (
            (True, "kept", "o", PALETTE[0]),
            (False, "BROKEN", "X", PALETTE[1]),
        ):
            points = [(pair[0], pair[1]) for pair in pairs if pair[2] is kept]
            if points:
                promised, spent = zip(*points, strict=True)
                axis.scatter(promised, spent, s=16, marker=marker, color=colour, label=word)
        log_scale(axis.xaxis, axis.yaxis)
        axis.set_xlabel("promised ε")
        axis.set_ylabel("certified ε spent")
        axis.legend(loc="upper left")
    return figure
