# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import json
import struct

import numpy as np
import pytest

from dpcohort.data.partition import Partition, join_clients, load_partition, save_partition
from dpcohort.errors import DpcohortError, FileFormatError, InputError, VerificationError


def example(**changes):
    base = {"indices": np.array([5, 1, 3, 0]), "offsets": np.array([0, 1, 1, 4]), "records": 7}
    return Partition(**{**base, **changes})


def test_each_client_has_its_part():
    partition = example()
    assert len(partition) == 3
    assert [partition.client(k).tolist() for k in range(3)] == [[5], [], [1, 3, 0]]
    assert partition.sizes.tolist() == [1, 0, 3]


@pytest.mark.parametrize("k", [-1, 3])
def test_a_client_that_is_not_there_is_refused(k):
    with pytest.raises(InputError, match="client = "):
        example().client(k)


def test_it_cannot_be_changed_and_does_not_freeze_what_it_was_made_of():
    indices = np.array([5, 1, 3, 0])
    partition = example(indices=indices)
    with pytest.raises(ValueError, match="read-only"):
        partition.indices[0] = 1
    assert indices.flags.writeable


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": np.array([5, 1, 3, 7])}, r"indices\[3\] = 7"),
        ({"indices": np.array([5, -1, 3, 0])}, r"indices\[1\] = -1"),
        ({"indices": np.array([5, 1, 3, 5])}, "Record 5 occurs 2 times"),
        ({"indices": np.array([5.0, 1.0, 3.0, 0.0])}, "whole numbers"),
        ({"indices": np.array([[5, 1, 3, 0]])}, "whole numbers"),
        ({"offsets": np.array([0, 2, 1, 4])}, "offsets"),
        ({"offsets": np.array([1, 2, 4])}, "offsets"),
        ({"offsets": np.array([0, 2, 3])}, "offsets"),
        ({"offsets": np.array([0])}, "offsets"),
        ({"records": 0}, "records = 0"),
        ({"names": ("a", "b")}, "number of names = 2"),
    ],
)
def test_what_is_no_partition_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        example(**changes)


def test_what_was_saved_is_loaded(tmp_path):
    partition = example(rule={"name": "paper", "similarity": 30.0}, names=("a", "ü", "c"))
    save_partition(partition, tmp_path / "partition.npz")
    loaded = load_partition(tmp_path / "partition.npz")
    np.testing.assert_array_equal(loaded.indices, partition.indices)
    np.testing.assert_array_equal(loaded.offsets, partition.offsets)
    assert loaded.describe() == partition.describe()
    assert loaded.names == partition.names
    assert [path.name for path in tmp_path.iterdir()] == ["partition.npz"]


def test_the_description_is_json():
    described = json.loads(json.dumps(example(rule={"name": "x"}).describe()))
    assert described["clients"] == 3
    assert described["unused_records"] == 3
    assert (described["smallest_client"], described["largest_client"]) == (0, 3)


def test_the_hash_is_of_who_holds_what():
    assert example().sha256 == example(rule={"name": "other words"}).sha256
    # spelled out: a run that names a partition must mean the same one for ever
    spelled = b"dpcohort partition 1\n7\n3\n" + struct.pack("<8q", 0, 1, 1, 4, 5, 1, 3, 0) + b"[]"
    assert example().sha256 == hashlib.sha256(spelled).hexdigest()
    different = [
        example(indices=np.array([5, 1, 0, 3])),
        example(offsets=np.array([0, 1, 2, 4])),
        example(offsets=np.array([0, 1, 4])),
        example(records=8),
        example(names=("a", "b", "c")),
    ]
    assert len({example().sha256, *(other.sha256 for other in different)}) == 6


def test_no_single_flipped_byte_goes_unseen(tmp_path):
    path = tmp_path / "partition.npz"
    partition = example()
    save_partition(partition, path)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[place] ^= 0x40
        path.write_bytes(changed)
        try:
            loaded = load_partition(path)
        except DpcohortError:
            refused += 1
        else:  # a byte that means nothing, as a date in the archive
            assert loaded.sha256 == partition.sha256
    assert refused > len(whole) // 6


def test_content_that_was_not_hashed_is_refused(tmp_path):
    path = tmp_path / "partition.npz"
    save_partition(example(), path)
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["indices"] = arrays["indices"][::-1]
    np.savez(path, **arrays)
    with pytest.raises(VerificationError, match="not the one that was saved"):
        load_partition(path)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "partition.npz"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"partition\.npz: the file cannot|no array at all"):
        load_partition(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="No such file"):
        load_partition(tmp_path / "partition.npz")


def test_another_npz_file_is_refused(tmp_path):
    path = tmp_path / "partition.npz"
    np.savez(path, indices=np.arange(3))
    with pytest.raises(FileFormatError, match="not a whole partition file"):
        load_partition(path)


def test_clients_are_joined_at_the_end():
    joined = join_clients(example(), [[6], [2, 4]])
    assert [joined.client(k).tolist() for k in range(5)] == [[5], [], [1, 3, 0], [6], [2, 4]]
    named = join_clients(example(names=("a", "b", "c")), [[6]], names=["public"])
    assert named.names == ("a", "b", "c", "public")


def test_a_record_cannot_be_joined_twice():
    with pytest.raises(InputError, match="Record 3 occurs 2 times"):
        join_clients(example(), [[6, 3]])


def test_records_that_nobody_holds_cost_no_memory():
    assert len(example(records=10**15)) == 3
    with pytest.raises(InputError, match="Record 5 occurs 2 times"):
        example(indices=np.array([5, 1, 5, 0]), records=10**15)
