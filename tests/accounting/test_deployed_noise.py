# SPDX-License-Identifier: Apache-2.0
"""The noise of every client: modelled, deployed and certified, and that of the paper."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dpcohort import Training, make_plan
from dpcohort.accounting import (
    Contract,
    calibrate_noise,
    certify_epsilon,
    deploy_noise,
    paper_noise_multiplier,
)
from dpcohort.accounting import _deployed_noise as module
from dpcohort.accounting._closed_forms import noise_level
from dpcohort.accounting._deployed_noise import noise_levels
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError


@pytest.fixture
def clients():
    return Population.from_arrays(
        ids=["strict", "open", "idle", "gift"],
        sizes=[600, 500, 400, 300],
        epsilon=[0.3, 6.0, 1.0, np.nan],
        delta=[1e-5, 1e-5, 1e-6, np.nan],
        public=[False, False, False, True],
    )


def _deploy(clients, accountant="tight", steps=(20, 40, 0, 10), guard="refuse", epsilon=None):
    z, certified, lifted = deploy_noise(
        clients,
        calibrated_epsilon=clients.epsilon if epsilon is None else np.asarray(epsilon),
        sampling_rates=np.full(len(clients), 0.1),
        steps=np.array(steps),
        contract=accountant if isinstance(accountant, Contract) else Contract.of(accountant),
        guard=guard,
    )
    return SimpleNamespace(noise_multiplier=z, certified_epsilon=certified, lifted=lifted)


@pytest.mark.parametrize(
    "contract",
    [
        Contract.of("tight"),
        Contract.of("tight", sampler="fixed"),
        Contract.of("tight", neighbours="replace-one"),
        Contract.of("paper"),
    ],
)
def test_every_drawn_client_keeps_its_promise(clients, contract):
    noise = _deploy(clients, contract)
    for k in (0, 1):
        certified = certify_epsilon(
            noise_multiplier=noise.noise_multiplier[k],
            delta=clients.delta[k],
            sampling_rate=0.1,
            steps=[20, 40][k],
            sampler=contract.sampler,
            neighbours=contract.neighbours,
        )
        assert certified <= clients.epsilon[k]
        assert noise.certified_epsilon[k] <= clients.epsilon[k]


def test_who_is_never_drawn_has_no_noise_and_spends_nothing(clients):
    noise = _deploy(clients)
    assert np.isnan(noise.noise_multiplier[2])
    assert noise.certified_epsilon[2] == 0


def test_public_clients_add_no_noise(clients):
    noise = _deploy(clients)
    assert noise.noise_multiplier[3] == 0
    assert np.isnan(noise.certified_epsilon[3])


def test_a_rule_may_ask_for_less_than_the_budget_but_never_for_more(clients):
    strictest = _deploy(clients, epsilon=np.full(4, 0.3)).noise_multiplier[1]
    assert strictest > _deploy(clients).noise_multiplier[1]
    more = _deploy(clients, epsilon=np.full(4, 50.0))
    assert more.noise_multiplier[0] == _deploy(clients).noise_multiplier[0]


@pytest.fixture
def overspenders():
    # One step at epsilon 12 and 14: the cells in which the printed formula is too small.
    return Population.from_arrays(
        ids=["fine", "twelve", "fourteen"], sizes=[600] * 3, epsilon=[1.0, 12.0, 14.0], delta=1e-5
    )


def test_paper_noise_that_does_not_certify_is_refused_by_name(overspenders):
    with pytest.raises(BudgetExceededError) as refused:
        _deploy(overspenders, "paper", steps=(1, 1, 1))
    message = str(refused.value)
    assert "2 clients" in message
    assert "twelve: promised epsilon 12, the paper's noise spends 12." in message
    assert "fourteen" in message
    assert "fine" not in message
    assert "lift" in message


def test_of_many_broken_promises_some_are_named_and_all_are_counted():
    many = Population.from_arrays(sizes=[600] * 30, epsilon=[12.0] * 30, delta=1e-5)
    with pytest.raises(BudgetExceededError, match=r"30 clients (.*\n)+ *\.\.\. and \d+ more"):
        _deploy(many, "paper", steps=[1] * 30)


def test_lift_gives_only_the_broken_clients_the_tight_noise(overspenders):
    noise = _deploy(overspenders, "paper", steps=(1, 1, 1), guard="lift")
    assert noise.lifted.tolist() == [False, True, True]
    assert (noise.certified_epsilon <= overspenders.epsilon).all()
    paper = paper_noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.1, steps=1)
    assert noise.noise_multiplier[0] == paper


def test_noise_is_raised_until_the_certificate_holds(clients, monkeypatch):
    # A calibrator that is 0.4 % too low must be caught and mended by the certificate.
    honest = calibrate_noise
    monkeypatch.setattr(module, "calibrate_noise", lambda **k: honest(**k) * 0.996)
    noise = _deploy(clients)
    assert (noise.certified_epsilon[:2] <= clients.epsilon[:2]).all()


def test_columns_cannot_be_changed(clients):
    with pytest.raises(ValueError, match="read-only"):
        make_plan(clients, Training(cohort_size=2), seed=0).noise_multipliers[0] = 0.0


@pytest.mark.parametrize("accountant", ["tight", "paper"])
def test_a_certificate_that_is_not_a_number_keeps_no_promise(clients, accountant, monkeypatch):
    nothing = lambda **k: np.full(np.shape(k["delta"]), np.nan)  # noqa: E731
    monkeypatch.setattr(module, "certify_epsilon", nothing)
    with pytest.raises(BudgetExceededError):
        _deploy(clients, accountant)


def _levels(accountant="tight", public=(False, False, True), local_steps=2, **changes):
    settings = {
        "epsilon": np.array([0.5, 4.0, np.nan]),
        "delta": np.array([1e-5, 1e-6, np.nan]),
        "public": np.array(public),
        "sizes": np.array([600, 500, 400]),
        "batch_sizes": np.array([60, 100, 40]),
        "expected_draws": np.array([8.0, 6.0, 5.0]),
        "local_steps": local_steps,
        "contract": Contract.of(accountant),
    } | changes
    return noise_levels(**settings)


def test_paper_levels_are_its_formula_and_public_clients_are_silent():
    level, floor = _levels("paper")
    expected = noise_level(epsilon=4.0, delta=1e-6, sampling_rate=0.2, size=500)
    assert level[1] == expected
    assert (floor == 0).all()
    assert level[2] == 0


def test_the_line_goes_through_both_calibrations():
    level, floor = _levels()
    for k, (epsilon, delta, rate, batch, draws) in enumerate(
        [(0.5, 1e-5, 0.1, 60, 16), (4.0, 1e-6, 0.2, 100, 12)]
    ):
        for steps in (2, 2 * draws):
            z = calibrate_noise(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps)
            line = floor[k] + level[k] * steps
            assert line == pytest.approx((z / batch) ** 2, rel=1e-9)
    assert level[2] == floor[2] == 0


def test_many_clients_take_the_limit_of_many_steps(monkeypatch):
    calibrated, _ = _levels(expected_draws=np.full(3, 500.0))
    monkeypatch.setattr(module, "CALIBRATION_LIMIT", 1)
    limit, floor = _levels(expected_draws=np.full(3, 500.0))
    assert limit[:2] == pytest.approx(calibrated[:2], rel=0.03)
    assert floor[2] == 0
    assert np.array_equal(limit, _levels(calibrated=False)[0])
