# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import hashlib
import struct

import numpy as np
import pytest

from dpcohort.data.load import content_sha256, read_part
from dpcohort.data.sources import SOURCES
from dpcohort.errors import FileFormatError


def test_the_checksum_of_an_idx_part_is_that_of_the_plain_file(small_idx_source, write_idx):
    source, _ = small_idx_source
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    plain = write_idx("x", array).read_bytes()
    assert content_sha256(source, array) == hashlib.sha256(plain).hexdigest()


def test_the_checksum_of_records_is_that_of_the_binary_file():
    records = np.arange(2 * 3073, dtype=np.uint32).astype(np.uint8).reshape(2, 3073)
    expected = hashlib.sha256(records.tobytes()).hexdigest()
    assert content_sha256(SOURCES["cifar10"], records) == expected
    assert content_sha256(SOURCES["cifar10"], np.asfortranarray(records)) == expected


def test_one_changed_pixel_is_refused_with_both_checksums(small_idx_source, tmp_path):
    source, packed = small_idx_source
    part = source.files[0]
    path = tmp_path / part.name
    path.write_bytes(packed[part.name])
    values = read_part(source, part, path)
    changed = values.copy()
    changed[3, 1, 2] ^= 1
    path.write_bytes(
        gzip.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, *changed.shape) + changed.tobytes())
    )
    with pytest.raises(FileFormatError) as caught:
        read_part(source, part, path)
    assert part.sha256 in str(caught.value)
    assert content_sha256(source, changed) in str(caught.value)
    assert str(path) in str(caught.value)


def test_one_set_under_the_name_of_another_is_recognised(real_data):
    fashion = SOURCES["fashion-mnist"]
    path = real_data / "mnist" / "t10k-labels-idx1-ubyte.gz"
    with pytest.raises(FileFormatError, match=r"These are the bytes of t10k-labels.* of mnist"):
        read_part(fashion, fashion.files[3], path)
