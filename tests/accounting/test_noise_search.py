# SPDX-License-Identifier: Apache-2.0
"""The search for z: converges from any bracket, covers both directions, falls back safely."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import noise_search
from dpcohort.accounting.contour import Clients, Pair
from dpcohort.accounting.noise_search import find_noise


def clients(pair: Pair = "remove", count: int = 4) -> Clients:
    return Clients.of(
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


def test_adding_alone_needs_no_more_noise_than_both() -> None:
    low, high = np.full(4, -3.0), np.full(4, 9.0)
    both, _ = find_noise(clients("remove"), low=low, high=high)
    added, _ = find_noise(clients("add"), low=low, high=high)
    assert (added <= both + 1e-6).all()


def test_a_worse_direction_raises_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    # no real client is known whose added record is worse, so pretend that two are
    low, high = np.full(4, -3.0), np.full(4, 9.0)
    plain, _ = find_noise(clients(), low=low, high=high)
    verdict = np.array([True, False, True, False])
    monkeypatch.setattr(noise_search, "_keeps_promise", lambda *_: verdict)
    found, exact = find_noise(clients(), low=low, high=high)
    assert exact.all()
    assert (found >= plain).all()
    assert found[0] == plain[0]


def test_what_is_not_confirmed_falls_back_on_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = np.full(4, -3.0), np.full(4, 9.0)
    plain, _ = find_noise(clients(), low=low, high=high)
    monkeypatch.setattr(
        noise_search, "_confirm", lambda some, *_: np.zeros(some.size, dtype=np.bool_)
    )
    found, exact = find_noise(clients(), low=low, high=high)
    assert not exact.any()
    assert np.abs(found - plain).max() < 2e-3
