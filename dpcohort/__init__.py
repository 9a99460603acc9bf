# SPDX-License-Identifier: Apache-2.0
"""Differentially private federated learning in which every client brings its own privacy budget.

From clients and budgets to a frozen, certified plan:

>>> from dpcohort import Population, Training, make_plan
>>> clients = Population.from_arrays(sizes=[600, 600, 600], epsilon=[0.2, 1, 8], delta=1e-5)
>>> plan = make_plan(clients, Training(rounds=20, cohort_size=2, batch_size=60), seed=0)
>>> plan.selection.probabilities.argmax()
np.int64(2)

Names are imported when they are first used, so ``import dpcohort`` is instant and planning never
loads torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use
from dpcohort._version import __version__

if TYPE_CHECKING:
    from dpcohort.accounting import (
        Contract,
        audit_paper_noise,
        calibrate_noise,
        certify_delta,
        certify_epsilon,
    )
    from dpcohort.clients import PUBLIC, Budget, Client, Population
    from dpcohort.config import load_config
    from dpcohort.data import load_dataset
    from dpcohort.errors import DpcohortError
    from dpcohort.plan import Plan, make_plan
    from dpcohort.runs import Run, train, verify_run
    from dpcohort.schedule import Schedule, draw_schedule
    from dpcohort.selection import SelectionPath, solve_selection
    from dpcohort.training import Training

__all__ = [
    "PUBLIC",
    "Budget",
    "Client",
    "Contract",
    "DpcohortError",
    "Plan",
    "Population",
    "Run",
    "Schedule",
    "SelectionPath",
    "Training",
    "__version__",
    "audit_paper_noise",
    "calibrate_noise",
    "certify_delta",
    "certify_epsilon",
    "draw_schedule",
    "load_config",
    "load_dataset",
    "make_plan",
    "solve_selection",
    "train",
    "verify_run",
]

_HOMES = {
    "PUBLIC": "clients",
    "Budget": "clients",
    "Client": "clients",
    "Contract": "accounting",
    "DpcohortError": "errors",
    "Plan": "plan",
    "Population": "clients",
    "Run": "runs",
    "Schedule": "schedule",
    "SelectionPath": "selection",
    "Training": "training",
    "audit_paper_noise": "accounting",
    "calibrate_noise": "accounting",
    "certify_delta": "accounting",
    "certify_epsilon": "accounting",
    "draw_schedule": "schedule",
    "load_config": "config",
    "load_dataset": "data",
    "make_plan": "plan",
    "solve_selection": "selection",
    "train": "runs",
    "verify_run": "runs",
}

__getattr__ = names_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
