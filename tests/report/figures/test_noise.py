# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.accounting.paper import paper_noise_multiplier
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.errors import InputError
from dpcohort.report.figures.noise import noise_figure, papers_noise


def test_points_are_the_noise_on_the_mean(plans):
    plan = plans["unbiased"]
    paper, deployed = noise_figure(plan).axes[0].collections
    held = np.flatnonzero(plan.drawn & ~plan.population.public)
    wanted = plan.noise_multipliers[held] / plan.batch_sizes[held]
    assert np.allclose(deployed.get_offsets()[:, 1], wanted)
    assert np.allclose(deployed.get_offsets()[:, 0], plan.population.epsilon[held])
    assert np.all(paper.get_offsets()[:, 1] > wanted)


def test_the_papers_noise_is_for_the_plans_steps(plans):
    plan = plans["unbiased"]
    k = int(np.flatnonzero(plan.drawn)[0])
    alone = paper_noise_multiplier(
        epsilon=float(plan.population.epsilon[k]),
        delta=1e-5,
        sampling_rate=float(plan.sampling_rates[k]),
        steps=int(plan.steps[k]),
    )
    assert papers_noise(plan)[k] == pytest.approx(alone)
    assert np.isnan(papers_noise(plan)[-1])  # public


def test_public_clients_alone_have_no_noise():
    nan = float("nan")
    clients = Population.from_arrays(sizes=[50], epsilon=[nan], delta=[nan], public=[True])
    plan = make_plan(clients, Training(rounds=2, cohort_size=1, batch_size=5), seed=0)
    with pytest.raises(InputError, match="no noise"):
        noise_figure(plan)


@pytest.mark.parametrize(("reports", "stamped"), [("private", False), ("raw", True)])
def test_noise_of_an_adaptive_plan_is_for_its_caps(reports, stamped):
    clients = Population.from_arrays(sizes=[90] * 4, epsilon=[0.5, 1, 2, 4], delta=1e-5)
    training = Training(rounds=4, cohort_size=2, batch_size=9, local_steps=2)
    plan = make_adaptive_plan(clients, training, reports=reports, seed=0)
    axis = noise_figure(plan).axes[0]
    paper, deployed = axis.collections
    assert np.allclose(deployed.get_offsets()[:, 1], plan.noise_multipliers / 9)
    at_caps = paper_noise_multiplier(
        epsilon=clients.epsilon, delta=1e-5, sampling_rate=0.1, steps=2 * plan.caps.draws
    )
    assert np.allclose(paper.get_offsets()[:, 1], at_caps / 9)
    assert "for the caps" in axis.get_title()
    assert ("NOT PRIVATE" in axis.get_title()) is stamped
    assert ("certified" in deployed.get_label()) is not stamped
