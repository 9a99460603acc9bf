# SPDX-License-Identifier: Apache-2.0
"""Settings without spending, and what budgets are worth: what is known before anyone trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.tuning._budgets import Gain as Gain
    from dpcohort.tuning._budgets import Worth as Worth
    from dpcohort.tuning._budgets import worth as worth
    from dpcohort.tuning._charged import selection_epsilon as selection_epsilon
    from dpcohort.tuning._charged import selection_mu as selection_mu
    from dpcohort.tuning._charged import tune_charged as tune_charged
    from dpcohort.tuning._search import PROBLEMS as PROBLEMS
    from dpcohort.tuning._search import Problem as Problem
    from dpcohort.tuning._search import Tuned as Tuned
    from dpcohort.tuning._search import stand_in as stand_in
    from dpcohort.tuning._search import tune as tune
    from dpcohort.tuning._settings import Settings as Settings
    from dpcohort.tuning._settings import changes_for as changes_for
    from dpcohort.tuning._settings import suggested_settings as suggested_settings

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _budgets="Gain Worth worth",
    _charged="selection_epsilon selection_mu tune_charged",
    _search="PROBLEMS Problem Tuned stand_in tune",
    _settings="Settings changes_for suggested_settings",
)
