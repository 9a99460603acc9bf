# SPDX-License-Identifier: Apache-2.0
"""The rows of a ledger, each tied to all before it by a hash, and the SQLite file they are in.

Rows are added in one transaction at a time and never changed. WAL with ``synchronous = FULL``: a
row is on disk when its transaction ends. Unique indexes keep every draw to one reservation and one
output even if the code above were wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dpcohort.errors import DpcohortError, InputError, VerificationError

#: What the first row links to.
FIRST_LINK = "0" * 64


def canonical_json(value: Any) -> str:
    """The value as the one JSON text that is hashed: sorted keys, no spaces, ASCII.

    Example:
        >>> canonical_json({"b": 1, "a": 0.1})
        '{"a":0.1,"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row: what happened, linked to what happened before.

    Attributes:
        seq: 1, 2, 3, ... without a gap.
        kind: ``opened``, ``dataset``, ``accept``, ``reserve``, ``release``, ``unmask``, ``discard``
            or ``clock``.
        dataset: the data set, where there is one.
        run: the run, where there is one.
        round: the round, where there is one.
        draw: the draw, where there is one.
        body: everything else, as canonical JSON.
        previous: hash of the row before.
        hash: SHA-256 over all of the above.

    Example:
        >>> first = Entry.following(None, "opened", {"ledger": "ab"})
        >>> first.is_whole(), first.previous == FIRST_LINK
        (True, True)
    """

    seq: int
    kind: str
    dataset: str | None = None
    run: str | None = None
    round: int | None = None
    draw: int | None = None
    body: str
    previous: str
    hash: str

    @classmethod
    def following(
        cls, last: tuple[int, str] | None, kind: str, body: Mapping[str, Any], **where: Any
    ) -> Entry:
        """The next row after one with this (seq, hash).

        Args:
            last: number and hash of the row before; None for the first row.
            kind: what happened.
            body: everything else.
            where: ``dataset``, ``run``, ``round`` and ``draw``, as far as there are any.
        """
        seq, previous = (last[0] + 1, last[1]) if last else (1, FIRST_LINK)
        text = canonical_json(dict(body))
        row = cls(seq=seq, kind=kind, body=text, previous=previous, hash="", **where)
        return replace(row, hash=row.digest())

    def values(self) -> list[Any]:
        """All fields in their order, the hash last."""
        return [getattr(self, column) for column in _COLUMNS]

    def digest(self) -> str:
        """SHA-256 over all other fields, in their order."""
        values = self.values()[:-1]
        # A row edited by hand may hold any type; it must differ, not crash.
        text = json.dumps(values, separators=(",", ":"), default=repr)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def is_whole(self) -> bool:
        """Whether the row's hash is the hash of its content."""
        return self.hash == self.digest()

    def content(self) -> dict[str, Any]:
        """The body as values.

        Raises:
            VerificationError: it is not a JSON object.
        """
        try:
            found = json.loads(self.body)
        except (TypeError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise VerificationError(f"entry {self.seq} has a body that is not a JSON object.")
        return found


#: Version of the tables; a file with a higher one is refused.
SCHEMA = 1
_APPLICATION = 0x6470636C  # "dpcl", so that `file` and we can tell what it is
_BUSY_MILLISECONDS = 60_000
#: In the order in which they are hashed and stored; the hash is the last.
_COLUMNS = tuple(field.name for field in fields(Entry))
_LIST = ", ".join(_COLUMNS)
_INSERT = f"INSERT INTO entries ({_LIST}) VALUES ({', '.join('?' * len(_COLUMNS))})"

_ONE_UNMASK = """CREATE UNIQUE INDEX IF NOT EXISTS one_unmask
    ON entries (dataset, run, round, draw) WHERE kind = 'unmask'"""
_TABLES = f"""
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, dataset TEXT, run TEXT, round INTEGER,
    draw INTEGER, body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL UNIQUE);
CREATE TABLE outputs (seq INTEGER PRIMARY KEY REFERENCES entries (seq), bytes BLOB NOT NULL);
CREATE UNIQUE INDEX one_dataset ON entries (dataset) WHERE kind = 'dataset';
CREATE UNIQUE INDEX one_accept ON entries (dataset, run) WHERE kind = 'accept';
CREATE UNIQUE INDEX one_reserve ON entries (dataset, run, round, draw) WHERE kind = 'reserve';
CREATE UNIQUE INDEX one_release ON entries (dataset, run, round, draw) WHERE kind = 'release';
CREATE TRIGGER no_change BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
{_ONE_UNMASK};
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {SCHEMA};
"""


class LedgerStore:
    """The open file.

    Args:
        path: the file, which must exist.
        writable: open it for writing too.

    Raises:
        InputError: no such file, not a ledger, a newer ledger, or it cannot be opened.
    """

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        self.path = path
        if not path.is_file():
            raise InputError.because(
                f"there is no client ledger at {path}. Make one with: dpcohort ledger init"
            )
        mode = "rw" if writable else "ro"
        with _errors(self.path):
            # `quote` leaves "/" alone and hides ? # % from the URI.
            self._connection = sqlite3.connect(
                f"file:{quote(str(path))}?mode={mode}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=_BUSY_MILLISECONDS / 1000,
            )
        try:
            self._settle(writable)
        except BaseException:
            self._connection.close()
            raise

    @staticmethod
    def create(path: Path, first: Entry) -> None:
        """Make the file with its first row, whole or not at all.

        Raises:
            InputError: something is there already, or nothing can be written there.
        """
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise InputError.because(
                f"the ledger {path} cannot be made: {error.strerror}. Nothing was changed."
            ) from None
        try:
            with _errors(path), closing(sqlite3.connect(path, isolation_level=None)) as made:
                made.execute("PRAGMA journal_mode = WAL")
                made.execute("PRAGMA synchronous = FULL")
                made.executescript("BEGIN IMMEDIATE;" + _TABLES)
                made.execute(_INSERT, first.values())
                made.execute("COMMIT")
        except DpcohortError:
            path.unlink(missing_ok=True)
            raise

    def _settle(self, writable: bool) -> None:
        run = self._connection.execute
        with _errors(self.path):
            (application,), (version,) = (
                run(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
            )
            if application != _APPLICATION:
                raise InputError.because(
                    f"{self.path} is not a client ledger, or one whose making was cut short. "
                    "Make one at another path with: dpcohort ledger init"
                )
            if version > SCHEMA:
                raise InputError.because(
                    f"{self.path} has schema {version}, written by a newer dpcohort; this one "
                    f"knows {SCHEMA}. Update dpcohort; the ledger was not touched."
                )
            run(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
            if writable:
                run("PRAGMA journal_mode = WAL")
                run("PRAGMA synchronous = FULL")
                run(_ONE_UNMASK)  # ledgers from before there was any

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep every other writer out; on any error nothing of the block is kept."""
        with _errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                    self._connection.execute("ROLLBACK")
                raise

    def entries(self, start: int = 1) -> Iterator[Entry]:
        """The rows from this number on, in order."""
        with _errors(self.path):
            query = f"SELECT {_LIST} FROM entries WHERE seq >= ? ORDER BY seq"
            for row in self._connection.execute(query, (start,)):
                yield Entry(**dict(zip(_COLUMNS, row, strict=True)))

    def append(self, entry: Entry, output: bytes | None = None) -> None:
        """Add a row, and the bytes that belong to it; only inside a transaction."""
        with _errors(self.path):
            self._connection.execute(_INSERT, entry.values())
            if output is not None:
                self._connection.execute("INSERT INTO outputs VALUES (?, ?)", (entry.seq, output))

    def output(self, seq: int) -> bytes | None:
        """The bytes stored with a row, if they are there."""
        with _errors(self.path):
            query = "SELECT bytes FROM outputs WHERE seq = ?"
            row = self._connection.execute(query, (seq,)).fetchone()
        return bytes(row[0]) if row else None

    def drop_outputs(self, seqs: list[int]) -> None:
        """Delete stored bytes; their hashes stay in the rows."""
        with _errors(self.path):
            query = "DELETE FROM outputs WHERE seq = ?"
            self._connection.executemany(query, [(seq,) for seq in seqs])

    def problems(self) -> list[str]:
        """What SQLite itself finds wrong with the file."""
        with _errors(self.path):
            rows = self._connection.execute("PRAGMA integrity_check(20)").fetchall()
        return [str(row[0]) for row in rows if row[0] != "ok"]

    def copy_to(self, path: Path) -> None:
        """A whole copy of the file as it is now, while others may be writing."""
        with _errors(self.path), closing(sqlite3.connect(path)) as target:
            self._connection.backup(target)


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """SQLite's errors in our words."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(path, error) from None
    except UnicodeDecodeError as error:  # SQLite's message quotes the damaged bytes
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> VerificationError:
    return VerificationError(
        f"{path} is damaged ({error}). Nothing can be spent from it; put back the newest copy "
        "and check it with: dpcohort ledger verify"
    )


def _explained(path: Path, error: sqlite3.Error) -> DpcohortError:
    code = getattr(error, "sqlite_errorcode", None)
    kind = None if code is None else code & 0xFF
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path, error)
    reasons = {
        sqlite3.SQLITE_FULL: "the disk is full",
        sqlite3.SQLITE_IOERR: "the disk does not take it (full, over a limit, or failing)",
        sqlite3.SQLITE_READONLY: "the file or its folder is read-only",
        sqlite3.SQLITE_CANTOPEN: "the file or its folder cannot be opened for writing",
        sqlite3.SQLITE_PERM: "access is denied",
        sqlite3.SQLITE_BUSY: "another process has held it for too long",
    }
    if kind in reasons:
        return InputError.because(
            f"the ledger {path} cannot be used: {reasons[kind]} ({error}). Nothing was spent."
        )
    return VerificationError(f"the ledger {path} cannot be used: {error}. Nothing was spent.")
