# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.plan import make_plan
from dpcohort.training import Training

TRAINING = Training(rounds=20, cohort_size=3, batch_size=50)


@pytest.fixture(scope="module")
def clients():
    return Population.from_arrays(
        sizes=[500] * 6, epsilon=np.linspace(0.2, 5, 6), delta=1e-5, ids=list("abcdef")
    )


def test_a_plan_does_not_differ_from_itself(clients):
    plan = make_plan(clients, TRAINING, seed=1)
    same = plan.compare(plan)
    assert same.settings == {}
    assert same.probability_distance == 0
    assert (same.noise_ratio, same.variance_ratio) == (1, 1)
    assert same.changed == ()


def test_what_differs_is_named_and_measured(clients):
    plain = make_plan(clients, TRAINING, selection="unbiased", accountant="paper", seed=1)
    aware = make_plan(clients, TRAINING, seed=1)
    found = plain.compare(aware)
    assert found.settings["selection.rule"] == ("unbiased", "privacy-aware")
    assert found.settings["privacy.accountant"] == ("paper", "tight")
    assert found.noise_ratio == aware.noise_to_clip / plain.noise_to_clip < 0.2
    assert found.probability_distance == pytest.approx(
        np.abs(aware.selection.probabilities - 1 / 6).sum()
    )
    assert found.changed[0].client in {"a", "f"}
    assert "selection.rule: unbiased -> privacy-aware" in found.text()


def test_who_comes_and_goes_is_counted(clients):
    from dpcohort.selection.rules import rule_from_settings

    everyone = make_plan(clients, TRAINING, selection="uniform", seed=1)
    few = make_plan(
        clients, TRAINING, selection=rule_from_settings("threshold", threshold=3.0), seed=1
    )
    assert everyone.compare(few).excluded == 3
    assert few.compare(everyone).included == 3


def test_plans_for_other_clients_are_not_compared(clients):
    other = Population.from_arrays(sizes=[500], epsilon=[1], delta=1e-5)
    with pytest.raises(InputError, match="different clients"):
        make_plan(clients, TRAINING, seed=0).compare(make_plan(other, TRAINING, seed=0))
