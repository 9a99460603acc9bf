# SPDX-License-Identifier: Apache-2.0
"""Runs with distributed noise: both epsilons in receipts and letters, and continuation."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Charge, Contract
from dpcohort.aggregation import TrimmedMean
from dpcohort.config import commented_config, loads_config
from dpcohort.errors import InputError
from dpcohort.explain import explain_client
from dpcohort.plan import Past, Plan
from dpcohort.report._plan_summary import plan_values
from dpcohort.report.html._letter import write_letter
from dpcohort.report.html._page import report_of_runs
from dpcohort.report.html._sources import read_groups
from dpcohort.runs import Receipt, Run, make_receipts, replan, train, verify_run
from dpcohort.runs._earlier_runs import segment_of
from dpcohort.runs._job import make_job
from dpcohort.runs._training import train_job
from dpcohort.tuning._charged import _refuse_what_does_not_fit

from .conftest import small_plan

HALF = Contract(trust="distributed", colluding=0.5)  # of 4 members 2 may collude


@pytest.fixture(scope="module")
def plan():
    return small_plan(accountant=HALF)


@pytest.fixture(scope="module")
def _run(plan, digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed") / "run"
    train(plan, "logistic", digits, out=folder, device="cpu")
    return folder


@pytest.fixture
def run(_run, tmp_path):
    shutil.copytree(_run, tmp_path / "run")
    return tmp_path / "run"


def findings(run):
    return " ".join(found.message for found in verify_run(run).findings)


def test_a_receipt_says_on_whom_it_counts_and_what_is_left_without_them(plan):
    made = {one.client: one for one in make_receipts(plan, plan.counts)}
    receipt = made[plan.population.ids[2]]
    assert receipt.trust["honest"] == 2
    assert receipt.certified_epsilon < receipt.trust["alone_epsilon"]
    assert receipt.trust["alone_epsilon"] == pytest.approx(
        plan.certificate.alone_epsilon[2], rel=1e-2
    )
    words = receipt.text()
    assert "of 4 members at most 2 help it, so at least 2 shares of noise" in words
    assert f"epsilon {receipt.certified_epsilon:.5g} with 2 honest members" in words
    assert f"epsilon {receipt.trust['alone_epsilon']:.5g} if all others collude" in words
    assert "weights, which tell budgets" in words
    assert Receipt.from_dict(json.loads(json.dumps(receipt.to_dict()))) == receipt
    half = make_receipts(plan, plan.counts // 2)
    assert {one.client: one for one in half}[receipt.client].trust["alone_epsilon"] < (
        receipt.trust["alone_epsilon"]
    )
    assert all("trust" not in one.to_dict() for one in make_receipts(small_plan(), np.ones(8)))


def test_explanation_and_summary_name_both_epsilons(plan):
    told = explain_client(plan, plan.population.ids[0])
    assert "If all others collude, its own share alone protects it: epsilon " in told.text()
    assert told.numbers["alone_epsilon"] == plan.certificate.alone_epsilon[0]
    values = plan_values(plan)
    assert values["summary"]["trust"]["honest"] == 2
    assert values["clients"]["weight"] == plan.noise.weights.tolist()
    assert "epsilon" in repr(plan)
    assert "2 of 4 honest" in repr(plan)
    assert "weight" not in explain_client(small_plan(), told.numbers["client"]).to_dict()


def test_a_run_verifies_with_both_epsilons(run, plan):
    found = verify_run(run)
    assert found.findings == ()
    assert found.honest == 2
    assert found.alone_epsilon == np.nanmax(plan.certificate.alone_epsilon)


@pytest.mark.parametrize("trust", [Contract(), HALF], ids=["local", "distributed"])
def test_what_was_charged_is_in_every_number_that_is_told(trust, digits, tmp_path):
    people, folder = small_plan(accountant=trust).population, tmp_path / "run"
    held = np.flatnonzero(~people.public).tolist()
    names = [people.ids[k] for k in held]
    whole = {people.ids[k]: (float(people.epsilon[k]) + 0.8, 1e-5) for k in held}
    paid = Charge(what="estimate", private=False, promised=whole,
                  spent=dict.fromkeys(names, (0.8, 0.0)))  # fmt: skip
    promised = replace(people, epsilon=people.epsilon + 0.8)
    plan = make_plan(
        promised, small_plan().training, selection="unbiased", accountant=trust, charges=[paid],
        seed=3,
    )  # fmt: skip
    job = make_job(plan, "logistic", digits, device="cpu")
    train_job(job, out=folder)

    report = report_of_runs(read_groups([folder]))
    rows = {row.name: row for row in report.rows}
    receipts = {name: Run.load(folder).receipt(name) for name in names}
    for name, receipt in receipts.items():
        assert rows[name].epsilon == whole[name][0]
        assert rows[name].spent == pytest.approx(receipt.total_epsilon, rel=1e-3)
        assert (
            f"{whole[name][0]:.4g} in all, and 0.8 of that was paid beside it"
            in rows[name].sentence
        )
    found = verify_run(folder)
    assert found.holds
    totals = [receipts[name].total_epsilon / whole[name][0] for name in names]
    assert found.tightest == pytest.approx(max(totals), rel=1e-9)
    if not trust.is_distributed:
        assert receipts[names[0]].total_alone_epsilon is None
        return

    worst = max(receipts.values(), key=lambda receipt: receipt.total_alone_epsilon)
    alone = worst.trust["alone_epsilon"] + 0.8
    assert worst.to_dict()["total_alone_epsilon"] == alone
    assert Receipt.from_dict(worst.to_dict()) == worst
    assert f"alone      epsilon {alone:.5g}, what was charged included," in worst.text()
    assert found.alone_epsilon == alone
    assert rows[worst.client].alone == alone
    cards = {name: value for name, value, _ in report.cards}
    assert cards["If all others collude"] == f"ε {alone:.3g}"
    write_letter(tmp_path / "letter.html", worst, risk=None)
    words = (tmp_path / "letter.html").read_text()
    assert words.count(f"ε = {alone:.4g}") >= 3
    assert f"ε = {worst.trust['alone_epsilon']:.4g}" not in words

    (folder / "charges").mkdir()
    (folder / "charges" / "0.json").write_text("{}")
    broken = report_of_runs(read_groups([folder]))
    assert any("not a charge as dpcohort" in problem.message for problem in broken.problems)
    assert {row.name for row in broken.rows} >= set(names)


@pytest.mark.parametrize("key", ["alone_epsilon", "honest", "weight", "share"])
def test_a_receipt_that_lies_about_others_is_found_out(run, key):
    path = sorted((run / "receipts").glob("*.json"))[1]
    content = json.loads(path.read_text())
    content["trust"][key] *= 0.9 if key != "honest" else 2
    path.write_text(json.dumps(content))
    assert "its receipt says trust" in findings(run)


def test_a_plan_that_lies_about_what_is_left_alone_is_found_out(run, plan, digits, tmp_path):
    said = plan.certificate.alone_epsilon.copy()
    said[3] *= 0.99
    lying = replace(plan, certificate=replace(plan.certificate, worst_epsilon=said))
    lying.save(run / "plan.json")
    assert f"if all others collude: {plan.population.ids[3]}" in findings(run)
    with pytest.raises(Exception, match="if all others collude"):
        train(Plan.load(run / "plan.json"), "logistic", digits, out=tmp_path / "other")


def test_a_plan_that_says_less_than_its_clients_spend_is_found_out(run, plan):
    replace(
        plan, certificate=replace(plan.certificate, epsilon=0.99 * plan.certified_epsilon)
    ).save(run / "plan.json")
    assert f"more than the plan says: {plan.population.ids[0]}" in findings(run)


def test_a_run_that_went_on_with_less_trust_does_not_verify(run, plan):
    past = segment_of(run, plan)
    content = json.loads((run / "plan.json").read_text())
    content["past"]["runs"] = [replace(past, honest=3).to_dict()]
    (run / "plan.json").write_text(json.dumps(content))
    assert "must be at least 3, as an earlier run counted on" in findings(run)


def test_with_nobody_to_count_on_a_simulation_is_that_of_local_trust(digits):
    alone = train(
        small_plan(accountant=Contract(trust="distributed", colluding=3)), "logistic", digits
    )
    local = train(small_plan(), "logistic", digits, merged_noise=True)
    assert alone.plan.schedule.sha256 == local.plan.schedule.sha256
    for name, values in local.scored_weights.items():
        np.testing.assert_allclose(alone.scored_weights[name], values, rtol=1e-4, atol=1e-6)
    shares = alone.plan.noise.pool.shares
    np.testing.assert_allclose(
        shares, np.nan_to_num(local.plan.noise_multipliers) / local.plan.batch_sizes, rtol=1e-12
    )


def test_a_run_goes_on_and_both_epsilons_are_of_both_runs(run, plan, digits, tmp_path):
    old = plan.population
    more = Population.from_arrays(
        ids=old.ids, sizes=old.sizes, epsilon=2 * old.epsilon, delta=old.delta, public=old.public
    )
    later = replan(run, more, rounds=4, seed=1)
    assert later.past.segments[0].honest == 2
    assert (later.certified_epsilon[:7] <= more.epsilon[:7]).all()
    both = (plan.counts > 0) & (later.counts > 0) & ~old.public
    assert both.sum() >= 4
    assert (plan.certificate.alone_epsilon[both] < later.certificate.alone_epsilon[both]).all()
    train(later, "logistic", digits, after=run, out=tmp_path / "later", device="cpu")
    assert verify_run(tmp_path / "later").holds
    receipt = Run.load(tmp_path / "later").receipt(old.ids[int(np.flatnonzero(both)[0])])
    told = f"epsilon {receipt.trust['alone_epsilon']:.5g}, all runs together, if all others collude"
    assert told in receipt.text()
    forgetful = replace(later, past=Past.of([replace(later.past.segments[0], honest=1)]))
    with pytest.raises(Exception, match=r"not as it was|goes on in"):
        train(forgetful, "logistic", digits, after=run, out=tmp_path / "other", device="cpu")


def test_a_run_is_not_resumed_with_another_trust(run, plan, digits, tmp_path):
    local = small_plan(accountant=Contract())
    asked = {"device": "cpu", "resume": True}
    with pytest.raises(InputError, match=r"privacy\.trust was 'distributed' and is 'local'"):
        train(local, "logistic", digits, out=run, **asked)
    train(local, "logistic", digits, out=tmp_path / "local", device="cpu")
    with pytest.raises(InputError, match=r"privacy\.trust was 'local' and is 'distributed'"):
        train(plan, "logistic", digits, out=tmp_path / "local", **asked)
    for name, value in (("colluding", 1), ("dropouts", 1)):
        other = small_plan(accountant=replace(HALF, **{name: value}))
        with pytest.raises(
            InputError, match=rf"privacy\.{name} was {getattr(HALF, name)} and is 1"
        ):
            train(other, "logistic", digits, out=run, **asked)


def test_where_everybody_was_in_every_round_a_client_can_leave(digits, tmp_path):
    def people(count, epsilon):
        ids = [f"c{k}" for k in range(count)]
        return Population.from_arrays(ids=ids, sizes=[60] * count, epsilon=epsilon, delta=1e-5)

    trust = Contract(trust="distributed", colluding=0.5, dropouts=1)
    settings = Training(rounds=3, cohort_size=6, sampling_rate=1.0, dimension=650)
    all_of_them = make_plan(people(6, 1.0), settings, accountant=trust, seed=0)
    first = tmp_path / "first"
    train(all_of_them, "logistic", digits, out=first, device="cpu")
    with pytest.raises(InputError, match=r"2 honest members .* cohorts of at least 5"):
        replan(first, people(4, 3.0), rounds=2)
    with pytest.raises(InputError, match=r"2 honest members .* cohorts of 4 have fewer"):
        replan(first, people(5, 3.0), rounds=2, cohort_size=4)
    with pytest.raises(InputError, match=r"cohort_size = 6 .* at most 5"):
        replan(first, people(5, 3.0), rounds=2, cohort_size=6)
    later = replan(first, people(5, 3.0), rounds=2, seed=1)
    assert later.training.cohort_size == 5
    assert later.noise.honest == later.past.segments[0].honest == 2
    train(later, "logistic", digits, after=first, out=tmp_path / "later", device="cpu")
    assert verify_run(tmp_path / "later").holds
    # They are five now: with others that join, cohorts stay as they are or are as asked.
    more = replan(tmp_path / "later", people(7, 9.0), rounds=2, cohort_size=7)
    assert more.training.cohort_size == 7


def test_what_needs_single_updates_is_refused_by_every_door(plan, digits):
    with pytest.raises(InputError, match=r"trimmed-mean needs single updates.* a sum has no"):
        make_job(plan, "logistic", digits, aggregation=TrimmedMean(trim=0.2))
    with pytest.raises(InputError, match=r"trimmed-mean needs single updates.* a sum has no"):
        make_job(plan, "logistic", digits, aggregation="trimmed-mean")
    config = loads_config(commented_config("digits")).with_overrides(["privacy.trust=distributed"])
    with pytest.raises(InputError, match=r"charged tuning .*trust = local"):
        _refuse_what_does_not_fit(config)
