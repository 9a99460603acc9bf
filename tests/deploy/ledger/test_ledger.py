# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from contextlib import closing

import pytest

from dpcohort.accounting import Event
from dpcohort.deploy._formats import replace
from dpcohort.deploy.ledger import (
    ClientLedger,
    LifetimeCap,
    LifetimeCapError,
    read_state,
    verify_ledger,
)
from dpcohort.deploy.ledger._counter import read_counter
from dpcohort.errors import BudgetExceededError, InputError, VerificationError

ROLLED_BACK = "older than its counter"


def counted(path, run="spring"):
    return len(read_state(path).account("ward", run).draws)


def copy(path, to):
    """The ledger alone, whole: what a backup or a roll-back copies."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def put_back(old, path):
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(old, path)


class TestReserve:
    def test_is_on_disk_when_it_returns(self, ledger, path, key, step):
        ledger.reserve(key(0), step, clip=1.0)
        assert counted(path) == 1
        assert read_counter(path.with_name("ward.ledger.counter"))[0] == 4

    def test_needs_an_accepted_run_and_a_registered_data_set(self, ledger, path, key, step):
        with pytest.raises(InputError, match="has accepted"):
            ledger.reserve(key(0, run="new name"), step, clip=1.0)
        with pytest.raises(InputError, match="registers"):
            ledger.reserve(key(0, dataset="other"), step, clip=1.0)
        assert ledger.head[0] == 3

    @pytest.mark.parametrize(
        ("change", "clip", "round"),
        [
            ({"noise_multiplier": 1.0}, 1.0, 0),
            ({"sampling_rate": 0.5}, 1.0, 0),
            ({"steps": 5}, 1.0, 0),
            ({"neighbours": "replace-one"}, 1.0, 0),
            ({}, 2.0, 0),
            ({}, float("nan"), 0),
            ({}, "1", 0),
            ({}, 1.0, 60),
        ],
    )
    def test_outside_the_terms_spends_nothing(self, ledger, path, key, step, change, clip, round):
        asked = Event.of(**{**step.to_dict(), **change})
        with pytest.raises(InputError):
            ledger.reserve(key(round), asked, clip=clip)
        assert counted(path) == 0

    def test_a_draw_is_never_reserved_twice(self, ledger, path, key, step):
        ledger.reserve(key(0), step, clip=1.0)
        with pytest.raises(BudgetExceededError, match="reserved before"):
            ledger.reserve(key(0), step, clip=1.0)
        ledger.release(key(0), b"x")
        with pytest.raises(BudgetExceededError, match="send that again"):
            ledger.reserve(key(0), step, clip=1.0)
        assert counted(path) == 1

    def test_a_hundred_new_run_names_share_one_cap(self, ledger, path, key, step, terms):
        """The lifetime cap binds, not the run's: a ledger that checks runs only grants all."""
        granted = 0
        for number in range(100):
            ledger.accept("ward", f"run {number}", replace(terms, draws=10))
            try:
                ledger.reserve(key(0, run=f"run {number}"), step, clip=1.0)
                granted += 1
            except LifetimeCapError as error:
                assert " 0 steps of this run" in str(error)  # noqa: PT017
        assert granted == ledger_limit(terms)
        assert 0 < granted < 100

    def test_different_data_sets_have_their_own_caps(self, ledger, key, step, terms):
        ledger.register("other", LifetimeCap(epsilon=0.01, delta=1e-5))
        ledger.accept("other", "spring", terms)
        with pytest.raises(LifetimeCapError):
            ledger.reserve(key(0, dataset="other"), step, clip=1.0)
        ledger.reserve(key(0), step, clip=1.0)


def ledger_limit(terms):
    """How many single steps fit the cap, without the ledger's own arithmetic."""
    from dpcohort.accounting import History, affordable_steps

    return affordable_steps(
        History(),
        epsilon=2.0,
        delta=1e-5,
        noise_multiplier=terms.least_noise_multiplier,
        sampling_rate=terms.sampling_rate,
        at_most=100,
    )


class TestRelease:
    def test_a_resend_gives_the_stored_bytes(self, ledger, path, key, step):
        ledger.reserve(key(0), step, clip=1.0)
        ledger.release(key(0), b"\x00noisy")
        ledger.release(key(0), b"\x00noisy")
        assert ledger.output(key(0)) == b"\x00noisy"
        with ClientLedger(path) as again:
            assert again.output(key(0)) == b"\x00noisy"
            again.release(key(0), b"\x00noisy")
        assert ledger.head[0] == 5

    def test_a_second_output_is_refused(self, ledger, key, step):
        ledger.reserve(key(0), step, clip=1.0)
        ledger.release(key(0), b"one")
        with pytest.raises(BudgetExceededError, match="only one"):
            ledger.release(key(0), b"two")
        assert ledger.output(key(0)) == b"one"

    def test_count_before_noise(self, ledger, key):
        with pytest.raises(BudgetExceededError, match="not reserved"):
            ledger.release(key(0), b"one")
        with pytest.raises(InputError, match="reserved"):
            ledger.output(key(0))

    def test_a_lost_draw_stays_counted_and_cannot_be_made_again(self, ledger, path, key, step):
        ledger.reserve(key(0), step, clip=1.0)
        ledger.close()
        with ClientLedger(path) as again:
            with pytest.raises(BudgetExceededError, match="reserved before"):
                again.reserve(key(0), step, clip=1.0)
            with pytest.raises(BudgetExceededError, match="lost"):
                again.release(key(0), b"computed again")
            with pytest.raises(BudgetExceededError, match="no output"):
                again.output(key(0))
        assert counted(path) == 1

    def test_exchanged_bytes_are_not_sent(self, ledger, path, key, step):
        ledger.reserve(key(0), step, clip=1.0)
        ledger.release(key(0), b"noisy")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE outputs SET bytes = ?", (b"clear",))
        with pytest.raises(VerificationError, match="not those released"):
            ledger.output(key(0))

    def test_discarded_bytes_keep_their_count_and_hash(self, ledger, path, key, step):
        for round in range(3):
            ledger.reserve(key(round), step, clip=1.0)
        ledger.release(key(0), b"noisy")
        assert ledger.discard_outputs("ward", "spring") == 1
        assert ledger.discard_outputs("ward", "spring") == 0
        with pytest.raises(InputError, match="discarded"):
            ledger.output(key(0))
        with pytest.raises(BudgetExceededError, match="only one"):
            ledger.release(key(0), b"other")
        ledger.release(key(1), b"later")
        assert ledger.output(key(1)) == b"later"
        assert counted(path) == 3


class TestAccept:
    def test_terms_never_change(self, ledger, terms):
        ledger.accept("ward", "spring", terms)
        assert ledger.head[0] == 3
        with pytest.raises(InputError, match="never change"):
            ledger.accept("ward", "spring", replace(terms, clip=2.0))

    def test_terms_that_overspend_are_not_accepted(self, ledger, terms):
        with pytest.raises(BudgetExceededError, match="they state"):
            ledger.accept("ward", "next", replace(terms, least_noise_multiplier=1.0))
        assert ledger.head[0] == 3

    def test_a_cap_never_changes(self, ledger):
        with pytest.raises(InputError, match="not yet registered"):
            ledger.register("ward", LifetimeCap(epsilon=20.0, delta=1e-5))

    def test_affordable_draws(self, ledger, key, step, terms):
        assert ledger.affordable_draws("ward", "spring") == 60
        ledger.reserve(key(0), step, clip=1.0)
        assert ledger.affordable_draws("ward", "spring") == 59
        ledger.accept("ward", "next", terms)
        assert ledger.affordable_draws("ward", "next") == min(60, ledger_limit(terms) - 1)

    def test_summed_caps_refuse_a_run_that_does_not_fit_in_full(self, path, key, step, terms):
        with ClientLedger.create(path) as ledger:
            cap = LifetimeCap(epsilon=3.0, delta=1e-4, across_runs="summed")
            ledger.register("ward", cap)
            for run in ("spring", "autumn"):
                ledger.accept("ward", run, terms)
            ledger.reserve(key(0), step, clip=1.0)
            with pytest.raises(LifetimeCapError, match="with the draw: 4"):
                ledger.reserve(key(0, run="autumn"), step, clip=1.0)
            ledger.reserve(key(1), step, clip=1.0)


class TestRollBack:
    def test_an_old_copy_is_noticed(self, ledger, path, key, step, folder):
        copy(path, folder / "old")
        ledger.reserve(key(0), step, clip=1.0)
        ledger.close()
        put_back(folder / "old", path)
        with pytest.raises(VerificationError, match=ROLLED_BACK):
            ClientLedger(path)

    def test_under_an_open_ledger(self, ledger, path, key, step, folder):
        ledger.reserve(key(0), step, clip=1.0)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TRIGGER no_delete")
            connection.execute("DELETE FROM entries WHERE seq = 4")
        with pytest.raises(VerificationError, match=ROLLED_BACK):
            ledger.reserve(key(1), step, clip=1.0)

    def test_rolled_back_and_written_on_elsewhere(self, ledger, path, key, step, folder, terms):
        copy(path, folder / "fork.ledger")
        shutil.copy(f"{path}.counter", folder / "fork.ledger.counter")
        ledger.reserve(key(0), step, clip=1.0)
        ledger.close()
        with ClientLedger(folder / "fork.ledger") as fork:
            fork.reserve(key(7), step, clip=1.0)
            fork.reserve(key(8), step, clip=1.0)
        put_back(folder / "fork.ledger", path)
        with pytest.raises(VerificationError, match="another entry 4"):
            ClientLedger(path)

    def test_a_counter_that_is_missing_or_anothers(self, ledger, path, folder):
        ledger.close()
        ClientLedger.create(folder / "other").close()
        shutil.copy(folder / "other.counter", f"{path}.counter")
        with pytest.raises(VerificationError, match="another ledger"):
            ClientLedger(path)
        path.with_name("ward.ledger.counter").unlink()
        with pytest.raises(VerificationError, match="cannot be read"):
            ClientLedger(path)

    def test_a_counter_in_another_place(self, folder, tmp_path):
        ClientLedger.create(folder / "l", counter=tmp_path / "c").close()
        ClientLedger(folder / "l", counter=tmp_path / "c").close()
        assert not (folder / "l.counter").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries WHERE seq = 4",
        "DELETE FROM entries WHERE seq = 5",
        "UPDATE entries SET draw = 9 WHERE seq = 4",
        "UPDATE entries SET body = replace(body, '2.0', '3.0') WHERE seq = 3",
        "UPDATE entries SET run = 'other' WHERE seq = 4",
        "UPDATE entries SET hash = substr(hash, 2) || '0' WHERE seq = 5",
    ],
)
def test_deleted_and_edited_rows_are_noticed(ledger, path, key, step, statement):
    ledger.reserve(key(0), step, clip=1.0)
    ledger.reserve(key(1), step, clip=1.0)
    ledger.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TRIGGER no_delete")
        connection.execute("DROP TRIGGER no_change")
        connection.execute(statement)
    with pytest.raises(VerificationError):
        ClientLedger(path)


def test_a_ledger_is_not_made_over_another(ledger, path):
    with pytest.raises(InputError, match="there already"):
        ClientLedger.create(path)


def test_a_lost_ledger_is_not_started_again_at_its_counter(ledger, path):
    ledger.close()
    path.unlink()
    with pytest.raises(InputError, match="earlier ledger"):
        ClientLedger.create(path)


def test_threads_race_for_the_last_draws(ledger, path, key, step, terms):
    """The lifetime cap leaves a number of draws; exactly that many are granted."""
    runs = ["a", "b", "c", "d"]
    for run in runs:
        ledger.accept("ward", run, terms)
    granted, refused = [], []

    def spend(run):
        with ClientLedger(path) as own:
            for round in range(30):
                try:
                    own.reserve(key(round, run=run), step, clip=1.0)
                    granted.append(run)
                except LifetimeCapError:
                    refused.append(run)

    threads = [threading.Thread(target=spend, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == ledger_limit(terms)
    assert len(granted) + len(refused) == 120
    assert sum(counted(path, run) for run in runs) == len(granted)


@pytest.fixture
def syncs(monkeypatch):
    """How often the counter was forced to disk."""
    calls = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: calls.append(file) or real(file))
    return calls


def test_the_counter_is_on_disk_before_an_output_goes_out(ledger, key, step, syncs):
    ledger.reserve(key(0), step, clip=1.0)
    assert len(syncs) == 0  # the row is on disk; nothing has left yet
    ledger.release(key(0), b"noisy")
    assert len(syncs) == 1
    ledger.output(key(0))
    assert len(syncs) == 1  # still there


def test_an_output_whose_counter_the_disk_refused_waits_for_it_again(
    ledger, path, key, step, monkeypatch
):
    ledger.reserve(key(0), step, clip=1.0)

    def refuse(file):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refuse)
        with pytest.raises(InputError, match="counter"):
            ledger.release(key(0), b"noisy")
        with pytest.raises(InputError, match="counter"):
            ledger.output(key(0))
        with pytest.raises(InputError, match="counter"):
            ledger.release(key(0), b"noisy")
    assert ledger.output(key(0)) == b"noisy"
    assert verify_ledger(path).findings == ()


def test_a_draw_whose_counter_the_disk_refused_is_counted_and_nobodys_to_use(
    ledger, key, step, monkeypatch
):
    def refuse(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", refuse)
        with pytest.raises(InputError, match="counter"):
            ledger.reserve(key(0), step, clip=1.0)
    assert ledger.fate(key(0)) == "lost"
    with pytest.raises(BudgetExceededError, match="lost"):
        ledger.release(key(0), b"noisy")


def test_what_a_guard_asks_of_its_ledger(ledger, key, step, terms):
    assert ledger.cap("ward").epsilon > 0
    assert ledger.cap("nobody") is None
    assert ledger.terms("ward", "spring") == terms
    with pytest.raises(InputError, match="accepted"):
        ledger.terms("ward", "autumn")
    assert ledger.accepted("ward") == {"spring": terms}
    with pytest.raises(InputError, match="dataset"):
        ledger.accepted("nobody")
    assert ledger.fate(key(0)) == "new"
    ledger.reserve(key(0), step, clip=1.0)
    assert ledger.fate(key(0)) == "lost"
    ledger.release(key(0), b"noisy")
    assert ledger.fate(key(0)) == "released"
    receipt = ledger.receipt("ward")
    assert (receipt.runs[0]["counted_draws"], receipt.head) == (1, ledger.head[1])
