# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort.planning._reports import Reports
from dpcohort.report.html._client_points import client_points, grouped_points
from dpcohort.report.html._sources import read_run
from dpcohort.runs import Run, make_receipts


@pytest.fixture(scope="module")
def points(plan):
    return client_points(plan, plan.counts)


def test_points_have_the_numbers_of_plan_and_receipts(plan, points):
    assert [point.name for point in points] == list(plan.population.ids)
    receipts = {r.client: r for r in make_receipts(plan, plan.counts)}
    for k, point in enumerate(points):
        assert point.probability == plan.selection.probabilities[k]
        assert point.holds
        if point.name in receipts and not point.public:
            assert point.spent == pytest.approx(receipts[point.name].certified_epsilon, rel=1e-3)
            assert point.share <= 1
            assert point.noise_std >= point.tight_std


def test_the_sentences_are_those_of_explain(plan, points):
    for point in points:
        told = plan.explain(point.name).text().splitlines()
        assert point.sentence.splitlines() == told[:3]


def test_a_draw_that_was_never_planned_breaks_the_promise(plan):
    never = np.flatnonzero(~plan.drawn)
    draws = plan.counts.copy()
    draws[:7] *= 40
    broken = [point for point in client_points(plan, draws) if not point.holds]
    assert len(broken) == 7 - np.count_nonzero(never < 7)


def test_groups_keep_the_worst_and_lose_nobody(plan, points):
    many = [point for point in points for _ in range(40)]
    groups = grouped_points(many)
    assert sum(group.clients for group in groups) == len(many)
    assert max(g.share for g in groups if g.share is not None) == max(
        p.share for p in many if p.share is not None
    )
    assert any("public" in group.name for group in groups)


@pytest.fixture(scope="module")
def run(adaptive):
    return read_run(adaptive)


def test_points_have_the_numbers_of_the_receipts(run, adaptive):
    points = client_points(run.plan, run.draws, run.reports)
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


def test_raw_reports_have_no_bound(run):
    choosing = run.plan.participation
    terms = replace(choosing.reports.terms, mode="raw")
    reports = Reports.of(terms, choosing.reports.caps, choosing.reports.multipliers)
    raw = replace(run.plan, participation=replace(choosing, reports=reports))
    for point in client_points(raw, run.draws, run.reports):
        assert point.spent is None
        assert not point.holds
        assert "raw" in point.sentence
