# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.data.python_batch import ByteArray, walk_pickle
from dpcohort.errors import FileFormatError

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)


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
    batch = pickle.loads(python2_batch(PIXELS, [6, 9, 4]), encoding="latin-1")
    np.testing.assert_array_equal(batch["data"], PIXELS)
    assert batch["labels"] == [6, 9, 4]


def test_a_batch_written_by_python_2_is_read():
    batch = walk_pickle("batch", python2_batch(PIXELS, [6, 9, 4]))
    assert batch["labels"] == [6, 9, 4]
    assert batch["filenames"] == ["a.png"]
    assert isinstance(batch["data"], ByteArray)
    np.testing.assert_array_equal(batch["data"].values, PIXELS)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_batch_written_by_python_3_is_read(protocol, as_bytes):
    batch = {"labels": [6, 9, 4], "data": PIXELS, "batch_label": "one"}
    if as_bytes:
        batch = {key.encode(): value for key, value in batch.items()}
    read = walk_pickle("batch", pickle.dumps(batch, protocol=protocol))
    np.testing.assert_array_equal(read["data"].values, PIXELS)
    assert read["labels"] == [6, 9, 4]


class _Malicious:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("inside", [False, True])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, protocol, inside):
    marker = tmp_path / "ran"
    evil = _Malicious(os.mkdir, str(marker))
    content = pickle.dumps({"data": evil, "labels": [1]} if inside else evil, protocol=protocol)
    with pytest.raises(FileFormatError, match="nothing of it was run"):
        walk_pickle("batch", content)
    assert not marker.exists()
    pickle.loads(content)  # the same bytes do run where pickles are loaded
    assert marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cbuiltins\neval\n(U\x011tR.",
        b"\x80\x02c__builtin__\neval\n(U\x011tR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.",
        b"\x80\x02cnumpy\ndtype\ncnumpy\nndarray\n\x85R.",
        b"\x80\x02c_codecs\nencode\n(U\x011U\x05rot13tR.",
        b"(ios\nsystem\n.",
        b"\x80\x02(U\x02lsios\nsystem\n.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02P1\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\n\x85R.",
    ],
)
def test_every_way_to_call_something_is_refused(content):
    with pytest.raises(FileFormatError, match="nothing of it was run"):
        walk_pickle("batch", content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80",
        b"\x80\x02",
        b"\x80\x02}",
        b"\x80\x02a.",
        b"\x80\x02t.",
        b"\x80\x02h\x07.",
        b"\x80\x02]u.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02}(K\x01K\x02u.",
        b"\x80\x02}b.",
        b"\xff\xff",
        b"\x80\x02](.",
        b"\x80\x02q\x00.",
        b"\x80\x02R.",
        b"\x80\x02T\xff\xff\xff\x7fabc.",
    ],
)
def test_broken_pickles_are_refused_in_words(content):
    with pytest.raises(FileFormatError, match=r"^batch: "):
        walk_pickle("batch", content)


def test_an_array_of_another_type_is_refused():
    content = pickle.dumps({"data": PIXELS.astype(np.float32)}, protocol=2)
    with pytest.raises(FileFormatError, match="unsigned bytes"):
        walk_pickle("batch", content)


def test_an_array_shorter_than_its_shape_is_refused():
    content = python2_batch(PIXELS, [1, 2, 3])
    wrong = content.replace(struct.pack("<i", 3072) + b"\x86", struct.pack("<i", 3073) + b"\x86")
    assert wrong != content
    with pytest.raises(FileFormatError, match=r"^batch: "):
        walk_pickle("batch", wrong)


def read_or_refuse(content: bytes) -> str:
    """What became of the bytes; any other exception fails the test."""
    try:
        walk_pickle("batch", content)
    except FileFormatError as error:
        return str(error)
    return "batch: read"


@settings(max_examples=300)
@given(data=st.data())
def test_no_change_of_bytes_causes_anything_but_a_clear_error(data):
    content = bytearray(python2_batch(PIXELS[:1, :8], [6]))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    assert read_or_refuse(bytes(content)).startswith("batch: ")


@settings(max_examples=300)
@given(content=st.binary(max_size=60))
def test_arbitrary_bytes_cause_nothing_but_a_clear_error(content):
    assert read_or_refuse(b"\x80\x02" + content + b".").startswith("batch: ")


def test_the_package_never_loads_a_pickle():
    from pathlib import Path

    import dpcohort

    package = Path(dpcohort.__file__ or "").parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import pickle\n" not in text, path
        assert "from pickle import" not in text, path
        assert "allow_pickle=True" not in text, path


def test_a_value_recalled_again_and_again_makes_no_bytes():
    kept = b"\x80\x02](X" + struct.pack("<I", 500_000) + b"A" * 500_000 + b"q\x00"
    encode = b"c_codecs\nencode\nh\x00U\x06latin1\x86R"
    with pytest.raises(FileFormatError, match="makes more bytes than the file could hold"):
        walk_pickle("batch", kept + encode * 40 + b"e.")


def test_a_name_is_text_and_not_what_doubles_with_every_byte():
    doubled = b"h\x00h\x00\x86q\x00" * 16
    with pytest.raises(FileFormatError, match="names something by what is not text"):
        walk_pickle("batch", b"\x80\x04K\x01q\x00" + doubled + b"h\x00h\x00\x93.")
    deep = b"K\x01" + b"\x85" * 5000 + b"K\x01\x93."
    with pytest.raises(FileFormatError, match="names something by what is not text"):
        walk_pickle("batch", b"\x80\x04" + deep)


def test_a_batch_has_not_millions_of_instructions(monkeypatch):
    monkeypatch.setattr("dpcohort.data.python_batch.MOST_INSTRUCTIONS", 1000)
    with pytest.raises(FileFormatError, match="more than 1,000 instructions"):
        walk_pickle("batch", b"\x80\x02" + b"]" * 1000 + b".")
