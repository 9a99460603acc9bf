# SPDX-License-Identifier: Apache-2.0
"""The client's part of Algorithm 1 on the lattice: T^l noisy steps, and the difference they make.

Gradients come from the engine's own :func:`~dpcohort.engine.clipping.per_example_gradients`, one
record at a time. In a batch, the last bits of a record's gradient can depend on the records beside
it, and a server that chooses the weights could make last bits count; alone they cannot. For the
same reason a model that draws random numbers or remembers records is refused: removing a record
would then change what those after it contribute. A record whose gradient cannot be computed
contributes nothing; that it cannot is not told. Reports are made in the same way, of losses.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpcohort._validate import IntArray
from dpcohort.adaptive.rule import ReportTerms
from dpcohort.deploy.guard.files import GuardedData
from dpcohort.deploy.guard.terms import ModelTerms, layout_sha256
from dpcohort.engine.clipping import (
    FlatLayout,
    per_example_gradients,
    refuse_unfit_layers,
)
from dpcohort.engine.clipping.per_example import Gradients, example_loss
from dpcohort.engine.lattice import KEY_BYTES, Bytes, Lattice, add_rounded_gaussian_
from dpcohort.engine.randomness import draw_batch
from dpcohort.errors import InputError
from dpcohort.models import build_model
from dpcohort.models.weights import frozen_sha256, weights_sha256
from dpcohort.runs.chooser import lattice_units
from dpcohort.tasks import check_own_loss, made_up_targets

_TIMES = 12  # a coin that leaves one small layer alone may do so once or twice, not every time
_FORMED_NUMBERS = 1 << 22  # of gradients that are kept at a time
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


def layout_of(model: torch.nn.Module) -> str:
    """The hash of what server and guard must have in common: trained parameters, frozen values."""
    places = FlatLayout(model).places
    trained = [(name, shape) for name, (_, shape) in places.items()]
    return layout_sha256(trained, frozen=frozen_sha256(model))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, whatever the process around it uses.

    A record's gradient then has the same bits, and a batch takes the same time, wherever a guard
    is opened and whatever else the machine does.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
        >>> update = training.update(np.zeros(6, np.float32), Lattice(2.0, 1.0), "poisson",
        ...                          rate=0.5, batch_size=2, step_sizes=[0.1])
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
        built = module or build_model(
            model.name,
            input_shape=model.input_shape,
            classes=model.classes,
            seed=0,  # the weights come with every request
            options=model.options,
            input_dtype=torch.int64 if tokens else torch.float32,
            weights=checked_weights(model),
            frozen=model.frozen,
        )
        refuse_unfit_layers(built)
        task = model.predicts
        check_own_loss(task)
        loss = task.loss_on("cpu")
        self._gradients = per_example_gradients(built, loss, vectorised=False)
        self._example_loss = example_loss(built, loss)
        label = made_up_targets(task, 1)
        _refuse_memory(self._gradients, self._example_loss, built, data.inputs, label)
        layout = FlatLayout(built)
        #: D, the number of trained parameters.
        self.dimension = layout.dimension
        #: Hash of their order.
        self.layout = layout_of(built)

    @_one_thread()
    def update(
        self,
        parameters: NDArray[np.float32],
        lattice: Lattice,
        sampler: str,
        *,
        rate: float,
        batch_size: int,
        step_sizes: Sequence[float],
    ) -> NDArray[np.float32]:
        """The difference w - w' after one noisy step for each step size (Algorithm 1, lines 9-19).

        Only what ``release`` gives comes from records, and it has its noise; the rest is arithmetic
        on it and on public numbers.
        """
        moved = np.zeros(self.dimension)
        for alpha in step_sizes:
            batch = self._batch(sampler, rate, batch_size)
            weights = _as_float32(parameters - moved)
            total = self._clipped_sum(weights, lattice, batch)
            key, scale = self._source(KEY_BYTES), alpha / batch_size  # by the public B
            moved += lattice.release(total, key, scale=scale).numpy()
        return _as_float32(moved)

    @_one_thread()
    def noisy_sum(
        self,
        parameters: NDArray[np.float32],
        lattice: Lattice,
        sampler: str,
        *,
        rate: float,
        batch_size: int,
    ) -> IntArray:
        """The clipped gradients of one batch and one share of noise, as integers. SENSITIVE.

        The share alone does not keep the promise: only under masks may they leave.

        Args:
            parameters: of the model.
            lattice: of the cohort; its noise multiplier is that of the share alone.
            sampler: of the batch.
            rate: of the batch.
            batch_size: B, for batches of a fixed size.
        """
        batch = self._batch(sampler, rate, batch_size)
        total = self._clipped_sum(parameters, lattice, batch)
        noisy: IntArray = add_rounded_gaussian_(
            total, lattice.exponent, self._source(KEY_BYTES)
        ).numpy()
        return noisy

    @_one_thread()
    def report(
        self,
        parameters: NDArray[np.float32],
        lattice: Lattice,
        sampler: str,
        asked: ReportTerms,
        *,
        rate: float,
        batch_size: int,
    ) -> NDArray[np.float32]:
        """The noisy mean of a clipped statistic, less half of its range: one number.

        Args:
            parameters: of the model.
            lattice: of the noise; its clip is half of the statistic's range.
            sampler: of the batch.
            asked: the statistic and its bound.
            rate: of the batch; 1 looks at all records.
            batch_size: the public number that the sum is divided by.
        """
        batch = self._batch(sampler, rate, batch_size)
        point, total = torch.from_numpy(parameters), torch.zeros(1, dtype=torch.int64)
        for row in batch.tolist():
            total += lattice_units(self._loss(point, row), asked, lattice.unit)
        key = self._source(KEY_BYTES)
        return _as_float32(lattice.release(total, key, scale=1 / batch_size).numpy())

    def _batch(self, sampler: str, rate: float, batch_size: int) -> IntArray:
        """Records of one step. SENSITIVE."""
        return draw_batch(
            sampler,
            records=len(self._data),
            rate=rate,
            batch_size=batch_size,
            source=self._source,
        )

    def _clipped_sum(
        self, weights: NDArray[np.float32], lattice: Lattice, batch: IntArray
    ) -> torch.Tensor:
        total = torch.zeros(self.dimension, dtype=torch.int64)
        point = torch.from_numpy(weights)
        at_a_time = max(1, _FORMED_NUMBERS // self.dimension)
        for start in range(0, len(batch), at_a_time):
            rows = [self._gradient(point, row) for row in batch[start : start + at_a_time]]
            total += lattice.clipped_sum(torch.cat(rows))
        return total

    def _loss(self, point: torch.Tensor, row: int) -> torch.Tensor:
        """Of one record; NaN, which counts for nothing, where there is none."""
        inputs = torch.from_numpy(self._data.inputs[row : row + 1])
        labels = torch.from_numpy(self._data.labels[row : row + 1])
        try:
            with torch.no_grad():
                return self._example_loss(point, inputs[0], labels[0])
        except Exception:  # as below
            return torch.tensor(math.nan)

    def _gradient(self, point: torch.Tensor, row: int) -> torch.Tensor:
        """Of one record, [1, D]; zeros where there is none."""
        inputs = torch.from_numpy(self._data.inputs[row : row + 1])
        labels = torch.from_numpy(self._data.labels[row : row + 1])
        try:
            return self._gradients(point, inputs, labels)
        except Exception:  # a token the model does not know; a draw that fails would tell
            return point.new_zeros(1, self.dimension)


@_one_thread()
def _refuse_memory(
    gradients: Gradients,
    loss: Gradients,
    model: torch.nn.Module,
    like: NDArray[Any],
    label: torch.Tensor,
) -> None:
    """Refuse a model whose gradient or loss at a record changes with what it was run on before.

    Tried on made-up records, so that a failure says nothing about the client's.
    """
    start = FlatLayout(model).flatten(model)
    weights = start + 0.1 * torch.cos(torch.arange(start.numel()))  # a zero would hide the rest
    tokens = like.dtype == np.int64
    shape = like.shape[1:]
    ramp = np.linspace(-1, 1, math.prod(shape)).reshape(1, *shape)
    record = torch.from_numpy(np.zeros_like(ramp, np.int64) if tokens else ramp.astype(np.float32))

    def at(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            value = loss(weights, x[0], label[0]).reshape(1)
        return torch.cat([gradients(weights, x, label)[0], value])

    try:
        found = [at(x) for x in (record, -record) * _TIMES]
    except Exception as error:  # the user's model may fail in any way
        raise InputError.because(
            f"the model has no gradient at a record: {type(error).__name__}: {error}"
        ) from None
    if not all(torch.equal(found[0], again) for again in found[2::2]):
        raise InputError.because(
            "the model's gradient at one and the same record is not the same every time: it draws "
            "random numbers or remembers earlier records, so no clip bounds what one record does. "
            "Take that out of the model."
        )


def _as_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
