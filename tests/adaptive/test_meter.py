# SPDX-License-Identifier: Apache-2.0
"""The meter against the formula, and how far one record can move it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from dpcohort.adaptive.meter import LossMeter
from dpcohort.adaptive.rule import ReportTerms
from dpcohort.engine.layout import FlatLayout

TERMS = {
    "loss": ReportTerms(loss_bound=0.8),
    "squared": ReportTerms(loss_bound=1.5, statistic="squared-loss"),
}


def parameters(model):
    return FlatLayout(model).flatten(model)


@pytest.mark.parametrize("chunk", [7, 4096])
@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_sums_are_those_of_the_formula(model, records_of, store, terms, chunk):
    wanted = {0: None, 5: np.array([2, 3, 11])}
    found = LossMeter(model, records_of(), chunk=chunk).raw_centred_sums(
        parameters(model), wanted, terms
    )
    with torch.no_grad():
        losses = F.cross_entropy(
            model(torch.tensor(store[0])), torch.tensor(store[1]), reduction="none"
        ).numpy()
    clipped = np.minimum(losses, terms.loss_bound)
    value = clipped if terms.statistic == "loss" else clipped**2
    rows = [np.arange(30), 150 + np.array([2, 3, 11])]
    assert found == pytest.approx([(value[r] - terms.half_range).sum() for r in rows], rel=1e-5)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
@pytest.mark.parametrize("canary", [0.0, 1.0, 1e6, -1e6, float("inf"), float("nan")])
def test_one_record_moves_a_sum_by_at_most_the_range(model, records_of, store, terms, canary):
    before = LossMeter(model, records_of()).raw_centred_sums(parameters(model), {2: None}, terms)
    inputs = store[0].copy()
    inputs[65] = canary
    after = LossMeter(model, records_of(inputs)).raw_centred_sums(
        parameters(model), {2: None}, terms
    )
    assert np.isfinite(after).all()
    assert abs(after - before)[0] <= terms.top * (1 + 1e-9)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_every_record_adds_at_most_half_the_range(model, records_of, store, terms):
    meter = LossMeter(model, records_of(100 * store[0]))
    alone = [
        meter.raw_centred_sums(parameters(model), {1: np.array([i])}, terms)[0] for i in range(30)
    ]
    assert np.abs(alone).max() <= terms.half_range
    assert np.abs(alone).max() == pytest.approx(terms.half_range)  # some are really clipped


def test_an_empty_batch_sums_to_nothing(model, records_of):
    empty = np.array([], dtype=np.int64)
    meter = LossMeter(model, records_of())
    assert meter.raw_centred_sums(parameters(model), {1: empty}, ReportTerms()).tolist() == [0.0]
    assert meter.raw_centred_sums(parameters(model), {}, ReportTerms()).size == 0


def test_the_model_itself_is_not_touched(model, records_of):
    before = parameters(model)
    LossMeter(model, records_of()).raw_centred_sums(before + 1, {0: None}, ReportTerms())
    assert torch.equal(parameters(model), before)


def test_a_meter_that_was_asked_before_answers_like_a_new_one(model, records_of):
    """Rows of whole clients are kept between rounds: never those of others, or in another order."""
    terms, used = ReportTerms(loss_bound=50.0), LossMeter(model, records_of())
    whole = [{0: None, 2: None}, {2: None, 0: None}, {2: None}, {1: None}]
    for asked in (*whole, {1: np.array([1, 4])}, {1: np.array([2, 3])}, {1: None}):
        expected = LossMeter(model, records_of()).raw_centred_sums(parameters(model), asked, terms)
        for _ in range(2):
            found = used.raw_centred_sums(parameters(model), asked, terms)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("canary", [0.0, 1e6, float("inf"), float("nan")])
def test_in_units_of_a_lattice_a_record_counts_for_itself_alone(model, records_of, store, canary):
    """Integers: what one record adds is the same whatever lies beside it, and bounded."""
    terms, inputs = TERMS["loss"], store[0].copy()
    inputs[65] = canary
    meter = LossMeter(model, records_of(inputs))
    unit = np.array([terms.half_range / 2**22])

    def total(positions):
        return meter.raw_centred_sums(parameters(model), {2: positions}, terms, units=unit)[0]

    whole, without, alone = total(None), total(np.delete(np.arange(30), 5)), total(np.array([5]))
    assert whole.dtype == np.int64
    assert whole - without == alone
    assert abs(alone) <= 2**22
    floats = meter.raw_centred_sums(parameters(model), {2: None}, terms)[0]
    assert whole * unit[0] == pytest.approx(floats, abs=31 * unit[0])
