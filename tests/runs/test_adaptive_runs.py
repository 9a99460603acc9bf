# SPDX-License-Identifier: Apache-2.0
"""Adaptive runs from beginning to end: train, crash, resume, verify, receipts, side by side."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.config import commented_config, loads_config
from dpcohort.errors import InputError
from dpcohort.plugins import RULES
from dpcohort.runs import Run, configured_job, train, verify_run

from .conftest import adaptive_plan

NAMES = list(RULES["adaptive"])


def trained(plan, digits, **options):
    return train(plan, "logistic", digits, device="cpu", seed=5, **options)


class CrashAfter:
    """Stops a training after some rounds, as a crash would."""

    def __init__(self, rounds):
        self.rounds = rounds

    def on_round(self, record, run):
        if record.round + 1 == self.rounds:
            raise KeyboardInterrupt


#: Those left out run over Flower, in ``tests/deploy/flower/test_reports.py``.
@pytest.mark.parametrize("rule", [rule for rule in NAMES if rule not in ("rpow-d", "oort")])
def test_every_rule_trains_on_digits_and_verifies(rule, digits, tmp_path):
    run = trained(adaptive_plan(rule), digits, out=tmp_path / "run")
    found = verify_run(tmp_path / "run")
    assert found.holds, found.findings
    assert found.rounds == 6
    assert 0 < found.tightest <= 1
    assert run.ledger.draws.sum() == 24
    assert all(receipt.holds for receipt in run.receipts())
    again = Run.load(tmp_path / "run")
    assert np.array_equal(again.ledger.draws, run.ledger.draws)
    assert np.array_equal(again.ledger.reports, run.ledger.reports)
    assert again.settings["label"] == rule


def test_receipts_say_what_reports_cost(digits):
    run = trained(adaptive_plan("power-of-choice"), digits)
    plan = run.plan
    receipt = run.receipt(plan.population.ids[2])
    assert receipt.reports["spent"] == run.ledger.reports[2]
    assert receipt.reports["planned"] == plan.reports.caps[2]
    assert receipt.planned_draws == plan.counts[2]
    alone = plan.history(2, draws=int(run.ledger.draws[2]), reports=0).epsilon(1e-5)
    assert alone < receipt.certified_epsilon <= receipt.promised_epsilon
    # Whoever was heard is certified at its caps: how often it was heard, outputs have chosen.
    assert receipt.certified_epsilon == pytest.approx(receipt.planned_epsilon, rel=1e-3)
    assert (run.ledger.draws < plan.counts).any()
    assert receipt.unused_epsilon == receipt.promised_epsilon - receipt.certified_epsilon
    assert "reports" in receipt.text()
    assert "unused" in receipt.text()
    assert receipt.from_dict(receipt.to_dict()) == receipt


@pytest.mark.parametrize("rule", ["rpow-d", "clustered"])
def test_a_crashed_run_goes_on_to_the_same_model(rule, digits, tmp_path):
    whole = trained(adaptive_plan(rule), digits, out=tmp_path / "whole")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            trained(
                adaptive_plan(rule),
                digits,
                out=tmp_path / "run",
                resume=True,
                checkpoint_every=2,
                callbacks=[CrashAfter(4)],
            )
        # The newest checkpoint is lost too: the rounds after the older one are done again.
        sorted((tmp_path / "run" / "checkpoints").iterdir())[-1].unlink()
    again = trained(adaptive_plan(rule), digits, out=tmp_path / "run", resume=True)
    for name, weights in whole.model.items():
        assert np.array_equal(weights, again.model[name])
    assert [line.clients for line in again.history] == [line.clients for line in whole.history]
    assert np.array_equal(again.ledger.reports, whole.ledger.reports)
    assert verify_run(tmp_path / "run").holds


def test_merged_noise_is_refused_where_the_rule_watches_updates(digits, tmp_path):
    with pytest.raises(InputError, match="merged_noise"):
        trained(adaptive_plan("clustered"), digits, out=tmp_path / "run", merged_noise=True)
    assert not (tmp_path / "run").exists()
    run = trained(adaptive_plan("rpow-d"), digits, out=tmp_path / "run", merged_noise=True)
    assert run.rounds_done == run.plan.training.rounds
    assert verify_run(tmp_path / "run").holds


def test_a_private_run_counts_a_lost_round_and_goes_on(secret, tmp_path):
    plan = adaptive_plan()
    with pytest.raises(KeyboardInterrupt):
        trained(plan, secret, out=tmp_path / "run", callbacks=[CrashAfter(3)])
    sorted((tmp_path / "run" / "checkpoints").iterdir())[-1].unlink()
    run = trained(plan, secret, out=tmp_path / "run", resume=True)
    assert [line.lost for line in run.history] == [False, False, True, False, False, False]
    assert run.is_private
    assert "entropy" in run.receipts()[0].stamp
    found = verify_run(tmp_path / "run")
    assert found.holds, found.findings


def test_raw_reports_stamp_everything(digits, tmp_path):
    run = trained(adaptive_plan(reports="raw"), digits, out=tmp_path / "run")
    assert not run.is_private
    assert run.settings["label"] == "rpow-d, raw reports, NOT PRIVATE"
    assert all(r.stamp.startswith("NOT PRIVATE (raw reports)") for r in run.receipts())
    asked = [r for r in run.receipts() if not r.public and r.reports["spent"]]
    assert asked
    assert not any(r.holds for r in asked)
    found = verify_run(tmp_path / "run")
    assert not found.holds
    assert found.tightest == float("inf")
    assert any("raw reports" in finding.message for finding in found.findings)
    assert "answers" not in (tmp_path / "run" / "ledger.jsonl").read_text()
    with pytest.raises(InputError, match="cannot go on"):
        trained(adaptive_plan(reports="raw"), digits, out=tmp_path / "run", resume=True)


def test_a_configuration_asks_for_all_of_it():
    config = loads_config(commented_config("digits")).with_overrides(
        [
            "selection.rule=power-of-choice",
            "selection.d=12",
            "selection.report_share=0.3",
            "selection.participation_cap=60",
            "selection.report_cap=70",
            "selection.loss_bound=3.0",
        ]
    )
    plan = configured_job(config, device="cpu").plan
    assert plan.participation.settings == {"d": 12, "shrink": False}
    assert plan.reports.terms.share == 0.3
    assert plan.reports.terms.loss_bound == 3.0
    assert plan.counts[0] == 60
    assert plan.reports.caps[0] == 70


@pytest.mark.parametrize("change", ["answer", "cohort", "twice", "order", "stranger", "header"])
def test_verify_sees_through_an_edited_ledger(change, digits, tmp_path):
    trained(adaptive_plan(), digits, out=tmp_path / "run")
    path = tmp_path / "run" / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    cohort = next(i for i, line in enumerate(lines) if line.get("round") == 2 and "cohort" in line)
    told = next(i for i, line in enumerate(lines) if line.get("round") == 1 and "answers" in line)
    if change == "answer":  # the rule would have drawn somebody else later
        lines[told]["answers"] = dict.fromkeys(lines[told]["answers"], -99.0)
    elif change == "cohort":
        names = {f"client-{k}" for k in range(8)} - set(lines[cohort]["cohort"])
        lines[cohort]["cohort"][0] = sorted(names)[0]
    elif change == "twice":
        lines.append(lines[cohort])
    elif change == "order":
        del lines[cohort]
    elif change == "stranger":
        lines[cohort]["cohort"][0] = "nobody"
    else:
        lines[0]["plan"] = "0" * 64
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = verify_run(tmp_path / "run")
    assert not found.holds
    assert any("ledger" in f.subject or "ledger" in f.message for f in found.findings)


def test_verify_finds_more_reports_than_the_cap(digits, tmp_path):
    trained(adaptive_plan(), digits, out=tmp_path / "run")
    path = tmp_path / "run" / "ledger.jsonl"
    extra = json.dumps({"round": 5, "reports": ["client-1"]}) + "\n"
    path.write_text(path.read_text() + 600 * extra)
    found = verify_run(tmp_path / "run")
    kinds = {finding.kind for finding in found.findings if finding.subject == "client-1"}
    assert kinds >= {"overspent", "mismatch"}
