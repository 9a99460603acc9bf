# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpcohort import limits
from dpcohort.data._arrays import (
    dataset_from_mapping,
    let_go,
    load_arrays,
    load_test_arrays,
    map_npy,
    read_npz,
)
from dpcohort.errors import DataMissingError, FileFormatError, InputError


def entries(**changes):
    rng = np.random.default_rng(0)
    base = {
        "train_inputs": rng.integers(0, 256, (6, 3, 4, 4), np.uint8),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_inputs": rng.integers(0, 256, (2, 3, 4, 4), np.uint8),
        "test_labels": np.array([2, 0]),
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


def test_an_npz_file_is_read(tmp_path):
    np.savez(tmp_path / "mine.npz", **entries())
    dataset = load_arrays(tmp_path / "mine.npz")
    assert (dataset.name, dataset.classes, len(dataset)) == ("mine", 3, 6)
    np.testing.assert_array_equal(dataset.train_inputs, entries()["train_inputs"])


def test_a_folder_of_npy_files_is_mapped_not_read(tmp_path):
    for name, array in entries(train_inputs=np.zeros((6, 3, 4, 4), np.uint8)).items():
        np.save(tmp_path / f"{name}.npy", array)
    dataset = load_arrays(tmp_path)
    assert isinstance(dataset.train_inputs.base, np.memmap)
    dataset.train_inputs[0] = 7  # stays in memory
    assert np.load(tmp_path / "train_inputs.npy").max() == 0


def test_stated_constants_are_used(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **entries(classes=5, scale=100.0, mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 4.0]))
    dataset = load_arrays(path)
    assert dataset.classes == 5
    assert dataset.normalisation.scale == 100.0
    assert dataset.normalisation.std == (1.0, 2.0, 4.0)


def test_a_task_takes_its_outputs_from_the_labels():
    several = {"train_labels": np.eye(6, 4), "test_labels": np.eye(2, 4)}
    assert dataset_from_mapping("x", entries(**several), {"kind": "multi-label"}).task.outputs == 4
    with pytest.raises(InputError, match=r"shape of train_labels = \(6,\) .* for each label"):
        dataset_from_mapping("x", entries(), {"kind": "multi-label"})
    assert dataset_from_mapping("x", entries(), {"kind": "counts"}).task.outputs == 1


def test_records_to_test_on_need_none_to_train_on(tmp_path):
    np.savez(tmp_path / "whole.npz", **entries())
    assert len(load_test_arrays(tmp_path / "whole.npz").train_inputs) == 6
    with pytest.raises(DataMissingError, match="is not there"):
        load_test_arrays(tmp_path / "none.npz")


def test_nothing_there_is_missing_data(tmp_path):
    with pytest.raises(DataMissingError, match="is not there") as caught:
        load_arrays(tmp_path / "mine.npz")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_labels": None}, "The array 'test_labels' is missing"),
        ({"test_lables": np.array([1])}, "Did you mean 'test_labels'"),
        ({"extra": np.array([1])}, "'extra' is not known"),
        ({"classes": 2.5}, "classes = 2.5"),
        ({"classes": np.array([2, 3])}, "classes"),
        ({"scale": 0.0}, "scale = 0.0"),
        ({"std": "one"}, "std = "),
        ({"mean": [[0.0]]}, "mean = "),
    ],
)
def test_what_does_not_fit_is_refused_with_the_file(tmp_path, changes, message):
    path = tmp_path / "mine.npz"
    np.savez(path, **entries(**changes))
    with pytest.raises(FileFormatError, match=f"mine.npz: .*{message}"):
        load_arrays(path)


def test_a_record_that_cannot_be_used_is_named_with_the_file(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **entries(train_labels=np.array([0, 1, 2, 0, 1, -2])))
    with pytest.raises(InputError, match=r"mine.npz: train_labels\[5\] = -2"):
        load_arrays(path).refuse_unusable()


def test_pickled_arrays_are_refused(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **entries(train_labels=np.array([{}, 1, 2, 0, 1, 2], object)))
    with pytest.raises(FileFormatError, match="no pickle"):
        load_arrays(path)
    np.save(tmp_path / "train_inputs.npy", np.array([None], object), allow_pickle=True)
    with pytest.raises(FileFormatError, match=r"train_inputs\.npy: .*no pickle"):
        load_arrays(tmp_path)


def test_a_single_npy_file_is_refused_with_the_way_to_do_it(tmp_path):
    np.save(tmp_path / "inputs.npy", np.zeros(3))
    with pytest.raises(FileFormatError, match=r"folder with the files train_inputs\.npy"):
        load_arrays(tmp_path / "inputs.npy")


def test_a_mapped_array_can_be_written_to_without_touching_the_file(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(4))
    array = map_npy(tmp_path / "x.npy")
    assert array.flags.writeable
    array[0] = 5
    assert np.load(tmp_path / "x.npy")[0] == 0


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


def test_only_pages_that_cannot_have_changed_are_let_go(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5))
    changed = map_npy(tmp_path / "a.npy")
    changed[0] = 7
    let_go(changed[:2])
    assert changed.tolist() == [7, 1, 2, 3, 4]
    read_only = np.load(tmp_path / "a.npy", mmap_mode="r")
    let_go(np.asarray(read_only)[1:])
    assert read_only.tolist() == [0, 1, 2, 3, 4]
