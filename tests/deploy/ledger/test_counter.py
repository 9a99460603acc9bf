# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.deploy.ledger.counter import Count, MonotoneCounter
from dpcohort.errors import InputError, VerificationError

LEDGER = "a" * 32


def count(seq):
    return Count(seq, f"{seq:064x}", LEDGER)


@pytest.fixture
def counter(tmp_path):
    made = MonotoneCounter(tmp_path / "counter")
    made.create(LEDGER)
    return made


def test_it_only_grows(counter):
    for seq in (1, 2, 5, 3, 5, 4):
        counter.advance(count(seq))
    assert counter.read() == count(5)


@pytest.mark.parametrize("seqs", [(1,), (1, 2), (1, 3), (2, 4, 6, 8), (1, 2, 3, 4, 5)])
def test_a_torn_line_leaves_the_one_before(counter, seqs):
    # Whatever was written last, tearing it must not lose more than it.
    before = counter.path.read_bytes()
    for seq in seqs:
        before = counter.path.read_bytes()
        counter.advance(count(seq))
    after = counter.path.read_bytes()
    changed = [i for i in range(len(after)) if before[i] != after[i]]
    torn = bytearray(after)
    torn[changed[-1]] = ord("?")
    counter.path.write_bytes(torn)
    assert counter.read() == (count(seqs[-2]) if len(seqs) > 1 else Count(0, "0" * 64, LEDGER))


def test_no_whole_line_is_an_error(counter):
    for content in (b"", b"x" * 400, b"\xff" * 370, counter.path.read_bytes()[:100]):
        counter.path.write_bytes(content)
        with pytest.raises(VerificationError, match="not a whole counter"):
            counter.read()


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(VerificationError, match="cannot be read"):
        MonotoneCounter(tmp_path / "none").read()


def test_a_counter_that_has_counted_is_not_started_again(counter):
    counter.create("b" * 32)  # nothing was counted: a creation that was cut short
    counter.advance(Count(1, "c" * 64, "b" * 32))
    with pytest.raises(InputError, match="earlier ledger"):
        counter.create(LEDGER)
    assert counter.read().seq == 1


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        MonotoneCounter(tmp_path / "no" / "counter").create(LEDGER)
