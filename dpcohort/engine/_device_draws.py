# SPDX-License-Identifier: Apache-2.0
"""Local training of many draws on an accelerator, without waiting for it between launches.

The host names batches and noise; the device does all the rest. (Batches of random size, on which
shapes depend, the host draws.) Records whose gradient is not finite need a second look
(``ClippedNetwork``), for which the host would have to wait in every pass. It looks once a round
instead: such gradients are rare, and if there are any the round's passes are done again, carefully,
from the same batches and with the same noise. Nothing of the first try is kept.

What the host tells the device about one local step of a pass lies in one piece of memory
(``PackedStep``), for many small copies would cost more than the step itself. On a GPU a pass is
recorded once and replayed (``CapturedPass``, a CUDA graph): a hundred small kernels for the price
of one launch. A recording has fixed shapes and fixed memory; what changes from pass to pass is
written into that memory first: the packed step and the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpcohort._validate import FloatArray, IntArray
from dpcohort.accounting._sampler import WordArray
from dpcohort.engine._counter_noise import add_noise_, batch_keys
from dpcohort.engine._experiment import ClientRecords
from dpcohort.engine._randomness import pad_batches
from dpcohort.engine.clipping import ClippedNetwork

_COLUMNS = 6  # words a draw besides its rows


class NamedBatches(NamedTuple):
    """Batches without replacement that a device draws, each of ``batch_size`` records.

    Attributes:
        words: [7, draws]: five of the name of each draw's stream, its client's number of records,
            and where its client's rows begin.
        batch_size: B.
        longest: the most records of any client, whether drawn or not: shapes depend on it.
    """

    words: WordArray
    batch_size: int
    longest: int


@dataclass(frozen=True)
class PackedStep:
    """A step of all draws of a pass as one vector of 64-bit words.

    Attributes:
        words: rows [draws, width], then counts, two words of noise names, scale, spread and clip
            for each draw; then a factor for each row, if rows have factors of their own, or seven
            words that name each batch, if the device is to draw them.
        draws: number of draws.
        width: width of the batches, padding included.
        is_full: whether no batch is padded.
        has_row_scale: whether rows have factors of their own.
        drawn: batch size and the most records of a client, if the device is to draw the rows.
    """

    words: Tensor
    draws: int
    width: int
    is_full: bool
    has_row_scale: bool = False
    drawn: tuple[int, int] | None = None

    def moved_to(self, words: Tensor) -> PackedStep:
        """The same step in other memory of the same shape; the copy does not wait."""
        words.copy_(self.words, non_blocking=True)
        return replace(self, words=words)

    @property
    def rows(self) -> Tensor:
        """[draws x width] stored rows; row 0 where a batch is padded."""
        return self.words[: self.draws * self.width]

    @property
    def mask(self) -> Tensor | None:
        """[draws, width], true for rows that belong to a batch; None if all do."""
        if self.is_full:
            return None
        places = torch.arange(self.width, device=self.words.device)
        return places < self._column(0)[:, None]

    @property
    def noise_names(self) -> Tensor:
        """[draws, 2]."""
        start = self.draws * (self.width + 1)
        return self.words[start : start + 2 * self.draws].view(self.draws, 2)

    @property
    def row_scale(self) -> Tensor | None:
        """[draws, width] in 64 bits, a factor on each row's clipped gradient; None is 1."""
        if not self.has_row_scale:
            return None
        start = self.draws * (self.width + _COLUMNS)
        return self.words[start:].view(torch.float64).view(self.draws, self.width)

    def draw_rows(self, indices: Tensor | None) -> None:
        """Write the rows that were only named: those of each batch's smallest keys.

        Args:
            indices: stored rows of all clients of all experiments.
        """
        if self.drawn is None:
            return
        assert indices is not None
        batch_size, longest = self.drawn
        named = self.words[self.draws * (self.width + _COLUMNS) :].view(-1, self.draws)
        keys = batch_keys(named, longest)
        chosen = keys.topk(batch_size, largest=False, sorted=False).indices.sort().values
        rows = self.rows.view(self.draws, self.width)
        rows[:, :batch_size] = indices[named[-1, :, None] + chosen]

    @property
    def scale(self) -> Tensor:
        """[draws] in 64 bits."""
        return self._column(3).view(torch.float64)

    @property
    def spread(self) -> Tensor:
        """[draws] in 64 bits."""
        return self._column(4).view(torch.float64)

    @property
    def clip(self) -> Tensor:
        """[draws] in 64 bits."""
        return self._column(5).view(torch.float64)

    def _column(self, number: int) -> Tensor:
        start = self.draws * (self.width + number)
        return self.words[start : start + self.draws]


def pack(
    rows: Sequence[IntArray],
    noise_names: Sequence[WordArray] | WordArray,
    *,
    scale: Sequence[float] | FloatArray,
    spread: Sequence[float] | FloatArray,
    clip: Sequence[float] | FloatArray,
    multiple: int,
    pinned: bool,
    row_scale: Sequence[FloatArray] | None = None,
    named: NamedBatches | None = None,
) -> PackedStep:
    """One vector from one local step of all draws of a pass.

    Args:
        rows: stored rows of each draw's batch; any, if the device is to draw them.
        noise_names: two words that name each draw's noise.
        scale: factors on the sums of clipped gradients, alpha / B.
        spread: factors on the standard normal noise, alpha z C / B.
        clip: C of each draw.
        multiple: the width of the batches is rounded up to a multiple of this.
        pinned: in memory from which a device copies without the host.
        row_scale: a factor on the clipped gradient of each row; None is 1.
        named: what the device draws the rows by.

    Example:
        >>> name = np.array([3, 4], dtype=np.uint64)
        >>> packed = pack([np.array([7, 9])], [name], scale=[0.5], spread=[2.0], clip=[1.0],
        ...               multiple=4, pinned=False)
        >>> packed.rows.tolist(), packed.mask.tolist(), packed.scale.tolist()
        ([7, 9, 0, 0], [[True, True, False, False]], [0.5])
    """
    positions, mask = pad_batches(rows, multiple=multiple)
    draws, width = positions.shape
    size = draws * (width + _COLUMNS)
    more = 0 if row_scale is None else draws * width
    if named is not None:
        more = named.words.size
    words = torch.empty(size + more, dtype=torch.int64, pin_memory=pinned)
    flat = words.numpy()
    flat[: draws * width] = positions.reshape(-1)
    if row_scale is not None:
        factors = flat[size:].view(np.float64).reshape(draws, width)
        factors[:] = 0.0
        for row, own in enumerate(row_scale):
            factors[row, : own.size] = own
    if named is not None:
        flat[size:] = named.words.view(np.int64).reshape(-1)
    columns = flat[draws * width : size].reshape(_COLUMNS, draws)
    columns[0] = [own.size for own in rows]
    columns[1:3] = np.array(noise_names).astype(np.int64).reshape(2, draws)
    columns[3:].view(np.float64)[:] = scale, spread, clip
    drawn = None if named is None else (named.batch_size, named.longest)
    return PackedStep(words, draws, width, bool(mask.all()), row_scale is not None, drawn)


#: Adds the clipped sums of a packed step at some weights to the third, [draws, D].
PassBody = Callable[[PackedStep, Tensor, Tensor], None]

_WARM_UPS = 2  # libraries choose and set up their kernels when first called
_AGREEMENT = 1e-3  # far above rounding, far below what a pass of other data would give


class UncapturableError(Exception):
    """A model does something that cannot be recorded; the caller goes without."""


def recorded(body: Callable[[], Tensor], *, pool: Any) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A recording of what a function launches, and where its replays write what it returns.

    Args:
        body: it reads and writes memory that stays where it is.
        pool: memory shared by recordings that are never replayed at the same time.

    Raises:
        UncapturableError: the recording failed, or it does not do what the body does.
    """
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        for _ in range(_WARM_UPS):
            expected = body()
        expected = expected.clone()
    here.wait_stream(aside)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # the recording has memory of its own
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool):
            found = body()
    except Exception as problem:
        _end_failed_recording()
        raise UncapturableError(str(problem)) from problem
    graph.replay()
    gap = float((found - expected).double().norm())
    if not gap <= _AGREEMENT * float(expected.double().norm()):
        raise UncapturableError("its recording computes something else")
    return graph, found


class CapturedPass:
    """The clipped sums of one shape of pass.

    Args:
        body: what is recorded.
        step: a packed step, in host memory, to try it on.
        weights: [groups, D] to try it on.
        pool: memory shared by recordings that are never replayed at the same time.

    Raises:
        UncapturableError: the recording failed, or it does not do what the body does.
    """

    def __init__(self, body: PassBody, step: PackedStep, weights: Tensor, *, pool: Any) -> None:
        self.weights = weights.clone()
        self.step = step.moved_to(torch.empty_like(step.words, device=weights.device))
        self.sums = weights.new_empty(step.draws, weights.shape[1])
        self._graph, self.sums = recorded(lambda: self._record(body), pool=pool)

    def load(self, step: PackedStep) -> PackedStep:
        """Put the next step into the recording's memory; the weights are the caller's to write."""
        return step.moved_to(self.step.words)

    def replay(self) -> Tensor:
        """The clipped sums of what was loaded, in memory that the next replay uses again."""
        self._graph.replay()
        return self.sums

    def _record(self, body: PassBody) -> Tensor:
        sums = self.sums.zero_()
        body(self.step, self.weights, sums)
        return sums


def _end_failed_recording() -> None:
    """Make torch's own generator usable again: a failed recording leaves it waiting for the end.

    A recording that succeeds, of next to nothing, brings the end.
    """
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


#: Kept at most: batches of random size come in several widths. None is thrown away for another, for
#: that would record again and again where every batch has its own width.
_RECORDINGS = 24
_SIGHTS_BEFORE_RECORDING = 2  # a shape seen once may never come again
Shape = tuple[int, int, int, bool, tuple[int, int] | None]


@dataclass(frozen=True)
class PreparedPass:
    """Everything the host has to say about one pass.

    Attributes:
        first: row of the round's updates at which the pass's draws begin.
        owners: experiment of each draw.
        shared: experiments whose weights the draws share evenly, in order; the owners again if
            they do not.
        steps: the local steps.
    """

    first: int
    owners: tuple[int, ...]
    shared: tuple[int, ...]
    steps: tuple[PackedStep, ...]


def weights_of(owners: Sequence[int], parameters: Sequence[Tensor]) -> Tensor:
    """[owners, D]: the parameters of these experiments, without a copy if there is one only."""
    if len(owners) == 1:
        return parameters[owners[0]][None]
    return torch.stack([parameters[owner] for owner in owners])


class DeviceDraws:
    """Runs prepared passes.

    Args:
        network: gives clipped sums.
        records: the stored rows.
        micro_batch: examples in one pass at most.
        indices: stored rows of all clients of all experiments, for batches that are only named.
            None: there are none.
    """

    def __init__(
        self,
        network: ClippedNetwork,
        records: ClientRecords,
        *,
        micro_batch: int,
        indices: Tensor | None = None,
    ) -> None:
        self._network, self._records, self._micro_batch = network, records, micro_batch
        self._indices, device = indices, records.device
        self._all_finite = torch.ones((), dtype=torch.bool, device=device)
        #: Whether passes may be recorded; false for good once a model turned out not to allow it.
        self.records_passes = device.type == "cuda" and network.path.kind == "stacked"
        self._pool = torch.cuda.graph_pool_handle() if self.records_passes else None
        self._sights: dict[Shape, int] = {}
        self._recordings: dict[Shape, CapturedPass] = {}

    @torch.no_grad()
    def run(
        self,
        passes: Sequence[PreparedPass],
        parameters: Sequence[Tensor],
        updates: Tensor,
        *,
        meanwhile: Callable[[], None],
        is_any: Callable[[bool], bool] = bool,
    ) -> None:
        """Write the noisy updates [all draws, D] of a round.

        Args:
            passes: the round's passes.
            parameters: [D] of each experiment.
            updates: where to write.
            meanwhile: work for the host that the device need not wait for.
            is_any: whether something is true here or where other passes of the round are run.
        """
        self._all_finite.fill_(value=True)
        for prepared in passes:
            self._run(prepared, parameters, updates, careful=False)
        meanwhile()
        if is_any(not bool(self._all_finite)):
            for prepared in passes:
                self._run(prepared, parameters, updates, careful=True)

    def _run(
        self, prepared: PreparedPass, parameters: Sequence[Tensor], updates: Tensor, *,
        careful: bool,
    ) -> None:  # fmt: skip
        moved = updates[prepared.first : prepared.first + len(prepared.owners)]
        start: Tensor | None = None
        for number, step in enumerate(prepared.steps):
            if number == 0:
                weights = weights_of(prepared.shared, parameters)
            else:
                if start is None:
                    start = weights_of(prepared.owners, parameters)
                weights = start - moved
            there, sums = self._sums(step, weights, careful=careful)
            add_noise_(
                moved, sums, there.noise_names, scale=there.scale, spread=there.spread,
                accumulate=number > 0,
            )  # fmt: skip

    def _sums(
        self, step: PackedStep, weights: Tensor, *, careful: bool
    ) -> tuple[PackedStep, Tensor]:
        """The step on the device, and its clipped sums [draws, D]."""
        recording = None if careful else self._recording(step, weights)
        if recording is not None:
            there = recording.load(step)
            recording.weights.copy_(weights)
            return there, recording.replay()
        there = step.moved_to(torch.empty_like(step.words, device=weights.device))
        sums = weights.new_zeros(step.draws, weights.shape[1])
        self._add_sums(there, weights, sums, all_finite=None if careful else self._all_finite)
        return there, sums

    def _add_sums(
        self, step: PackedStep, weights: Tensor, sums: Tensor, *, all_finite: Tensor | None
    ) -> None:
        if step.width == 0:
            return
        step.draw_rows(self._indices)
        inputs, targets = self._records.gather(step.rows)
        shape = (step.draws, step.width)
        row_scale = step.row_scale
        self._network.clipped_sums(
            weights,
            inputs.view(*shape, *inputs.shape[1:]),
            targets.view(*shape, *targets.shape[1:]),
            clip=step.clip.to(weights.dtype),
            scale=None if row_scale is None else row_scale.to(weights.dtype),
            mask=step.mask,
            total=sums,
            micro_batch=self._micro_batch,
            all_finite=all_finite,
        )

    def _recording(self, step: PackedStep, weights: Tensor) -> CapturedPass | None:
        """The recording for a pass of this shape; None while there is none."""
        if not self.records_passes or self._pool is None or step.width == 0:
            return None
        shape = (step.draws, weights.shape[0], step.width, step.is_full, step.drawn)
        if shape in self._recordings or len(self._recordings) >= _RECORDINGS:
            return self._recordings.get(shape)
        self._sights[shape] = self._sights.get(shape, 0) + 1
        if self._sights[shape] < _SIGHTS_BEFORE_RECORDING:
            return None

        def body(step: PackedStep, weights: Tensor, sums: Tensor) -> None:
            self._add_sums(step, weights, sums, all_finite=self._all_finite)

        try:
            self._recordings[shape] = CapturedPass(body, step, weights, pool=self._pool)
        except UncapturableError:
            # Where gradients are not finite a comparison tells nothing: try again another time.
            self.records_passes = not bool(self._all_finite)
            return None
        return self._recordings[shape]
