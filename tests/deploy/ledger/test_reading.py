# SPDX-License-Identifier: Apache-2.0
"""What a ledger's readers get: every fault found, receipts, copies."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import sqlite3
from contextlib import closing

import pytest

from dpcohort.accounting import Event, History, promised_risk
from dpcohort.deploy._formats import replace
from dpcohort.deploy.ledger import (
    ClientLedger,
    LifetimeCap,
    lifetime_receipt,
    lifetime_risk,
    read_state,
    verify_ledger,
)
from dpcohort.deploy.ledger._reading import back_up, exported_lines
from dpcohort.deploy.ledger._receipt import LifetimeReceipt
from dpcohort.deploy.ledger._store import Entry
from dpcohort.errors import DpcohortError, InputError, VerificationError


def change(path, *statements):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TRIGGER IF EXISTS no_delete")
        connection.execute("DROP TRIGGER IF EXISTS no_change")
        for statement, *values in statements:
            connection.execute(statement, *values)


@pytest.fixture
def spent(ledger, path, key, step):
    for round in range(4):
        ledger.reserve(key(round), step, clip=1.0)
        ledger.release(key(round), b"%d" % round)
    ledger.close()
    return path


def kinds(path, **options):
    return [finding["what"] for finding in verify_ledger(path, **options).findings]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("DELETE FROM entries WHERE seq = 5", "chain"),
        ("UPDATE entries SET round = 9 WHERE seq = 4", "chain"),
        ("UPDATE entries SET body = '{' WHERE seq = 2", "chain"),
        ("DELETE FROM outputs WHERE seq = 11", "output"),
        ("UPDATE outputs SET bytes = x'00' WHERE seq = 11", "output"),
        ("DELETE FROM entries WHERE seq > 9", "counter"),
    ],
)
def test_what_is_found(spent, statement, expected):
    change(spent, (statement,))
    assert expected in kinds(spent)


def test_a_counter_left_behind_by_a_crash_is_no_finding(ledger, path, key, step):
    """The ledger is ahead, which is harmless; a counter that is missing is not."""
    counter = path.with_name("ward.ledger.counter")
    before = counter.read_bytes()
    ledger.reserve(key(0), step, clip=1.0)
    counter.write_bytes(before)
    assert kinds(path) == []
    counter.unlink()
    assert kinds(path) == ["counter"]


def test_nothing_is_told_from_a_rolled_back_copy(spent):
    """Its receipt would say that less was spent."""
    change(spent, ("DELETE FROM entries WHERE seq > 9",))
    with pytest.raises(VerificationError, match="older than its counter"):
        read_state(spent)


def test_a_head_from_an_old_receipt_must_still_be_there(spent):
    old = read_state(spent).hashes[4]
    assert kinds(spent, known_head=old) == []
    assert kinds(spent, known_head="f" * 64) == ["head"]


def test_whoever_rewrites_the_whole_chain_is_found_by_the_counter(spent):
    """Right hashes and right rules from the first row on, one draw fewer."""
    state = read_state(spent)
    with closing(sqlite3.connect(spent)) as connection:
        rows = connection.execute("SELECT kind, dataset, run, round, draw, body FROM entries")
        kept = rows.fetchall()[:-2]
    last, statements = None, [("DELETE FROM outputs",), ("DELETE FROM entries",)]
    for kind, dataset, run, round, draw, body in kept:
        content = {**json.loads(body), "note": "rewritten"}
        where = {"dataset": dataset, "run": run, "round": round, "draw": draw}
        entry = Entry.following(last, kind, content, **where)
        last = (entry.seq, entry.hash)
        insert = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        link = (entry.body, entry.previous, entry.hash)
        statements.append((insert, (entry.seq, kind, dataset, run, round, draw, *link)))
    change(spent, *statements)
    found = verify_ledger(spent)
    assert found.entries == state.head[0] - 2
    assert "counter" in [finding["what"] for finding in found.findings]
    assert "chain" not in [finding["what"] for finding in found.findings]


def test_a_cap_that_was_passed_is_found(path, terms, key, step, monkeypatch):
    """A ledger whose cap check is missing: written without complaint, found by verify."""
    monkeypatch.setattr("dpcohort.deploy.ledger._ledger.check_cap", lambda *_, **__: None)
    with ClientLedger.create(path) as ledger:
        ledger.register("ward", LifetimeCap(epsilon=0.5, delta=1e-5))
        ledger.accept("ward", "spring", terms)
        for round in range(20):
            ledger.reserve(key(round), step, clip=1.0)
    found = verify_ledger(path).findings
    assert [finding["what"] for finding in found] == ["cap"]
    assert "of 0.5" in found[0]["detail"]


def test_flipped_bytes_and_cut_files_never_crash_and_never_pass_as_more_budget(spent, folder):
    """Whatever byte is damaged: the same counts, or a clear error."""
    whole = spent.read_bytes()
    expected = read_state(spent).head
    dice = random.Random(5)
    places = [dice.randrange(len(whole)) for _ in range(150)]
    damaged = [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in places]
    damaged += [whole[: len(whole) * cut // 16] for cut in range(1, 16)]
    noticed = 0
    for content in damaged:
        target = folder / "damaged.ledger"
        target.write_bytes(content)
        shutil.copy(f"{spent}.counter", folder / "damaged.ledger.counter")
        try:
            with ClientLedger(target) as ledger:
                assert ledger.head == expected
        except DpcohortError:
            noticed += 1
        for suffix in ("-wal", "-shm"):
            (folder / f"damaged.ledger{suffix}").unlink(missing_ok=True)
    assert noticed >= 15  # at least every cut file; a byte of free space may be flipped unnoticed


def test_no_ledger_and_an_edited_one(folder, spent):
    with pytest.raises(InputError, match="no client ledger"):
        verify_ledger(folder / "none")
    change(spent, ("DELETE FROM entries WHERE seq = 5",))
    with pytest.raises(VerificationError, match="entry 5 is missing"):
        read_state(spent)


# SPDX-License-Identifier: Apache-2.0


@pytest.fixture
def receipt(ledger, path, key, step, terms):
    ledger.accept("ward", "autumn", replace(terms, least_noise_multiplier=3.0))
    for round in range(5):
        ledger.reserve(key(round), step, clip=1.0)
    ledger.release(key(0), b"x")
    more = step.changed(noise_multiplier=4.0)
    ledger.reserve(key(0, run="autumn"), more, clip=1.0)
    return lifetime_receipt(read_state(path), "ward")


def test_numbers(receipt, ledger):
    spring, autumn = receipt.runs
    draws = ("counted_draws", "released_draws", "unreleased_draws")
    assert [spring[key] for key in draws] == [5, 1, 4]
    assert [autumn[key] for key in ("counted_draws", "steps", "noise_multiplier")] == [1, 1, 3.0]
    five = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=5)
    one = Event.of(noise_multiplier=3.0, sampling_rate=0.1, steps=1)
    assert spring["certified_epsilon"] == History((five,)).epsilon(1e-5)
    assert receipt.certified_epsilon == History((five, one)).epsilon(1e-5)
    assert receipt.promised_epsilon == 2.0
    assert receipt.holds
    assert (receipt.entries, receipt.head) == ledger.head


def test_in_words_and_as_json(receipt):
    words = receipt.text()
    for part in ("promised   epsilon 2 ", "spring: 5 of 60", "The promise holds", receipt.head):
        assert part in words
    values = json.loads(json.dumps(receipt.to_dict()))
    assert values["runs"][0]["run"] == "spring"
    assert values["head"] == receipt.head
    assert [run["neighbours"] for run in values["runs"]] == ["zero-out", "zero-out"]
    assert "of 2 (zero-out)" in words  # an epsilon is not said without its relation
    assert "the second holds also where a server stopped" in words


def test_a_broken_promise_says_so(receipt):
    assert "THE PROMISE IS BROKEN" in dataclasses.replace(receipt, within_cap=False).text()


def test_summed_caps_say_how_they_count(receipt):
    assert "every begun run in full" in dataclasses.replace(receipt, across_runs="summed").text()


def test_the_risk_over_all_runs_counts_as_the_cap_does(spent, path, folder, terms, key, step):
    composed = lifetime_risk(read_state(path), "ward").hits(0.05)
    other = folder / "summed.ledger"
    with ClientLedger.create(other) as ledger:
        ledger.register("ward", LifetimeCap(epsilon=4, delta=1e-4, across_runs="summed"))
        ledger.accept("ward", "spring", terms)
        ledger.reserve(key(0), step, clip=1.0)
    summed = lifetime_risk(read_state(other), "ward").hits(0.05)
    whole = promised_risk(epsilon=terms.epsilon, delta=terms.delta).hits(0.05)
    assert 0.05 < composed < summed <= whole * (1 + 1e-12)  # a run that was begun counts in full


# SPDX-License-Identifier: Apache-2.0


def test_lines_hold_the_chain_and_no_bytes(ledger, path, key, step):
    ledger.reserve(key(0), step, clip=1.0)
    ledger.release(key(0), b"secret bytes")
    lines = list(exported_lines(path))
    entries = [Entry(**json.loads(line)) for line in lines]
    assert all(entry.is_whole() for entry in entries)
    assert [entry.hash for entry in entries] == read_state(path).hashes
    assert "secret" not in "".join(lines)


def test_a_backup_taken_while_open_is_whole(ledger, path, key, step, folder):
    ledger.reserve(key(0), step, clip=1.0)
    back_up(path, folder / "copy")
    shutil.copy(f"{path}.counter", folder / "copy.counter")
    assert verify_ledger(folder / "copy").holds
    assert (folder / "copy").stat().st_mode & 0o077 == 0
    with ClientLedger(folder / "copy") as copy:
        assert copy.head == ledger.head


RUN = {
    "run": "spring", "counted_draws": 4, "accepted_draws": 9, "released_draws": 3,
    "unreleased_draws": 1, "steps": 8, "noise_multiplier": 2.5, "sampling_rate": 0.1,
    "certified_epsilon": 0.4, "promised_epsilon": 0.8, "neighbours": "zero-out",
}  # fmt: skip


def lifetime(**values):
    given = {"client": "ward", "neighbours": "zero-out", "promised_epsilon": 1.0, "delta": 1e-5}
    return LifetimeReceipt(**{**given, "certified_epsilon": 0.9, **values})


def test_a_receipt_of_a_ledger_adds_up_runs():
    asked = {"counted": 2, "accepted": 5, "noise_multiplier": 30.0, "sampling_rate": 1.0}
    ledger = {"across_runs": "composed", "runs": (RUN, {**RUN, "run": "autumn", "reports": asked})}
    made = lifetime(**ledger, ledger="a" * 32, entries=12, head="f" * 64)
    text = made.text()
    assert "spring: 4 of 9 draws counted (3 released, 1 not), 8 noisy steps at z = 2.5" in text
    assert "2 of 5 reports at z = 30, rate 1" in text
    assert "one composition of all draws" in text
    assert [run["run"] for run in made.to_dict()["runs"]] == ["spring", "autumn"]
    over = lifetime(**{**ledger, "across_runs": "summed"}, within_cap=False)
    assert not over.holds
    assert "every begun run in full" in over.text()
    assert "number of draws" not in lifetime(across_runs="composed").text()
