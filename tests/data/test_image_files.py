# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

import dpcohort
from dpcohort import limits
from dpcohort.data._image_files import read_batch, read_idx
from dpcohort.errors import FileFormatError

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_what_was_written_is_read(write_idx, name):
    values = read_idx(write_idx(name, IMAGES), axes=3)
    np.testing.assert_array_equal(values, IMAGES)
    assert values.flags.writeable  # torch shares memory only with arrays it may write to


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 10, 15, 16, 30, 39])
def test_a_file_cut_short_is_refused(tmp_path, write_idx, cut):
    path = write_idx("images", IMAGES)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(FileFormatError, match=r"images: .*(expected|must start)"):
        read_idx(path, axes=3)


def test_a_gzip_file_cut_short_or_broken_is_refused(write_idx):
    path = write_idx("images.gz", np.random.default_rng(0).integers(0, 256, (5, 9, 9)))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:50] + b"\xff\x00\xff" + whole[53:]):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"images\.gz: "):
            read_idx(path, axes=3)


def test_a_header_that_promises_terabytes_costs_no_memory(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, 2**32 - 1, 2**16, 2**16) + b"abc")
    with pytest.raises(FileFormatError, match="found 3"):
        read_idx(path, axes=3)


@pytest.mark.parametrize("magic", [b"\0\0\x08\x01", b"\0\0\x0d\x03", b"PK\x03\x04", b"<htm"])
def test_other_formats_are_refused(tmp_path, magic):
    path = tmp_path / "images"
    path.write_bytes(magic + bytes(40))
    with pytest.raises(FileFormatError, match="must start with 00 00 08 03"):
        read_idx(path, axes=3)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(FileFormatError, match="cannot be read"):
            read_idx(path, axes=1)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "labels"
    path.write_bytes(gzip.compress(struct.pack(">BBBBI", 0, 0, 8, 1, 1 << 22) + bytes(1 << 22)))
    assert read_idx(path, axes=1).size == 1 << 22
    monkeypatch.setattr(limits, "LARGEST_FREE_UNPACKING", 1 << 20)
    with pytest.raises(FileFormatError, match=r"would unpack to 4,194,304; at most 1,048,576"):
        read_idx(path, axes=1)


PIXELS = np.random.default_rng(1).integers(0, 256, (4, 3072), np.uint8)
LABELS = [3, 0, 9, 3]


def test_a_batch_is_its_records(tmp_path):
    records = np.concatenate([np.array(LABELS, np.uint8)[:, None], PIXELS], axis=1)
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(records.tobytes())
    np.testing.assert_array_equal(read_batch(path), records)


@pytest.mark.parametrize("size", [0, 1, 3072, 3074])
def test_a_binary_batch_must_be_whole_records(tmp_path, size):
    path = tmp_path / "test_batch.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(FileFormatError, match=f"3073-byte records was expected, found {size:,} "):
        read_batch(path)


def test_the_package_never_loads_a_pickle():
    package = Path(dpcohort.__file__ or "").parent
    # What processes of one sweep send each other is no file.
    for path in {*package.rglob("*.py")} - {package / "runs" / "_sweep.py"}:
        text = path.read_text(encoding="utf-8")
        assert "import pickle\n" not in text, path
        assert "from pickle import" not in text, path
        assert "allow_pickle=True" not in text, path
