# SPDX-License-Identifier: Apache-2.0
"""Reading the client's records: scaled by public constants, refused without quoting a value."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from dpcohort.data.dataset import Normalisation
from dpcohort.deploy.guard.files import load_data
from dpcohort.deploy.guard.terms import ModelTerms
from dpcohort.errors import DataMissingError, InputError

MODEL = ModelTerms(name="logistic", input_shape=(2,), classes=3)
SECRET = 4711.25


def save(folder, **arrays):
    path = folder / "d.npz"
    np.savez(path, **arrays)
    path.chmod(0o600)
    return path


def test_bytes_are_scaled_and_tokens_are_not(folder):
    path = save(folder, inputs=np.array([[0, 255]], np.uint8), labels=np.array([2], np.int32))
    data = load_data(path, MODEL, Normalisation(scale=255, mean=(0.5,), std=(0.5,)))
    assert data.inputs.tolist() == [[-1.0, 1.0]]
    assert data.inputs.dtype == np.float32
    assert data.labels.dtype == np.int64
    assert data.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    path = save(folder, inputs=np.array([[0, 7]]), labels=np.array([2]))
    assert load_data(path, MODEL, Normalisation(scale=255)).inputs.tolist() == [[0, 7]]


GOOD = {"inputs": np.array([[SECRET, 1.0]]), "labels": np.array([1])}
BAD = {
    "no labels": {"inputs": GOOD["inputs"]},
    "other shape": {**GOOD, "inputs": np.full((1, 3), SECRET)},
    "one number": {**GOOD, "inputs": np.full(1, SECRET)},
    "label out of range": {**GOOD, "labels": np.array([4711])},
    "negative label": {**GOOD, "labels": np.array([-4711])},
    "float labels": {**GOOD, "labels": np.array([1.0])},
    "too many labels": {**GOOD, "labels": np.array([1, 1])},
    "no record": {"inputs": np.zeros((0, 2)), "labels": np.zeros(0, np.int64)},
    "not finite": {**GOOD, "inputs": np.array([[SECRET, np.nan]])},
    "strings": {**GOOD, "inputs": np.array([["4711", "b"]])},
    "complex": {**GOOD, "inputs": np.array([[SECRET, 1j]])},
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_without_a_value(folder, case):
    with pytest.raises(InputError) as caught:
        load_data(save(folder, **BAD[case]), MODEL, Normalisation())
    assert "4711" not in str(caught.value)


def test_missing_open_and_pickled_files_are_refused(folder):
    with pytest.raises(DataMissingError):
        load_data(folder / "none.npz", MODEL, Normalisation())
    path = save(folder, **GOOD)
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        load_data(path, MODEL, Normalisation())
    path = save(folder, **{**GOOD, "inputs": np.array([[object(), 1]], dtype=object)})
    with pytest.raises(InputError, match="pickle"):
        load_data(path, MODEL, Normalisation())


def test_the_records_are_not_printed(folder):
    assert str(SECRET) not in repr(load_data(save(folder, **GOOD), MODEL, Normalisation()))
