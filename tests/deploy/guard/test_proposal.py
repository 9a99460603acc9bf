# SPDX-License-Identifier: Apache-2.0
"""Terms proposed from a plan are enough for the plan, and for nothing more."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.data import Normalisation
from dpcohort.deploy.guard import (
    DrawRequest,
    DrawUpdate,
    GuardTerms,
    ModelTerms,
    check_with_sampling,
)
from dpcohort.deploy.guard._files import GuardedData
from dpcohort.deploy.guard._handler import GuardHandler
from dpcohort.deploy.guard._start import check_terms, open_ledger
from dpcohort.deploy.guard._terms import commented_terms, terms_from_plan
from dpcohort.deploy.secure_aggregation import Identity
from dpcohort.engine import draw_numbers
from dpcohort.errors import InputError

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


def test_the_owner_may_say_more(plan, tmp_path):
    text = terms_from_plan(
        plan,
        "a",
        run="spring",
        model=MODEL,
        allowed_users=[65534],
        same_user=True,
        answer_seconds=0.5,
    )
    terms = read(tmp_path, text)
    assert (terms.allowed_users, terms.same_user, terms.answer_seconds) == ((65534,), True, 0.5)


def test_no_such_client(plan):
    with pytest.raises(InputError, match="client"):
        terms_from_plan(plan, "z", run="spring", model=MODEL)


def test_comments_stand_in_one_column():
    lines = [line for line in commented_terms().splitlines() if "  #" in line and line[0] != "#"]
    assert lines
    assert all(len(line) <= 100 for line in lines)


class Quick:
    dimension, layout = 650, "layout"

    def update(self, *_, **__):
        return np.zeros(650, np.float32)


def test_a_guard_does_its_part_of_the_plan_and_nothing_beyond(plan, tmp_path):
    k, size = 1, 200
    terms = read(tmp_path, terms_from_plan(plan, "b", run="spring", model=MODEL, same_user=True))
    data = GuardedData(np.zeros((size, 1, 8, 8), np.float32), np.zeros(size, np.int64), "0" * 64)
    with open_ledger(
        tmp_path / "b.ledger", data, terms, check_terms(terms, size), new=True
    ) as book:
        handler = GuardHandler(
            terms, records=size, ledger=book, trainer=Quick(), identity=Identity(bytes(32))
        )

        def ask(round, draw):
            request = DrawRequest(
                run="spring",
                plan=plan.sha256,
                round=round,
                draw=draw,
                clip=plan.training.clip,
                noise_multiplier=float(plan.noise_multipliers[k]),
                sampling_rate=float(plan.sampling_rates[k]),
                batch_size=int(plan.batch_sizes[k]),
                local_steps=plan.training.local_steps,
                sampler=plan.contract.sampler.name,
                neighbours=plan.contract.neighbours,
                step_sizes=[0.1, 0.1],
                model=MODEL.sha256(),
                layout="layout",
                vector=np.zeros(650, np.float32),
            )
            return handler.answer(request)

        done = 0
        for round, cohort in enumerate(plan.schedule.cohorts):
            for client, draw in zip(cohort, draw_numbers(cohort), strict=True):
                if client == k:
                    assert isinstance(ask(round, int(draw)), DrawUpdate)
                    done += 1
        assert done == plan.counts[k] > 0
        assert ask(0, 99).code == "exhausted"
        assert ask(plan.training.rounds, 0).code == "terms"
        (spending,) = book.receipt("b").runs
        assert spending["counted_draws"] == done
        assert spending["certified_epsilon"] <= plan.population.epsilon[k]
