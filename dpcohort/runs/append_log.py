# SPDX-License-Identifier: Apache-2.0
"""Append-only JSON lines: an entry is on disk when ``append`` returns, and never changed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpcohort.atomic_file import new_file_mode, write_text
from dpcohort.errors import DataMissingError, FileFormatError, InputError
from dpcohort.limits import LARGEST_LINE, LARGEST_LOG, read_bounded
from dpcohort.runs.folder import finite_json
from dpcohort.text_files import parse_json

__all__ = ["AppendLog", "read_entry", "read_log", "rewrite_log"]


class AppendLog:
    """A file of JSON lines that grows.

    A line that a crash cut short is taken off when the file is opened again: it was not on disk
    when the crash came, so nothing that waits for its entry had begun.

    Args:
        path: the file; it is made if it is not there.
        exclusive: refuse to open it while another process has it open so.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = AppendLog(Path(folder) / "log.jsonl")
        ...     log.append({"round": 0})
        ...     log.close()
        ...     read_log(Path(folder) / "log.jsonl")
        [{'round': 0}]
    """

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, new_file_mode()
            )
            if exclusive:
                self._lock()
            _cut_torn_line(path)
        except OSError as error:
            raise InputError.because(
                f"{path} cannot be written: {error.strerror or error}."
            ) from None

    def _lock(self) -> None:
        """Keep every other process out until this one closes the file or dies."""
        try:
            import fcntl
        except ImportError:  # not on this system
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InputError.because(
                f"{self.path} is in use: another process is training in this folder. Wait for it, "
                "or choose another folder."
            ) from None

    def append(self, entry: Mapping[str, Any], *, durable: bool = True) -> None:
        """Write one line; with ``durable`` it survives a power cut from now on.

        Raises:
            InputError: the disk is full or gone; a half-written line is taken back.
        """
        line = (json.dumps(finite_json(dict(entry)), ensure_ascii=False) + "\n").encode()
        try:
            before = os.fstat(self._descriptor).st_size
            try:
                if os.write(self._descriptor, line) != len(line):
                    raise OSError(None, "the disk is full")
                if durable:
                    os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, before)
                raise
        except OSError as error:
            raise InputError.because(
                f"{self.path} could not be written: {error.strerror or error}. Nothing after the "
                "last whole line was done; make room and go on with --resume."
            ) from None

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole entries; a last line cut short by a crash is left out.

    Raises:
        DataMissingError: there is no such file.
        FileFormatError: a whole line is not a JSON object.
    """
    try:
        content = read_bounded(path, LARGEST_LOG)
    except OSError as error:
        raise DataMissingError(f"{path} cannot be read: {error.strerror or error}.") from None
    entries = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        entries.append(read_entry(path, number, line))
    return entries


def read_entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """One line of a log as its entry.

    Args:
        path: of the log, for errors.
        number: of the line, from 1.
        line: its bytes.

    Raises:
        FileFormatError: it is too long, or no JSON object.

    Example:
        >>> read_entry(Path("log.jsonl"), 1, b'{"round": 0}')
        {'round': 0}
    """
    if len(line) > LARGEST_LINE:
        problem = f"a line of {len(line):,} bytes; at most {LARGEST_LINE:,} are allowed"
        raise FileFormatError(path, problem, line=number)
    try:
        entry = parse_json(line)
    except ValueError:
        raise FileFormatError(path, "not valid JSON", line=number) from None
    if not isinstance(entry, dict):
        raise FileFormatError(path, "not a JSON object", line=number)
    return entry


def rewrite_log(path: Path, entries: list[dict[str, Any]]) -> None:
    """Replace the whole file atomically, for records that will be made again."""
    write_text(
        path, "".join(json.dumps(finite_json(e), ensure_ascii=False) + "\n" for e in entries)
    )


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with open(path, "rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
