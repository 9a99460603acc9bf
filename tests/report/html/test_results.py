# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import replace

import pytest

from dpcohort.accounting import Contract
from dpcohort.report.html._sources import (
    Group,
    accuracy_curve,
    compared,
    comparison_words,
    headline_of,
    same_budgets,
    verdict_of,
)
from dpcohort.runs import Comparison, Finding, compare_runs, load_group, mean_interval


def words(*points: float) -> str:
    seeds = tuple(range(len(points)))
    return comparison_words(
        Comparison(name="a", baseline="b", seeds=seeds, difference=mean_interval(points))
    )


def test_a_comparison_in_words():
    assert words(3.0, 3.2, 3.1) == "a beats b by 3.1 points (95 % CI 2.9 to 3.3, 3 seeds)"
    assert words(-3.0, -3.2, -3.1).startswith("a falls behind b by 3.1 points (95 % CI 2.9 to 3.3")
    assert words(-3.0, 3.2).startswith("no clear difference between a and b: +0.1 points")
    assert "says nothing about chance" in words(5.0)


def test_the_headline_names_rule_budgets_and_proof(groups):
    curves = [accuracy_curve(group) for group in groups]
    found = headline_of(groups, curves, 0)
    assert "at the same budgets" in found.sentence
    assert found.sentence.endswith("; every promise verified.")
    assert found.tone == "good"
    alone = headline_of(groups[:1], curves[:1], 0)
    assert "privacy-aware reaches" in alone.result
    assert "2 seeds" in alone.result


def test_other_budgets_are_said(groups):
    run = groups[1].runs[0]
    population = run.plan.population
    other = population.with_budget(population.ids[0], population[1].budget)
    changed = replace(run, plan=replace(run.plan, population=other))
    assert same_budgets(groups[0], groups[1])
    assert not same_budgets(groups[0], Group(name="unbiased", runs=(changed,)))


def test_other_trust_is_said(groups, small):
    curves = [accuracy_curve(group) for group in groups]
    assert "trust" not in headline_of(groups, curves, 0).sentence
    plan = small(accountant=Contract(trust="distributed", colluding=1))
    distributed = replace(
        groups[0], name="distributed", runs=tuple(replace(run, plan=plan) for run in groups[0].runs)
    )
    found = headline_of([distributed, groups[1]], curves, 0).sentence
    assert (
        "at the same budgets, but under DIFFERENT trust: distributed counts on 3 honest of 4"
        in found
    )
    assert f"members, {groups[1].name} on no other client" in found


def test_a_finding_breaks_the_verdict(groups):
    run = groups[0].runs[0]
    finding = Finding(kind="overspent", subject="x", message="too much")
    broken = replace(run, verification=replace(run.verification, findings=(finding,)))
    assert verdict_of([broken, run]) == (
        "NOT every promise could be confirmed (1 finding below)",
        "bad",
    )
    assert verdict_of([replace(run, verification=None)])[1] == "bad"


def test_the_difference_is_that_of_compare(groups, trained):
    found = compared(groups[0], groups[1])
    theirs = compare_runs(load_group(trained / "privacy-aware"), load_group(trained / "unbiased"))
    assert found.difference == theirs.difference
    assert found.seeds == (0, 1)


def test_a_curve_has_a_band_only_from_two_seeds(groups):
    curve = accuracy_curve(groups[0])
    assert curve["rounds"] == [2, 4, 6, 8]
    assert all(
        low <= mean <= high
        for low, mean, high in zip(curve["low"], curve["mean"], curve["high"], strict=True)
    )
    alone = accuracy_curve(Group(name="one", runs=groups[0].runs[:1]))
    assert alone["low"] == [None] * 4
    assert alone["mean"][-1] == pytest.approx(100 * groups[0].runs[0].test.accuracy)
