# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest

from dpcohort.metrics import (
    check_trivial,
    main_metric,
    main_value,
    measure,
    prediction_faults,
    trivial_outputs,
)
from dpcohort.tasks import Task

RNG = np.random.default_rng(0)
STAY = Task(kind="regression", outputs=1, bounds=(0.0, 20.0))
TASKS = {
    "binary": Task(outputs=2),
    "weighted": Task(outputs=3, class_weights=(1.0, 2.0, 5.0)),
    "rare": Task(outputs=2, class_shares=(0.92, 0.08)),
    "multi-label": Task(kind="multi-label", outputs=3, names=("a", "b", "c")),
    "squared": STAY,
    "huber": Task(kind="regression", outputs=1, bounds=(0.0, 20.0), loss="huber"),
    "quantile": Task(kind="regression", outputs=1, bounds=(0.0, 20.0), loss="quantile"),
    "counts": Task(kind="counts", outputs=1),
}


def labels_of(task: Task, n: int = 200) -> np.ndarray:
    if task.kind == "classification":
        return RNG.choice(task.outputs, n, p=np.arange(1, task.outputs + 1) / 3 / 2 * 2
                          if task.outputs == 2 else [0.6, 0.3, 0.1])  # fmt: skip
    if task.kind == "multi-label":
        return (RNG.random((n, 3)) < [0.5, 0.2, 0.05]).astype(np.float32)
    if task.kind == "counts":
        return RNG.poisson(3.0, n).astype(np.float32)
    return task.scaled(RNG.uniform(0, 20, n))


@pytest.mark.parametrize("name", TASKS)
def test_model_and_constant_have_the_same_keys_and_the_main_metric_agrees(name):
    task = TASKS[name]
    labels = labels_of(task)
    outputs = RNG.normal(size=(200, task.outputs))
    ours = measure(task, outputs, labels)
    theirs = measure(task, trivial_outputs(task, labels), labels)
    assert list(ours) == list(theirs)
    metric, check = main_metric(task), check_trivial(task, outputs, labels)
    assert check.value == pytest.approx(ours[metric.name])
    assert check.trivial == pytest.approx(theirs[metric.name])
    assert main_value(task, outputs, labels) == check.value
    assert not check.is_better  # random outputs
    assert "NOT BETTER" in check.sentence or "NOT CLEARLY BETTER" in check.sentence


@pytest.mark.parametrize("name", TASKS)
def test_no_constant_beats_the_trivial_one(name):
    task = TASKS[name]
    labels, metric = labels_of(task), main_metric(task)
    best = main_value(task, trivial_outputs(task, labels), labels)
    for _ in range(50):
        other = np.tile(RNG.normal(size=task.outputs), (200, 1))
        assert metric.gain(best, main_value(task, other, labels)) >= -1e-9


def test_metrics_of_classes_against_hand_counts():
    outputs = np.log(np.array([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2], [0.3, 0.7]]))
    labels = np.array([0, 0, 1, 1])
    found = measure(TASKS["binary"], outputs, labels)
    assert found["confusion_matrix"] == [[1, 1], [1, 1]]
    assert found["accuracy"] == found["balanced_accuracy"] == found["f1"] == 0.5
    assert found["auc"] == pytest.approx(0.75)
    assert found["log_loss"] == pytest.approx(-np.log([0.9, 0.4, 0.2, 0.7]).mean())
    # One a bin: |0.9 - 1|, |0.6 - 0|, |0.8 - 0|, |0.7 - 1|.
    assert found["calibration_error"] == pytest.approx((0.1 + 0.6 + 0.8 + 0.3) / 4)


def test_rare_classes_are_judged_by_balanced_accuracy_at_a_threshold_from_public_shares():
    chance = RNG.beta(0.4, 4.6, 4000)
    labels = (RNG.random(4000) < chance).astype(np.int64)
    outputs = np.log(np.stack([1 - chance, chance], axis=1))
    often, rare = Task(outputs=2), Task(outputs=2, class_shares=(0.92, 0.08))
    blind, fair = (measure(task, outputs, labels) for task in (often, rare))
    assert main_metric(rare).name == "balanced_accuracy"
    assert fair["balanced_accuracy"] > blind["balanced_accuracy"] + 0.1
    assert {fair[key] == blind[key] for key in ("auc", "log_loss", "calibration_error")} == {True}
    check = check_trivial(rare, outputs, labels)
    assert check.auc == fair["auc"]
    assert f"(AUC {100 * check.auc:.1f} %) is better" in check.sentence
    assert math.isnan(check_trivial(often, outputs, labels).auc)


def test_class_weights_change_what_is_predicted_and_no_probability():
    chance = RNG.uniform(0.05, 0.95, (500, 1)) * [1, 0] + [0, 1]
    chance[:, 1] -= chance[:, 0]
    labels = (RNG.random(500) < chance[:, 1]).astype(np.int64)
    weighted = Task(outputs=2, class_weights=(1.0, 4.0))
    outputs = np.log(chance * [1, 4])  # what the weighted loss is smallest at
    plain, found = (
        measure(Task(outputs=2), np.log(chance), labels),
        measure(weighted, outputs, labels),
    )
    assert found["log_loss"] == pytest.approx(plain["log_loss"])
    assert (weighted.predictions(outputs) == 1).mean() > (chance[:, 1] > 0.5).mean() + 0.2
    trivial = measure(weighted, trivial_outputs(weighted, labels), labels)["log_loss"]
    assert trivial == pytest.approx(-np.mean(np.log(np.bincount(labels)[labels] / 500)))


def test_labels_are_told_one_by_one():
    task = TASKS["multi-label"]
    labels = labels_of(task)
    found = measure(task, 2 * labels - 1, labels)
    assert found["auc"] == found["f1"] == 1.0
    assert list(found["labels"]) == ["a", "b", "c"]
    nothing = measure(task, trivial_outputs(task, labels), labels)
    assert nothing["balanced_accuracy"] == 0.5
    assert nothing["labels"]["c"]["f1"] == 0.0


def test_what_cannot_be_computed_is_nan_and_never_raises():
    alone = measure(TASKS["binary"], np.zeros((3, 2)), np.zeros(3, np.int64))
    assert math.isnan(alone["auc"])
    gone = measure(TASKS["multi-label"], np.full((2, 3), math.inf), np.ones((2, 3), np.float32))
    assert math.isnan(gone["labels"]["a"]["auc"])
    wild = measure(TASKS["counts"], np.full((2, 1), 1e6), np.ones(2, np.float32))
    assert wild["rmse"] > 1e20
    broken = check_trivial(TASKS["counts"], np.full((2, 1), math.nan), np.ones(2, np.float32))
    assert not broken.is_better
    assert "not a number" in broken.sentence


def test_faults_of_predictions_are_said():
    task, labels = Task(outputs=3, names=("a", "b", "c")), np.array([0, 1, 2, 0])
    assert "says b for all 4" in prediction_faults(task, np.eye(3)[[1, 1, 1, 1]], labels)[0]
    never = prediction_faults(task, np.eye(3)[[0, 1, 1, 0]], labels)
    assert never == ["the model never says c, the truth of 1 of 4 test records."]
    assert prediction_faults(task, np.eye(3)[labels], labels) == []
    numbers = labels_of(STAY)
    flat = prediction_faults(STAY, np.full((200, 1), 0.5), numbers)
    assert "about 15 for all 200" in flat[0]
    assert prediction_faults(STAY, numbers[:, None], numbers) == []
    several = TASKS["multi-label"]
    assert "of c for all" in prediction_faults(
        several, np.array([[1, -1, -1], [-1, 1, -1.0]]), np.ones((2, 3))
    )[0]  # fmt: skip
    assert "diverged" in prediction_faults(STAY, np.full((200, 1), math.nan), numbers)[0]
