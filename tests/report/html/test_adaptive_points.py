# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort.report.html.adaptive_points import adaptive_points
from dpcohort.report.html.sources import read_run
from dpcohort.runs import Run


@pytest.fixture(scope="module")
def run(adaptive):
    return read_run(adaptive)


def test_points_have_the_numbers_of_the_receipts(run, adaptive):
    points = adaptive_points(run.plan, run.draws, run.reports)
    assert sum(point.probability for point in points) == pytest.approx(1)
    receipts = {receipt.client: receipt for receipt in Run.load(adaptive).receipts()}
    assert {point.name for point in points if point.draws} <= set(receipts)
    for point in points:
        assert point.holds
        assert point.draws <= point.planned_draws
        if point.name in receipts:
            spent = receipts[point.name].certified_epsilon
            assert point.spent == pytest.approx(spent, rel=1e-3)
            often = "once" if point.draws == 1 else f"{point.draws:.0f} times"
            assert f"drawn {often}, at most {point.planned_draws:.0f} allowed" in point.sentence


def test_reports_are_spending_too(run):
    nobody = np.zeros_like(run.draws)
    asked = adaptive_points(run.plan, nobody, run.reports)
    silent = adaptive_points(run.plan, nobody, nobody)
    assert sum(point.spent for point in silent) == 0
    assert sum(point.spent for point in asked) > 0


def test_raw_reports_have_no_bound(run):
    raw = replace(run.plan, terms=replace(run.plan.terms, mode="raw"))
    for point in adaptive_points(raw, run.draws, run.reports):
        assert point.spent is None
        assert not point.holds
        assert "raw" in point.sentence


def test_nothing_counted_is_nothing_spent(run):
    nobody = np.zeros_like(run.draws)
    points = adaptive_points(run.plan, nobody, nobody)
    assert {point.probability for point in points} == {0.0}
