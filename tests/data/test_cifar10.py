# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle

import numpy as np
import pytest

from dpcohort.data.cifar10 import read_batch, read_binary_batch, read_python_batch
from dpcohort.errors import FileFormatError

PIXELS = np.random.default_rng(1).integers(0, 256, (4, 3072), np.uint8)
LABELS = [3, 0, 9, 3]


def write_python(path, **entries):
    path.write_bytes(pickle.dumps({"labels": LABELS, "data": PIXELS, **entries}, protocol=2))
    return path


def test_both_layouts_give_the_same_records(tmp_path):
    records = np.concatenate([np.array(LABELS, np.uint8)[:, None], PIXELS], axis=1)
    binary = tmp_path / "data_batch_1.bin"
    binary.write_bytes(records.tobytes())
    python = write_python(tmp_path / "data_batch_1")
    np.testing.assert_array_equal(read_batch(binary), records)
    np.testing.assert_array_equal(read_batch(python), records)


@pytest.mark.parametrize("size", [0, 1, 3072, 3074])
def test_a_binary_batch_must_be_whole_records(tmp_path, size):
    path = tmp_path / "test_batch.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(FileFormatError, match=f"3073-byte records was expected, found {size:,} "):
        read_binary_batch(path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"labels": [1, 2]}, "list of 4 numbers"),
        ({"labels": [1, 2, 3, 256]}, "from 0 to 255"),
        ({"labels": [1, 2, 3, True]}, "list of 4 numbers"),
        ({"labels": "1234"}, "list of 4 numbers"),
        ({"data": PIXELS[:, :100]}, r"found shape \(4, 100\)"),
        ({"data": [1, 2, 3]}, "found something else"),
    ],
)
def test_a_python_batch_of_other_things_is_refused(tmp_path, entries, message):
    with pytest.raises(FileFormatError, match=message):
        read_python_batch(write_python(tmp_path / "data_batch_1", **entries))


def test_a_python_batch_without_labels_is_refused(tmp_path):
    path = tmp_path / "data_batch_1"
    for content in ({"data": PIXELS}, [1, 2], 7):
        path.write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(FileFormatError, match="the entry"):
            read_python_batch(path)


@pytest.mark.parametrize("name", ["missing", "missing.bin"])
def test_a_missing_file_is_refused(tmp_path, name):
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_batch(tmp_path / name)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "data_batch_1"
    with open(path, "wb") as file:
        file.truncate(10**12)  # sparse: takes no room
    with pytest.raises(FileFormatError, match="at most 100,000,000 are allowed"):
        read_python_batch(path)
