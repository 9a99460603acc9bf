# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from dpcohort.accounting import gaussian_mu
from dpcohort.accounting._charges import private_clients
from dpcohort.config import commented_config, loads_config
from dpcohort.errors import BudgetExceededError, DivergedError, InputError
from dpcohort.runs import configured_data, configured_job, configured_population
from dpcohort.runs._config_clients import configured_charges, promised_population
from dpcohort.tuning import _charged as charged
from dpcohort.tuning import selection_mu, tune_charged

SMALL = {"trials": 1.5, "most_rounds": 2, "device": "cpu"}


#: The digits as if they were not public.
PRIVATE = ["data.public=false"]


@pytest.fixture
def config():
    return loads_config(commented_config("digits"))


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
def test_ten_trials_take_about_twice_the_noise(epsilon):
    delta = 1e-5
    mu = selection_mu(epsilon, delta, trials=10.0)
    accountant = RdpAccountant()
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(1 / mu), 10.0, 0.0))
    assert accountant.get_epsilon(delta) <= epsilon * 1.03  # its own orders are coarser
    assert 1.75 <= gaussian_mu(epsilon=epsilon, delta=delta) / mu <= 2.15


def test_the_number_of_trials_follows_the_law_that_was_accounted_for():
    dice = random.Random(1)
    counts = [charged.draw_trials(4.0, dice) for _ in range(20_000)]
    assert min(counts) == 1
    assert statistics.mean(counts) == pytest.approx(4.0, rel=0.05)
    p = next(  # (1/(1-p) - 1) / -log(1-p) = 4
        q / 1e4 for q in range(1, 10_000) if (q / 1e4) / (1 - q / 1e4) / -math.log1p(-q / 1e4) > 4
    )
    ones = counts.count(1) / len(counts)
    assert ones == pytest.approx(-p / math.log1p(-p), rel=0.05)


def test_every_trial_stays_within_its_share_of_every_budget(config, monkeypatch):
    seen = []
    kept = charged.train_job

    def watched(job, **given):
        seen.append(job)
        return kept(job, **given)

    monkeypatch.setattr(charged, "train_job", watched)
    found = tune_charged(config, share=0.4, **SMALL)
    population = promised_population(config)
    assert seen
    for job in seen:
        steps, noise = job.plan.steps, job.plan.noise_multipliers
        assert (job.plan.sampling_rates[steps > 0] == 1.0).all()
        assert (job.plan.population.sizes < population.sizes).all()  # a part only scores
        for k in np.flatnonzero(steps).tolist():
            spent = charged.selection_epsilon(
                math.sqrt(steps[k]) / noise[k], 0.4 * population.delta[k], trials=1.5
            )
            assert spent <= 0.4 * population.epsilon[k] * (1 + 1e-6)
    assert found.record() == ["tuning.source=charged", f'tuning.charge="{found.charge.id}"']
    assert not found.charge.private
    paid = {name: (0.4 * e, 0.4 * d) for _, name, e, d in private_clients(population)}
    assert found.charge.spent == paid
    assert found.to_dict()["tried"] == []  # nothing of the trials that were not chosen


def test_a_trial_that_would_spend_more_is_refused_with_who_and_how_much(config):
    config = config.with_overrides(["training.sampling_rate=1.0", "training.rounds=4"])
    job = configured_job(config, data=configured_data(config), device="cpu")
    drawn = job.plan.steps > 0
    noise = np.where(drawn, job.plan.noise_multipliers, 1.0)
    mu = np.where(drawn, np.sqrt(job.plan.steps) / noise, math.inf)
    charged.check_trial(job, mu, sensitivity=1.0)
    k = int(np.flatnonzero(drawn)[0])
    mu[k] *= 0.99
    with pytest.raises(BudgetExceededError, match=job.plan.population.ids[k]):
        charged.check_trial(job, mu, sensitivity=1.0)
    with pytest.raises(BudgetExceededError, match="may spend"):
        charged.check_trial(job, np.where(drawn, 1.5 * mu, math.inf), sensitivity=2.0)
    sampled = configured_job(config.with_overrides(["training.sampling_rate=0.5"]), device="cpu")
    with pytest.raises(BudgetExceededError, match="trial would spend"):
        charged.check_trial(sampled, np.full(len(mu), 1e9), sensitivity=1.0)


@pytest.mark.parametrize("dice", [random.Random(0), None], ids=["seed", "private"])
def test_scores_on_private_records_have_the_noise_of_one_trial(dice):
    held = np.array([50, 50])
    mu = np.array([0.05, math.inf])
    correct = np.concatenate([np.ones(50), np.zeros(50)])
    # The public half is right about nothing, the private half about all, with noise 20 of 50.
    found = [charged._noisy_accuracy(correct, mu, held, dice) for _ in range(200)]
    weight = 1 / ((20 / 50) ** 2 + 0.25 / 50)
    share = weight / (weight + 1 / (0.25 / 50))
    assert statistics.mean(found) == pytest.approx(share, abs=4 * share * 0.4 / math.sqrt(200))
    assert statistics.stdev(found) == pytest.approx(share * 0.4, rel=0.25)


def test_what_is_left_is_planned_with_and_a_simulation_cannot_become_private(config, tuned):
    paid = config.with_overrides([*tuned(config, 0.25), "training.rounds=2"])
    left = configured_population(paid)
    np.testing.assert_allclose(left.epsilon, 0.75 * promised_population(config).epsilon)
    np.testing.assert_allclose(left.delta, 0.75e-5)
    with pytest.raises(InputError, match="nothing that rests on it can be private"):
        configured_job(paid.with_overrides(PRIVATE), device="cpu")
    real = config.with_overrides([*tuned(config, 0.25, private=True), "training.rounds=2"])
    assert configured_job(real.with_overrides(PRIVATE), device="cpu").private


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("privacy.accountant=paper", "accountant = tight"),
        ("data.public_share=0.1", "--source public"),
    ],
)
def test_what_the_proof_does_not_cover_is_refused(config, change, words):
    with pytest.raises(InputError, match=words):
        tune_charged(config.with_overrides([change]), **SMALL)


def test_nothing_is_spent_before_it_is_written_down(config, monkeypatch):
    monkeypatch.setattr(charged, "train_job", lambda *_: pytest.fail("trained before"))

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune_charged(config, before_spending=stop, **SMALL)


def test_test_records_that_are_called_public_score_private_trials(table_config):
    private = table_config.with_overrides(["run.simulate="])
    found = tune_charged(private, public_test=True, trials=1.1, most_rounds=1)
    assert found.charge.private


def test_a_budget_too_small_for_a_choice_is_named(config):
    tiny = config.with_overrides(["population.epsilon=1e-4"])
    with pytest.raises(BudgetExceededError, match=r"client-00.*too little"):
        tune_charged(tiny, **SMALL)


def test_tuning_of_a_tuned_config_pays_from_what_is_left_and_names_the_first(
    config, tuned, monkeypatch
):
    def diverges(job):
        raise DivergedError.because("not trained")

    monkeypatch.setattr(charged, "train_job", diverges)
    charges = []
    paid = config.with_overrides([*tuned(config, 0.5, private=True), *PRIVATE])
    (first,) = configured_charges(paid)
    given = {"share": 0.5, **SMALL}
    found = tune_charged(paid, before_spending=charges.append, **given)
    assert charges == [found.charge]
    assert found.charge.after == (first.id,)
    for name, (epsilon, delta) in first.promised.items():
        assert found.charge.spent[name] == (0.25 * epsilon, 0.25 * delta)
    assert tune_charged(paid, **given).charge.id != found.charge.id
