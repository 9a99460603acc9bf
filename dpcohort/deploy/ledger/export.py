# SPDX-License-Identifier: Apache-2.0
"""A ledger to take away: its rows as text for a reader, or the whole file as a backup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from dpcohort.deploy.ledger.chain import canonical_json
from dpcohort.deploy.ledger.store import LedgerStore
from dpcohort.errors import InputError

__all__ = ["back_up", "exported_lines"]


def exported_lines(path: str | Path) -> Iterator[str]:
    """Every row as one line of JSON, as stored, also where the chain is broken.

    The outputs' bytes stay in the ledger; their hashes are in the rows.

    Example:
        >>> import tempfile
        >>> from dpcohort.deploy.ledger import ClientLedger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ClientLedger.create(Path(folder) / "ward.ledger").close()
        ...     len(list(exported_lines(Path(folder) / "ward.ledger")))
        1
    """
    with closing(LedgerStore(Path(path), writable=False)) as store:
        for entry in store.entries():
            yield canonical_json(asdict(entry))


def back_up(path: str | Path, copy: str | Path) -> None:
    """A whole copy of the ledger, also while it is being written; not of its counter.

    Raises:
        InputError: something is there already, or nothing can be written there.

    Example:
        >>> import tempfile
        >>> from dpcohort.deploy.ledger import ClientLedger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ClientLedger.create(Path(folder) / "ward.ledger").close()
        ...     back_up(Path(folder) / "ward.ledger", Path(folder) / "copy")
        ...     len(list(exported_lines(Path(folder) / "copy")))
        1
    """
    target = Path(copy)
    with closing(LedgerStore(Path(path), writable=False)) as store:
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise InputError.because(
                f"{target} cannot be made: {error.strerror}. Nothing was changed."
            ) from None
        try:
            store.copy_to(target)
        except BaseException:
            target.unlink(missing_ok=True)  # half a copy would pass for a backup
            raise
