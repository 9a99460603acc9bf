# SPDX-License-Identifier: Apache-2.0
"""Settings without spending, and what budgets are worth: what is known before anyone trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.tuning.search import Tuned as Tuned
    from dpcohort.tuning.search import tune as tune
    from dpcohort.tuning.settings import Settings as Settings
    from dpcohort.tuning.settings import changes_for as changes_for
    from dpcohort.tuning.settings import suggested_settings as suggested_settings
    from dpcohort.tuning.stand_in import PROBLEMS as PROBLEMS
    from dpcohort.tuning.stand_in import Problem as Problem
    from dpcohort.tuning.stand_in import stand_in as stand_in

_HOMES = {
    "PROBLEMS": "stand_in",
    "Problem": "stand_in",
    "Settings": "settings",
    "Tuned": "search",
    "changes_for": "settings",
    "stand_in": "stand_in",
    "suggested_settings": "settings",
    "tune": "search",
}

__all__ = list(_HOMES)

__getattr__ = names_on_use(__name__, _HOMES)
