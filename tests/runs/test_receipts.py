# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.errors import FileFormatError
from dpcohort.runs import receipts as module
from dpcohort.runs.receipts import (
    PRIVATE_NOISE,
    Receipt,
    make_receipts,
    read_receipts,
    write_receipts,
)

PRIVATE = {"randomness": "entropy", "noise": PRIVATE_NOISE}


@pytest.fixture
def receipts(plan):
    return make_receipts(plan, plan.schedule.counts)


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
    receipts = make_receipts(plan, 2 * plan.schedule.counts, settings=PRIVATE)
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


@pytest.mark.parametrize(
    ("content", "fault"),
    [("{}", "'client' is missing"), ('{"colour": 1}', "'client' is missing")],
    ids=["empty", "other keys"],
)
def test_what_a_file_lacks_is_named_in_words(tmp_path, content, fault):
    (tmp_path / "0-a.json").write_text(content)
    with pytest.raises(FileFormatError, match=f"not a receipt: the key {fault}"):
        read_receipts(tmp_path)


def test_a_key_that_no_receipt_has_is_named(receipts, tmp_path):
    values = {**receipts[0].to_dict(), "colour": 1}
    (tmp_path / "0-a.json").write_text(json.dumps(values))
    with pytest.raises(FileFormatError, match="the key 'colour' is not known"):
        read_receipts(tmp_path)


def test_nothing_but_numbers_json_can_hold(plan, receipts):
    for receipt in receipts:
        assert "NaN" not in json.dumps(receipt.to_dict(), allow_nan=False)
    undrawn = make_receipts(plan, np.zeros(8, np.int64))
    assert all(r.spent_draws == 0 and r.holds for r in undrawn)
