# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dpcohort import make_plan
from dpcohort.accounting import Contract
from dpcohort.clients import Budget
from dpcohort.errors import InputError
from dpcohort.planning._reports import Reports
from dpcohort.report.html._page import render, report_of_runs, rerun_commands, write_report
from dpcohort.report.html._sources import Group, read_groups, read_run
from dpcohort.runs._provenance import PRIVATE_NOISE
from dpcohort.selection import rule_from_settings
from dpcohort.text_files import finite_json

from .conftest import saved_worth


def test_a_comparison_has_every_part(comparison_report):
    comparison = comparison_report
    assert comparison.kind == "comparison"
    assert [curve["name"] for curve in comparison.curves] == ["unbiased", "privacy-aware"]
    assert comparison.title == "privacy-aware against unbiased"
    assert comparison.stamp.startswith("NOT PRIVATE")
    assert set(comparison.heard) == {"unbiased", "privacy-aware"}
    drawn = {row.name for row in comparison.rows if row.draws}
    assert drawn == set(comparison.receipts)
    assert json.dumps(finite_json(comparison.chart_data()), allow_nan=False)


def test_who_should_raise_epsilon_first_is_what_a_new_plan_would_say(plan, finished):
    report = report_of_runs(read_groups([finished]))
    gains = report.worth["gains"]
    assert [gain["noise"] for gain in gains] == sorted(gain["noise"] for gain in gains)
    assert {gain["client"] for gain in gains} == set(plan.population.ids) - {"open data"}
    rule = rule_from_settings(plan.rule, **plan.participation.settings)
    first = gains[0]["client"]
    richer = plan.population.with_budget(first, Budget(2 * gains[0]["epsilon"], 1e-5))
    then, now = (
        make_plan(people, plan.training, selection=rule, seed=3).problem
        for people in (richer, plan.population)
    )
    noise = []
    for one in (then, now):
        p = rule.select(one).probabilities
        noise.append(float((one.noise_costs * p**2 + one.linear_costs * p).sum()))
    assert gains[0]["noise"] == pytest.approx((noise[0] / noise[1]) ** 0.5, rel=1e-6)
    page = render(report)
    assert "What is ε worth?" in page
    assert f"{100 * (gains[0]['noise'] - 1):+.1f} %" in page
    assert "<img src=x" not in page  # a client is called so


def test_a_saved_prediction_is_shown_with_the_run_it_is_about(plan, finished, tmp_path):
    told = saved_worth(plan, tmp_path / "worth.json")
    report = write_report([finished], tmp_path / "page.html", worth=tmp_path / "worth.json")
    assert report.worth["curves"][0]["mean"] == [50.0, 70.0]
    assert report.worth["curves"][0]["high"] == [60.0, 100.0]
    page = render(report)
    assert "Predicted accuracy" in page
    assert "+1.50 (+1.00 to +2.00)" in page

    def refused(change: dict, words: str) -> None:
        (tmp_path / "worth.json").write_text(json.dumps({**told, **change}))
        with pytest.raises(InputError, match=words):
            write_report([finished], tmp_path / "page.html", worth=tmp_path / "worth.json")

    refused({"format": "other"}, "not saved by dpcohort worth")
    refused({"training": {**told["training"], "rounds": 7}}, "rounds = 7 there and 8 here")
    refused({"training": None}, "another training")
    refused({"gains": [{"client": "nobody", "epsilon": 1.0}]}, "other clients or budgets")
    refused({"sets": {"clear": []}}, "curves")
    refused({"factors": [{"factor": "x"}]}, "curves")


def test_a_private_run_shows_nobodys_labels(finished):
    run = read_run(finished)
    private = replace(
        run, settings={**run.settings, "randomness": "entropy", "noise": PRIVATE_NOISE}
    )
    report = report_of_runs([Group(name="real", runs=(private,))])
    assert report.stamp == ""


def test_without_a_plan_the_curve_is_still_shown(finished):
    (finished / "plan.json").unlink()
    report = report_of_runs(read_groups([finished]))
    assert report.curves[0]["mean"]
    assert report.points == ()
    assert report.headline.tone == "bad"


def test_broken_promises_come_first(finished):
    run = read_run(finished)
    draws = run.draws.copy()
    draws[4] *= 50
    report = report_of_runs([Group(name="spent", runs=(replace(run, draws=draws),))])
    assert report.rows[0].name == run.plan.population.ids[4]
    assert not report.rows[0].holds
    assert all(row.holds for row in report.rows[1:])


def test_raw_reports_are_stamped_whatever_made_the_noise(adaptive):
    run = read_run(adaptive)
    choosing = run.plan.participation
    terms = replace(choosing.reports.terms, mode="raw")
    reports = Reports.of(terms, choosing.reports.caps, choosing.reports.multipliers)
    raw = replace(run.plan, participation=replace(choosing, reports=reports))
    entropy = {**run.settings, "randomness": "entropy"}
    report = report_of_runs([Group(name="raw", runs=(replace(run, plan=raw, settings=entropy),))])
    assert report.stamp.startswith("NOT PRIVATE")
    assert not any(row.holds for row in report.rows if not row.public)


def test_distributed_noise_is_said_wherever_a_number_counts_on_it(small, run_folder, tmp_path):
    plan = small(accountant=Contract(trust="distributed", colluding=1))
    run = read_run(run_folder(plan, tmp_path / "distributed"))
    report = report_of_runs([Group(name="distributed", runs=(run,))])
    cards = {name: value for name, value, _ in report.cards}
    assert cards["Honest members counted on"] == "3 of 4"
    alone = max(row.alone for row in report.rows if row.alone is not None)
    assert cards["If all others collude"] == f"ε {alone:.3g}"
    assert alone == pytest.approx(np.nanmax(plan.certificate.alone_epsilon), rel=1e-2)
    assert "at most 1 helps it" in report.facts["Privacy"]["trust"]
    page = render(report)
    assert "Noise is distributed: the server sees the sum" in page
    # Noise that nobody adds is not called added, and weight is not called draws.
    assert "what honest members give it, certified" in page
    assert "the plan adds and has certified" not in page
    assert f'<td class="n">{plan.noise.pool.share:.4g}</td></tr>' in page
    assert page.count('<th scope="col" class="n">Weight in the model</th>') == 2
    assert '<th scope="col" class="n">Drawn</th>' not in page


def test_commands_quote_their_paths(trained, finished):
    (finished / "config.toml").write_text("[run]\nseed = 0\n")
    odd = finished.rename(finished.parent / "a run; rm")
    commands = rerun_commands(read_groups([odd]))
    assert f"dpcohort verify '{odd}'" in commands
    assert f"dpcohort train '{odd}/config.toml' --out AGAIN" in commands
    seeds = rerun_commands(read_groups([trained / "unbiased"]))
    assert seeds[-1].startswith("# and the other seeds")


def test_training_anew_on_private_records_is_warned_of(finished):
    (finished / "config.toml").write_text("[run]\n")
    run = read_run(finished)
    private = replace(
        run, settings={**run.settings, "randomness": "entropy", "noise": PRIVATE_NOISE}
    )
    for found, warned in ((run, False), (private, True)):
        commands = rerun_commands([Group(name="a", runs=(found,))])
        assert ("every budget is spent again" in commands[0]) == warned
