# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json

import pytest

from dpcohort.accounting.events import Event, History
from dpcohort.deploy.formats import replace
from dpcohort.deploy.ledger import lifetime_receipt, read_state
from dpcohort.errors import InputError


@pytest.fixture
def receipt(ledger, path, key, step, terms):
    ledger.accept("ward", "autumn", replace(terms, least_noise_multiplier=3.0))
    for round in range(5):
        ledger.reserve(key(round), step, clip=1.0)
    ledger.release(key(0), b"x")
    more = dataclasses.replace(step, noise_multiplier=4.0)
    ledger.reserve(key(0, run="autumn"), more, clip=1.0)
    return lifetime_receipt(read_state(path), "ward")


def test_numbers(receipt, ledger):
    spring, autumn = receipt.runs
    assert (spring.counted_draws, spring.released_draws, spring.unreleased_draws) == (5, 1, 4)
    assert (autumn.counted_draws, autumn.steps, autumn.noise_multiplier) == (1, 1, 3.0)
    five = Event(noise_multiplier=2.0, sampling_rate=0.1, steps=5)
    one = Event(noise_multiplier=3.0, sampling_rate=0.1, steps=1)
    assert spring.certified_epsilon == History((five,)).epsilon(1e-5)
    assert receipt.certified_epsilon == History((five, one)).epsilon(1e-5)
    assert receipt.promised_epsilon == 2.0
    assert receipt.holds
    assert (receipt.entries, receipt.head) == ledger.head


def test_in_words_and_as_json(receipt):
    words = receipt.text()
    for part in ("promised   epsilon 2 ", "spring: 5 of 60", "The promise holds", receipt.head):
        assert part in words
    values = json.loads(json.dumps(receipt.to_dict()))
    assert values["runs"][0]["run"] == "spring"
    assert values["head"] == receipt.head
    assert [run["neighbours"] for run in values["runs"]] == ["zero-out", "zero-out"]
    assert "of 2 (zero-out)" in words  # an epsilon is not said without its relation
    assert "the second holds also where a server stopped" in words


def test_a_broken_promise_says_so(receipt):
    assert "THE PROMISE IS BROKEN" in dataclasses.replace(receipt, holds=False).text()


def test_summed_caps_say_how_they_count(receipt):
    assert "every begun run in full" in dataclasses.replace(receipt, across_runs="summed").text()


def test_no_such_data_set(receipt, path):
    with pytest.raises(InputError, match="one of ward"):
        lifetime_receipt(read_state(path), "home")
