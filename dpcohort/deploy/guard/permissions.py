# SPDX-License-Identifier: Apache-2.0
"""Whether files are closed to the user the courier runs as; a guard does not start otherwise."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dpcohort.errors import InputError

__all__ = ["check_closed_folder", "check_private", "check_unwritable"]


def check_private(path: str | Path, what: str) -> None:
    """Refuse a file that anyone but its owner can read or write.

    Args:
        path: the file, which must exist.
        what: what it is, for the message.

    Raises:
        InputError: naming the file, its mode, and the command that closes it.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:  # 0600, in a folder with the sticky bit
        ...     check_private(file.name, "data")
    """
    found = _status(path, what)
    if found.st_mode & 0o077:
        raise InputError.because(
            f"the {what} {path} can be opened by others (mode {_mode(found)}): code that a server "
            f"ships could read it past the guard. Close it with: chmod 600 {path}"
        )
    _check_owner(path, what, found)
    _check_folders(path, what)


def check_unwritable(path: str | Path, what: str) -> None:
    """Refuse a file that anyone but its owner can write.

    Raises:
        InputError: naming the file, its mode, and the command that closes it.
    """
    found = _status(path, what)
    if found.st_mode & 0o022:
        raise InputError.because(
            f"the {what} {path} can be changed by others (mode {_mode(found)}): a server's code "
            f"could write itself better terms. Close it with: chmod go-w {path}"
        )
    _check_owner(path, what, found)
    _check_folders(path, what)


def check_closed_folder(folder: Path, what: str, *, shared: bool = True) -> None:
    """Refuse a folder in which others could exchange files, one of the folders above included.

    Folders are looked at as they are named and, where links are on the way, as they are.

    Args:
        folder: the folder.
        what: what is in it, for the message.
        shared: whether others may put files of their own into the folder itself, under a sticky
            bit that keeps them from ours. Not for a ledger: SQLite opens files beside it by name.

    Raises:
        InputError: naming the folder.
    """
    named, real = folder.absolute(), folder.resolve()
    for place in dict.fromkeys((named, real, *named.parents, *real.parents)):
        found = _status(place, f"folder of the {what}")
        _check_owner(place, f"folder of the {what}", found)
        protected = bool(found.st_mode & stat.S_ISVTX) and (shared or place not in (named, real))
        if found.st_mode & 0o022 and not protected:
            raise InputError.because(
                f"the folder {place} of the {what} can be written by others (mode "
                f"{_mode(found)}), who could exchange it. Close it with: chmod go-w {place}"
            )


def _check_folders(path: str | Path, what: str) -> None:
    """The folder that names the file and, if that name is a link, the one that holds it."""
    for parent in dict.fromkeys((Path(path).absolute().parent, Path(path).resolve().parent)):
        check_closed_folder(parent, what)


def _check_owner(path: str | Path, what: str, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise InputError.because(
            f"the {what} {path} belongs to user {found.st_uid}, not to the guard's user "
            f"{os.geteuid()}: that user could change it at any time."
        )


def _status(path: str | Path, what: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise InputError.because(
            f"the {what} {path} cannot be looked at: {error.strerror}."
        ) from None


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"
