# SPDX-License-Identifier: Apache-2.0
"""Local training of many draws at once: Algorithm 1, lines 9-19, for all draws of a round.

Every draw of every experiment has its own weights, clip, noise, step size and batch. On an
accelerator many draws share one pass (``device_draws``), and while it computes a round the host
draws the batches of the next. On a CPU each draw has a pass of its own, on one thread, and as many
run at a time as there are workers: a core's caches then hold one draw, and the result does not
depend, to the bit, on the number of workers or on what else is in the stack.

With merged noise only the sum of an experiment's updates matters, and they carry no noise of their
last step. On a CPU the draws then add straight to a few ``partial_sums``, several of them in one
pass if they take one step only.

Private draws, whose streams have no seed, go one by one on every device: each record's gradient is
formed, clipped and cut to integers by itself, the integers are added, and noise of a cryptographic
stream is added to their sum (``lattice``). What a record contributes is then bounded by
construction, and no bit of it depends on the records beside it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import IntArray, whole_number
from dpcohort.aggregation import Cohort
from dpcohort.engine.clipping import ClippedNetwork, ClippingPath, Loss
from dpcohort.engine.device_draws import DeviceDraws, PreparedPass, pack
from dpcohort.engine.experiment import Experiment
from dpcohort.engine.lattice import Lattice, release
from dpcohort.engine.partial_sums import (
    PARTIAL_SUMS,
    PartialSums,
    joined,
    one_thread_each,
    use_one_thread,
)
from dpcohort.engine.randomness import draw_positions, pad_batches, standard_noise_

__all__ = ["Draw", "DrawRunner"]

_CPU_PASS_BYTES = 160 << 20
_DEVICE_PASS_SHARE = 0.25  # of the free memory
_DEVICE_PASS_BYTES = 8 << 30  # more keeps no device busier, and others may want a part of it
_FORMED_NUMBERS = {"cpu": 1 << 22, "cuda": 1 << 27}  # of private gradients at a time
_WIDTH_MULTIPLE = 8  # padded batches come in few widths, for devices that tune to shapes


@dataclass(frozen=True)
class Draw:
    """One draw of one experiment in one round.

    Attributes:
        experiment: whose draw it is.
        number: the experiment's place among those side by side.
        cohort: all draws of its round.
        position: its place in the cohort.
    """

    experiment: Experiment
    number: int
    cohort: Cohort
    position: int

    @property
    def client(self) -> int:
        """The client's position in its population."""
        return int(self.cohort.clients[self.position])

    @property
    def name(self) -> dict[str, int]:
        """The part of its streams' names that is the draw's own."""
        draw = int(self.cohort.draws[self.position])
        return {"round": self.cohort.round, "client": self.client, "draw": draw}

    @property
    def clip(self) -> float:
        """The clip C."""
        return self.experiment.plan.training.clip

    def rows(self, step: int) -> IntArray:
        """The stored rows of its batch in one local step. SENSITIVE."""
        plan = self.experiment.plan
        positions = draw_positions(
            self.experiment.streams,
            plan.contract.sampler,
            size=int(plan.population.sizes[self.client]),
            rate=float(plan.sampling_rates[self.client]),
            batch_size=int(plan.batch_sizes[self.client]),
            **self.name,
            step=step,
        )
        return self.experiment.records.rows(self.client, positions)

    def scale(self, step: int) -> float:
        """Factor on the sum of clipped gradients, alpha / B."""
        alpha = self.experiment.step_size(self.cohort.round, step)
        return alpha / int(self.cohort.batch_sizes[self.position])

    def spread(self, step: int) -> float:
        """Factor on the standard normal noise, alpha sigma; 0 where the noise is merged."""
        if not self.experiment.adds_noise_at(step):
            return 0.0
        alpha = self.experiment.step_size(self.cohort.round, step)
        return alpha * float(self.cohort.noise_stds[self.position])


class DrawRunner:
    """Runs the local training of draws.

    Args:
        model: the module all experiments train.
        loss: one number an example.
        experiments: what runs side by side; all read the same stored rows.
        micro_batch: examples in one pass at most; None picks a bound from the model's size.
        workers: draws at a time on a CPU; None is as many as torch has threads.
        draws_per_pass: draws that share a pass at most; None is as many as fit the micro-batch,
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
        draws_per_pass: int | None = None,
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
        if draws_per_pass is not None:
            whole_number("draws_per_pass", draws_per_pass, at_least=1)
        self._draws_per_pass = draws_per_pass
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
        self._device_draws: DeviceDraws | None = None
        if not on_cpu and not self._is_private:
            self._device_draws = DeviceDraws(first, self._records, micro_batch=self.micro_batch)

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
        upcoming: Callable[[], list[Cohort] | None],
    ) -> tuple[list[Tensor], list[Cohort] | None]:
        """The same, and on an accelerator the next round's cohorts, prepared meanwhile.

        Args:
            parameters: [D] of each experiment.
            cohorts: the draws of each experiment.
            upcoming: gives what the next call will be asked for, None if nothing.

        Returns:
            The updates and what ``upcoming`` gave; None on a CPU, where it is not asked.
        """
        updates = self._cleared_updates(parameters, cohorts)
        if self._device_draws is None:
            self._run_by_draw(cohorts, parameters, updates)
            return updates, None
        ready = self._prepared is not None and self._prepared[0] is cohorts
        passes = self._prepared[1] if self._prepared and ready else self._prepare(cohorts)
        following: list[Cohort] | None = None

        def meanwhile() -> None:
            nonlocal following
            following = upcoming()
            self._prepared = (following, self._prepare(following)) if following else None

        self._device_draws.run(passes, parameters, self._all_updates, meanwhile=meanwhile)
        return updates, following

    def _prepare(self, cohorts: Sequence[Cohort]) -> list[PreparedPass]:
        """Batches, names of noise and factors of all passes of a round, for an accelerator."""
        passes, first = [], 0
        for draws in self._chunks(cohorts):
            packed = [
                pack(
                    [draw.rows(step) for draw in draws],
                    [draw.experiment.streams.noise_name(**draw.name, step=step) for draw in draws],
                    scale=[draw.scale(step) for draw in draws],
                    spread=[draw.spread(step) for draw in draws],
                    clip=[draw.clip for draw in draws],
                    multiple=1 if len(draws) == 1 else _WIDTH_MULTIPLE,
                    pinned=self._device.type == "cuda",
                )
                for step in range(self._local_steps)
            ]
            owners = tuple(draw.number for draw in draws)
            passes.append(PreparedPass(first, owners, _evenly_shared(owners), tuple(packed)))
            first += len(draws)
        return passes

    def _run_by_draw(
        self, cohorts: Sequence[Cohort], parameters: Sequence[Tensor], updates: list[Tensor]
    ) -> None:
        idle: queue.SimpleQueue[ClippedNetwork] = queue.SimpleQueue()
        for network in self.networks:
            idle.put(network)

        def run(task: tuple[list[Draw], PartialSums | None, int]) -> None:
            network = idle.get()
            draws, sums, number = task
            try:
                if sums is None:
                    self._run(network, draws, parameters, updates)
                else:
                    self._run_into_sum(network, number, draws, parameters, sums)
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
    ) -> Iterator[tuple[list[Draw], PartialSums | None, int]]:
        """Draws that share a pass, the partial sums they add to, and their turn there."""
        if not any(map(self._has_partial_sums, range(len(cohorts)))):
            yield from ((draws, None, 0) for draws in self._chunks(cohorts))
            return
        for e, cohort in enumerate(cohorts):
            passes = [range(i, i + 1) for i in range(len(cohort))]
            sums = None
            if self._has_partial_sums(e):
                if self._local_steps == 1 and self._draws_per_pass is None:
                    passes = joined(cohort.batch_sizes.tolist())
                sums = PartialSums(updates[e], passes=len(passes))
            for number, positions in enumerate(passes):
                yield [Draw(self._experiments[e], e, cohort, i) for i in positions], sums, number

    def _chunks(self, cohorts: Sequence[Cohort]) -> Iterator[list[Draw]]:
        """Draws that share a pass: one on a CPU, whole experiments or parts of one elsewhere."""
        draws = [
            Draw(experiment, number, cohort, position)
            for number, (experiment, cohort) in enumerate(
                zip(self._experiments, cohorts, strict=True)
            )
            for position in range(len(cohort))
        ]
        limit = self._draws_per_pass
        if self._is_private:  # on an accelerator the noise of several is made at once
            wide = _FORMED_NUMBERS.get(self._device.type, 1) // self._dimension
            limit = 1 if self._device.type == "cpu" else max(1, wide)
        if limit is None:
            widest = max(int(cohort.batch_sizes.max()) for cohort in cohorts)
            limit = 1 if self._device_draws is None else max(1, self.micro_batch // widest)
        size = len(cohorts[0])
        if limit >= size and all(len(cohort) == size for cohort in cohorts):
            limit -= limit % size  # whole experiments: their draws start from shared weights
        for start in range(0, len(draws), limit):
            yield draws[start : start + limit]

    @torch.no_grad()
    def _run(
        self,
        network: ClippedNetwork,
        draws: list[Draw],
        parameters: Sequence[Tensor],
        updates: list[Tensor],
    ) -> None:
        """Local steps of the draws of one pass; writes their updates."""
        places = [updates[draw.number][draw.position] for draw in draws]
        if len(draws) == 1:  # straight into its place
            moved = places[0][None].zero_()
            self._take_steps(network, draws, parameters, moved, self._local_steps)
            return
        moved = parameters[0].new_zeros(len(draws), self._dimension)
        self._take_steps(network, draws, parameters, moved, self._local_steps)
        for place, row in zip(places, moved, strict=True):
            place.copy_(row)

    @torch.no_grad()
    def _run_into_sum(
        self, network: ClippedNetwork, number: int, draws: list[Draw],
        parameters: Sequence[Tensor], sums: PartialSums,
    ) -> None:  # fmt: skip
        """Adds the updates of draws, without the last step's noise, to a partial sum in their turn.

        Draws that take more than one step have weights of their own, so each comes alone.
        """
        last = self._local_steps - 1
        with sums.turn(number) as row:
            weights = parameters[draws[0].number][None]
            moved = None
            if last > 0:
                moved = torch.zeros_like(weights)
                self._take_steps(network, draws, parameters, moved, last)
                weights = weights - moved
            self._add_one_sum(network, draws, last, weights, row)
            if moved is not None:
                row().add_(moved)

    def _add_one_sum(
        self, network: ClippedNetwork, draws: list[Draw], step: int, weights: Tensor,
        total: Callable[[], Tensor],
    ) -> None:  # fmt: skip
        """Add alpha / B times the clipped sums of all draws of an experiment to one row [1, D]."""
        rows = [draw.rows(step) for draw in draws]
        inputs, targets = self._records.gather(np.concatenate(rows))
        if not len(inputs):
            return
        scales = [draw.scale(step) for draw in draws]
        network.clipped_sums(
            weights,
            inputs[None],
            targets[None],
            clip=weights.new_tensor([draws[0].clip]),
            scale=weights.new_tensor(np.repeat(scales, [part.size for part in rows]))[None],
            total=total,
            micro_batch=self.micro_batch,
        )

    def _take_steps(
        self, network: ClippedNetwork, draws: list[Draw], parameters: Sequence[Tensor],
        moved: Tensor, steps: int,
    ) -> None:  # fmt: skip
        """The first ``steps`` local steps of the draws; adds them to ``moved``, which is zero."""
        owners = tuple(draw.number for draw in draws)
        weights = _weights_of(_evenly_shared(owners), parameters)
        total = moved
        for step in range(steps):
            if step > 0:
                weights = _weights_of(owners, parameters) - moved
                total = torch.zeros_like(moved)
            if self._is_private:
                self._add_private_steps(network, draws, step, weights, total)
            else:
                self._add_sums(network, draws, step, weights, total)
                self._scale_and_add_noise(draws, step, total)
            if step > 0:
                moved += total

    def _add_private_steps(
        self, network: ClippedNetwork, draws: list[Draw], step: int, weights: Tensor,
        total: Tensor,
    ) -> None:  # fmt: skip
        """Add the steps alpha (sum / B + sigma noise) [draws, D], each on its lattice.

        Only sums with their noise leave it; those of public clients have none.
        """
        per_group = len(draws) // weights.shape[0]
        rows, sums, exponents, keys, factors = [], [], [], [], []
        for row, draw in enumerate(draws):
            at = weights[row // per_group]
            multiplier = float(draw.cohort.noise_multipliers[draw.position])
            if multiplier == 0.0:
                self._add_sums(network, [draw], step, at[None], total[row : row + 1])
                total[row] *= draw.scale(step)
                continue
            lattice = Lattice(multiplier, draw.clip)
            rows.append(row)
            sums.append(self._private_sum(network, draw.rows(step), at, lattice))
            exponents.append(lattice.exponent)
            keys.append(draw.experiment.streams.noise_key(**draw.name, step=step))
            factors.append(lattice.unit * draw.scale(step))
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
        self, network: ClippedNetwork, draws: list[Draw], step: int, weights: Tensor,
        total: Tensor,
    ) -> None:  # fmt: skip
        multiple = 1 if len(draws) == 1 else _WIDTH_MULTIPLE
        rows, mask = pad_batches([draw.rows(step) for draw in draws], multiple=multiple)
        if rows.shape[1] == 0:
            return
        inputs, targets = self._records.gather(rows.reshape(-1))
        network.clipped_sums(
            weights,
            inputs.view(*rows.shape, *inputs.shape[1:]),
            targets.view(*rows.shape, *targets.shape[1:]),
            clip=weights.new_tensor([draw.clip for draw in draws]),
            mask=None if mask.all() else torch.as_tensor(mask, device=self._device),
            total=total,
            micro_batch=self.micro_batch,
        )

    def _scale_and_add_noise(self, draws: list[Draw], step: int, total: Tensor) -> None:
        """From the clipped sums to the step alpha (sum / B + sigma noise), in place."""
        scale = [draw.scale(step) for draw in draws]
        spread = [draw.spread(step) for draw in draws]
        noise = self._noise_memory(total)
        for row, draw in enumerate(draws):
            if spread[row] > 0:
                standard_noise_(noise[row], draw.experiment.streams, **draw.name, step=step)
            else:
                noise[row] = 0
        if len(draws) == 1:
            total.mul_(scale[0]).add_(noise, alpha=spread[0])
            return
        total.mul_(total.new_tensor(scale)[:, None])
        total.addcmul_(noise, total.new_tensor(spread)[:, None])

    def _cleared_updates(
        self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]
    ) -> list[Tensor]:
        """Zeros for the updates; fresh memory every round would cost more than the noise."""
        rows = [
            min(len(cohort), PARTIAL_SUMS) if self._has_partial_sums(e) else len(cohort)
            for e, cohort in enumerate(cohorts)
        ]
        shapes = [(n, p.numel()) for n, p in zip(rows, parameters, strict=True)]
        if [tuple(update.shape) for update in self._updates] != shapes:
            self._all_updates = parameters[0].new_empty(sum(rows), parameters[0].numel())
            self._updates = list(torch.split(self._all_updates, rows))
        if self._device.type != "cpu":  # a CPU's workers clear their own rows, side by side
            self._all_updates.zero_()
        return self._updates

    def _has_partial_sums(self, experiment: int) -> bool:
        """Whether an experiment's draws, each alone in its pass, add to partial sums."""
        alone = self._device_draws is None and self._draws_per_pass in (None, 1)
        return alone and self._experiments[experiment].merged_noise

    def _noise_memory(self, like: Tensor) -> Tensor:
        """Memory that a worker keeps and writes over, in its core's cache, shaped like ``like``."""
        kept: Tensor | None = getattr(self._local, "noise", None)
        if kept is None or kept.shape != like.shape or kept.dtype != like.dtype:
            kept = self._local.noise = torch.empty_like(like)
        return kept

    def _default_micro_batch(self, path: ClippingPath) -> int:
        """As many examples as fit a bound on memory; on a CPU the bound is always the same."""
        limit = float(_CPU_PASS_BYTES)
        if self._device.type == "cuda":
            free = torch.cuda.mem_get_info(self._device)[0]
            limit = min(float(_DEVICE_PASS_BYTES), _DEVICE_PASS_SHARE * free)
        return max(1, int(limit / (4 * path.floats_per_example)))


def _evenly_shared(owners: tuple[int, ...]) -> tuple[int, ...]:
    """The experiments among the owners if each has equally many draws, else the owners."""
    experiments, counts = np.unique(owners, return_counts=True)
    return tuple(experiments.tolist()) if np.all(counts == counts[0]) else owners


def _weights_of(owners: tuple[int, ...], parameters: Sequence[Tensor]) -> Tensor:
    """[owners, D]: the parameters of these experiments."""
    if len(owners) == 1:
        return parameters[owners[0]][None]
    return torch.stack([parameters[owner] for owner in owners])
