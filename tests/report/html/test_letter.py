# SPDX-License-Identifier: Apache-2.0
"""What a letter says where something is special about a receipt; the usual one: tests/cli."""

from __future__ import annotations

import math

from dpcohort.accounting import promised_risk
from dpcohort.deploy.ledger._receipt import LifetimeReceipt
from dpcohort.report.html._letter import write_letter
from dpcohort.runs import Receipt


def _letter(tmp_path, risk=None, alone=None, **values):
    given = {"client": "ward", "neighbours": "zero-out", "promised_epsilon": 1.0, "delta": 1e-5}
    kind = LifetimeReceipt if "across_runs" in values else Receipt
    receipt = kind(**{**given, "certified_epsilon": 0.9, "stamp": "drawn from entropy.", **values})
    write_letter(tmp_path / "letter.html", receipt, risk=risk, alone=alone)
    return " ".join((tmp_path / "letter.html").read_text().partition("<body")[2].split())


RISK = promised_risk(epsilon=0.9, delta=1e-5)


def test_a_broken_promise_is_the_first_thing_it_says(tmp_path):
    text = _letter(tmp_path, RISK, certified_epsilon=1.5)
    assert "The promise was broken" in text
    assert "ε = 1.5 was spent" in text
    assert "was kept" not in text


def test_where_nothing_bounds_it_no_rate_is_given(tmp_path):
    text = _letter(tmp_path, None, certified_epsilon=None, stamp="NOT PRIVATE (raw reports): x.")
    assert "No number bounds what was spent" in text
    assert "Nothing bounds what an attacker can find out" in text
    assert "hits by guessing" not in text


def test_names_are_text(tmp_path):
    text = _letter(tmp_path, RISK, client="<img src=x onerror=alert(1)>\u202e")
    assert "<img" not in text
    assert "&lt;img" in text


def test_it_says_whose_weights_training_started_from(tmp_path):
    weights = {
        "file": "encoder.safetensors", "sha256": "ab" * 32, "source": "ImageNet, public",
        "tensors": 4, "frozen": ["0"], "frozen_parameters": 1200,
    }  # fmt: skip
    text = _letter(tmp_path, RISK, weights=weights)
    assert "encoder.safetensors" in text
    assert "ImageNet, public" in text
    assert "1,200 parameters stay as they are" in text
    assert "The records that the initial weights were trained on" in text


def test_it_says_on_whom_the_client_counts(tmp_path):
    trust = {"alone_epsilon": 3.25, "cohort_size": 9, "colluding": 4, "dropouts": 1, "honest": 4}
    trust |= {"weight": 0.5, "share": 0.1}
    alone = promised_risk(epsilon=3.25, delta=1e-5)
    text = _letter(tmp_path, RISK, alone, trust=trust)
    assert "members of a cohort" in text
    assert "3.25" in text
    assert "more hits than this, as long as 4 members of each cohort are honest" in text
    assert f"then finds at most {math.ceil(10_000 * alone.hits(0.01)) / 100:.2f} of 100" in text
    for rate in (0.01, 0.05):
        assert f">{math.ceil(1000 * alone.hits(rate)) / 10:.1f} %<" in text
    assert "The promise does not cover that all others help the server" in text
    assert "however much they compute" not in text
    local = _letter(tmp_path, RISK)
    assert "members of a cohort" not in local
    assert "honest" not in local
    assert "however much they compute, and for ever" in local
    assert "however much they compute" in _letter(tmp_path, RISK, trust={**trust, "honest": 1})


def test_runs_of_a_ledger_say_what_is_left_if_all_others_collude(tmp_path):
    of_run = {
        "run": "A", "counted_draws": 3, "accepted_draws": 3, "steps": 3, "noise_multiplier": 2.0,
        "sampling_rate": 0.1, "certified_epsilon": 0.9,
    }  # fmt: skip
    pool = {"honest": 3, "unmasked": 3, "alone_epsilon": 2.75}
    text = _letter(tmp_path, RISK, across_runs="composed", runs=({**of_run, "pool": pool}, of_run))
    assert "… if all others collude" in text
    assert "2.75" in text
    assert "whoever breaks the masks' encryption" in text
    assert "collude" not in _letter(tmp_path, RISK, across_runs="composed", runs=(of_run,))


CHARGED = {
    "promised_epsilon": 2.0, "promised_delta": 2e-5,
    "paid": [{"what": "estimate", "id": "e" * 64, "epsilon": 0.25, "delta": 0.0},
             {"what": "tuning", "id": "f" * 64, "epsilon": 0.75, "delta": 1e-5}],
}  # fmt: skip


QUESTIONS = [
    "Privacy parameters", "Unit of privacy", "Mechanism", "Sampling",
    "Composition, budget over time", "Tuning", "Utility and bias", "Query model", "Trust model",
    "Randomness and side channels", "Access control", "Data collection exposure",
]  # fmt: skip


def test_it_answers_the_questions_of_nist(tmp_path):
    of_run = {"noise_multiplier": 2.0, "sampling_rate": 0.1, "batch_size": 60, "spent_steps": 8}
    texts = {
        "run": _letter(
            tmp_path,
            RISK,
            sampler="poisson",
            unit="all records of one person with this client",
            **of_run,
        ),
        "ledger": _letter(tmp_path, RISK, across_runs="summed", per="30 days", ever_epsilon=4.5),
    }
    for text in texts.values():
        answers = text.partition("NIST SP 800-226")[2]
        for question in QUESTIONS:
            assert len(answers.partition(f"<th>{question}</th>")[2].partition("</tr>")[0]) > 30
    assert (
        "All records of one person with this client. Neighbours differ in one person that"
        in texts["run"]
    )
    assert "Gaussian noise of 2 times that limit" in texts["run"]
    assert "Poisson batches of about 60 persons (10 % of all)" in texts["run"]
    assert "8 noisy steps composed as one" in texts["run"]
    assert "Central: the operator" in texts["run"]
    assert "ε = 1 at δ = 1e-05 promised over all runs in any 30 days" in texts["ledger"]
    assert "every run that was begun is added up" in texts["ledger"]
    assert "Ever: ε = 4.5" in texts["ledger"]
    assert "Local: the client's own guard" in texts["ledger"].replace("&#39;", "'")
    charged = _letter(tmp_path, RISK, charged=CHARGED)
    assert "what was charged beside them is added" in charged
    assert "ε = 2 at δ = 2e-05 promised, ε = 1.9 spent at most" in charged


def test_what_was_charged_before_the_training_counts_in_every_number(tmp_path):
    text = _letter(tmp_path, RISK, charged=CHARGED)
    assert "ε = 2 at δ = 0.00002" in text
    assert "ε = 0.25 of the promise was spent on an estimate of bounds" in text
    assert "ε = 0.75 and δ = 1e-05 of the promise was spent on tuning" in text
    assert "at most <strong>ε = 1.9</strong> of 2" in text
    assert "was kept" in text
    most = promised_risk(epsilon=1.9, delta=2e-5).hits(0.01)
    assert f"finds at most {math.ceil(10_000 * most) / 100:.2f} of 100" in text
    broken = _letter(tmp_path, RISK, charged={**CHARGED, "promised_epsilon": 1.8})
    assert "The promise was broken" in broken
    assert "ε = 1.9 was spent" in broken
