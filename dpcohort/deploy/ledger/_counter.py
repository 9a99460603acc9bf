# SPDX-License-Identifier: Apache-2.0
"""A counter that only grows, in a file apart from the ledger: an older ledger is behind it.

Two lines of fixed width hold the last two values. A new value replaces the older line and is
forced to disk, so a crash in the middle of writing leaves the newer line whole. The counter has to
be on disk before an output leaves the machine: an older ledger put back then lacks something that
somebody has seen. Before that there is nothing to miss.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from dpcohort.atomic_file import atomic_writer, owner_only
from dpcohort.errors import InputError, VerificationError

_MARK = "dpcohort-counter-1"
_LINE = len(_MARK) + 1 + 32 + 1 + 20 + 1 + 64 + 1 + 64 + 1


#: How far a ledger had come: the number of its last row, the hash of that row, the ledger's id.
Count = tuple[int, str, str]


def rolled_back(path: Path, seq: int) -> VerificationError:
    """What is said of a ledger that lacks rows which were there before."""
    return VerificationError(
        f"{path} is older than its counter, which has seen {seq} entries: an old copy was put "
        "back, and what was spent since is not in it. Nothing can be spent. Put back the newest "
        "copy."
    )


def counter_path(path: str | Path, counter: str | Path | None = None) -> Path:
    """Where a ledger's counter is: where it is said to be, or beside the ledger.

    Example:
        >>> str(counter_path("ward.ledger"))
        'ward.ledger.counter'
    """
    return Path(counter) if counter is not None else Path(f"{path}.counter")


def create_counter(path: Path, ledger: str) -> None:
    """Start at 0 for a new ledger.

    Raises:
        InputError: a counter that has counted is there already, or nothing can be written.
    """
    if path.exists() and read_counter(path)[0] > 0:
        raise InputError.because(
            f"{path} is the counter of an earlier ledger. If that ledger is lost, its "
            "data are spent; a new one needs another path."
        )
    # Whole or not at all: a crash must not leave half a counter, which stops every ledger here.
    try:
        with owner_only(), atomic_writer(path, binary=True) as file:
            file.write(_line((0, "0" * 64, ledger)) * 2)
    except InputError as error:
        raise InputError.because(
            f"the counter of the ledger cannot be made. Nothing was changed: {error}"
        ) from None


def read_counter(path: Path) -> Count:
    """The highest value that is whole.

    Raises:
        VerificationError: the file is not there, or neither line is whole.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise VerificationError(
            f"the ledger's counter {path} cannot be read: {error.strerror}. Without it an "
            "old copy of the ledger would pass for the newest, so nothing can be spent."
        ) from None
    found = [count for count in map(_count, (raw[:_LINE], raw[_LINE:])) if count]
    if not found:
        raise VerificationError(f"{path} is not a whole counter of a ledger.")
    return max(found)


def advance_counter(path: Path, count: Count, *, durable: bool = True) -> None:
    """Move up to this value; a lower one changes nothing.

    Callers keep other processes out meanwhile.

    Args:
        path: the counter.
        count: how far the ledger has come.
        durable: force the file to disk, so that its value, new or not, outlives a power cut.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     counter = Path(folder) / "counter"
        ...     create_counter(counter, "a" * 32)
        ...     advance_counter(counter, (7, "b" * 64, "a" * 32))
        ...     advance_counter(counter, (5, "c" * 64, "a" * 32))
        ...     read_counter(counter)[0]
        7
    """
    current = read_counter(path)
    is_new = count[0] > current[0]
    if not is_new and not durable:
        return
    try:
        descriptor = os.open(path, os.O_RDWR)
        try:
            if is_new:
                newer_is_first = _count(os.pread(descriptor, _LINE, 0)) == current
                os.pwrite(descriptor, _line(count), _LINE if newer_is_first else 0)
            if durable:
                # The file keeps its length, so its data are all there is to write: no need
                # to wait for the file system's journal as well.
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError.because(
            f"the counter {path} cannot be written: {error.strerror}. What the ledger "
            "wrote last stays counted; no noise was drawn for it."
        ) from None


def _line(count: Count) -> bytes:
    seq, digest, ledger = count
    text = f"{_MARK} {ledger} {seq:020d} {digest}"
    check = hashlib.sha256(text.encode()).hexdigest()
    return f"{text} {check}\n".encode()


def _count(raw: bytes) -> Count | None:
    """The value of a line, or None where it is torn."""
    try:
        mark, ledger, seq, digest, _ = raw.decode("ascii").split()
        count = int(seq), digest, ledger
    except ValueError:  # not ASCII, not five words, not a number
        return None
    return count if mark == _MARK and _line(count) == raw else None


def check_counter(path: Path, count: Count, *, ledger: str, hashes: Sequence[str]) -> None:
    """Whether the ledger has come at least as far as its counter says.

    Args:
        path: the ledger.
        count: what its counter says.
        ledger: the ledger's id.
        hashes: the hash of each of its rows.

    Raises:
        VerificationError: it is another ledger's counter, or the ledger is an old copy.
    """
    seq, digest, owner = count
    if owner != ledger:
        raise VerificationError(
            f"the counter of {path} belongs to another ledger. Nothing can be spent."
        )
    if seq > len(hashes):
        raise rolled_back(path, seq)
    if seq > 0 and hashes[seq - 1] != digest:
        raise VerificationError(
            f"{path} has another entry {seq} than its counter saw: it was rolled back and "
            "written on. Nothing can be spent."
        )
