# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from dpcohort.data import _load as load
from dpcohort.data import dataset_from_arrays
from dpcohort.models import build_model, split_features
from dpcohort_lab.features import cache
from dpcohort_lab.features.cache import kept


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOHORT_DATA", str(tmp_path))
    monkeypatch.delenv("DPCOHORT_KEEP_FEATURES", raising=False)
    monkeypatch.setattr(cache, "_LEAST_BYTES", 0)
    return tmp_path / "features"


class Counted:
    def __init__(self, value=1.0):
        self.times, self.value = 0, value

    def __call__(self):
        self.times += 1
        return np.full((2, 3), self.value, np.float32)


def test_what_was_computed_is_read_and_said_to_be(folder, caplog):
    work, records = Counted(), np.arange(4, dtype=np.uint8)
    first = kept((records, "settings"), (2, 3), work)
    with caplog.at_level(logging.INFO, "dpcohort"):
        again = kept((records.copy(), "settings"), (2, 3), work)
    assert work.times == 1
    assert np.array_equal(first, again)
    assert f"features read from {folder}" in caplog.text
    kept((records + 1, "settings"), (2, 3), work)
    kept((records, "others"), (2, 3), work)
    assert work.times == 3


@pytest.mark.parametrize("name", ["*.npy", "*.sha256"])
@pytest.mark.parametrize("damage", [lambda b: b[:-1] + b"\1", lambda b: b[:-3], lambda _: b""])
def test_a_damaged_file_is_computed_again(folder, name, damage):
    work = Counted()
    kept(("settings",), (2, 3), work)
    (path,) = folder.glob(name)
    path.write_bytes(damage(path.read_bytes()))
    assert np.array_equal(kept(("settings",), (2, 3), work), np.ones((2, 3)))
    assert work.times == 2
    kept(("settings",), (2, 3), work)
    assert work.times == 2


def test_it_can_be_turned_off_and_a_folder_that_cannot_be_written_is_no_error(folder, monkeypatch):
    work = Counted()
    folder.write_text("a file where the folder should be")
    kept(("settings",), (2, 3), work)
    folder.unlink()
    monkeypatch.setenv("DPCOHORT_KEEP_FEATURES", "0")
    kept(("settings",), (2, 3), work)
    assert work.times == 2
    assert not folder.exists()


def test_what_was_used_longest_ago_makes_room(folder, monkeypatch):
    kept(("first",), (2, 3), Counted())
    (path,) = folder.glob("*.npy")
    monkeypatch.setattr(cache, "_MOST_BYTES", path.stat().st_size + 10)
    kept(("second",), (2, 3), Counted())
    assert not path.exists()
    assert len(list(folder.iterdir())) == 2


def test_only_features_of_published_records_are_kept(folder, monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 1, 12, 12), dtype=np.uint8)
    labels = np.arange(6) % 2
    data = dataset_from_arrays(
        "mnist", train_inputs=images, train_labels=labels, test_inputs=images, test_labels=labels
    )
    model = build_model(
        "logistic",
        input_shape=(1, 12, 12),
        classes=2,
        seed=0,
        options={"features": "oriented", "cells": 3},
    )
    expected = split_features(model, data)[1]
    assert not folder.exists()  # it has the name of a published set, and is not it
    monkeypatch.setattr(load, "_PUBLISHED", {data})
    own = replace(data, train_inputs=255 - images)
    split_features(model, own)
    assert not folder.exists()  # nor what was made of one
    published = replace(data)
    load._PUBLISHED.add(published)
    found = split_features(model, published)[1]
    assert len(list(folder.glob("*.npy"))) == 1
    assert np.array_equal(found.train_inputs, expected.train_inputs)
    again = replace(data)
    load._PUBLISHED.add(again)
    assert np.array_equal(split_features(model, again)[1].test_inputs, expected.test_inputs)
