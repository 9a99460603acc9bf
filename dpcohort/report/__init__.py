# SPDX-License-Identifier: Apache-2.0
"""What people read: tables for the terminal, figures for papers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.report._figures import panels_at as panels_at
    from dpcohort.report._figures import save_selection_figure as save_selection_figure
    from dpcohort.report._sections import Section as Section
    from dpcohort.report._sections import fill_template as fill_template

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _figures="panels_at save_selection_figure",
    _sections="Section fill_template",
)
