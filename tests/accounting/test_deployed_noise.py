# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import deployed_noise as module
from dpcohort.accounting.certify import certify_epsilon
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.deployed_noise import deploy_noise
from dpcohort.accounting.paper import paper_noise_multiplier
from dpcohort.accounting.tight import calibrate_noise
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
    return deploy_noise(
        clients,
        calibrated_epsilon=clients.epsilon if epsilon is None else np.asarray(epsilon),
        sampling_rates=np.full(len(clients), 0.1),
        steps=np.array(steps),
        contract=accountant if isinstance(accountant, Contract) else Contract.of(accountant),
        guard=guard,
    )


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


def test_tight_noise_is_at_most_a_hair_above_the_calibration(clients):
    z = calibrate_noise(epsilon=0.3, delta=1e-5, sampling_rate=0.1, steps=20)
    assert z <= _deploy(clients).noise_multiplier[0] <= z * 1.002


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


def test_noise_far_too_low_is_refused(clients, monkeypatch):
    honest = calibrate_noise
    monkeypatch.setattr(module, "calibrate_noise", lambda **k: honest(**k) / 2)
    with pytest.raises(BudgetExceededError, match="could not be certified"):
        _deploy(clients)


def test_columns_cannot_be_changed(clients):
    with pytest.raises(ValueError, match="read-only"):
        _deploy(clients).noise_multiplier[0] = 0.0


@pytest.mark.parametrize("accountant", ["tight", "paper"])
def test_a_certificate_that_is_not_a_number_keeps_no_promise(clients, accountant, monkeypatch):
    nothing = lambda **k: np.full(np.shape(k["delta"]), np.nan)  # noqa: E731
    monkeypatch.setattr(module, "certify_epsilon", nothing)
    with pytest.raises(BudgetExceededError):
        _deploy(clients, accountant)
