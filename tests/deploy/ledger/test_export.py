# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shutil

import pytest

from dpcohort.deploy.ledger import ClientLedger, read_state, verify_ledger
from dpcohort.deploy.ledger.reading import back_up, exported_lines
from dpcohort.deploy.ledger.store import Entry
from dpcohort.errors import InputError


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


def test_nothing_is_overwritten(ledger, path):
    with pytest.raises(InputError, match="File exists"):
        back_up(path, path)


def test_a_place_that_cannot_be_written(ledger, path, folder):
    with pytest.raises(InputError, match="cannot be"):
        back_up(path, folder / "no" / "copy")
