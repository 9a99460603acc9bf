# SPDX-License-Identifier: Apache-2.0
"""The search for z: converges from any bracket, covers both directions, falls back safely."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import _calibration as calibration
from dpcohort.accounting._calibration import Clients, Pair, clients_of, fallback_noise, find_noise


def clients(pair: Pair = "remove", count: int = 4) -> Clients:
    return clients_of(
        pair,
        epsilon=np.geomspace(0.1, 4.0, count),
        delta=np.full(count, 1e-5),
        rate=np.linspace(0.05, 0.4, count),
        steps=np.floor(np.geomspace(200, 30, count)),
    )


@pytest.mark.parametrize("pair", ["remove", "add", "replace", "fixed"])
def test_the_bracket_does_not_change_the_answer(pair: Pair) -> None:
    some = clients(pair)
    wide, exact = find_noise(some, low=np.full(4, -3.0), high=np.full(4, 9.0))
    near, also = find_noise(some, low=wide - 0.1, high=wide + 0.2)
    assert exact.all()
    assert also.all()
    assert np.abs(wide - near).max() < 1e-4


def test_a_worse_direction_raises_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    # no real client is known whose added record is worse, so pretend that two are
    low, high = np.full(4, -3.0), np.full(4, 9.0)
    plain, _ = find_noise(clients(), low=low, high=high)
    verdict = np.array([True, False, True, False])
    monkeypatch.setattr(calibration, "_keeps_promise", lambda *_: verdict)
    found, exact = find_noise(clients(), low=low, high=high)
    assert exact.all()
    assert (found >= plain).all()
    assert found[0] == plain[0]


def test_what_is_not_confirmed_falls_back_on_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = np.full(4, -3.0), np.full(4, 9.0)
    plain, _ = find_noise(clients(), low=low, high=high)
    monkeypatch.setattr(
        calibration, "_confirm", lambda some, *_: np.zeros(some.epsilon.size, dtype=np.bool_)
    )
    found, exact = find_noise(clients(), low=low, high=high)
    assert not exact.any()
    assert np.abs(found - plain).max() < 2e-3


LOW, HIGH = np.full(3, -2.0), np.full(3, 6.0)


def three_clients(pair: Pair, steps: float = 20.0) -> Clients:
    return clients_of(
        pair,
        epsilon=np.array([0.2, 1.0, 6.0]),
        delta=np.full(3, 1e-5),
        rate=np.array([0.3, 0.1, 0.05]),
        steps=np.full(3, steps),
    )


@pytest.mark.parametrize("pair", ["remove", "replace", "fixed"])
def test_it_is_as_good_as_the_integral_with_a_distribution(pair: Pair) -> None:
    exact, _ = find_noise(three_clients(pair), low=LOW, high=HIGH)
    found = fallback_noise(three_clients(pair), low=LOW, high=HIGH)
    # the integral stands 4e-4 above the optimum, the distribution up to 6e-4
    assert (found >= exact - 6e-4).all()
    assert (found <= exact + 1e-3).all()


@pytest.mark.parametrize("pair", ["remove", "replace", "fixed"])
def test_the_chernoff_bound_alone_is_valid_and_generous(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "_MOST_CERTIFIED_STEPS", 0)
    exact, _ = find_noise(three_clients(pair), low=LOW, high=HIGH)
    found = fallback_noise(three_clients(pair), low=LOW, high=HIGH)
    assert (found > exact + 0.01).all()
    assert (found < exact + 0.3).all()


def test_it_never_leaves_what_is_known_to_be_private() -> None:
    # nothing below is private: the upper end must come back
    found = fallback_noise(three_clients("remove"), low=LOW - 2.0, high=LOW - 1.0)
    assert found == pytest.approx(LOW - 1.0)
