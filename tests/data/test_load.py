# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import hashlib
import json
import struct
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

from dpcohort.consent import allow_code
from dpcohort.data import _load as load
from dpcohort.data import _load as load_module
from dpcohort.data import check_dataset, describe_datasets, load_dataset
from dpcohort.data._load import SOURCES, read_part
from dpcohort.errors import DataMissingError, FileFormatError, InputError


def test_a_set_in_idx_files_is_assembled(small_idx_source, monkeypatch, tmp_path):
    source, packed = small_idx_source
    monkeypatch.setitem(load_module.SOURCES, "small", source)
    (tmp_path / "small").mkdir()
    for name, content in packed.items():
        (tmp_path / "small" / name).write_bytes(content)
    dataset = load_dataset("small", data_dir=tmp_path)
    assert dataset.train_inputs.shape == (6, 1, 4, 4)
    assert dataset.train_labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert dataset.test_labels.tolist() == [2, 0]


def test_cifar10_is_its_binary_records(monkeypatch, tmp_path):
    records = np.random.default_rng(3).integers(0, 256, (6, 2, 3073), np.uint8)
    records[:, :, 0] %= 10
    files = tuple(
        replace(part, sha256=hashlib.sha256(batch.tobytes()).hexdigest())
        for part, batch in zip(SOURCES["cifar10"].files, records, strict=True)
    )
    monkeypatch.setitem(load_module.SOURCES, "cifar10", replace(SOURCES["cifar10"], files=files))
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for part, batch in zip(files, records, strict=True):
        (folder / part.name).write_bytes(batch.tobytes())
    dataset = load_dataset("cifar10", data_dir=tmp_path)
    assert dataset.train_inputs.shape == (10, 3, 32, 32)
    # one label byte, then the red plane row by row
    assert dataset.train_inputs[3, 0, 0, 1] == records[1, 1, 2]
    assert dataset.train_inputs[3, 2, 31, 31] == records[1, 1, 3072]
    assert dataset.train_labels.tolist() == records[:5, :, 0].ravel().tolist()
    assert dataset.test_labels.tolist() == records[5, :, 0].tolist()
    assert dataset.train_inputs.flags.c_contiguous


def test_the_real_mnist(real_data):
    mnist = load_dataset("mnist", data_dir=real_data)
    assert mnist.train_inputs.shape == (60_000, 1, 28, 28)
    assert mnist.test_inputs.shape == (10_000, 1, 28, 28)
    assert mnist.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    seen = mnist.train_inputs / 255.0
    assert mnist.normalisation.mean == (round(float(seen.mean()), 4),)
    assert mnist.normalisation.std == (round(float(seen.std()), 4),)


def test_the_real_fashion_mnist(real_data):
    fashion = load_dataset("fashion-mnist", data_dir=real_data)
    assert np.bincount(fashion.train_labels).tolist() == [6000] * 10
    seen = fashion.train_inputs / 255.0
    assert fashion.normalisation.mean == (round(float(seen.mean()), 4),)
    assert fashion.normalisation.std == (round(float(seen.std()), 4),)


def test_the_real_cifar10_if_it_is_here(real_data):
    try:
        cifar10 = load_dataset("cifar10", data_dir=real_data)
    except DataMissingError:
        pytest.skip("the real CIFAR-10 is not here; set DPCOHORT_DATA to a folder that has it")
    assert np.bincount(cifar10.train_labels).tolist() == [5000] * 10
    seen = cifar10.train_inputs / 255.0
    means = tuple(round(float(value), 4) for value in seen.mean(axis=(0, 2, 3)))
    assert cifar10.normalisation.mean == means


def test_a_truncated_real_file_is_named(real_data, no_data_elsewhere, tmp_path):
    source = SOURCES["mnist"]
    (tmp_path / "mnist").mkdir()
    for part in source.files:
        content = (real_data / "mnist" / part.name).read_bytes()
        (tmp_path / "mnist" / part.name).write_bytes(content[: -len(content) // 3])
    with pytest.raises(FileFormatError, match=r"train-images-idx3-ubyte\.gz") as caught:
        load_dataset("mnist", data_dir=tmp_path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_set_that_is_not_here_is_missing_data(no_data_elsewhere, tmp_path, name):
    with pytest.raises(DataMissingError, match=f"dpcohort data fetch {name}") as caught:
        load_dataset(name, data_dir=tmp_path)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("name", ["", "mnits", "C:", "no such set"])
def test_an_unknown_name_is_refused_with_what_is_possible(name, no_data_elsewhere):
    with pytest.raises(
        InputError, match="one of digits, heart-disease, mnist, fashion-mnist, cifar10"
    ):
        load_dataset(name)


def test_the_nearest_name_is_suggested():
    with pytest.raises(InputError, match="Did you mean 'cifar10'"):
        load_dataset("cifar-10")


OWN = """
import numpy as np
from dpcohort import plugin
from dpcohort.consent import allow_code
from dpcohort.data import dataset_from_arrays

ARRAYS = dict(train_inputs=np.zeros((2, 3)), train_labels=[0, 1],
              test_inputs=np.zeros((1, 3)), test_labels=[1])
@plugin("data")
def as_mapping(): return ARRAYS
@plugin("data")
def as_dataset(): return dataset_from_arrays("own", **ARRAYS)
@plugin("data")
def as_nothing(): return None
@plugin("data")
def with_argument(path): return ARRAYS
@plugin("data")
def failing(): raise RuntimeError("disk on fire")
@plugin("data")
def refusing(): return dataset_from_arrays("own", **{**ARRAYS, "test_labels": [7.5]})
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_data_of_this_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    allow_code("own_data_of_this_test")
    yield "own_data_of_this_test"
    sys.modules.pop("own_data_of_this_test", None)


def test_a_function_of_the_users(own_module):
    assert load_dataset(f"{own_module}:as_dataset").name == "own"
    assert load_dataset(f"{own_module}:as_mapping").input_shape == (3,)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("as_nothing", "'NoneType' is not allowed: it must be a Dataset"),
        ("with_argument", "Called without arguments it raised TypeError"),
        ("failing", "RuntimeError: disk on fire"),
        ("refusing", "type of test_labels"),
    ],
)
def test_a_function_that_does_not_work_is_refused(own_module, function, message):
    with pytest.raises(InputError, match=message):
        load_dataset(f"{own_module}:{function}")


def test_reading_data_never_imports_torch():
    code = "import sys, dpcohort.data as d; d.load_dataset('digits'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_split_is_whole_and_every_class_is_in_both_parts():
    from sklearn.datasets import load_digits

    digits = load_dataset("digits")
    images, labels = load_digits(return_X_y=True)
    rows = np.concatenate([digits.train_inputs, digits.test_inputs]).reshape(-1, 64)
    kept = np.concatenate([digits.train_labels, digits.test_labels])
    ours = sorted((*row, label) for row, label in zip(rows.tolist(), kept.tolist(), strict=True))
    theirs = sorted(
        (*row, label) for row, label in zip(images.tolist(), labels.tolist(), strict=True)
    )
    assert ours == theirs
    first = np.flatnonzero(labels == labels[0])
    assert np.array_equal(
        digits.test_inputs[digits.test_labels == labels[0]][0].ravel(), images[first[4]]
    )
    test_counts = np.bincount(digits.test_labels, minlength=10)
    assert (test_counts == np.bincount(labels) // 5).all()


def test_loading_twice_gives_the_same():
    assert np.array_equal(load_dataset("digits").test_inputs, load_dataset("digits").test_inputs)


def test_without_scikit_learn_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataMissingError, match="scikit-learn"):
        load_dataset("digits")


def test_one_changed_pixel_is_refused_with_both_checksums(small_idx_source, tmp_path):
    source, packed = small_idx_source
    part = source.files[0]
    path = tmp_path / part.name
    path.write_bytes(packed[part.name])
    values = read_part(source, part, path)
    changed = values.copy()
    changed[3, 1, 2] ^= 1
    plain = struct.pack(">BBBB3I", 0, 0, 8, 3, *changed.shape) + changed.tobytes()
    path.write_bytes(gzip.compress(plain))
    with pytest.raises(FileFormatError) as caught:
        read_part(source, part, path)
    assert part.sha256 in str(caught.value)
    assert hashlib.sha256(plain).hexdigest() in str(caught.value)
    assert str(path) in str(caught.value)


def test_one_set_under_the_name_of_another_is_recognised(real_data):
    fashion = SOURCES["fashion-mnist"]
    path = real_data / "mnist" / "t10k-labels-idx1-ubyte.gz"
    with pytest.raises(FileFormatError, match=r"These are the bytes of t10k-labels.* of mnist"):
        read_part(fashion, fashion.files[3], path)


@pytest.fixture
def small_set(small_idx_source, monkeypatch, no_data_elsewhere, tmp_path):
    source, packed = small_idx_source
    monkeypatch.setitem(load.SOURCES, "small", source)
    (tmp_path / "data" / "small").mkdir(parents=True)
    for name, content in packed.items():
        (tmp_path / "data" / "small" / name).write_bytes(content)
    return tmp_path / "data"


def test_every_file_is_reported(small_set):
    files = sorted((small_set / "small").iterdir())
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-9])
    states = {status.name: status.state for status in check_dataset("small", small_set)}
    assert states == {
        "train-images-idx3-ubyte.gz": "ok",
        "train-labels-idx1-ubyte.gz": "ok",
        "t10k-images-idx3-ubyte.gz": "missing",
        "t10k-labels-idx1-ubyte.gz": "corrupt",
    }


def test_a_set_without_files_cannot_be_checked():
    with pytest.raises(InputError, match="one of mnist"):
        check_dataset("digits")


def test_the_list_says_where_or_how(small_set):
    rows = {row.name: row for row in describe_datasets(small_set)}
    assert rows["digits"].found == "embedded"
    assert rows["small"].found == str(small_set / "small")
    assert rows["small"].how_to_get == ()
    assert rows["cifar10"].found is None
    assert rows["cifar10"].how_to_get == ("dpcohort data fetch cifar10",)
    json.dumps([asdict(row) for row in rows.values()])


def test_the_real_sets_are_the_published_ones(real_data):
    for name in ("mnist", "fashion-mnist"):
        assert {status.state for status in check_dataset(name, real_data)} == {"ok"}
