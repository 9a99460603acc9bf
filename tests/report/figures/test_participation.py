# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.errors import InputError
from dpcohort.report.figures.participation import participation_figure
from dpcohort.runs.evaluation import who_was_heard


def test_bars_are_who_was_heard(plans):
    axis = participation_figure(plans, groups=2).axes[0]
    heights = [bar.get_height() for bar in axis.patches]
    wanted = [g.heard for plan in plans.values() for g in who_was_heard(plan, groups=2)]
    assert heights == wanted
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == list(plans)


def test_plans_of_other_clients_do_not_go_together(plans):
    clients = Population.from_arrays(ids=["x", "y"], sizes=[50, 50], epsilon=[1, 2], delta=1e-5)
    other = make_plan(clients, Training(rounds=2, cohort_size=1, batch_size=5), seed=0)
    with pytest.raises(InputError, match="same clients"):
        participation_figure({**plans, "other": other})
    with pytest.raises(InputError, match="one or more plans"):
        participation_figure({})


def test_an_adaptive_plan_needs_the_draws_of_its_run():
    clients = Population.from_arrays(sizes=[90] * 4, epsilon=[0.5, 1, 2, 4], delta=1e-5)
    training = Training(rounds=4, cohort_size=2, batch_size=9)
    plans = {"run": make_adaptive_plan(clients, training, rule="rpow-d", seed=0)}
    with pytest.raises(InputError, match="Draw this figure of the run"):
        participation_figure(plans)
    drawn = {"run": np.array([4, 2, 2, 0])}
    bars = participation_figure(plans, draws=drawn, groups=4).axes[0].patches
    assert [bar.get_height() for bar in bars] == [2.0, 1.0, 1.0, 0.0]
