# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.report.html.accuracy import accuracy_curve, baseline_of, class_accuracy, compared
from dpcohort.report.html.sources import Group
from dpcohort.runs.comparison import compare_runs, load_group


def test_the_unbiased_group_is_the_baseline_wherever_it_stands(groups):
    assert baseline_of(groups) == 1
    assert baseline_of(groups[:1]) == 0


def test_the_difference_is_that_of_compare(groups, trained):
    found = compared(groups[0], groups[1])
    theirs = compare_runs(load_group(trained / "privacy-aware"), load_group(trained / "unbiased"))
    assert found.difference == theirs.difference
    assert found.seeds == (0, 1)


def test_a_curve_has_a_band_only_from_two_seeds(groups):
    curve = accuracy_curve(groups[0])
    assert curve.rounds == (2, 4, 6, 8)
    assert all(
        low <= mean <= high
        for low, mean, high in zip(curve.low, curve.mean, curve.high, strict=True)
    )
    alone = accuracy_curve(Group(name="one", runs=groups[0].runs[:1]))
    assert alone.low == (None,) * 4
    assert alone.mean[-1] == pytest.approx(100 * groups[0].runs[0].test.accuracy)


def test_runs_without_a_shared_seed_are_not_compared(groups):
    ours = Group(name="a", runs=groups[0].runs[:1])
    theirs = Group(name="b", runs=groups[1].runs[1:])
    assert compared(ours, theirs) is None


def test_accuracy_by_class_averages_to_the_whole(groups):
    rows = class_accuracy(groups[0])
    counts = groups[0].runs[0].test.class_counts
    mean = sum(row["mean"] * count for row, count in zip(rows, counts, strict=True)) / sum(counts)
    assert mean == pytest.approx(accuracy_curve(groups[0]).mean[-1])
