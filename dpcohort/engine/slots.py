# SPDX-License-Identifier: Apache-2.0
"""Local training of many draws at once: Algorithm 1, lines 9-19, for all draws of a round.

Every draw of every experiment is a slot with its own weights, clip, noise, step size and batch. On
an accelerator many slots share one pass. On a CPU each slot has a pass of its own, on one thread,
and as many slots run at a time as there are workers: a core's caches then hold one slot, and the
result does not depend, to the bit, on the number of workers or on what else is in the stack.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import IntArray, whole_number
from dpcohort.aggregation import Cohort
from dpcohort.engine.clipping import ClippedNetwork, ClippingPath, Loss
from dpcohort.engine.experiment import Experiment
from dpcohort.engine.noise import standard_noise_
from dpcohort.engine.planned import TrainingPlan
from dpcohort.engine.sampling import draw_positions, pad_batches

__all__ = ["Slot", "SlotRunner", "one_thread_each"]

_CPU_PASS_BYTES = 160 << 20
_DEVICE_PASS_SHARE = 0.25  # of the free memory
_WIDTH_MULTIPLE = 8  # padded batches come in few widths, for devices that tune to shapes


@dataclass(frozen=True)
class Slot:
    """One draw of one experiment in one round."""

    experiment: int
    cohort: Cohort
    position: int

    @property
    def client(self) -> int:
        """The client's position in its population."""
        return int(self.cohort.clients[self.position])

    @property
    def name(self) -> dict[str, int]:
        """The part of its streams' names that is the slot's own."""
        draw = int(self.cohort.draws[self.position])
        return {"round": self.cohort.round, "client": self.client, "draw": draw}


class SlotRunner:
    """Runs the local training of slots.

    Args:
        model: the module all experiments train.
        loss: one number an example.
        experiments: what runs side by side; all read the same stored rows.
        micro_batch: examples in one pass at most; None picks a bound from the model's size.
        workers: slots at a time on a CPU; None is as many as torch has threads.
        slots_per_pass: draws that share a pass at most; None is 1 on a CPU and as many as fit the
            micro-batch elsewhere.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        experiments: Sequence[Experiment],
        *,
        micro_batch: int | None = None,
        workers: int | None = None,
        slots_per_pass: int | None = None,
    ) -> None:
        self._experiments = list(experiments)
        self._records = experiments[0].records
        self._device = self._records.device
        on_cpu = self._device.type == "cpu"
        self.workers = (workers or torch.get_num_threads()) if on_cpu else 1
        whole_number("workers", self.workers, at_least=1)
        if micro_batch is not None:
            whole_number("micro_batch", micro_batch, at_least=1)
        if slots_per_pass is not None:
            whole_number("slots_per_pass", slots_per_pass, at_least=1)
        self._slots_per_pass = slots_per_pass
        self._updates: list[Tensor] = []
        self._local = threading.local()
        inputs, targets = self._records.gather(self._records.indices[:3])
        first = ClippedNetwork(model, loss, inputs, targets)
        copies = [
            ClippedNetwork(model, loss, inputs, targets, path=first.path)
            for _ in range(self.workers - 1)
        ]
        self.networks = [first, *copies]
        self.micro_batch = micro_batch or self._default_micro_batch(first.path)

    def updates(self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Noisy updates [draws, D] of each experiment's cohort, from its parameters [D].

        They lie in memory that the next call uses again.
        """
        updates = self._cleared_updates(parameters, cohorts)
        chunks = list(self._chunks(cohorts))
        if self._device.type == "cpu":
            self._run_on_cpu(chunks, parameters, updates)
        else:
            for chunk in chunks:
                self._run(self.networks[0], chunk, parameters, updates)
        return updates

    def _run_on_cpu(
        self, chunks: list[list[Slot]], parameters: Sequence[Tensor], updates: list[Tensor]
    ) -> None:
        idle: queue.SimpleQueue[ClippedNetwork] = queue.SimpleQueue()
        for network in self.networks:
            idle.put(network)

        def run(chunk: list[Slot]) -> None:
            network = idle.get()
            try:
                self._run(network, chunk, parameters, updates)
            finally:
                idle.put(network)

        with one_thread_each():
            if self.workers == 1:
                for chunk in chunks:
                    run(chunk)
            else:
                with ThreadPoolExecutor(self.workers, initializer=_use_one_thread) as pool:
                    list(pool.map(run, chunks))

    def _chunks(self, cohorts: Sequence[Cohort]) -> Iterator[list[Slot]]:
        """Slots that share a pass: one on a CPU, whole experiments or parts of one elsewhere."""
        slots = [Slot(e, cohort, i) for e, cohort in enumerate(cohorts) for i in range(len(cohort))]
        limit = self._slots_per_pass
        if limit is None:
            widest = max(int(cohort.batch_sizes.max()) for cohort in cohorts)
            limit = 1 if self._device.type == "cpu" else max(1, self.micro_batch // widest)
        size = len(cohorts[0])
        if limit >= size and all(len(cohort) == size for cohort in cohorts):
            limit -= limit % size  # whole experiments: their draws start from shared weights
        for start in range(0, len(slots), limit):
            yield slots[start : start + limit]

    @torch.no_grad()
    def _run(
        self,
        network: ClippedNetwork,
        slots: list[Slot],
        parameters: Sequence[Tensor],
        updates: list[Tensor],
    ) -> None:
        """Local steps of the slots of one pass; writes their updates."""
        moved = self._moved(slots, parameters, updates)
        steps = self._experiments[0].plan.training.local_steps
        weights = self._starting_weights(slots, parameters)
        total = moved
        clip = self._per_slot(slots, lambda s: self._plan(s).training.clip, moved)
        for step in range(steps):
            if step > 0:
                start = self._starting_weights(slots, parameters, shared=False)
                weights = start - moved
                total = torch.zeros_like(moved)
            self._add_sums(network, slots, step, weights, clip, total)
            self._scale_and_add_noise(slots, step, total)
            if step > 0:
                moved += total
        self._write(slots, moved, updates)

    def _add_sums(
        self, network: ClippedNetwork, slots: list[Slot], step: int, weights: Tensor,
        clip: Tensor, total: Tensor,
    ) -> None:  # fmt: skip
        rows = [self._rows(slot, step) for slot in slots]
        multiple = 1 if len(slots) == 1 else _WIDTH_MULTIPLE
        batch = pad_batches(rows, multiple=multiple)
        if batch.positions.shape[1] == 0:
            return
        inputs, targets = self._records.gather(batch.positions.reshape(-1))
        shape = batch.positions.shape
        mask = torch.as_tensor(batch.mask, device=self._device)
        network.clipped_sums(
            weights,
            inputs.view(*shape, *inputs.shape[1:]),
            targets.view(*shape, *targets.shape[1:]),
            clip=clip,
            mask=None if batch.mask.all() else mask,
            total=total,
            micro_batch=self.micro_batch,
        )

    def _rows(self, slot: Slot, step: int) -> IntArray:
        experiment, plan = self._experiments[slot.experiment], self._plan(slot)
        positions = draw_positions(
            experiment.streams,
            plan.contract.sampler,
            size=int(plan.population.sizes[slot.client]),
            rate=float(plan.sampling_rates[slot.client]),
            batch_size=int(plan.batch_sizes[slot.client]),
            **slot.name,
            step=step,
        )
        return experiment.records.rows(slot.client, positions)

    def _scale_and_add_noise(self, slots: list[Slot], step: int, total: Tensor) -> None:
        """From the clipped sums to the step alpha (sum / B + sigma noise), in place."""
        alphas = [self._step_size(slot, step) for slot in slots]
        batches = [int(s.cohort.batch_sizes[s.position]) for s in slots]
        stds = [float(s.cohort.noise_stds[s.position]) for s in slots]
        noise = self._scratch(total)
        for row, slot in enumerate(slots):
            if stds[row] > 0:
                streams = self._experiments[slot.experiment].streams
                standard_noise_(noise[row], streams, **slot.name, step=step)
            else:
                noise[row] = 0
        if len(slots) == 1:
            total.mul_(alphas[0] / batches[0]).add_(noise, alpha=alphas[0] * stds[0])
            return
        scale = [alpha / size for alpha, size in zip(alphas, batches, strict=True)]
        spread = [alpha * std for alpha, std in zip(alphas, stds, strict=True)]
        total.mul_(_column(scale, total)).addcmul_(noise, _column(spread, total))

    def _cleared_updates(
        self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]
    ) -> list[Tensor]:
        """Zeros for the updates; fresh memory every round would cost more than the noise."""
        shapes = [(len(c), p.numel()) for c, p in zip(cohorts, parameters, strict=True)]
        if [tuple(update.shape) for update in self._updates] != shapes:
            self._updates = [p.new_empty(s) for p, s in zip(parameters, shapes, strict=True)]
        return [update.zero_() for update in self._updates]

    def _scratch(self, like: Tensor) -> Tensor:
        """Memory for noise that a worker keeps, of the shape of ``like``."""
        kept: Tensor | None = getattr(self._local, "scratch", None)
        if kept is None or kept.shape != like.shape or kept.dtype != like.dtype:
            kept = torch.empty_like(like)
            self._local.scratch = kept
        return kept

    def _step_size(self, slot: Slot, step: int) -> float:
        training = self._plan(slot).training
        time = slot.cohort.round * training.local_steps + step
        local_step = self._experiments[slot.experiment].optimiser.local_step
        return local_step.at(time, training.rounds * training.local_steps)

    def _starting_weights(
        self, slots: list[Slot], parameters: Sequence[Tensor], *, shared: bool = True
    ) -> Tensor:
        """[groups, D]: one row an experiment if its slots are evenly many, else one a slot."""
        owners = np.array([slot.experiment for slot in slots])
        experiments, counts = np.unique(owners, return_counts=True)
        if shared and np.all(counts == counts[0]):
            owners = experiments
        if owners.size == 1:
            return parameters[int(owners[0])][None]
        return torch.stack([parameters[int(e)] for e in owners])

    def _moved(
        self, slots: list[Slot], parameters: Sequence[Tensor], updates: list[Tensor]
    ) -> Tensor:
        if len(slots) == 1:  # straight into its place
            return updates[slots[0].experiment][slots[0].position][None]
        like = parameters[slots[0].experiment]
        return torch.zeros(len(slots), like.numel(), dtype=like.dtype, device=like.device)

    def _write(self, slots: list[Slot], moved: Tensor, updates: list[Tensor]) -> None:
        if len(slots) == 1:
            return
        for row, slot in enumerate(slots):
            updates[slot.experiment][slot.position] = moved[row]

    def _default_micro_batch(self, path: ClippingPath) -> int:
        """As many examples as fit a bound on memory; on a CPU the bound is always the same."""
        limit = float(_CPU_PASS_BYTES)
        if self._device.type == "cuda":
            limit = _DEVICE_PASS_SHARE * torch.cuda.mem_get_info(self._device)[0]
        return max(1, int(limit / (4 * path.floats_per_example)))

    def _plan(self, slot: Slot) -> TrainingPlan:
        return self._experiments[slot.experiment].plan

    def _per_slot(self, slots: list[Slot], value: Callable[[Slot], float], like: Tensor) -> Tensor:
        return torch.tensor([value(s) for s in slots], dtype=like.dtype, device=like.device)


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _use_one_thread() -> None:
    torch.set_num_threads(1)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep torch to one thread meanwhile: sums then add up in one order, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
