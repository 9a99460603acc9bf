# SPDX-License-Identifier: Apache-2.0
"""Local training of many draws at once: Algorithm 1, lines 9-19, for all draws of a round.

Every draw of every experiment is a slot with its own weights, clip, noise, step size and batch. On
an accelerator many slots share one pass (``device_slots``), and while it computes a round the host
draws the batches of the next. On a CPU each slot has a pass of its own, on one thread,
and as many slots run at a time as there are workers: a core's caches then hold one slot, and the
result does not depend, to the bit, on the number of workers or on what else is in the stack.

With merged noise only the sum of an experiment's updates matters, and they carry no noise of their
last step. On a CPU the slots then add straight to a few accumulators (``lanes``), several of them
in one pass if they take one step only (``joining``).

Private slots, whose streams have no seed, go one by one on every device: each record's gradient is
formed, clipped and cut to integers by itself, the integers are added, and noise of a cryptographic
stream is added to their sum (``lattice``). What a record contributes is then bounded by
construction, and no bit of it depends on the records beside it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import IntArray, whole_number
from dpcohort.aggregation import Cohort
from dpcohort.engine.clipping import ClippedNetwork, ClippingPath, Loss
from dpcohort.engine.device_slots import DeviceSlots, PreparedPass
from dpcohort.engine.experiment import Experiment
from dpcohort.engine.joining import joined
from dpcohort.engine.lanes import LANES, Lanes
from dpcohort.engine.lattice import Lattice
from dpcohort.engine.lattice_noise import release
from dpcohort.engine.noise import standard_noise_
from dpcohort.engine.packed_step import SlotStep, pack
from dpcohort.engine.planned import TrainingPlan
from dpcohort.engine.sampling import draw_positions, pad_batches
from dpcohort.engine.slot import Slot
from dpcohort.engine.threads import one_thread_each, use_one_thread

__all__ = ["SlotRunner"]

_Cohorts = TypeVar("_Cohorts", bound=Sequence[Cohort])

_CPU_PASS_BYTES = 160 << 20
_DEVICE_PASS_SHARE = 0.25  # of the free memory
_DEVICE_PASS_BYTES = 8 << 30  # more keeps no device busier, and others may want a part of it
_FORMED_NUMBERS = {"cpu": 1 << 22, "cuda": 1 << 27}  # of private gradients at a time
_WIDTH_MULTIPLE = 8  # padded batches come in few widths, for devices that tune to shapes


class SlotRunner:
    """Runs the local training of slots.

    Args:
        model: the module all experiments train.
        loss: one number an example.
        experiments: what runs side by side; all read the same stored rows.
        micro_batch: examples in one pass at most; None picks a bound from the model's size.
        workers: slots at a time on a CPU; None is as many as torch has threads.
        slots_per_pass: draws that share a pass at most; None is as many as fit the micro-batch,
            on a CPU 1, or a few whose sum alone counts.
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
        self._local_steps = experiments[0].plan.training.local_steps
        self._is_private = not experiments[0].streams.is_reproducible
        on_cpu = self._device.type == "cpu"
        self.workers = (workers or torch.get_num_threads()) if on_cpu else 1
        whole_number("workers", self.workers, at_least=1)
        if micro_batch is not None:
            whole_number("micro_batch", micro_batch, at_least=1)
        if slots_per_pass is not None:
            whole_number("slots_per_pass", slots_per_pass, at_least=1)
        self._slots_per_pass = slots_per_pass
        self._updates: list[Tensor] = []
        self._all_updates = torch.empty(0)
        self._prepared: tuple[Sequence[Cohort], list[PreparedPass]] | None = None
        self._local = threading.local()
        # Threads start when they are first needed, and end with the runner.
        self._pool = ThreadPoolExecutor(self.workers, initializer=use_one_thread)
        inputs, targets = self._records.gather(self._records.indices[:3])
        first = ClippedNetwork(model, loss, inputs, targets)
        copies = [
            ClippedNetwork(model, loss, inputs, targets, path=first.path)
            for _ in range(self.workers - 1)
        ]
        self.networks = [first, *copies]
        self._dimension = first.layout.dimension
        self.micro_batch = micro_batch or self._default_micro_batch(first.path)
        self._device_slots: DeviceSlots | None = None
        if not on_cpu and not self._is_private:
            self._device_slots = DeviceSlots(first, self._records, micro_batch=self.micro_batch)

    def updates(self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]) -> list[Tensor]:
        """Noisy updates [draws, D] of each experiment's cohort, from its parameters [D].

        With merged noise they are rows whose sum is that of the updates, without the noise of
        their last steps. They lie in memory that the next call uses again.
        """
        return self.updates_and_upcoming(parameters, cohorts, lambda: None)[0]

    def updates_and_upcoming(
        self,
        parameters: Sequence[Tensor],
        cohorts: Sequence[Cohort],
        upcoming: Callable[[], _Cohorts | None],
    ) -> tuple[list[Tensor], _Cohorts | None]:
        """The same, and on an accelerator the next round's cohorts, prepared meanwhile.

        Args:
            parameters: [D] of each experiment.
            cohorts: the draws of each experiment.
            upcoming: gives what the next call will be asked for, None if nothing.

        Returns:
            The updates and what ``upcoming`` gave; None on a CPU, where it is not asked.
        """
        updates = self._cleared_updates(parameters, cohorts)
        if self._device_slots is None:
            self._run_by_slot(cohorts, parameters, updates)
            return updates, None
        ready = self._prepared is not None and self._prepared[0] is cohorts
        passes = self._prepared[1] if self._prepared and ready else self._prepare(cohorts)
        following: list[_Cohorts | None] = [None]

        def meanwhile() -> None:
            following[0] = upcoming()
            self._prepared = (following[0], self._prepare(following[0])) if following[0] else None

        self._device_slots.run(passes, parameters, self._all_updates, meanwhile=meanwhile)
        return updates, following[0]

    def _prepare(self, cohorts: Sequence[Cohort]) -> list[PreparedPass]:
        """Batches, names of noise and factors of all passes of a round, for an accelerator."""
        passes, first = [], 0
        steps = range(self._local_steps)
        for slots in self._chunks(cohorts):
            packed = [
                pack(
                    [self._slot_step(slot, step) for slot in slots],
                    multiple=1 if len(slots) == 1 else _WIDTH_MULTIPLE,
                    pinned=self._device.type == "cuda",
                )
                for step in steps
            ]
            owners = tuple(slot.experiment for slot in slots)
            passes.append(PreparedPass(first, owners, _evenly_shared(owners), tuple(packed)))
            first += len(slots)
        return passes

    def _slot_step(self, slot: Slot, step: int) -> SlotStep:
        experiment = self._experiments[slot.experiment]
        return SlotStep(
            rows=self._rows(slot, step),
            noise_name=experiment.streams.noise_name(**slot.name, step=step),
            scale=self._scale(slot, step),
            spread=self._spread(slot, step),
            clip=experiment.plan.training.clip,
        )

    def _run_by_slot(
        self, cohorts: Sequence[Cohort], parameters: Sequence[Tensor], updates: list[Tensor]
    ) -> None:
        idle: queue.SimpleQueue[ClippedNetwork] = queue.SimpleQueue()
        for network in self.networks:
            idle.put(network)

        def run(task: tuple[list[Slot], Lanes | None, int]) -> None:
            network = idle.get()
            slots, lanes, number = task
            try:
                if lanes is None:
                    self._run(network, slots, parameters, updates)
                else:
                    self._run_in_lane(network, number, slots, parameters, lanes)
            finally:
                idle.put(network)

        tasks = list(self._tasks(cohorts, updates))
        with one_thread_each():
            if self.workers == 1:
                for task in tasks:
                    run(task)
            else:
                list(self._pool.map(run, tasks))

    def _tasks(
        self, cohorts: Sequence[Cohort], updates: list[Tensor]
    ) -> Iterator[tuple[list[Slot], Lanes | None, int]]:
        """Slots that share a pass, the lanes they add to, and the number of their turn there."""
        if not any(map(self._has_lanes, range(len(cohorts)))):
            yield from ((slots, None, 0) for slots in self._chunks(cohorts))
            return
        for e, cohort in enumerate(cohorts):
            together = [range(i, i + 1) for i in range(len(cohort))]
            if self._has_lanes(e) and self._local_steps == 1 and self._slots_per_pass is None:
                together = joined(cohort.batch_sizes.tolist())
            lanes = Lanes(updates[e], slots=len(together)) if self._has_lanes(e) else None
            for number, positions in enumerate(together):
                yield [Slot(e, cohort, i) for i in positions], lanes, number

    def _chunks(self, cohorts: Sequence[Cohort]) -> Iterator[list[Slot]]:
        """Slots that share a pass: one on a CPU, whole experiments or parts of one elsewhere."""
        slots = [Slot(e, cohort, i) for e, cohort in enumerate(cohorts) for i in range(len(cohort))]
        limit = self._slots_per_pass
        if self._is_private:  # on an accelerator the noise of several is made at once
            wide = _FORMED_NUMBERS.get(self._device.type, 1) // self._dimension
            limit = 1 if self._device.type == "cpu" else max(1, wide)
        if limit is None:
            widest = max(int(cohort.batch_sizes.max()) for cohort in cohorts)
            limit = 1 if self._device_slots is None else max(1, self.micro_batch // widest)
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
        self._take_steps(network, slots, parameters, moved, self._local_steps)
        self._write(slots, moved, updates)

    @torch.no_grad()
    def _run_in_lane(
        self, network: ClippedNetwork, number: int, slots: list[Slot],
        parameters: Sequence[Tensor], lanes: Lanes,
    ) -> None:  # fmt: skip
        """Adds the updates of slots, without the last step's noise, to the lane of their turn.

        Slots that take more than one step have weights of their own, so each comes alone.
        """
        last = self._local_steps - 1
        with lanes.turn(number) as turn:
            weights = parameters[slots[0].experiment][None]
            moved = None
            if last > 0:
                moved = torch.zeros_like(weights)
                self._take_steps(network, slots, parameters, moved, last)
                weights = weights - moved
            self._add_one_sum(network, slots, last, weights, turn.row)
            if moved is not None:
                turn.row().add_(moved)

    def _add_one_sum(
        self, network: ClippedNetwork, slots: list[Slot], step: int, weights: Tensor,
        total: Callable[[], Tensor],
    ) -> None:  # fmt: skip
        """Add alpha / B times the clipped sums of all slots of an experiment to one row [1, D]."""
        rows = [self._rows(slot, step) for slot in slots]
        inputs, targets = self._records.gather(np.concatenate(rows))
        if not len(inputs):
            return
        scales = [self._scale(slot, step) for slot in slots]
        network.clipped_sums(
            weights,
            inputs[None],
            targets[None],
            clip=self._per_slot(slots[:1], lambda s: self._plan(s).training.clip, weights),
            scale=weights.new_tensor(np.repeat(scales, [part.size for part in rows]))[None],
            total=total,
            micro_batch=self.micro_batch,
        )

    def _take_steps(
        self, network: ClippedNetwork, slots: list[Slot], parameters: Sequence[Tensor],
        moved: Tensor, steps: int,
    ) -> None:  # fmt: skip
        """The first ``steps`` local steps of the slots; adds them to ``moved``, which is zero."""
        weights = self._starting_weights(slots, parameters)
        total = moved
        for step in range(steps):
            if step > 0:
                start = self._starting_weights(slots, parameters, shared=False)
                weights = start - moved
                total = torch.zeros_like(moved)
            if self._is_private:
                self._add_private_steps(network, slots, step, weights, total)
            else:
                self._add_sums(network, slots, step, weights, total)
                self._scale_and_add_noise(slots, step, total)
            if step > 0:
                moved += total

    def _add_private_steps(
        self, network: ClippedNetwork, slots: list[Slot], step: int, weights: Tensor,
        total: Tensor,
    ) -> None:  # fmt: skip
        """Add the steps alpha (sum / B + sigma noise) [slots, D], each on its lattice.

        Only sums with their noise leave it; those of public clients have none.
        """
        per_group = len(slots) // weights.shape[0]
        rows, sums, exponents, keys, factors = [], [], [], [], []
        for row, slot in enumerate(slots):
            at = weights[row // per_group]
            multiplier = float(slot.cohort.noise_multipliers[slot.position])
            if multiplier == 0.0:
                self._add_sums(network, [slot], step, at[None], total[row : row + 1])
                total[row] *= self._scale(slot, step)
                continue
            lattice = Lattice(multiplier, self._plan(slot).training.clip)
            streams = self._experiments[slot.experiment].streams
            rows.append(row)
            sums.append(self._private_sum(network, self._rows(slot, step), at, lattice))
            exponents.append(lattice.exponent)
            keys.append(streams.noise_key(**slot.name, step=step))
            factors.append(lattice.unit * self._scale(slot, step))
        if rows:
            totals = torch.stack(sums)
            noisy = release(totals, exponents, keys, factors=factors, dtype=total.dtype)
            total[rows] += noisy

    def _private_sum(
        self, network: ClippedNetwork, rows: IntArray, weights: Tensor, lattice: Lattice
    ) -> Tensor:
        """Clipped gradients of these stored rows, each by itself on the lattice, [D] integers."""
        total = torch.zeros(weights.numel(), dtype=torch.int64, device=self._device)
        formed = _FORMED_NUMBERS.get(self._device.type, 1 << 22) // weights.numel()
        at_a_time = max(1, min(self.micro_batch, formed))
        for start in range(0, rows.size, at_a_time):
            inputs, targets = self._records.gather(rows[start : start + at_a_time])
            total += lattice.clipped_sum(network.gradients(weights, inputs, targets))
        return total

    def _add_sums(
        self, network: ClippedNetwork, slots: list[Slot], step: int, weights: Tensor,
        total: Tensor,
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
            clip=self._per_slot(slots, lambda s: self._plan(s).training.clip, weights),
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
        scale = [self._scale(slot, step) for slot in slots]
        spread = [self._spread(slot, step) for slot in slots]
        noise = self._scratch(total)
        for row, slot in enumerate(slots):
            if spread[row] > 0:
                streams = self._experiments[slot.experiment].streams
                standard_noise_(noise[row], streams, **slot.name, step=step)
            else:
                noise[row] = 0
        if len(slots) == 1:
            total.mul_(scale[0]).add_(noise, alpha=spread[0])
            return
        total.mul_(_column(scale, total)).addcmul_(noise, _column(spread, total))

    def _cleared_updates(
        self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]
    ) -> list[Tensor]:
        """Zeros for the updates; fresh memory every round would cost more than the noise."""
        rows = [
            min(len(cohort), LANES) if self._has_lanes(e) else len(cohort)
            for e, cohort in enumerate(cohorts)
        ]
        shapes = [(n, p.numel()) for n, p in zip(rows, parameters, strict=True)]
        if [tuple(update.shape) for update in self._updates] != shapes:
            self._all_updates = parameters[0].new_empty(sum(rows), parameters[0].numel())
            self._updates = list(torch.split(self._all_updates, rows))
        if self._device.type != "cpu":  # a CPU's workers clear their own rows, side by side
            self._all_updates.zero_()
        return self._updates

    def _has_lanes(self, experiment: int) -> bool:
        """Whether an experiment's slots, each alone in its pass, add to lanes."""
        alone = self._device_slots is None and self._slots_per_pass in (None, 1)
        return alone and self._experiments[experiment].merged_noise

    def _scratch(self, like: Tensor) -> Tensor:
        """Memory for noise that a worker keeps, of the shape of ``like``."""
        kept: Tensor | None = getattr(self._local, "scratch", None)
        if kept is None or kept.shape != like.shape or kept.dtype != like.dtype:
            kept = torch.empty_like(like)
            self._local.scratch = kept
        return kept

    def _scale(self, slot: Slot, step: int) -> float:
        """Factor on the sum of clipped gradients, alpha / B."""
        alpha = self._experiments[slot.experiment].step_size(slot.cohort.round, step)
        return alpha / int(slot.cohort.batch_sizes[slot.position])

    def _spread(self, slot: Slot, step: int) -> float:
        """Factor on the standard normal noise, alpha sigma; 0 where the noise is merged."""
        experiment = self._experiments[slot.experiment]
        if not experiment.adds_noise_at(step):
            return 0.0
        alpha = experiment.step_size(slot.cohort.round, step)
        return alpha * float(slot.cohort.noise_stds[slot.position])

    def _starting_weights(
        self, slots: list[Slot], parameters: Sequence[Tensor], *, shared: bool = True
    ) -> Tensor:
        """[groups, D]: one row an experiment if its slots are evenly many, else one a slot."""
        owners = tuple(slot.experiment for slot in slots)
        if shared:
            owners = _evenly_shared(owners)
        if len(owners) == 1:
            return parameters[owners[0]][None]
        return torch.stack([parameters[e] for e in owners])

    def _moved(
        self, slots: list[Slot], parameters: Sequence[Tensor], updates: list[Tensor]
    ) -> Tensor:
        if len(slots) == 1:  # straight into its place
            return updates[slots[0].experiment][slots[0].position][None].zero_()
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
            free = torch.cuda.mem_get_info(self._device)[0]
            limit = min(float(_DEVICE_PASS_BYTES), _DEVICE_PASS_SHARE * free)
        return max(1, int(limit / (4 * path.floats_per_example)))

    def _plan(self, slot: Slot) -> TrainingPlan:
        return self._experiments[slot.experiment].plan

    def _per_slot(self, slots: list[Slot], value: Callable[[Slot], float], like: Tensor) -> Tensor:
        return torch.tensor([value(s) for s in slots], dtype=like.dtype, device=like.device)


def _evenly_shared(owners: tuple[int, ...]) -> tuple[int, ...]:
    """The experiments among the owners if each has equally many slots, else the owners."""
    experiments, counts = np.unique(owners, return_counts=True)
    return tuple(experiments.tolist()) if np.all(counts == counts[0]) else owners


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
