# SPDX-License-Identifier: Apache-2.0
"""Files that are either the old one or the whole new one, never half of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from dpcohort.errors import InputError

__all__ = ["atomic_writer", "new_file_mode", "owner_only", "sync_folder", "write_text"]

_OWNER_ONLY: ContextVar[bool] = ContextVar("owner_only", default=False)


@contextmanager
def owner_only(wanted: bool = True) -> Iterator[None]:
    """Within the block, new files are closed to everyone but their owner.

    Args:
        wanted: False leaves them as the system makes files.

    Example:
        >>> with owner_only():
        ...     oct(new_file_mode())
        '0o600'
    """
    before = _OWNER_ONLY.set(wanted or _OWNER_ONLY.get())
    try:
        yield
    finally:
        _OWNER_ONLY.reset(before)


def new_file_mode() -> int:
    """The mode of a new file: what the system's mask leaves, or 0600 within ``owner_only``."""
    if _OWNER_ONLY.get():
        return 0o600
    mask = os.umask(0)  # it can only be read by setting it
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def atomic_writer(path: str | Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file to write to that takes the place of ``path`` only when the block ends well.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_writer(Path(folder) / "note.txt") as file:
        ...         _ = file.write("whole")
        ...     (Path(folder) / "note.txt").read_text()
        'whole'
    """
    target = Path(path)
    folder = target.parent
    try:
        if target.exists() and not target.is_file():
            raise OSError("it is not an ordinary file")  # a rename would replace a device or folder
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{target.name}.")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError.because(
            f"{target} cannot be written: {reason}. Choose another place."
        ) from None
    try:
        with os.fdopen(handle, "wb" if binary else "w", encoding=None if binary else "utf-8") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temporary, new_file_mode())
        os.replace(temporary, target)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise InputError.because(
            f"{target} could not be written: {error.strerror or error}. Nothing was changed."
        ) from None
    sync_folder(folder)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_writer(path) as file:
        file.write(text)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder survive a power cut, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
