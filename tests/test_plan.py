# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dpcohort.accounting import Contract
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError, InputError, VerificationError
from dpcohort.plan import make_plan, selection_problem
from dpcohort.selection import PlannedRule, evaluated, rule_from_settings
from dpcohort.training import Training

TRAINING = Training(rounds=30, cohort_size=5, local_steps=2, batch_size=50)


def _population(count=12, public=1):
    rng = np.random.default_rng(5)
    epsilon = rng.uniform(0.1, 6, count)
    epsilon[:public] = np.nan
    delta = np.where(np.isnan(epsilon), np.nan, 1e-5)
    return Population.from_arrays(
        sizes=rng.integers(300, 900, count), epsilon=epsilon, delta=delta, public=np.isnan(epsilon)
    )


@pytest.mark.parametrize("accountant", ["tight", "paper", Contract.of("tight", sampler="fixed")])
@pytest.mark.parametrize("draws", ["systematic", "independent"])
def test_a_plan_keeps_every_promise(accountant, draws):
    clients = _population()
    plan = make_plan(clients, TRAINING, accountant=accountant, draws=draws, seed=3)
    held = plan.drawn & ~clients.public
    assert held.any()
    assert (plan.certified_epsilon[held] <= clients.epsilon[held]).all()
    plan.verify(method="pld")


def test_an_independent_accountant_agrees():
    make_plan(_population(4, 0), TRAINING, seed=0).verify(method="dp-accounting")


def test_noise_is_calibrated_to_the_realised_steps():
    plan = make_plan(_population(), TRAINING, seed=3)
    assert plan.steps.sum() == 30 * 5 * 2
    assert (plan.steps == plan.counts * 2).all()
    # All of the budget is used: the certificate comes within 1 % of the promise.
    held = plan.drawn & ~plan.population.public
    used = plan.certified_epsilon[held] / plan.population.epsilon[held]
    assert (used > 0.99).all()


def test_verify_names_clients_whose_noise_is_a_little_too_small():
    plan = make_plan(_population(), TRAINING, seed=3)
    lower = plan.noise_multipliers * 0.995
    with pytest.raises(VerificationError, match="would spend more than promised: client"):
        dataclasses.replace(plan, noise=dataclasses.replace(plan.noise, multipliers=lower)).verify(
            method="pld"
        )


class _Own(PlannedRule):
    name = "own"

    def __init__(self, epsilon):
        self.epsilon = epsilon

    def select(self, problem):
        return evaluated(self.name, problem.unbiased, problem, settings={})

    def effective_epsilon(self, problem):
        return self.epsilon(problem)


@pytest.mark.parametrize(
    "answer",
    [
        lambda problem: problem.epsilon[:-1],
        lambda problem: 0 * problem.epsilon,
        lambda problem: np.full(problem.size, np.nan),
        lambda problem: "all",
        lambda problem: 1 / 0,
    ],
    ids=["short", "zero", "nan", "word", "raises"],
)
def test_a_foreign_rule_whose_epsilon_is_nonsense_is_named(answer):
    with pytest.raises(InputError, match=r"test_plan:_Own"):
        make_plan(_population(), TRAINING, selection=_Own(answer), seed=3)


def test_a_foreign_rule_may_ask_for_less_and_never_gets_more():
    clients, held = _population(), slice(1, None)
    for factor in (0.5, 3.0):
        plan = make_plan(
            clients, TRAINING, selection=_Own(lambda p, f=factor: f * p.epsilon), seed=3
        )
        assert (plan.certified_epsilon[held] <= min(1, factor) * clients.epsilon[held]).all()


def test_without_a_seed_one_is_drawn_and_recorded():
    clients = _population()
    plan, other = make_plan(clients, TRAINING), make_plan(clients, TRAINING)
    assert plan.seed != other.seed
    assert make_plan(clients, TRAINING, seed=plan.seed) == plan


def test_privacy_aware_adds_less_noise_than_unbiased():
    clients = _population(public=0)
    aware = make_plan(clients, TRAINING, seed=1)
    plain = make_plan(clients, TRAINING, selection="unbiased", seed=1)
    assert aware.noise_to_clip < 0.6 * plain.noise_to_clip


def test_noise_to_clip_is_the_norm_of_the_averaged_noise():
    plan = make_plan(_population(), dataclasses.replace(TRAINING, dimension=400), seed=1)
    rng = np.random.default_rng(0)
    squares = []
    for cohort in plan.schedule.cohorts:
        std = (plan.noise_multipliers / plan.batch_sizes)[cohort]
        noise = (rng.standard_normal((50, cohort.size, 400)) * std[:, None]).mean(axis=1)
        squares.append((noise**2).sum(axis=1).mean())
    assert plan.noise_to_clip == pytest.approx(np.sqrt(np.mean(squares)), rel=0.02)


def test_expected_noise_of_the_exact_model_is_what_schedules_add():
    clients = _population(public=0)
    training = Training(rounds=40, cohort_size=5, batch_size=50, dimension=100)
    contract = Contract.of("paper")
    problem, _ = selection_problem(clients, training, contract=contract, noise_model="exact")
    p = clients.unbiased
    expected = np.sqrt(
        training.total_steps * (problem.noise_costs * p**2 + problem.linear_costs * p).sum()
    )
    realised = [
        make_plan(
            clients, training, selection="unbiased", accountant="paper", draws="independent", seed=s
        ).noise_to_clip
        for s in range(60)
    ]
    assert np.sqrt(np.mean(np.square(realised))) == pytest.approx(expected, rel=0.03)


def test_minimum_epsilon_treats_everyone_as_the_strictest():
    clients = _population(public=0)
    plan = make_plan(clients, TRAINING, selection="minimum-epsilon", seed=1)
    held = plan.drawn
    assert (plan.certified_epsilon[held] <= clients.epsilon.min()).all()


def test_a_million_settings_do_not_fit_together():
    plan = make_plan(_population(), TRAINING, seed=1)
    with pytest.raises(InputError, match="rounds"):
        dataclasses.replace(plan, training=dataclasses.replace(TRAINING, rounds=31))
    with pytest.raises(InputError, match="clients"):
        dataclasses.replace(plan, population=_population(11))


@pytest.mark.parametrize("noise", [0.0, np.nan, -1.0])
def test_a_drawn_client_with_a_budget_cannot_be_without_noise(noise):
    plan = make_plan(_population(), TRAINING, seed=1)
    changed = plan.noise_multipliers.copy()
    changed[np.flatnonzero(plan.drawn & ~plan.population.public)[0]] = noise
    with pytest.raises(InputError, match="no noise"):
        dataclasses.replace(plan, noise=dataclasses.replace(plan.noise, multipliers=changed))


def test_paper_noise_that_does_not_certify_refuses_the_plan_or_is_lifted():
    clients = Population.from_arrays(
        ids=["loose", "other"], sizes=[600, 600], epsilon=[14.0, 14.0], delta=1e-5
    )
    training = Training(rounds=1, cohort_size=2, batch_size=32)
    rule = rule_from_settings("unbiased")
    with pytest.raises(BudgetExceededError, match="loose"):
        make_plan(clients, training, selection=rule, accountant="paper", seed=0)
    lifted = make_plan(clients, training, selection=rule, accountant="paper", guard="lift", seed=0)
    assert lifted.noise.lifted.all()
    assert (lifted.certified_epsilon <= 14).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"selection": "privacy-awre"}, "privacy-aware"),
        ({"accountant": "tigth"}, "tight"),
        ({"noise_model": "exakt"}, "exact"),
        ({"draws": "random"}, "systematic"),
        ({"guard": "no"}, "refuse"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(InputError, match=message):
        make_plan(_population(), TRAINING, **settings)


def test_a_batch_larger_than_a_client_names_the_client():
    clients = Population.from_arrays(ids=["big", "tiny"], sizes=[500, 20], epsilon=1, delta=1e-5)
    with pytest.raises(InputError, match="tiny"):
        make_plan(clients, TRAINING)
    whole = dataclasses.replace(TRAINING, oversized_batch="whole")
    assert make_plan(clients, whole, seed=0).sampling_rates[1] == 1.0


def test_verify_is_not_satisfied_by_what_is_not_a_number(monkeypatch):
    plan = make_plan(_population(), TRAINING, seed=3)
    monkeypatch.setattr(
        "dpcohort.plan.certify_epsilon", lambda **k: np.full(k["delta"].shape, np.nan)
    )
    with pytest.raises(VerificationError):
        plan.verify()


SHORT_TRAINING = Training(rounds=20, cohort_size=3, batch_size=50)


@pytest.fixture(scope="module")
def clients():
    return Population.from_arrays(
        sizes=[500] * 6, epsilon=np.linspace(0.2, 5, 6), delta=1e-5, ids=list("abcdef")
    )


def test_what_differs_is_named_and_measured(clients):
    plain = make_plan(clients, SHORT_TRAINING, selection="unbiased", accountant="paper", seed=1)
    aware = make_plan(clients, SHORT_TRAINING, seed=1)
    found = plain.compare(aware)
    assert found.settings["selection.rule"] == ("unbiased", "privacy-aware")
    assert found.settings["privacy.accountant"] == ("paper", "tight")
    assert found.noise_ratio == aware.noise_to_clip / plain.noise_to_clip < 0.2
    assert found.probability_distance == pytest.approx(
        np.abs(aware.selection.probabilities - 1 / 6).sum()
    )
    assert found.changed[0]["client"] in {"a", "f"}
    assert "selection.rule: unbiased -> privacy-aware" in found.text()


def test_plans_for_other_clients_are_not_compared(clients):
    other = Population.from_arrays(sizes=[500], epsilon=[1], delta=1e-5)
    with pytest.raises(InputError, match="different clients"):
        make_plan(clients, SHORT_TRAINING, seed=0).compare(make_plan(other, SHORT_TRAINING, seed=0))
