# SPDX-License-Identifier: Apache-2.0
"""The client's part of Algorithm 1 on the lattice: T^l noisy steps, and the difference they make.

Gradients come from the engine's own code. What a record contributes must be a function of that
record and the weights, to the last bit: a server that chooses the weights can make last bits count.
Were others computed differently when a record is there, their numbers would tell that it was drawn,
and no batch would hide it. Two ways:

**Side by side**, for models whose layers all keep examples apart by what they are
(:func:`~dpcohort.engine.clipping.not_proved_apart`), with a loss of this package: the engine's
:meth:`~dpcohort.engine.clipping.ClippedNetwork.own_gradients` of many records at
once. Each row of a product of matrices is added up from one row of the inputs, so that no number of
a record meets one of another. In which order it is added up could still depend on its place and on
how many there are. So passes have one of three sizes, multiples of 32, and are filled up with blank
records; matrices begin each line at a whole cache line; and, as what multiplies them on this
machine is not ours, it is tried at the start (``_treats_alike``), on made-up records: at each size,
at each place, beside whatever neighbours, a record's gradient must have the same bits. A record at
which a layer fails (a token that the model does not know) is a blank too; if one fails where none
should, each record of its pass is computed beside blanks, which is the same to the bit.

**One by one**, for all other models, and where the trial fails: a record alone in its batch.

A model that draws random numbers or remembers records is refused: removing a record would then
change what those after it contribute. A record whose gradient cannot be computed contributes
nothing; that it cannot is not told. Reports are made of losses, one by one. All of it is computed
with one thread: the bits are then the same, and a batch takes the same time, wherever a guard is
opened and whatever else the machine does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpcohort._validate import IntArray
from dpcohort.adaptive.rule import ReportTerms
from dpcohort.deploy.guard.files import GuardedData
from dpcohort.deploy.guard.protocol import Vector
from dpcohort.deploy.guard.terms import ModelTerms, layout_sha256
from dpcohort.engine.clipping import (
    ClippedNetwork,
    FlatLayout,
    Loss,
    not_proved_apart,
    per_example_gradients,
    refuse_unfit_layers,
)
from dpcohort.engine.clipping.per_example import example_loss
from dpcohort.engine.lattice import KEY_BYTES, Bytes, Lattice, add_rounded_gaussian_, gradient_norms
from dpcohort.engine.randomness import draw_batch
from dpcohort.engine.rounds import one_thread_each
from dpcohort.errors import InputError
from dpcohort.models import build_model
from dpcohort.models.weights import frozen_sha256, weights_sha256
from dpcohort.plugins import is_named_function
from dpcohort.runs.chooser import lattice_units
from dpcohort.tasks import Task, check_own_loss, made_up_targets

#: How batches are drawn: the sampler, the rate r, and the public size B that sums are divided by.
Batches = tuple[str, float, int]

_TIMES = 12  # a coin that leaves one small layer alone may do so once or twice, not every time
_FORMED_NUMBERS = 1 << 22  # of gradients that are kept at a time, one by one
_PASS_SIZES = (32, 64, 128)  # of records side by side
_PASS_NUMBERS, _MOST_NUMBERS = 1 << 24, 1 << 27  # of their gradients, and in the smallest pass
_RECORDS_TRIED = 4  # made-up ones, at every place of a pass
_BLANK = -1  # stands for a record that is none
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
        >>> update = training.update(weights, lattice, ("poisson", 0.5, 2), [0.1])
        >>> update.shape, str(update.dtype)
        ((6,), 'float32')
    """

    _network: ClippedNetwork | None = None

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
        loss = task.loss_on("cpu")
        self._gradients = per_example_gradients(built, loss, vectorised=False)
        self._example_loss = example_loss(built, loss)
        self._label = made_up_targets(task, 1)
        self._refuse_memory(built)
        layout = FlatLayout(built)
        #: D, the number of trained parameters.
        self.dimension = layout.dimension
        #: Hash of their order.
        self.layout = layout_of(built)
        most = max(_PASS_SIZES[0], _PASS_NUMBERS // self.dimension)
        self._sizes = [size for size in _PASS_SIZES if size <= most]
        self._network, reason = self._side_by_side(built, task, loss)
        self._unfit: NDArray[np.bool_] = np.zeros(len(data), dtype=bool)
        #: How gradients are computed, and why so, in a sentence.
        self.how = "Records are computed side by side: every layer is known to keep them apart."
        if self._network is None:
            self.how = f"Records are computed one by one, which takes longer: {reason}."
        elif tokens:  # blanks take the places of records that the model cannot read
            unknown = (data.inputs < 0) | (data.inputs >= _words(built))
            self._unfit = np.asarray(unknown.reshape(len(data), -1).any(axis=1))

    @one_thread_each()
    def _refuse_memory(self, model: torch.nn.Module) -> None:
        """Refuse a model whose gradient or loss at a record changes with what it was run on before.

        Tried on made-up records, so that a failure says nothing about the client's.
        """
        start = FlatLayout(model).flatten(model)
        weights = start + 0.1 * torch.cos(torch.arange(start.numel()))  # a zero would hide the rest
        tokens = self._data.inputs.dtype == np.int64
        shape = self._data.inputs.shape[1:]
        ramp = np.linspace(-1, 1, math.prod(shape)).reshape(1, *shape).astype(np.float32)
        record = torch.from_numpy(np.zeros_like(ramp, np.int64) if tokens else ramp)

        def at(x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                value = self._example_loss(weights, x[0], self._label[0]).reshape(1)
            return torch.cat([self._gradients(weights, x, self._label)[0], value])

        try:
            found = [at(x) for x in (record, -record) * _TIMES]
        except Exception as error:  # the user's model may fail in any way
            raise InputError.because(
                f"the model has no gradient at a record: {type(error).__name__}: {error}"
            ) from None
        if not all(torch.equal(found[0], again) for again in found[2::2]):
            raise InputError.because(
                "the model's gradient at one and the same record is not the same every time: it "
                "draws random numbers or remembers earlier records, so no clip bounds what one "
                "record does. Take that out of the model."
            )

    @one_thread_each()
    def update(
        self, parameters: Vector, lattice: Lattice, batches: Batches, step_sizes: Sequence[float]
    ) -> Vector:
        """The difference w - w' after one noisy step for each step size (Algorithm 1, lines 9-19).

        Only what ``release`` gives comes from records, and it has its noise; the rest is arithmetic
        on it and on public numbers.
        """
        moved, batch_size = np.zeros(self.dimension), batches[2]
        for alpha in step_sizes:
            batch = self._batch(batches)
            weights = _as_float32(parameters - moved)
            total = self._clipped_sum(weights, lattice, batch)
            key, scale = self._source(KEY_BYTES), alpha / batch_size  # by the public B
            moved += lattice.release(total, key, scale=scale).numpy()
        return _as_float32(moved)

    @one_thread_each()
    def noisy_sum(self, parameters: Vector, lattice: Lattice, batches: Batches) -> IntArray:
        """The clipped gradients of one batch and one share of noise, as integers. SENSITIVE.

        The share alone does not keep the promise: only under masks may they leave.

        Args:
            parameters: of the model.
            lattice: of the cohort; its noise multiplier is that of the share alone.
            batches: how the batch is drawn.
        """
        batch = self._batch(batches)
        total = self._clipped_sum(parameters, lattice, batch)
        noisy: IntArray = add_rounded_gaussian_(
            total, lattice.exponent, self._source(KEY_BYTES)
        ).numpy()
        return noisy

    @one_thread_each()
    def report(
        self, parameters: Vector, lattice: Lattice, batches: Batches, asked: ReportTerms
    ) -> Vector:
        """The noisy mean of a clipped statistic, less half of its range: one number.

        Args:
            parameters: of the model.
            lattice: of the noise; its clip is half of the statistic's range.
            batches: how the batch is drawn; the rate 1 looks at all records.
            asked: the statistic and its bound.
        """
        batch, batch_size = self._batch(batches), batches[2]
        point, total = torch.from_numpy(parameters), torch.zeros(1, dtype=torch.int64)
        for row in batch.tolist():
            total += lattice_units(self._loss(point, row), asked, lattice.unit)
        key = self._source(KEY_BYTES)
        return _as_float32(lattice.release(total, key, scale=1 / batch_size).numpy())

    def _batch(self, batches: Batches) -> IntArray:
        """Records of one step. SENSITIVE."""
        sampler, rate, batch_size = batches
        records, source = len(self._data), self._source
        return draw_batch(sampler, records=records, rate=rate, batch_size=batch_size, source=source)

    def _clipped_sum(self, weights: Vector, lattice: Lattice, batch: IntArray) -> torch.Tensor:
        total = torch.zeros(self.dimension, dtype=torch.int64)
        point = torch.from_numpy(weights)
        if self._network is None:
            at_a_time = max(1, _FORMED_NUMBERS // self.dimension)
            for start in range(0, len(batch), at_a_time):
                rows = [self._gradient(point, row) for row in batch[start : start + at_a_time]]
                total += lattice.clipped_sum(torch.cat(rows))
            return total
        for places in self._passes(np.where(self._unfit[batch], _BLANK, batch)):
            total += self._pass(point, lattice, places)
        return total

    def _passes(self, records: IntArray) -> Iterator[IntArray]:
        """The records at their places in passes, whose sizes depend on how many there are."""
        start = 0
        while start < len(records):
            rest = len(records) - start
            size = next((size for size in self._sizes if size >= rest), self._sizes[-1])
            some = records[start : start + size]
            yield np.concatenate([some, np.full(size - len(some), _BLANK)])
            start += size

    def _pass(self, point: torch.Tensor, lattice: Lattice, places: IntArray) -> torch.Tensor:
        """The clipped sum of the records at these places, [D]."""
        assert self._network is not None
        there = places != _BLANK
        inputs, labels = self._data.inputs[places], self._data.labels[places]
        inputs[~there], labels[~there] = 0, self._label[0].numpy()
        try:
            records = torch.from_numpy(inputs), torch.from_numpy(labels)
            parts, placed = self._network.own_gradients(point, *records)
        except Exception:  # as in _gradient; the others at their places give what they always give
            total = torch.zeros(self.dimension, dtype=torch.int64)
            for place in np.flatnonzero(there) if there.sum() > 1 else ():
                alone = np.where(np.arange(len(places)) == place, places, _BLANK)
                total += self._pass(point, lattice, alone)
            return total
        return placed(lattice.clipped_sums(parts, torch.from_numpy(there)))

    def _side_by_side(
        self, built: torch.nn.Module, task: Task, loss: Loss
    ) -> tuple[ClippedNetwork | None, str]:
        """The network that computes records side by side; None, and why, where it may not."""
        if is_named_function(task.loss):
            return None, f"the loss {task.loss} is your own, and might mix records"
        reason = not_proved_apart(built)
        if reason is not None:
            return None, reason
        if self._sizes[0] * self.dimension > _MOST_NUMBERS:
            return None, f"{self._sizes[0]} gradients of {self.dimension:,} numbers are too large"
        made_up = _made_up_records(self._data.inputs, self._sizes[-1], _words(built))
        labels = self._label.expand(len(made_up), *self._label.shape[1:]).contiguous()
        with one_thread_each():
            network = ClippedNetwork(built, loss, made_up[:3], labels[:3])
            if network.path.kind != "banked":
                return None, network.path.reason
            if not _treats_alike(network, built, self._sizes, made_up, labels):
                return None, "on this machine a record's last bits depend on the others in a batch"
        return network, ""

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


def _words(model: torch.nn.Module) -> int:
    """How many tokens a model knows."""
    tables = (part for part in model.modules() if isinstance(part, torch.nn.Embedding))
    return min((table.num_embeddings for table in tables), default=1)


def _made_up_records(like: NDArray[Any], count: int, words: int) -> torch.Tensor:
    """Records of this shape and type, no two alike; tokens below ``words``."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, *like.shape[1:])
    if like.dtype == np.int64:
        return torch.randint(words, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def _treats_alike(
    network: ClippedNetwork,
    model: torch.nn.Module,
    sizes: Sequence[int],
    records: torch.Tensor,
    labels: torch.Tensor,
) -> bool:
    """Whether made-up records have the same bits at all sizes and places, beside any others."""
    start = network.layout.flatten(model)
    weights = start + 0.1 * torch.cos(torch.arange(start.numel()))

    def rows(of: torch.Tensor) -> torch.Tensor:
        """All that a record's integers are made of."""
        parts, _ = network.own_gradients(weights, of, labels[: len(of)])
        norms, copies = gradient_norms(parts)
        return torch.cat([norms[:, None], *(rows for part in copies for rows in part)], dim=1)

    wanted = rows(records)
    floats = records.is_floating_point()
    spoils = torch.tensor([math.nan, math.inf, _LARGEST, 1e-40] if floats else [0, 1])
    for size in sizes:
        for row in range(0, len(records), len(records) // _RECORDS_TRIED):
            copies = records[row].expand(size, *records.shape[1:]).contiguous()
            if not (rows(copies) == wanted[row]).all():
                return False
        for first in (0, 1):  # every other record is spoiled
            at = torch.arange(first, size, 2)
            spoil = spoils[at // 2 % len(spoils)].view(-1, *[1] * (records.dim() - 1))
            beside = records[:size].clone()
            beside[at] = spoil.to(beside).expand_as(beside[at])
            if not torch.equal(rows(beside)[1 - first :: 2], wanted[1 - first : size : 2]):
                return False
    return True


def _as_float32(values: NDArray[np.float64]) -> Vector:
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
