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
    wide = find_noise(some, low=np.full(4, -3.0), high=np.full(4, 9.0))
    near = find_noise(some, low=wide.log_noise - 0.1, high=wide.log_noise + 0.2)
    assert wide.exact.all()
    assert near.exact.all()
    assert np.abs(wide.log_noise - near.log_noise).max() < 1e-4


def test_adding_alone_needs_no_more_noise_than_both() -> None:
    low, high = np.full(4, -3.0), np.full(4, 9.0)
    both = find_noise(clients("remove"), low=low, high=high)
    added = find_noise(clients("add"), low=low, high=high)
    assert (added.log_noise <= both.log_noise + 1e-6).all()


def test_a_worse_direction_raises_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    # no real client is known whose added record is worse, so pretend that two are
    low, high = np.full(4, -3.0), np.full(4, 9.0)
    plain = find_noise(clients(), low=low, high=high)
    verdict = np.array([True, False, True, False])
    monkeypatch.setattr(noise_search, "_keeps_promise", lambda *_: verdict)
    found = find_noise(clients(), low=low, high=high)
    assert found.exact.all()
    assert (found.log_noise >= plain.log_noise).all()
    assert found.log_noise[0] == plain.log_noise[0]


def test_what_is_not_confirmed_falls_back_on_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = np.full(4, -3.0), np.full(4, 9.0)
    plain = find_noise(clients(), low=low, high=high)
    monkeypatch.setattr(
        noise_search, "_confirm", lambda some, *_: np.zeros(some.size, dtype=np.bool_)
    )
    found = find_noise(clients(), low=low, high=high)
    assert not found.exact.any()
    assert np.abs(found.log_noise - plain.log_noise).max() < 2e-3
