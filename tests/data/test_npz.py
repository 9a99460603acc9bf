# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpcohort import limits
from dpcohort.data.arrays import map_npy, read_npz
from dpcohort.errors import FileFormatError


def test_arrays_come_back_as_they_were(tmp_path):
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yz"])}
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    read = read_npz(tmp_path / "x.npz")
    assert sorted(read) == ["a", "b"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)


def test_a_mapped_array_can_be_written_to_without_touching_the_file(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(4))
    array = map_npy(tmp_path / "x.npy")
    assert array.flags.writeable
    array[0] = 5
    assert np.load(tmp_path / "x.npy")[0] == 0


@pytest.mark.parametrize("read", [read_npz, map_npy])
def test_a_missing_file_is_named(tmp_path, read):
    with pytest.raises(FileFormatError, match="No such file") as caught:
        read(tmp_path / "nothing.npz")
    assert "nothing.npz" in str(caught.value)


def test_pickle_is_refused(tmp_path):
    objects = np.array([{}, None], object)
    np.savez(tmp_path / "x.npz", a=objects)
    np.save(tmp_path / "x.npy", objects, allow_pickle=True)
    with pytest.raises(FileFormatError, match="no pickle"):
        read_npz(tmp_path / "x.npz")
    with pytest.raises(FileFormatError, match="no pickle"):
        map_npy(tmp_path / "x.npy")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_broken_bytes_cause_nothing_but_a_clear_error(tmp_path, data):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.arange(5))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read_npz(path)
    except FileFormatError as error:
        message = str(error)
    else:
        message = str(path)
    assert message.startswith(str(path))


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "packed.npz", a=np.zeros(1 << 20))
    np.savez(tmp_path / "plain.npz", a=np.zeros(1 << 20))
    assert read_npz(tmp_path / "packed.npz")["a"].size == 1 << 20
    monkeypatch.setattr(limits, "LARGEST_FREE_UNPACKING", 1 << 20)
    with pytest.raises(FileFormatError, match=r"would unpack to 8,388,736; .*numpy.savez"):
        read_npz(tmp_path / "packed.npz")
    assert read_npz(tmp_path / "plain.npz")["a"].size == 1 << 20  # it is as large itself


def test_an_array_is_as_large_as_its_header_says(tmp_path):
    header = io.BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (10**9,)}
    np.lib.format.write_array_header_1_0(header, shape)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("a.npy", header.getvalue() + bytes(8))
    with pytest.raises(FileFormatError, match=r"a.npy says it has 8,000,000,000 bytes .* has 8"):
        read_npz(tmp_path / "x.npz")
