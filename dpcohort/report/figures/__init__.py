# SPDX-License-Identifier: Apache-2.0
"""Figures for papers, drawn from runs and plans: one file a figure, one style for all."""

from __future__ import annotations

from dpcohort.report.figures.accuracy import accuracy_figure
from dpcohort.report.figures.budgets import budgets_figure
from dpcohort.report.figures.cells import cells_figure
from dpcohort.report.figures.noise import noise_figure
from dpcohort.report.figures.participation import participation_figure
from dpcohort.report.figures.style import PALETTE, paper_style, save_figure

__all__ = [
    "PALETTE",
    "accuracy_figure",
    "budgets_figure",
    "cells_figure",
    "noise_figure",
    "paper_style",
    "participation_figure",
    "save_figure",
]
