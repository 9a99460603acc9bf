# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from dpcohort.clients import Population
from dpcohort_lab.schemes.named import make_scheme
from dpcohort_lab.schemes.scheme import SchemeResult

PEOPLE = Population.from_arrays(
    sizes=[50, 50, 50],
    epsilon=[1.0, 2.0, np.nan],
    delta=[1e-5, 1e-5, np.nan],
    public=[False, False, True],
)


@pytest.fixture
def receipts():
    return make_scheme("udp", "formula").receipts(
        PEOPLE,
        claimed=np.array([1.0, 2.0, np.nan]),
        certified=np.array([0.9, 2.4, np.nan]),
        noise=np.array([3.0, 2.0, np.nan]),
        uses=np.array([4, 5, 6]),
        assumptions=["one thing"],
    )


def test_a_promise_is_broken_by_what_is_certified_not_by_what_is_claimed(receipts):
    assert [receipt.holds for receipt in receipts] == [True, False, True]
    assert "THE PROMISE IS NOT CERTIFIED" in receipts[1].text()
    assert "claimed    epsilon 2" in receipts[1].text()
    assert "one thing" in receipts[0].text()


def test_public_data_has_no_promise(receipts):
    assert receipts[2].public
    assert "public data" in receipts[2].text()
    assert receipts[2].to_dict()["promised_epsilon"] is None


def test_nothing_certified_is_a_broken_promise(receipts):
    for nothing in (None, math.inf, math.nan):
        assert not replace(receipts[0], certified_epsilon=nothing).holds


def test_an_outcome_counts_what_is_broken_and_is_json(receipts):
    card = make_scheme("udp").card
    outcome = SchemeResult(
        card=card, mode="formula", accuracy=0.5, loss=1.0, rounds=4, noise_std=0.1,
        receipts=tuple(receipts),
    )  # fmt: skip
    assert outcome.broken == 1
    assert outcome.largest_share == pytest.approx(1.2)
    read = json.loads(json.dumps(outcome.to_dict(), allow_nan=False))
    assert [receipt["holds"] for receipt in read["receipts"]] == [True, False, True]
