# SPDX-License-Identifier: Apache-2.0
"""Terms proposed from a plan are enough for the plan, and for nothing more."""

from __future__ import annotations

import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.data import Normalisation
from dpcohort.deploy.guard import GuardTerms, ModelTerms, check_with_sampling
from dpcohort.deploy.guard._terms import terms_from_plan

MODEL = ModelTerms(name="mlp", input_shape=(1, 8, 8), classes=10, options={"hidden": [16]})


@pytest.fixture(scope="module")
def plan():
    clients = Population.from_arrays(
        sizes=[300, 200, 100], epsilon=[1.0, 4.0, 8.0], delta=1e-5, ids=["a", "b", 'c "x"']
    )
    settings = Training(rounds=6, cohort_size=2, batch_size=20, local_steps=2, clip=0.5)
    return make_plan(clients, settings, selection="unbiased", seed=1)


def read(tmp_path, text):
    path = tmp_path / "t.toml"
    path.write_text(text)
    return GuardTerms.from_toml(path)


@pytest.mark.parametrize("client", ["a", "b", 'c "x"'])
def test_the_plans_own_draws_fit_exactly(plan, tmp_path, client):
    k = list(plan.population.ids).index(client)
    text = terms_from_plan(
        plan, client, run="spring", model=MODEL, normalisation=Normalisation(scale=16.0)
    )
    terms = read(tmp_path, text)
    (run,) = terms.runs
    accepted = run.run_terms(int(plan.population.sizes[k]))
    assert (terms.dataset, run.plan, terms.model) == (client, plan.sha256, MODEL)
    assert terms.normalisation.scale == 16.0
    assert accepted.sampling_rate == plan.sampling_rates[k]
    assert accepted.least_noise_multiplier == plan.noise_multipliers[k]
    assert accepted.draws == plan.counts[k]
    assert (accepted.clip, accepted.local_steps, accepted.rounds) == (0.5, 2, 6)
    check_with_sampling(accepted, plan.training.dimension)
    assert terms.across_runs == "summed"
