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
    from dpcohort.accounting import Contract as Contract
    from dpcohort.accounting import calibrate_noise as calibrate_noise
    from dpcohort.accounting import certify_delta as certify_delta
    from dpcohort.accounting import certify_epsilon as certify_epsilon
    from dpcohort.clients import PUBLIC as PUBLIC
    from dpcohort.clients import Budget as Budget
    from dpcohort.clients import Client as Client
    from dpcohort.clients import Population as Population
    from dpcohort.config import load_config as load_config
    from dpcohort.data import load_dataset as load_dataset
    from dpcohort.errors import DpcohortError as DpcohortError
    from dpcohort.plan import Plan as Plan
    from dpcohort.plan import make_plan as make_plan
    from dpcohort.plugins import plugin as plugin
    from dpcohort.runs import Run as Run
    from dpcohort.runs import train as train
    from dpcohort.runs import verify_run as verify_run
    from dpcohort.schedule import Schedule as Schedule
    from dpcohort.schedule import draw_schedule as draw_schedule
    from dpcohort.selection import SelectionPath as SelectionPath
    from dpcohort.selection import solve_selection as solve_selection
    from dpcohort.training import Training as Training

_names, __getattr__, __dir__ = names_on_use(
    __name__,
    accounting="Contract calibrate_noise certify_delta certify_epsilon",
    clients="PUBLIC Budget Client Population",
    config="load_config",
    data="load_dataset",
    errors="DpcohortError",
    plan="Plan make_plan",
    plugins="plugin",
    runs="Run train verify_run",
    schedule="Schedule draw_schedule",
    selection="SelectionPath solve_selection",
    training="Training",
)

__all__ = ["__version__", *_names]
