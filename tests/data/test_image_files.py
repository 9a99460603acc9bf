# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpcohort
from dpcohort import limits
from dpcohort.data.image_files import read_batch, read_idx
from dpcohort.errors import FileFormatError

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_what_was_written_is_read(write_idx, name):
    values = read_idx(write_idx(name, IMAGES), axes=3)
    np.testing.assert_array_equal(values, IMAGES)
    assert values.flags.writeable  # torch shares memory only with arrays it may write to


def test_gzip_is_seen_from_the_bytes_not_the_name(tmp_path, write_idx):
    packed = write_idx("images.gz", IMAGES)
    plain = packed.rename(tmp_path / "images")
    np.testing.assert_array_equal(read_idx(plain, axes=3), IMAGES)


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 10, 15, 16, 30, 39])
def test_a_file_cut_short_is_refused(tmp_path, write_idx, cut):
    path = write_idx("images", IMAGES)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(FileFormatError, match=r"images: .*(expected|must start)"):
        read_idx(path, axes=3)


def test_the_message_has_expected_and_found(write_idx):
    path = write_idx("images", IMAGES)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileFormatError, match="24 bytes of values were expected, found 19"):
        read_idx(path, axes=3)


def test_a_gzip_file_cut_short_or_broken_is_refused(write_idx):
    path = write_idx("images.gz", np.random.default_rng(0).integers(0, 256, (5, 9, 9)))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:50] + b"\xff\x00\xff" + whole[53:]):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"images\.gz: "):
            read_idx(path, axes=3)


def test_bytes_after_the_end_are_refused(write_idx):
    path = write_idx("images", IMAGES)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(FileFormatError, match="found more"):
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


def test_an_empty_gzip_file_is_refused(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(FileFormatError, match="an empty file"):
        read_idx(path, axes=3)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "labels"
    path.write_bytes(gzip.compress(struct.pack(">BBBBI", 0, 0, 8, 1, 1 << 22) + bytes(1 << 22)))
    assert read_idx(path, axes=1).size == 1 << 22
    monkeypatch.setattr(limits, "LARGEST_FREE_UNPACKING", 1 << 20)
    with pytest.raises(FileFormatError, match=r"would unpack to 4,194,304; at most 1,048,576"):
        read_idx(path, axes=1)


def test_axes_without_a_value_are_no_images(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, 0, 2**32 - 1, 2**32 - 1))
    with pytest.raises(FileFormatError, match="there is nothing in it"):
        read_idx(path, axes=3)


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
        read_batch(path)


def python2_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 wrote the published ones: byte strings and protocol 2."""

    def short(text: str) -> bytes:
        return b"U" + bytes([len(text)]) + text.encode()

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02"
        + (number(0) + b"\x85" + short("b") + b"\x87Rq\x03(")
        + (number(1) + number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86")
        + (b"cnumpy\ndtype\nq\x04" + short("u1") + number(0) + number(1) + b"\x87R(")
        + (number(3) + short("|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb\x89")
        + (b"T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb")
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    entries = (short("batch_label") + short("training batch 1 of 5") + short("labels") + listed) + (
        short("data") + array + short("filenames") + b"](" + short("a.png") + b"e"
    )
    return b"\x80\x02}q\x00(" + entries + b"u."


def test_the_test_writes_what_python_itself_would_read():
    batch = pickle.loads(python2_batch(PIXELS, LABELS), encoding="latin-1")
    np.testing.assert_array_equal(batch["data"], PIXELS)
    assert batch["labels"] == LABELS


def test_a_batch_written_by_python_2_is_read(tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(python2_batch(PIXELS, LABELS))
    np.testing.assert_array_equal(read_batch(path)[:, 1:], PIXELS)
    assert read_batch(path)[:, 0].tolist() == LABELS


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("order", [("labels", "data", "batch_label"), ("data", "names", "labels")])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_batch_written_by_python_3_is_read(tmp_path, protocol, order, as_bytes):
    values = {"labels": LABELS, "data": PIXELS, "batch_label": "one", "names": ["a", "b"]}
    batch = {(key.encode() if as_bytes else key): values[key] for key in order}
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(batch, protocol=protocol))
    np.testing.assert_array_equal(read_batch(path)[:, 1:], PIXELS)
    assert read_batch(path)[:, 0].tolist() == LABELS


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"labels": [1, 2]}, "found 2 labels and 12,288 bytes"),
        ({"labels": [1, 2, 3, 256]}, "'labels' from 0 to 255"),
        ({"labels": [1, 2, 3, -1]}, "'labels' from 0 to 255"),
        ({"labels": [1, 2, 3, True]}, "found 3 labels"),
        ({"labels": "1234"}, "found 0 labels"),
        ({"data": PIXELS[:, :100]}, "found 4 labels and 400 bytes"),
        ({"data": PIXELS.astype(np.float32)}, "3,072 bytes for each; found 4 labels and 49,152"),
        ({"data": [1, 2, 3]}, "3,072 bytes for each"),
    ],
)
def test_a_python_batch_of_other_things_is_refused(tmp_path, entries, message):
    with pytest.raises(FileFormatError, match=message):
        read_batch(write_python(tmp_path / "data_batch_1", **entries))


@pytest.mark.parametrize("content", [{"data": PIXELS}, [1, 2], 7])
def test_a_python_batch_without_labels_is_refused(tmp_path, content):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(FileFormatError, match="a list of 'labels'"):
        read_batch(path)


@pytest.mark.parametrize("name", ["missing", "missing.bin"])
def test_a_missing_batch_is_refused(tmp_path, name):
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_batch(tmp_path / name)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "data_batch_1"
    with open(path, "wb") as file:
        file.truncate(10**12)  # sparse: takes no room
    with pytest.raises(FileFormatError, match="at most 100,000,000 are allowed"):
        read_batch(path)


class _Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("inside", [False, True])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, protocol, inside):
    marker, path = tmp_path / "ran", tmp_path / "data_batch_1"
    evil = _Malicious(os.mkdir, str(marker))
    path.write_bytes(pickle.dumps({"data": evil, "labels": [1]} if inside else evil, protocol))
    with pytest.raises(FileFormatError, match="Nothing of it was run"):
        read_batch(path)
    assert not marker.exists()
    pickle.loads(path.read_bytes())  # the same bytes do run where pickles are loaded
    assert marker.exists()


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_malicious_pickle_around_a_batch_is_not_run(tmp_path, protocol):
    marker, path = tmp_path / "ran", tmp_path / "data_batch_1"
    evil = _Malicious(os.mkdir, str(marker))
    batch = {"labels": LABELS, "data": PIXELS, "more": evil}
    path.write_bytes(pickle.dumps(batch, protocol=protocol))
    np.testing.assert_array_equal(read_batch(path)[:, 1:], PIXELS)  # plain numbers, no more
    assert not marker.exists()


def read_or_refuse(tmp_path_factory, content: bytes) -> str:
    """What became of the bytes; any other exception fails the test."""
    path = tmp_path_factory.getbasetemp() / "batch"
    path.write_bytes(content)
    try:
        read_batch(path)
    except FileFormatError as error:
        return str(error)
    return "read"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80",
        b"\x80\x02",
        b"\x80\x02}",
        b"\x80\x02]u.",
        b"\xff\xff",
        b"\x80\x02R.",
        b"\x80\x02T\xff\xff\xff\x7fabc.",
        "\x80\x02X\x04\x00\x00\x00\u20ac".encode("latin-1", "ignore") + b".",
    ],
)
def test_broken_pickles_are_refused_in_words(tmp_path_factory, content):
    assert "batch: " in read_or_refuse(tmp_path_factory, content)


@settings(max_examples=300)
@given(data=st.data())
def test_no_change_of_bytes_causes_anything_but_a_clear_error(tmp_path_factory, data):
    content = bytearray(python2_batch(PIXELS[:1, :8], [6]))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(tmp_path_factory, bytes(content))


@settings(max_examples=300)
@given(content=st.binary(max_size=60))
def test_arbitrary_bytes_cause_nothing_but_a_clear_error(tmp_path_factory, content):
    read_or_refuse(tmp_path_factory, b"\x80\x02" + content + b".")


def test_a_batch_has_not_millions_of_instructions(tmp_path, monkeypatch):
    monkeypatch.setattr("dpcohort.data.image_files.MOST_INSTRUCTIONS", 1000)
    path = tmp_path / "data_batch_1"
    path.write_bytes(b"\x80\x02" + b"]" * 1000 + b".")
    with pytest.raises(FileFormatError, match="more than 1,000 instructions"):
        read_batch(path)


def test_the_package_never_loads_a_pickle():
    package = Path(dpcohort.__file__ or "").parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import pickle\n" not in text, path
        assert "from pickle import" not in text, path
        assert "allow_pickle=True" not in text, path
