# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Charge
from dpcohort.accounting._charges import charge_of
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plan import Plan
from dpcohort.runs import Receipt, make_receipts, train
from dpcohort.runs import _receipts as module
from dpcohort.runs._provenance import PRIVATE_NOISE, SIMULATED_TUNING
from dpcohort.runs._receipts import read_receipts, write_receipts

PRIVATE = {"randomness": "entropy", "noise": PRIVATE_NOISE}


@pytest.fixture
def receipts(plan):
    return make_receipts(plan, plan.counts)


@pytest.fixture
def positions(plan):
    return {name: k for k, name in enumerate(plan.population.ids)}


def test_says_promised_planned_spent_and_certified(plan, receipts):
    receipt = next(r for r in receipts if not r.public)
    k = plan.population.index_of(receipt.client)
    assert receipt.promised_epsilon == plan.population.epsilon[k]
    assert receipt.planned_steps == receipt.spent_steps == plan.steps[k]
    assert receipt.certified_epsilon <= receipt.promised_epsilon
    text = receipt.text()
    for words in ("promised", "planned", "spent", "certified", "The promise holds", "NOT PRIVATE"):
        assert words in text


def test_a_broken_promise_is_said_loudly(plan):
    receipts = make_receipts(plan, 2 * plan.counts, settings=PRIVATE)
    private = [r for r in receipts if not r.public]
    assert not any(r.holds for r in private)
    assert "BROKEN" in private[0].text()
    assert all(r.holds for r in receipts if r.public)


def test_public_clients_have_no_budget(receipts):
    receipt = next(r for r in receipts if r.public)
    assert receipt.promised_epsilon is None
    assert "public data" in receipt.text()


def test_come_back_from_files(receipts, positions, tmp_path):
    write_receipts(receipts, tmp_path, positions)
    found = sorted(read_receipts(tmp_path), key=lambda pair: positions[pair[1].client])
    assert [receipt for _, receipt in found] == receipts


def test_very_many_are_one_file(receipts, positions, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_FILES", 2)
    write_receipts(receipts, tmp_path, positions)
    assert [path.name for path in tmp_path.iterdir()] == ["receipts.jsonl"]
    assert [receipt for _, receipt in read_receipts(tmp_path)] == receipts


def test_ids_of_any_kind_make_file_names(receipts, tmp_path):
    odd = [
        Receipt.from_dict({**receipts[0].to_dict(), "client": name})
        for name in ("../x", "a/b", "é" * 200, "CON", ".")
    ]
    write_receipts(odd, tmp_path, {r.client: k for k, r in enumerate(odd)})
    assert len(list(tmp_path.iterdir())) == 5
    assert {r.client for _, r in read_receipts(tmp_path)} == {r.client for r in odd}


@pytest.mark.parametrize("content", ["{}", '{"client": "a", "x": 1}', "[1]", "{"])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "0-a.json").write_text(content)
    with pytest.raises(FileFormatError, match="0-a"):
        read_receipts(tmp_path)


def test_a_key_that_no_receipt_has_is_named(receipts, tmp_path):
    values = {**receipts[0].to_dict(), "colour": 1}
    (tmp_path / "0-a.json").write_text(json.dumps(values))
    with pytest.raises(FileFormatError, match="the key 'colour' is not known"):
        read_receipts(tmp_path)


def receipt(**values):
    said = {"client": "ward", "neighbours": "zero-out", "promised_epsilon": 1.0, "delta": 1e-5}
    return Receipt(**{**said, "certified_epsilon": 0.9, "stamp": "SIMULATED.", **values})


CHARGED = {
    "promised_epsilon": 2.0, "promised_delta": 2e-5,
    "paid": [{"what": "estimate", "id": "e" * 64, "epsilon": 0.25, "delta": 0.0},
             {"what": "tuning", "id": "f" * 64, "epsilon": 0.75, "delta": 1e-5}],
}  # fmt: skip


def test_what_was_paid_beside_the_rounds_is_told_with_what_was_left():
    tuned = {"source": "charged", "charge": "f" * 64}
    made = receipt(charged=CHARGED, tuning={**tuned, "simulated": True})
    text = made.text()
    assert "promised   epsilon 2 at delta 2e-05 in all" in text
    assert "epsilon 0.25 at delta 0 on an estimate of bounds (eeeeeeee)" in text
    assert "epsilon 0.75 at delta 1e-05 on tuning (ffffffff); epsilon 1 at delta 1e-05 for" in text
    assert "the charge ffffffff. " + SIMULATED_TUNING in text
    assert SIMULATED_TUNING not in receipt(charged=CHARGED, tuning=tuned).text()
    assert not receipt(charged={**CHARGED, "promised_epsilon": 1.8}).holds
    # To the last bit: what is spent above a promise is above it.
    for key, least in (("promised_epsilon", made.total_epsilon), ("promised_delta", 2e-5)):
        assert receipt(charged={**CHARGED, key: least}).holds
        assert not receipt(charged={**CHARGED, key: float(np.nextafter(least, 0.0))}).holds


def test_runs_before_and_reports_are_told_too():
    event = {"steps": 3, "noise_multiplier": 2.0, "sampling_rate": 0.1}
    reports = {
        "spent": 2, "planned": 4, "statistic": "loss", "top": 3.0, "noise_multiplier": 9.0,
        "noise_std": 0.5,
    }  # fmt: skip
    before = ({"events": [event], "plan": "b" * 64}, {"events": [], "plan": "c" * 64})
    text = receipt(before=before, reports=reports).text()
    assert "3 noisy steps at z = 2 (rate 0.1); plan bbbbbbbbbbbbbbbb" in text
    assert "took no part; plan cccccccccccccccc" in text
    assert "2 of at most 4, mean loss up to 3; z = 9, noise 0.5 on the mean" in text
    assert "no noise, RAW" in receipt(reports={**reports, "noise_multiplier": 0.0}).text()


def test_nothing_certified_holds_nothing():
    assert not receipt(certified_epsilon=None).holds


def test_charges_that_no_run_writes_are_refused(receipts):
    for charged in (
        {"promised_epsilon": "2"},
        {**CHARGED, "paid": [{"what": "rent", "id": "", "epsilon": 1.0, "delta": 0.0}]},
        {**CHARGED, "paid": [{"what": "tuning", "id": "f", "epsilon": "1", "delta": 0.0}]},
    ):
        with pytest.raises(InputError, match="'charged' is not as a receipt has it"):
            Receipt.from_dict({**receipts[0].to_dict(), "charged": charged})


def test_what_a_simulation_charged_makes_all_of_it_a_simulation(plan):
    paid = Charge(what="tuning", private=False, promised={}, spent={})
    charged = make_plan(plan.population, plan.training, charges=[paid], seed=0)
    assert charged.source("private") == "seed"
    assert plan.source("private") == "private"
    assert plan.source("private", [paid]) == "seed"


def test_charges_of_a_plan_and_later_ones_are_in_receipts_of_who_paid(plan):
    def part(epsilon, delta):
        return 0.125 * epsilon, 0.0

    given = {"private": True, "contract": plan.contract}
    first = charge_of(plan.population, (), part, what="tuning", **given)
    later = charge_of(plan.population, [first], part, what="evaluation", **given)
    charged = make_plan(plan.population, plan.training, charges=[first], seed=0)
    settings = {"tuning": {"source": "charged", "charge": first.id}}
    made = make_receipts(charged, charged.counts, settings=settings, later=[later])
    assert [one.charged is None for one in made] == [one.public for one in made]
    for one in made:
        if not one.public:
            whole = first.promised[one.client][0]
            assert one.charged["promised_epsilon"] == whole
            assert [paid["id"] for paid in one.charged["paid"]] == [first.id, later.id]
            assert one.charged_epsilon == whole * (1 - (7 / 8) ** 2)
            assert "simulated" not in one.tuning


def test_little_to_tell_is_told_in_few_words():
    assert "settings" in receipt(tuning={"source": "none"}).text()
    frozen = {"frozen_parameters": 1200, "source": "ImageNet"}
    assert "1,200 parameters stay" in receipt(weights=frozen).text()


def test_one_round_with_little_noise_ends_with_receipts(digits, tmp_path):
    people = Population.from_arrays(sizes=[700, 742], epsilon=[40.0, 60.0], delta=1e-5)
    settings = Training(rounds=1, cohort_size=2, sampling_rate=1.0, dimension=650)
    plan = make_plan(people, settings, selection="unbiased", seed=0)
    train(plan, "logistic", digits, out=tmp_path / "run", seed=1, device="cpu")
    found = [receipt for _, receipt in read_receipts(tmp_path / "run" / "receipts")]
    assert len(found) == 2
    assert all(one.holds and one.certified_epsilon > 30 for one in found)


def test_what_cannot_be_certified_is_infinite_and_the_promise_does_not_hold(plan, monkeypatch):
    monkeypatch.setattr(Plan, "spent_epsilon", lambda _, draws, *a, clients, **k: clients + np.inf)
    receipt = next(one for one in make_receipts(plan, plan.counts) if not one.public)
    assert not receipt.holds
    assert "inf" in receipt.text()
    assert receipt.to_dict()["certified_epsilon"] in ("inf", "Infinity", None)
