# SPDX-License-Identifier: Apache-2.0
"""Rows tied by their hashes, and the file that keeps them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from dpcohort.deploy.ledger._store import SCHEMA, Entry, LedgerStore
from dpcohort.errors import InputError, VerificationError

FIRST = Entry.following(None, "opened", {"ledger": "a" * 32})


@pytest.fixture
def store(path):
    LedgerStore.create(path, FIRST)
    with closing(LedgerStore(path)) as opened:
        yield opened


def raw(path, *statements):
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def following(last, kind="reserve", **where):
    return Entry.following((last.seq, last.hash), kind, {}, **where)


def test_it_waits_for_the_disk(store):
    run = store._connection.execute
    assert run("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert run("PRAGMA synchronous").fetchone()[0] == 2
    assert run("PRAGMA busy_timeout").fetchone()[0] == 60_000


def test_only_the_owner_may_read_it(store, path):
    assert path.stat().st_mode & 0o077 == 0


def test_a_transaction_is_kept_whole_or_not_at_all(store):
    second = following(FIRST, dataset="d", run="r", round=0, draw=0)
    with pytest.raises(RuntimeError), store.transaction():  # noqa: PT012
        store.append(second, b"bytes")
        raise RuntimeError
    assert list(store.entries()) == [FIRST]
    assert store.output(2) is None
    with store.transaction():
        store.append(second, b"bytes")
    assert list(store.entries(2)) == [second]
    assert store.output(2) == b"bytes"


@pytest.mark.parametrize("kind", ["reserve", "release", "accept", "dataset"])
def test_the_file_itself_refuses_a_second_row_for_a_key(store, kind):
    """Even if every check above it were missing."""
    where = {"dataset": "d", "run": "r", "round": 0, "draw": 0}
    second = following(FIRST, kind, **where)
    with store.transaction():
        store.append(second)
    with pytest.raises(VerificationError, match="UNIQUE"), store.transaction():
        store.append(following(second, kind, **where))
    assert len(list(store.entries())) == 2


@pytest.mark.parametrize("statement", ["DELETE FROM entries", "UPDATE entries SET body = ''"])
def test_rows_cannot_be_changed_by_accident(store, path, statement):
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        raw(path, statement)


def test_a_newer_schema_is_refused_untouched(store, path):
    store.close()
    raw(path, f"PRAGMA user_version = {SCHEMA + 1}")
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"schema {SCHEMA + 1}.*newer"):
        LedgerStore(path)
    assert path.read_bytes() == before


def test_what_is_not_a_ledger(folder):
    with pytest.raises(InputError, match="no client ledger"):
        LedgerStore(folder / "none")
    with pytest.raises(InputError, match="no client ledger"):
        LedgerStore(folder)
    raw(folder / "other.db", "CREATE TABLE t (a)")
    (folder / "empty").touch()
    for name in ("other.db", "empty"):
        with pytest.raises(InputError, match="not a client ledger"):
            LedgerStore(folder / name)
    (folder / "text").write_text("not a database, but long enough to be read as one" * 50)
    with pytest.raises(VerificationError, match="damaged"):
        LedgerStore(folder / "text")


def test_a_damaged_page_is_noticed(store, path):
    last = FIRST
    with store.transaction():
        for draw in range(300):
            last = following(last, dataset="d", run="r", round=0, draw=draw)
            store.append(last)
    store.close()
    content = bytearray(path.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 16] = b"\xff" * 16
    path.write_bytes(content)
    with pytest.raises(VerificationError, match="damaged"):  # noqa: SIM117
        with closing(LedgerStore(path)) as damaged:
            list(damaged.entries())


def test_a_writer_that_waits_too_long_is_told(store, path):
    with closing(LedgerStore(path)) as second:
        second._connection.execute("PRAGMA busy_timeout = 10")
        refused = pytest.raises(InputError, match="another process")
        with store.transaction(), refused, second.transaction():
            pass


AS_NOBODY = """
import os, sys
import tempfile  # imported late otherwise, when Python's own files may be out of reach
from pathlib import Path
from dpcohort.deploy.ledger import ClientLedger
from dpcohort.errors import InputError
if os.getuid() == 0:
    os.setuid(65534)  # a read-only folder does not stop the superuser
try:
    make = ClientLedger.create if sys.argv[2] == "create" else ClientLedger
    make(Path(sys.argv[1]))
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize("what", ["create", "open"])
def test_a_read_only_folder(store, path, what):
    store.close()
    target = path.parent / "new.ledger" if what == "create" else path
    os.chmod(path, 0o444)
    os.chmod(path.parent, 0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(target), what], capture_output=True, text=True
        )
    finally:
        os.chmod(path.parent, 0o755)
    assert done.stderr == ""
    assert "cannot be" in done.stdout
    assert "Nothing was" in done.stdout


# SPDX-License-Identifier: Apache-2.0


@pytest.fixture
def entry():
    return Entry.following(
        (4, "a" * 64), "reserve", {"clip": 1.0}, dataset="d", run="r", round=1, draw=2
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq", 6),
        ("kind", "release"),
        ("dataset", "e"),
        ("dataset", None),
        ("run", "s"),
        ("round", 0),
        ("round", "1"),
        ("draw", 3),
        ("body", '{"clip":2.0}'),
        ("body", b"x"),
        ("previous", "b" * 64),
        ("hash", "b" * 64),
    ],
)
def test_every_field_is_under_the_hash(entry, field, value):
    assert not replace(entry, **{field: value}).is_whole()


@pytest.mark.parametrize("body", ["", "[1]", "{", b"\xff"])
def test_a_body_that_is_no_object(entry, body):
    with pytest.raises(VerificationError, match="entry 5"):
        replace(entry, body=body).content()
