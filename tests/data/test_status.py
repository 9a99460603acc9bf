# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from dpcohort.data import sources
from dpcohort.data.load import check_dataset, describe_datasets
from dpcohort.errors import DataMissingError, InputError


@pytest.fixture
def small_set(small_idx_source, monkeypatch, no_data_elsewhere, tmp_path):
    source, packed = small_idx_source
    monkeypatch.setitem(sources.SOURCES, "small", source)
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


def test_a_whole_set_has_its_checksums_reported(small_set):
    for status, part in zip(
        check_dataset("small", small_set), sources.SOURCES["small"].files, strict=True
    ):
        assert (status.state, status.detail) == ("ok", f"SHA-256 {part.sha256}")


def test_a_set_without_any_file_is_missing(no_data_elsewhere, tmp_path):
    with pytest.raises(DataMissingError, match="'mnist' was not found"):
        check_dataset("mnist", tmp_path)


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


def test_the_list_has_the_digits_as_they_are():
    from dpcohort.data.load import load_digits

    digits, row = load_digits(), describe_datasets()[0]
    assert (row.shape, row.classes) == (digits.input_shape, digits.classes)
    assert (row.train_records, row.test_records) == (len(digits), len(digits.test_labels))


def test_half_a_set_does_not_count_as_found(small_set):
    next((small_set / "small").iterdir()).unlink()
    row = next(row for row in describe_datasets(small_set) if row.name == "small")
    assert row.found is None


def test_the_real_sets_are_the_published_ones(real_data):
    for name in ("mnist", "fashion-mnist"):
        assert {status.state for status in check_dataset(name, real_data)} == {"ok"}
