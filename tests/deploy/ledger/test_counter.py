# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.deploy.ledger._counter import advance_counter, create_counter, read_counter
from dpcohort.errors import InputError, VerificationError

LEDGER = "a" * 32


def count(seq):
    return seq, f"{seq:064x}", LEDGER


@pytest.fixture
def counter(tmp_path):
    create_counter(tmp_path / "counter", LEDGER)
    return tmp_path / "counter"


def test_it_only_grows(counter):
    for seq in (1, 2, 5, 3, 5, 4):
        advance_counter(counter, count(seq))
    assert read_counter(counter) == count(5)


@pytest.mark.parametrize("seqs", [(1,), (1, 2), (1, 3), (2, 4, 6, 8), (1, 2, 3, 4, 5)])
def test_a_torn_line_leaves_the_one_before(counter, seqs):
    # Whatever was written last, tearing it must not lose more than it.
    before = counter.read_bytes()
    for seq in seqs:
        before = counter.read_bytes()
        advance_counter(counter, count(seq))
    after = counter.read_bytes()
    changed = [i for i in range(len(after)) if before[i] != after[i]]
    torn = bytearray(after)
    torn[changed[-1]] = ord("?")
    counter.write_bytes(torn)
    assert read_counter(counter) == (count(seqs[-2]) if len(seqs) > 1 else (0, "0" * 64, LEDGER))


def test_no_whole_line_is_an_error(counter):
    for content in (b"", b"x" * 400, b"\xff" * 370, counter.read_bytes()[:100]):
        counter.write_bytes(content)
        with pytest.raises(VerificationError, match="not a whole counter"):
            read_counter(counter)


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(VerificationError, match="cannot be read"):
        read_counter(tmp_path / "none")


def test_a_counter_that_has_counted_is_not_started_again(counter):
    create_counter(counter, "b" * 32)  # nothing was counted: a creation that was cut short
    advance_counter(counter, (1, "c" * 64, "b" * 32))
    with pytest.raises(InputError, match="earlier ledger"):
        create_counter(counter, LEDGER)
    assert read_counter(counter)[0] == 1
