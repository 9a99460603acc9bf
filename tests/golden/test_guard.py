# SPDX-License-Identifier: Apache-2.0
"""Messages between guards and servers keep their bytes; a kept ledger goes on counting."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

KEPT = Path(__file__).parent / "guard"


@pytest.fixture
def ledger(tmp_path):
    """The kept ledger with its counter, for its owner alone."""
    for name in ("client.ledger", "client.ledger.counter"):
        shutil.copyfile(KEPT / name, tmp_path / name)
        (tmp_path / name).chmod(0o600)
    return tmp_path / "client.ledger"


def test_messages_have_the_same_bytes(make, golden):
    assert make.frames() == golden("guard")["frames"]


def test_kept_messages_are_understood(make, golden):
    frames = golden("guard")["frames"]
    for name, message in make.messages().items():
        found = make.named("decode")(bytes.fromhex(frames[name]))
        assert type(found) is type(message)
        for field, value in vars(message).items():
            assert np.array_equal(getattr(found, field), value), name


def test_kept_letters_are_opened(make, golden):
    frames = golden("guard")["frames"]
    opened = make.named("open_message")(bytes.fromhex(frames["letter: draws"]))
    assert (opened.client, opened.asks) == ("ward 7", "draws")
    assert [request.draw for request in opened.requests] == [1, 0]
    hello = make.named("open_message")(bytes.fromhex(frames["letter: hello"]))
    assert [request.run for request in hello.requests] == ["spring"]


def test_kept_terms_mean_the_same(make, golden, exact_plans, tmp_path):
    terms = Path(shutil.copyfile(KEPT.parent / "terms.toml", tmp_path / "terms.toml"))
    terms.chmod(0o600)
    found = make.checked_terms(terms)
    assert make.different(found, golden("guard")["terms"], exact=exact_plans) == []


def test_a_kept_ledger_verifies_and_says_the_same(make, golden, exact_plans, ledger):
    found, then = make.ledger_facts(ledger), golden("guard")["ledger"]
    for one in (found, then):
        one["receipt"].pop("dpcohort")
        for receipt in one["show"]["datasets"]:
            receipt.pop("dpcohort")
    assert make.different(found, then, exact=exact_plans) == []


def test_a_kept_ledger_is_exported_to_the_byte(make, ledger):
    assert make.done("ledger", "export", ledger) == (KEPT / "export.jsonl").read_text()


def test_a_kept_ledger_counts_on(make, ledger):
    step = make.named("Event").of(noise_multiplier=2.5, sampling_rate=0.1, steps=2)
    with make.named("ClientLedger")(ledger) as opened:
        entries = opened.head[0]
        sent = make.named("DrawKey")(dataset="ward", run="spring", round=1, draw=0)
        assert opened.output(sent) == b"update ward spring 1" * 3
        key = make.named("DrawKey")(dataset="ward", run="spring", round=2, draw=0)
        opened.reserve(key, step, clip=1.0)
        opened.release(key, b"a new update")
        assert opened.head[0] == entries + 2
    assert json.loads(make.done("ledger", "verify", ledger, "--json"))["holds"]


def test_the_federation_file_is_written_as_it_was(make):
    federation = make.named("Federation").load(KEPT.parent / "federation.toml")
    text = (KEPT.parent / "federation.toml").read_text()
    assert federation.to_toml(plan="federation.json") == text
