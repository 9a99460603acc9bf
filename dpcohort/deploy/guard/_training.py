# SPDX-License-Identifier: Apache-2.0
"""The client's part of Algorithm 1 on the lattice: T^l noisy steps, and the difference they make.

Gradients and losses come from the engine's own code, each a function of its record and the weights
alone, to the last bit (:mod:`~dpcohort.engine._isolated`).

A model that draws random numbers or remembers records is refused where that shows on made-up ones;
where it does not, it still meets no record in a process that goes on. A record whose gradient
cannot be computed contributes nothing; that it cannot is not told. Reports are made of losses. All
of it is computed with one thread: the bits are then the same, and a batch takes the same time,
wherever a guard is opened and whatever else the machine does.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting._sampler import Batches, Sampler
from dpcohort.adaptive import ReportTerms
from dpcohort.data import Persons
from dpcohort.deploy.guard._files import GuardedData
from dpcohort.deploy.guard._protocol import Vector
from dpcohort.deploy.guard._terms import ModelTerms, layout_sha256
from dpcohort.engine import Lattice, Streams, draw_batches
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine._lattice import KEY_BYTES, Bytes, add_rounded_gaussian_
from dpcohort.engine._rounds import one_thread_each
from dpcohort.engine.clipping import (
    FlatLayout,
    Loss,
    per_example_gradients,
    refuse_unfit_layers,
)
from dpcohort.engine.clipping._per_example import example_loss
from dpcohort.errors import InputError
from dpcohort.models import build_model
from dpcohort.models._each_alone import IsolatedOutputs
from dpcohort.models._moments import loss_in_training
from dpcohort.models._persons import PersonBatches, PersonModel
from dpcohort.models._weights import frozen_sha256, weights_sha256
from dpcohort.runs._chooser import lattice_units
from dpcohort.runs._noised_metrics import questions_of
from dpcohort.runs._paid_evaluation import noised_integers
from dpcohort.tasks import check_own_loss, made_up_targets

#: How batches are drawn: the sampler, the rate r, and the public size B that sums are divided by.
Sampling = tuple[Sampler, float, int]

_TIMES = 12  # a coin that leaves one small layer alone may do so once or twice, not every time
_LARGEST = float(np.finfo(np.float32).max)


def checked_weights(model: ModelTerms) -> Path | None:
    """The file of weights that terms name, if it is the one that they mean; None for none.

    Raises:
        DataMissingError: it is not there.
        VerificationError: it is another.
    """
    if not model.weights:
        return None
    weights_sha256(model.weights, expected=model.weights_sha256)
    return Path(model.weights)


def built_model(terms: ModelTerms, *, seed: int, tokens: bool = False) -> torch.nn.Module:
    """The model that terms name, with their weights.

    Args:
        terms: of the model.
        seed: of the initial weights.
        tokens: it reads token ids.
    """
    return build_model(
        terms.name,
        input_shape=terms.input_shape,
        classes=terms.classes,
        seed=seed,
        options=terms.options,
        input_dtype=torch.int64 if tokens else torch.float32,
        weights=checked_weights(terms),
        frozen=terms.frozen,
    )


def layout_of(model: torch.nn.Module) -> str:
    """The hash of what server and guard must have in common: trained parameters, frozen values."""
    places = FlatLayout(model).places
    trained = [(name, shape) for name, (_, shape) in places.items()]
    return layout_sha256(trained, frozen=frozen_sha256(model))


class LocalTraining:
    """Trains the owner's model on the owner's data, from any parameters.

    Args:
        model: the model the terms allow.
        data: the client's records.
        source: where random bytes come from; anything but the operating system is for tests.
        module: the model itself, where it has no name that this machine knows.

    Raises:
        InputError: the model's gradient of a record is not a function of record and weights alone.

    Example:
        >>> data = GuardedData(np.ones((4, 2), np.float32), np.array([0, 1, 0, 1]), "")
        >>> training = LocalTraining(ModelTerms(name="logistic", input_shape=(2,), classes=2), data)
        >>> weights, lattice = np.zeros(6, np.float32), Lattice(2.0, 1.0)
        >>> from dpcohort.accounting._samplers import sampler_of
        >>> sampling = sampler_of("poisson"), 0.5, 2
        >>> update = training.update(weights, lattice, sampling, [0.1])
        >>> update.shape, str(update.dtype)
        ((6,), 'float32')
    """

    def __init__(
        self,
        model: ModelTerms,
        data: GuardedData,
        source: Bytes = os.urandom,
        *,
        module: torch.nn.Module | None = None,
    ) -> None:
        self._data, self._source = data, source
        tokens = data.inputs.dtype == np.int64
        # Any seed: the weights come with every request.
        built = module or built_model(model, seed=0, tokens=tokens)
        refuse_unfit_layers(built)
        task = model.predicts
        check_own_loss(task)
        loss = loss_in_training(built, task.loss_on("cpu"))
        layout = FlatLayout(built)
        #: D, the number of trained parameters.
        self.dimension = layout.dimension
        #: Hash of their order.
        self.layout = layout_of(built)
        self._module, self._task = built, task
        self._persons: PersonBatches | None = None
        whole, loss_of_whole = built, loss
        if data.persons is not None:
            self._persons = PersonBatches(data.persons)
            whole, loss_of_whole = PersonModel(built), self._persons.loss(loss)
        with one_thread_each():
            self._isolated = IsolatedModel(whole, loss_of_whole, *self._records(np.arange(0)))
        self._refuse_memory(built, loss, made_up_targets(task, 1))
        #: How gradients are computed, and why so, in a sentence.
        self.how = self._isolated.how

    @one_thread_each()
    def _refuse_memory(self, model: torch.nn.Module, loss: Loss, label: torch.Tensor) -> None:
        """Refuse a model whose gradient or loss at a record changes with what it was run on before.

        Tried on made-up records, so that a failure says nothing about the client's.
        """
        gradients = per_example_gradients(model, loss, vectorised=False)
        loss_of = example_loss(model, loss)
        start = FlatLayout(model).flatten(model)
        weights = start + 0.1 * torch.cos(torch.arange(start.numel()))  # a zero would hide the rest
        tokens = self._data.inputs.dtype == np.int64
        shape = self._data.inputs.shape[1:]
        ramp = np.linspace(-1, 1, math.prod(shape)).reshape(1, *shape).astype(np.float32)
        record = torch.from_numpy(np.zeros_like(ramp, np.int64) if tokens else ramp)

        def at(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                value = loss_of(weights, x[0], label[0]).reshape(1)
            return torch.cat([gradients(weights, x, label)[0], value])

        try:
            found = [at(x) for x in (record, -record) * _TIMES]
            is_same = all(torch.equal(found[0], again) for again in found[2::2])
        except Exception as error:  # the user's model may fail in any way
            raise InputError.because(
                f"the model has no gradient at a record: {type(error).__name__}: {error}"
            ) from None
        if not is_same:
            raise InputError.because(
                "the model's gradient at one and the same record is not the same every time: it "
                "draws random numbers or remembers earlier records, so no clip bounds what one "
                "record does. Take that out of the model."
            )

    @one_thread_each()
    def update(
        self, parameters: Vector, lattice: Lattice, sampling: Sampling, step_sizes: Sequence[float]
    ) -> Vector:
        """The difference w - w' after one noisy step for each step size (Algorithm 1, lines 9-19).

        Only what ``release`` gives comes from records, and it has its noise; the rest is arithmetic
        on it and on public numbers.
        """
        moved, batch_size = np.zeros(self.dimension), sampling[2]
        batches = self._batches(sampling, local_steps=len(step_sizes))
        for step, alpha in enumerate(step_sizes):
            weights = _as_float32(parameters - moved)
            total = self._clipped_sum(weights, lattice, batches(step), batch_size)
            key, scale = self._source(KEY_BYTES), alpha / batch_size  # by the public B
            moved += lattice.release(total, key, scale=scale).numpy()
        return _as_float32(moved)

    @one_thread_each()
    def noisy_sum(self, parameters: Vector, lattice: Lattice, sampling: Sampling) -> IntArray:
        """The clipped gradients of one batch and one share of noise, as integers. SENSITIVE.

        The share alone does not keep the promise: only under masks may they leave.

        Args:
            parameters: of the model.
            lattice: of the cohort; its noise multiplier is that of the share alone.
            sampling: how the batch is drawn.
        """
        batch = self._batches(sampling)(0)
        total = self._clipped_sum(parameters, lattice, batch, sampling[2])
        noisy: IntArray = add_rounded_gaussian_(
            total, lattice.exponent, self._source(KEY_BYTES)
        ).numpy()
        return noisy

    @one_thread_each()
    def report(
        self, parameters: Vector, lattice: Lattice, sampling: Sampling, asked: ReportTerms
    ) -> Vector:
        """The noisy mean of a clipped statistic, less half of its range: one number.

        Args:
            parameters: of the model.
            lattice: of the noise; its clip is half of the statistic's range.
            sampling: how the batch is drawn; the rate 1 looks at all records.
            asked: the statistic and its bound.
        """
        batch, batch_size = self._batches(sampling)(0), sampling[2]
        losses = self._isolated.losses(torch.from_numpy(parameters), *self._records(batch))
        total = lattice_units(losses, asked, lattice.unit).sum()[None]
        key = self._source(KEY_BYTES)
        return _as_float32(lattice.release(total, key, scale=1 / batch_size).numpy())

    @one_thread_each()
    def evaluation(self, parameters: Vector, lattice: Lattice) -> IntArray:
        """The noised sum, in units of the lattice, of what records held out for tests answer.

        Args:
            parameters: of the model.
            lattice: of the noise, for rows of length 1. Of a share of noise the sum is SENSITIVE.
        """
        return noised_integers(self._answers(parameters), lattice, self._source(KEY_BYTES))

    def _answers(self, parameters: Vector) -> FloatArray:
        """Weighted answers of each unit that is held out, from its records alone. SENSITIVE."""
        held, questions = self._data.held_out, questions_of(self._task)
        if held is None:
            return np.zeros((0, len(questions.weights)))
        persons = held.persons or Persons.alone(len(held))
        # As many rows of each person as anybody may have, so that the work tells of nobody's.
        rows = np.where(persons.rows < 0, persons.rows[:, :1], persons.rows).ravel()
        padded = np.arange(rows.size).reshape(persons.rows.shape)
        module = copy.deepcopy(self._module).eval()
        weights = FlatLayout(module).unflatten(torch.from_numpy(parameters))
        module.load_state_dict(weights, strict=False)
        inputs = torch.from_numpy(held.inputs[rows])
        outputs = IsolatedOutputs(module, inputs[:1])(inputs).numpy()
        raw_rows = questions.rows(outputs, held.labels[rows])
        return replace(persons, rows=np.where(persons.rows < 0, -1, padded)).means(raw_rows)

    def _batches(self, sampling: Sampling, local_steps: int = 1) -> Batches:
        """Records of each step of one draw. SENSITIVE."""
        sampler, rate, batch_size = sampling
        return draw_batches(
            Streams(None, self._source),
            sampler.over(local_steps),
            size=len(self._data),
            rate=rate,
            batch_size=batch_size,
            round=0,
            client=0,
        )

    def _clipped_sum(
        self, weights: Vector, lattice: Lattice, batch: IntArray, size: int
    ) -> torch.Tensor:
        point = torch.from_numpy(weights)
        return self._isolated.clipped_sum(point, lattice, batch, self._records, size)

    def _records(self, records: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of some records. SENSITIVE."""
        inputs, labels = map(torch.from_numpy, (self._data.inputs, self._data.labels))

        def rows_of(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return inputs.index_select(0, rows), labels.index_select(0, rows)

        asked = torch.from_numpy(records)
        return rows_of(asked) if self._persons is None else self._persons.gather(asked, rows_of)


def _as_float32(values: NDArray[np.float64]) -> Vector:
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
