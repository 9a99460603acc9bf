# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort.data import Dataset, Normalisation, dataset_from_arrays
from dpcohort.data._dataset import affine_map, normalise, without_label
from dpcohort.errors import InputError
from dpcohort.tasks import Task


def arrays(**changes):
    base = {
        "train_inputs": np.zeros((4, 3, 2, 2), np.float32),
        "train_labels": np.array([0, 1, 2, 0]),
        "test_inputs": np.zeros((2, 3, 2, 2), np.float32),
        "test_labels": np.array([2, 1]),
    }
    return {**base, **changes}


def test_normalisation_is_per_channel_and_affine_agrees():
    constants = Normalisation(scale=255.0, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 4), np.uint8)
    expected = np.empty(pixels.shape)
    for channel in range(3):
        mean, std = constants.mean[channel], constants.std[channel]
        expected[:, channel] = (pixels[:, channel] / 255.0 - mean) / std
    got = normalise(pixels, constants)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)
    multiplier, offset = affine_map(constants)
    again = pixels * multiplier.reshape(-1, 1, 1) + offset.reshape(-1, 1, 1)
    np.testing.assert_array_equal(got, again)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scale": 0.0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"mean": ()}, "mean"),
        ({"mean": (float("inf"),)}, "mean"),
        ({"std": (1.0, 2.0)}, "std"),
        ({"std": (0.0,)}, "std"),
    ],
)
def test_bad_constants_are_refused(changes, field):
    with pytest.raises(InputError, match=f"^{field} = "):
        dataset_from_arrays("x", **arrays(), normalisation=Normalisation(**changes))


def test_token_ids_are_never_normalised():
    tokens = np.array([[3, 1], [0, 2]])
    labels = np.array([0, 1])
    dataset = dataset_from_arrays(
        "text", train_inputs=tokens, train_labels=labels, test_inputs=tokens, test_labels=labels
    )
    assert dataset.normalised(dataset.train_inputs).dtype == np.int64
    assert dataset.normalised(dataset.train_inputs).tolist() == tokens.tolist()


def test_bytes_are_scaled_by_255_unless_told_otherwise():
    pixels = np.full((4, 1, 2, 2), 255, np.uint8)
    dataset = dataset_from_arrays("x", **arrays(train_inputs=pixels, test_inputs=pixels[:2]))
    assert (dataset.normalised(dataset.train_inputs) == 1.0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": [0, 1, 2]}, r"shape of train_labels = \(3,\)"),
        ({"train_labels": [0.0, 1.0, 2.0, 0.0]}, "type of train_labels = 'float64'"),
        ({"train_labels": [[0], [1], [2], [0]]}, "shape of train_labels"),
        ({"train_inputs": np.zeros(4)}, "shape of train_inputs"),
        ({"train_inputs": np.zeros((0, 3, 2, 2))}, "shape of train_inputs"),
        ({"test_inputs": np.zeros((2, 3, 2, 3))}, "shape of test_inputs"),
        ({"test_inputs": np.zeros((2, 3, 2, 2), np.uint8)}, "type of test_inputs"),
        ({"train_inputs": np.array(["a", "b"])}, "type of train_inputs"),
        ({"train_inputs": [[1.0], [2.0, 3.0]]}, "train_inputs = .* array of numbers"),
        ({"train_inputs": np.zeros((4, 2), complex)}, "type of train_inputs"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        dataset_from_arrays("x", **arrays(**changes), classes=3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_inputs": np.zeros((4, 3, 2, 2))}, "type of train_inputs = 'float64'"),
        ({"train_labels": np.zeros(4, np.int32)}, "type of train_labels = 'int32' .* int64"),
        ({"clients": np.array(["a", "b"])}, r"shape of clients = \(2,\) .* one client a training"),
        ({"test_clients": np.array(["a"])}, r"shape of test_clients .* one client a test record"),
    ],
)
def test_a_data_set_made_by_hand_is_checked(changes, words):
    made = dataset_from_arrays("x", **arrays())
    with pytest.raises(InputError, match=words):
        replace(made, **changes)


def test_labels_of_several_are_a_row_of_zeros_and_ones():
    task = Task(kind="multi-label", outputs=2, names=("a", "b"))
    rows = {"train_labels": np.eye(4, 2), "test_labels": np.ones((2, 2))}
    assert dataset_from_arrays("x", **arrays(**rows), task=task).train_labels.dtype == np.float32
    wrong = {**rows, "train_labels": np.eye(4, 3)}
    with pytest.raises(InputError, match="one 0 or 1 a label"):
        dataset_from_arrays("x", **arrays(**wrong), task=task)


def test_pixels_that_are_on_or_off_are_bytes():
    on = np.ones((4, 3, 2, 2), dtype=bool)
    found = dataset_from_arrays("x", **arrays(train_inputs=on, test_inputs=on[:2]))
    assert found.train_inputs.dtype == np.uint8
    assert found.train_inputs.min() == 1


def _with(array, place, value):
    changed = array.copy()
    changed[place] = value
    return changed


_NUMBERS = Task(kind="regression", outputs=1, bounds=(0.0, 1.0))
_COUNTS = Task(kind="counts", outputs=1)
_LABELS = Task(kind="multi-label", outputs=2, names=("a", "b"))
_FLOATS = np.zeros((4, 3, 2, 2))


@pytest.mark.parametrize(
    ("changes", "task", "record", "words"),
    [
        ({"train_labels": [0, 1, 2, 3]}, None, 3, r"train_labels\[3\] = 3 .* 0 to 2.* 1 of 4"),
        ({"train_labels": np.array([0, 1, 2**63, 0], np.uint64)}, None, 2, r"train_labels\[2\]"),
        *(
            (
                {"train_inputs": _with(_FLOATS.astype(np.float32), (2, 1, 0, 1), bad)},
                None,
                2,
                r"train_inputs\[2, 1, 0, 1\] = .* a finite number",
            )
            for bad in (np.nan, np.inf, -np.inf)
        ),
        (
            {"train_inputs": _with(_FLOATS, (1, 0, 0, 0), 1e300)},
            None,
            1,
            r"train_inputs\[1, 0, 0, 0\] = inf .* within float32",
        ),
        ({"train_labels": [0.5, np.nan, 1.0, 0.0]}, _NUMBERS, 1, r"train_labels\[1\] = nan"),
        ({"train_labels": [0, 1, 2, -1]}, _COUNTS, 3, r"train_labels\[3\] = -1.0 .* 0, 1, 2"),
        (
            {"train_labels": 2 * np.eye(4, 2), "test_labels": np.ones((2, 2))},
            _LABELS,
            0,
            r"train_labels\[0, 0\] = 2.0 .* 0 or 1",
        ),
    ],
)
def test_a_record_that_cannot_be_used_has_no_label_and_is_told_to_simulations(
    changes, task, record, words
):
    classes = 3 if task is None else None
    made = dataset_from_arrays("x", **arrays(**changes), classes=classes, task=task)
    with pytest.raises(InputError, match=words):
        made.refuse_unusable()
    unusable = without_label(made.train_labels)
    assert unusable[record]
    assert unusable.sum() == (2 if task is _LABELS else 1)
    again = replace(made, name="again")  # and so for a part of it, in whatever place
    assert again.unusable == made.unusable
    part = replace(
        made,
        test_inputs=made.train_inputs,
        test_labels=made.train_labels,
        train_inputs=made.train_inputs[~unusable],
        train_labels=made.train_labels[~unusable],
        test_public=True,
    )
    assert without_label(part.test_labels).tolist() == unusable.tolist()


def test_a_test_record_that_cannot_be_used_is_refused_where_it_is_public():
    wrong = arrays(test_labels=[0, -1])
    hidden = dataset_from_arrays("x", **wrong, classes=3)
    assert without_label(hidden.test_labels).tolist() == [False, True]
    with pytest.raises(InputError, match=r"test_labels\[1\] = -1 .* 0 to 2"):
        hidden.refuse_unusable()
    with pytest.raises(InputError, match=r"test_labels\[1\] = -1 .* 0 to 2"):
        dataset_from_arrays("x", **wrong, classes=3, test_public=True)


def test_constants_must_fit_the_channels():
    two = Normalisation(mean=(0.0, 0.0), std=(1.0, 1.0))
    with pytest.raises(InputError, match="3 channels"):
        dataset_from_arrays("x", **arrays(), normalisation=two)


def test_one_class_is_not_a_task():
    with pytest.raises(InputError, match="classes = 1"):
        Dataset(name="x", classes=1, **arrays())


def test_classes_stated_may_exceed_the_labels_seen():
    assert dataset_from_arrays("x", **arrays(), classes=7).classes == 7


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ([0, 1, 2, 0], [2, 7], r"test_labels has the label 7 \(1x\), .* above 2.*classes = 8"),
        ([0, 1, 0, 1], [2, 2], r"the label 2 \(2x\)"),
        ([0, 1, 99, 0], [0, 1], r"train_labels has the label 99 \(1x\).*100 classes, but only 3"),
    ],
    ids=["test", "test-twice", "train"],
)
def test_a_stray_label_makes_no_class(train, test, words):
    with pytest.raises(InputError, match=words):
        dataset_from_arrays("x", **arrays(train_labels=train, test_labels=test))
    stated = dataset_from_arrays("x", **arrays(train_labels=train, test_labels=test), classes=100)
    assert stated.classes == 100


def test_a_class_without_training_records_below_the_largest_is_no_mistake():
    assert dataset_from_arrays("x", **arrays(train_labels=[0, 3, 2, 3])).classes == 4


def test_rare_classes_are_known_from_public_test_records_alone():
    rng = np.random.default_rng(0)
    labels, private = np.arange(100) < 6, np.arange(100) < 4
    arrays = {"train_inputs": rng.normal(size=(100, 2)), "test_inputs": rng.normal(size=(100, 2))}
    arrays |= {"train_labels": private.astype(int), "test_labels": labels.astype(int)}
    public = dataset_from_arrays("a", **arrays, classes=2, test_public=True)
    assert public.task.class_shares == (0.94, 0.06)
    assert dataset_from_arrays("a", **arrays, classes=2).task.class_shares == ()
    # Held out from the training records, which stay private, it is no test set that tells.
    half = np.arange(50)
    assert public.held_out(half + 50, half, name="b").task.class_shares == (0.94, 0.06)
