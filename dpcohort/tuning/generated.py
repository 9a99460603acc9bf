# SPDX-License-Identifier: Apache-2.0
"""Stand-in data: generated problems of the same shape as the clients' records, made of no record.

What is known of a data set without looking into it is public: how many records there are and who
holds how many, the shape of a record, the constants that scale it, what is predicted. Problems of
that shape are drawn at random. They differ in how hard they are and in what decides: a setting that
is good for all of them is a setting one can begin with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, whole_number
from dpcohort.data import Dataset, Normalisation
from dpcohort.tasks import Task

#: Directions in which generated records vary; those of real tables and pictures are few as well.
_DIRECTIONS = 40
_TEST_RECORDS = 1000

_Inputs = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One kind of generated problem.

    Attributes:
        name: what it is called in tables.
        separation: distance of the classes in units of their spread; of numbers to be predicted,
            signal over noise.
        decay: exponent with which the directions become less important.
        spread: standard deviation of an input where nothing is published about it.
        offset: how far the mean of an input is from 0 where nothing is published about it, in
            units of its deviation: categories and numbers within bounds are seldom centred.
        mistaken: share of labels drawn at random.

    Example:
        >>> PROBLEMS[0].name
        'clear'
    """

    name: str
    separation: float
    decay: float = 0.5
    spread: float = 0.5
    offset: float = 0.0
    mistaken: float = 0.0


#: From easy to hard; of real sets one does not know where they stand.
PROBLEMS = (
    Problem(name="clear", separation=4.0, spread=0.5),
    Problem(name="uneven", separation=3.0, spread=0.25, offset=1.5, mistaken=0.1),
    Problem(name="faint", separation=2.0, decay=1.0, spread=0.25, offset=1.5, mistaken=0.2),
)


def stand_in(
    data: Dataset, problem: Problem, *, seed: int = 0, records: int | None = None
) -> Dataset:
    """A generated data set of the shape of another one, whose records are not looked at.

    Args:
        data: read for its shape, task, normalisation and number of records only.
        problem: the kind of problem.
        seed: which one of that kind.
        records: training records; as many as ``data`` has by default.

    Example:
        >>> from dpcohort.data import load_dataset
        >>> generated = stand_in(load_dataset("digits"), PROBLEMS[0])
        >>> len(generated), generated.input_shape, generated.classes
        (1442, (1, 8, 8), 10)
    """
    wanted = len(data) if records is None else whole_number("records", records, at_least=1)
    rng = np.random.default_rng([seed, *problem.name.encode()])
    everyone = wanted + _TEST_RECORDS
    inputs: NDArray[Any]
    if data.train_inputs.dtype == np.int64:
        inputs, labels = _tokens(rng, data, problem, everyone)
    else:
        inputs, labels = _numbers(rng, data, problem, everyone)
    return Dataset(
        name=f"generated, {problem.name}",
        train_inputs=inputs[:wanted],
        train_labels=labels[:wanted],
        test_inputs=inputs[wanted:],
        test_labels=labels[wanted:],
        classes=data.classes,
        normalisation=Normalisation(),
        task=data.task,
    )


def _numbers(
    rng: np.random.Generator, data: Dataset, problem: Problem, records: int
) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
    features = math.prod(data.input_shape)
    directions = min(features, _DIRECTIONS)
    weights = np.arange(1, directions + 1) ** -problem.decay
    weights *= math.sqrt(directions / (weights**2).sum())
    latent, labels = _labelled(rng, data.task, problem, records, directions)
    mixing = rng.standard_normal((directions, features), np.float32) / math.sqrt(directions)
    values = (latent * weights).astype(np.float32) @ mixing
    values += 0.3 * rng.standard_normal((records, features), np.float32)
    values /= values.std()
    scaled = _as_normalised(rng, values, data, problem)
    return scaled.reshape(records, *data.input_shape), labels


def _as_normalised(
    rng: np.random.Generator, values: _Inputs, data: Dataset, problem: Problem
) -> _Inputs:
    """Values of spread 1 as a model sees such inputs, by what is published about them."""
    constants = data.normalisation
    if constants.mean != (0.0,) or constants.std != (1.0,):
        return values  # published means and deviations make it so
    if constants.scale != 1.0:
        values *= 0.35
        values += 0.3
        return values.clip(0.0, 1.0)  # from 0 to the largest, as pixels are
    away = rng.standard_normal(values.shape[1], np.float32)
    values += problem.offset * away
    values *= problem.spread
    return values


def _labelled(
    rng: np.random.Generator, task: Task, problem: Problem, records: int, directions: int
) -> tuple[FloatArray, NDArray[np.generic]]:
    """Where records stand in their directions, and what is to be predicted of each."""
    noise = rng.normal(size=(records, directions))
    if task.predicts_classes:
        labels = rng.integers(task.outputs, size=records)
        centres = rng.normal(size=(task.outputs, directions))
        centres *= problem.separation / np.sqrt((centres**2).sum(1, keepdims=True))
        latent = noise + centres[labels] * math.sqrt(2.0)
        wrong = rng.random(records) < problem.mistaken
        return latent, np.where(wrong, rng.integers(task.outputs, size=records), labels)
    teacher = rng.normal(size=(directions, task.outputs)) / math.sqrt(directions)
    signal = noise @ teacher + rng.normal(size=(records, task.outputs)) / problem.separation
    if task.kind == "multi-label":
        return noise, (signal > 0.5).astype(np.float32)
    if task.kind == "counts":
        most = math.inf if task.bounds is None else task.bounds[1]
        return noise, np.minimum(rng.poisson(np.exp(signal[:, 0])), most).astype(np.float32)
    return noise, np.clip(0.35 * signal[:, 0], -1.0, 1.0).astype(np.float32)


def _tokens(
    rng: np.random.Generator, data: Dataset, problem: Problem, records: int
) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
    """Token ids whose frequencies depend on where a record stands, in a vocabulary of few ids.

    How many ids there are is in the model, not in the shape of a record, so the smallest are taken.
    """
    latent, labels = _labelled(rng, data.task, problem, records, 8)
    likely = latent @ rng.normal(size=(8, _TOKENS))
    length = math.prod(data.input_shape)
    noise = rng.gumbel(size=(records, length, _TOKENS))
    ids = np.argmax(likely[:, None, :] + noise, axis=2).astype(np.int64)
    return ids.reshape(records, *data.input_shape), labels


#: Ids of generated text.
_TOKENS = 16
