# SPDX-License-Identifier: Apache-2.0
"""What people read: tables for the terminal, figures for papers, the HTML report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.report._figures import PALETTE as PALETTE
    from dpcohort.report._figures import accuracy_figure as accuracy_figure
    from dpcohort.report._figures import log_scale as log_scale
    from dpcohort.report._figures import one_panel as one_panel
    from dpcohort.report._figures import picture_format as picture_format
    from dpcohort.report._figures import save_figure as save_figure
    from dpcohort.report._figures import save_selection_figure as save_selection_figure
    from dpcohort.report._figures import selection_figure as selection_figure
    from dpcohort.report._sections import Section as Section
    from dpcohort.report._sections import fill_template as fill_template
    from dpcohort.report.html._page import Report as Report
    from dpcohort.report.html._sources import Headline as Headline
    from dpcohort.report.html._sources import Notice as Notice

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _figures=(
        "PALETTE accuracy_figure log_scale one_panel picture_format save_figure "
        "save_selection_figure selection_figure"
    ),
    _sections="Section fill_template",
    **{"html._page": "Report", "html._sources": "Headline Notice"},
)
