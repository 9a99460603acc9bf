# SPDX-License-Identifier: Apache-2.0
"""What a letter says where something is special about a receipt; the usual one: tests/cli."""

from __future__ import annotations

import pytest

from dpcohort.accounting import promised_risk
from dpcohort.errors import InputError
from dpcohort.report.html.letter import write_letter
from dpcohort.runs.receipts import Receipt


def _letter(tmp_path, risk=None, **values):
    given = {"client": "ward", "neighbours": "zero-out", "promised_epsilon": 1.0, "delta": 1e-5}
    receipt = Receipt(
        **{**given, "certified_epsilon": 0.9, "stamp": "drawn from entropy.", **values}
    )
    write_letter(tmp_path / "letter.html", receipt, risk=risk)
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


def test_public_data_are_called_so(tmp_path):
    text = _letter(tmp_path, None, public=True, promised_epsilon=None, delta=None)
    assert "These are public data" in text
    assert "promised" not in text.partition("</h1>")[2].partition("This letter")[0]


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


def test_letters_are_not_for_schemes(tmp_path):
    with pytest.raises(InputError, match="scheme"):
        _letter(tmp_path, RISK, scheme="secure aggregation")
    assert not (tmp_path / "letter.html").exists()
