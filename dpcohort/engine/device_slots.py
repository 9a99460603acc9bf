# SPDX-License-Identifier: Apache-2.0
"""Local training of many slots on an accelerator, without waiting for it between launches.

The host draws batches and names the noise; the device does all the rest. Records whose gradient is
not finite need a second look (``ClippedNetwork``), for which the host would have to wait in every
pass. It looks once a round instead: such gradients are rare, and if there are any the round's
passes are done again, carefully, from the same batches and with the same noise. Nothing of the
first try is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpcohort.engine.captured_pass import CapturedPass, UncapturableError
from dpcohort.engine.clipping import ClippedNetwork
from dpcohort.engine.counter_noise import add_noise_
from dpcohort.engine.packed_step import PackedStep
from dpcohort.engine.records import ClientRecords

__all__ = ["DeviceSlots", "PreparedPass"]

#: Kept at most: batches of random size come in several widths. None is thrown away for another, for
#: that would record again and again where every batch has its own width.
_RECORDINGS = 24
_SIGHTS_BEFORE_RECORDING = 2  # a shape seen once may never come again
Shape = tuple[int, int, int, bool]


@dataclass(frozen=True)
class PreparedPass:
    """Everything the host has to say about one pass.

    Attributes:
        first: row of the round's updates at which the pass's slots begin.
        owners: experiment of each slot.
        shared: experiments whose weights the slots share evenly, in order; the owners again if
            they do not.
        steps: the local steps.
    """

    first: int
    owners: tuple[int, ...]
    shared: tuple[int, ...]
    steps: tuple[PackedStep, ...]


class DeviceSlots:
    """Runs prepared passes.

    Args:
        network: gives clipped sums.
        records: the stored rows.
        micro_batch: examples in one pass at most.
    """

    def __init__(
        self, network: ClippedNetwork, records: ClientRecords, *, micro_batch: int
    ) -> None:
        self._network, self._records, self._micro_batch = network, records, micro_batch
        device = records.device
        self._all_finite = torch.ones((), dtype=torch.bool, device=device)
        #: Whether passes may be recorded; false for good once a model turned out not to allow it.
        self.records_passes = device.type == "cuda" and network.path.kind == "banked"
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
    ) -> None:
        """Write the noisy updates [all slots, D] of a round.

        Args:
            passes: the round's passes.
            parameters: [D] of each experiment.
            updates: where to write.
            meanwhile: work for the host that the device need not wait for.
        """
        self._all_finite.fill_(value=True)
        for prepared in passes:
            self._run(prepared, parameters, updates, careful=False)
        meanwhile()
        if not bool(self._all_finite):
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
                weights = torch.stack([parameters[e] for e in prepared.shared])
            else:
                if start is None:
                    start = torch.stack([parameters[e] for e in prepared.owners])
                weights = start - moved
            there, sums = self._sums(step, weights, careful=careful)
            add_noise_(
                moved, sums, there.noise_names, scale=there.scale, spread=there.spread,
                accumulate=number > 0,
            )  # fmt: skip

    def _sums(
        self, step: PackedStep, weights: Tensor, *, careful: bool
    ) -> tuple[PackedStep, Tensor]:
        """The step on the device, and its clipped sums [slots, D]."""
        recording = None if careful else self._recording(step, weights)
        if recording is not None:
            there = recording.load(step)
            recording.weights.copy_(weights)
            return there, recording.replay()
        there = step.moved_to(torch.empty_like(step.words, device=weights.device))
        sums = weights.new_zeros(step.slots, weights.shape[1])
        self._add_sums(there, weights, sums, all_finite=None if careful else self._all_finite)
        return there, sums

    def _add_sums(
        self, step: PackedStep, weights: Tensor, sums: Tensor, *, all_finite: Tensor | None
    ) -> None:
        if step.width == 0:
            return
        inputs, targets = self._records.gather(step.rows)
        shape = (step.slots, step.width)
        self._network.clipped_sums(
            weights,
            inputs.view(*shape, *inputs.shape[1:]),
            targets.view(*shape, *targets.shape[1:]),
            clip=step.clip.to(weights.dtype),
            mask=step.mask,
            total=sums,
            micro_batch=self._micro_batch,
            all_finite=all_finite,
        )

    def _recording(self, step: PackedStep, weights: Tensor) -> CapturedPass | None:
        """The recording for a pass of this shape; None while there is none."""
        if not self.records_passes or self._pool is None or step.width == 0:
            return None
        shape = (step.slots, weights.shape[0], step.width, step.is_full)
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
