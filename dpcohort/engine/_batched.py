# SPDX-License-Identifier: Apache-2.0
"""The fast engine: Algorithm 1, lines 9-19, for all draws of a round and many experiments at once.

It does what ``reference`` does, with the same batches and the same noise; the two differ by the
rounding of floating-point sums only.

Every draw of every experiment has its own weights, clip, noise, step size and batch. On an
accelerator many draws share one pass (``device_draws``), and while it computes a round the host
prepares the next. On a CPU each draw has a pass of its own, on one thread, and as many
run at a time as there are workers: a core's caches then hold one draw, and the result does not
depend, to the bit, on the number of workers or on what else is in the stack. Only the draws of a
linear model, which are small, share one, private or not (``linear``).

A batch too large for one pass is cut into parts, by the model's shapes and the public batch size,
and different workers take them. Floating-point sums depend on their order: to a draw's sum its
parts add in their order, whoever computes them. A worker waits only if the part before is not done,
which is rare as workers take the same part of several draws first; and it waits when it has its
gradients and not before.

Python's lock, of which there is one for all workers, is needed between operations. So a step of
shapes that come often is two calls without it, and while a round is computed the next is prepared:
its batches, and what its noise will be drawn from. Batches of random size come in few widths, and
private passes in few sizes, so that theirs come often too.

With merged noise only the sum of an experiment's updates matters, and they carry no noise of their
last step. On an accelerator all draws of an experiment are then one batch, each record with the
factor of its draw. On a CPU draw i then adds to partial sum i modulo their number, in the order of
the draws: 0, 16, 32, ...; 1, 17, 33, ...; and so on. At the end the partial sums are added in their
order. None of that depends on the number of workers or on who is faster.

Of private draws, whose streams have no seed, each record's gradient is computed as nothing but a
function of it and the weights (``isolated``), clipped and cut to integers by itself, the integers
are added, and noise of a cryptographic stream is added to their sum (``lattice``). What a record
contributes is then bounded by construction, and no bit of it depends on the records beside it.
Where noise is distributed the integers of all draws of a round are added, in any order, and their
sum gets its noise once. On a GPU the draws of a round share passes of one public shape
(``joined_draws``) where layers are known to keep records apart, and batches of the next round are
drawn meanwhile; elsewhere draws go one by one.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import FloatArray, IntArray, whole_number
from dpcohort.accounting._sampler import WordArray
from dpcohort.aggregation import Cohort
from dpcohort.engine._counter_noise import AVAILABLE as DRAWS_BATCHES
from dpcohort.engine._device_draws import (
    DeviceDraws,
    NamedBatches,
    PreparedPass,
    pack,
    weights_of,
)
from dpcohort.engine._experiment import (
    Draw,
    Engine,
    Experiment,
    cohort_rows,
    member_lattices,
    release_sum,
)
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine._joined_draws import JoinedDraw, JoinedDraws, room_for
from dpcohort.engine._lattice import Lattice, lattice_of, release
from dpcohort.engine._linear import LinearModel
from dpcohort.engine._randomness import (
    draw_names,
    first_words,
    pad_batches,
    standard_noise_,
)
from dpcohort.engine._ranks import Ranks
from dpcohort.engine._rounds import CohortUpdates, one_thread_each
from dpcohort.engine.clipping import ClippedNetwork, ClippingPath, Loss, cross_entropy
from dpcohort.errors import InputError
from dpcohort.models._moments import loss_in_training

_CPU_PASS_BYTES = 160 << 20
_DEVICE_PASS_SHARE = 0.25  # of the free memory
_DEVICE_PASS_BYTES = 8 << 30  # more keeps no device busier, and others may want a part of it
_FORMED_NUMBERS = {"cpu": 1 << 22, "cuda": 1 << 27}  # of private draws at a time
_JOINED_ON = {"cuda"}  # devices on which private draws share passes
_KEYS_AT_A_TIME = 1 << 25  # for batches that a device draws
_READY = 4  # tasks for each worker that are made ready while the round before is computed
_ALONE_MULTIPLE = 16  # of the width of a draw's own pass
_WIDTH_MULTIPLE = 8  # padded batches come in few widths, for devices that tune to shapes
_JOINED_MULTIPLE = 512  # the same, for all records of a cohort whose number is not the last one's


class BatchedEngine(Engine):
    """Trains experiments fast, alone or side by side; gives the results of ``ReferenceEngine``.

    Args:
        model: any module whose examples do not mix; it is not changed.
        experiments: plans, streams and optimisers; as many rounds and local steps each, and all
            read the same stored rows.
        loss: one number an example.
        micro_batch: examples in one pass at most; bounds memory and changes results only by
            rounding. None picks a bound from the model's size.
        workers: draws at a time on a CPU; changes nothing but the time. None is as many as torch
            has threads.
        draws_per_pass: draws that share a pass at most; None is as many as fit the micro-batch,
            on a CPU 1, or a few whose sum alone counts.
    """

    def __init__(
        self,
        model: nn.Module,
        experiments: Sequence[Experiment],
        *,
        loss: Loss = cross_entropy,
        micro_batch: int | None = None,
        workers: int | None = None,
        draws_per_pass: int | None = None,
    ) -> None:
        super().__init__(model, experiments)
        loss = self._records.loss(loss_in_training(self._model, loss))
        self._device = self._records.device
        self._local_steps = experiments[0].plan.training.local_steps
        self._is_private = not experiments[0].streams.is_reproducible
        on_cpu = self._device.type == "cpu"
        self.workers = (workers or torch.get_num_threads()) if on_cpu else 1
        bounds = {"micro_batch": micro_batch, "draws_per_pass": draws_per_pass}
        for name, bound in {"workers": self.workers, **bounds}.items():
            if bound is not None:
                whole_number(name, bound, at_least=1)
        #: The processes among which the rows of a round are shared.
        self.ranks = Ranks()
        self._draws_per_pass = draws_per_pass
        self._updates: list[Tensor] = []
        self._all_updates = torch.empty(0)
        self._prepared: tuple[list[Cohort], list[PreparedPass]] | None = None
        self._whole_passes: dict[int, tuple[list[bytes], PreparedPass]] = {}
        self._local = threading.local()
        self._adding = threading.Lock()
        weight = next(self._model.parameters())
        self._clips = [weight.new_tensor([one.plan.training.clip]) for one in experiments]
        self._ready: dict[tuple[int, ...], _Ready] = {}
        # Threads start when they are first needed, and end with the engine.
        self._pool = ThreadPoolExecutor(
            self.workers, initializer=torch.set_num_threads, initargs=(1,)
        )
        inputs, targets = self._records.gather(self._records.indices[:3])
        #: What computes private records, for each of the networks.
        self._isolated: list[IsolatedModel] = []
        if self._is_private:
            alone = IsolatedModel(self._model, loss, inputs, targets)
            others = (alone.for_another_thread() for _ in range(self.workers - 1))
            self._isolated = [alone, *others]
            self.isolated = alone
        #: The closed form of a linear model, on a CPU.
        self._linear = LinearModel.of(self._model, loss, inputs, targets)
        path = None if self._linear is None else self._linear.path
        first = ClippedNetwork(self._model, loss, inputs, targets, path=path)
        copies = [
            ClippedNetwork(self._model, loss, inputs, targets, path=first.path)
            for _ in range(self.workers - 1)
        ]
        for network in copies:
            network.passes, network.steps = first.passes, first.steps
        self.networks = [first, *copies]
        self._dimension = first.layout.dimension
        self.micro_batch = micro_batch or self._default_micro_batch(first.path)
        self._joined: JoinedDraws | None = None
        self._drawn_ahead: list[Draw] = []
        if self._is_private and self._device.type in _JOINED_ON:
            self._joined = alone.joined_draws(self._records.gather, self.micro_batch)
        self._joins_draws = (
            not on_cpu
            and not self._is_private
            and self._local_steps == 1
            and draws_per_pass is None
            and all(experiment.only_sum_counts for experiment in experiments)
        )
        self._device_draws: DeviceDraws | None = None
        corrected = any(one.optimiser.local is not None for one in experiments)
        if not on_cpu and not self._is_private and not corrected:
            indices, self._starts = _indices_of(experiments)
            self._most_records = max(int(one.records.sizes.max()) for one in experiments)
            self._device_draws = DeviceDraws(
                first, self._records, micro_batch=self.micro_batch, indices=indices
            )

    @property
    def path(self) -> ClippingPath:
        """How the model's gradients are clipped, and why so."""
        return (self._isolated or self.networks)[0].path

    @property
    def raw_nonfinite_count(self) -> int:
        """Records left out so far because their gradient was not finite. SENSITIVE.

        It depends on private records and carries no noise: it is for the client's own eyes, in
        a simulation for the developer's, and must not enter a record, a log or a file.
        """
        return sum(network.raw_nonfinite_count for network in self.networks)

    def updates(
        self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]
    ) -> list[CohortUpdates]:
        """The noisy updates [draws, D] of a round of every experiment, from its parameters [D].

        They lie in memory that the next call uses again. With merged noise they are rows whose sum
        is that of the updates, without the noise of their last steps. Of a private experiment with
        distributed noise there is one row, that sum with its noise. Where ranks share a round, the
        first of them has all rows and another has its share.
        """
        updates = self._memory_for_updates(parameters, cohorts)
        self.ranks.begin(parameters, cohorts)
        if self._device_draws is None:
            self._run_by_draw(cohorts, parameters, updates)
        else:
            ready = self._prepared is not None and _same(self._prepared[0], cohorts)
            passes = self._prepared[1] if self._prepared and ready else self._prepare(cohorts)
            self._device_draws.run(
                passes,
                parameters,
                self._all_updates,
                meanwhile=lambda: self._prepare_ahead(cohorts[0].round + 1),
                is_any=self.ranks.is_any,
            )
            self.ranks.collect(self._all_updates, _rows_of(passes))
        self.ranks.done()
        return [CohortUpdates(*pair) for pair in zip(cohorts, updates, strict=True)]

    def _prepare_ahead(self, t: int) -> None:
        """Prepare a round to come, if its cohorts are known and can be done."""
        upcoming = self._upcoming(t)
        self._prepared = (upcoming, self._prepare(upcoming)) if upcoming else None

    def _planned(self, t: int) -> list[Cohort]:
        prepared = [] if self._prepared is None else self._prepared[0]
        return prepared if prepared and prepared[0].round == t else super()._planned(t)

    def _upcoming(self, t: int) -> list[Cohort] | None:
        """The cohorts of a round to come, None if they are not known or cannot be done."""
        try:
            return super()._planned(t)
        except InputError:  # the round under way can still be done; the next will say what is wrong
            return None

    def _prepare(self, cohorts: Sequence[Cohort]) -> list[PreparedPass]:
        """Batches, names of noise and factors of passes of a round, for an accelerator.

        They are this rank's share of all passes, which are the same for any number of ranks.
        """
        if self._joins_draws:
            return list(self._prepare_joined(cohorts))
        steps = [self._columns(cohorts, step) for step in range(self._local_steps)]
        owners = np.repeat(np.arange(len(cohorts)), [len(cohort) for cohort in cohorts])
        clips = np.array([one.plan.training.clip for one in self._experiments])[owners]
        at_a_time, passes = self._draws_of_a_pass(cohorts), []
        for number in self.ranks.share(-(-owners.size // at_a_time)):
            these = slice(number * at_a_time, (number + 1) * at_a_time)
            own = tuple(owners[these].tolist())
            packed = [
                pack(
                    rows[these],
                    names[these],
                    scale=scale[these],
                    spread=spread[these],
                    clip=clips[these],
                    multiple=1 if len(own) == 1 else _WIDTH_MULTIPLE,
                    pinned=self._device.type == "cuda",
                    named=None if named is None else named._replace(words=named.words[:, these]),
                )
                for rows, named, names, scale, spread in steps
            ]
            passes.append(PreparedPass(these.start, own, _evenly_shared(own), tuple(packed)))
        return passes

    def _columns(
        self, cohorts: Sequence[Cohort], step: int
    ) -> tuple[list[IntArray], NamedBatches | None, WordArray, FloatArray, FloatArray]:
        """Rows or names of batches, names of noise, factors on sums and noise, of all draws."""
        rows, scale, spread = [], [], []
        named = self._named_batches(cohorts, step)
        for experiment, cohort in zip(self._experiments, cohorts, strict=True):
            if named is None:
                rows += cohort_rows(experiment, cohort, step)
            sizes = experiment.step_sizes(cohort, step)
            scale.append(sizes / cohort.batch_sizes)
            spread.append(sizes * cohort.noise_stds * experiment.adds_noise_at(step))
        if named is not None:
            rows = [np.zeros(named.batch_size, dtype=np.int64)] * named.words.shape[1]
        streams = [experiment.streams for experiment in self._experiments]
        words = first_words(draw_names(streams, "noise", cohorts, step))
        return rows, named, words, np.concatenate(scale), np.concatenate(spread)

    def _named_batches(self, cohorts: Sequence[Cohort], step: int) -> NamedBatches | None:
        """Batches for the device to draw; None where it cannot, and where one cannot be drawn."""
        fixed = all(one.plan.contract.sampler.has_constant_batches for one in self._experiments)
        batch_size = int(cohorts[0].batch_sizes[0])
        alike = all(np.all(cohort.batch_sizes == batch_size) for cohort in cohorts)
        if not (self._device.type == "cuda" and DRAWS_BATCHES and fixed and alike):
            return None
        both = list(zip(self._experiments, cohorts, strict=True))
        sizes = np.concatenate([np.asarray(e.plan.population.sizes)[c.clients] for e, c in both])
        longest = self._most_records
        if sizes.min() < batch_size or sizes.size * longest > _KEYS_AT_A_TIME:
            return None
        starts = np.concatenate(
            [one.records.offsets[cohort.clients] + start
             for (one, cohort), start in zip(both, self._starts, strict=True)]
        )  # fmt: skip
        names = draw_names([e.streams for e in self._experiments], "batch", cohorts, step)
        words = np.concatenate([names, np.stack([sizes, starts]).astype(np.uint64)])
        return NamedBatches(words, batch_size, longest)

    def _prepare_joined(self, cohorts: Sequence[Cohort]) -> Iterator[PreparedPass]:
        """Passes of whole experiments: the records of all draws of one are one batch, by client.

        Where everybody takes part with all records a round is like the one before; its passes are
        prepared once.
        """
        widest = max(int(cohort.batch_sizes.sum()) for cohort in cohorts)
        at_a_time = max(1, self.micro_batch // widest)
        firsts = range(0, len(cohorts), at_a_time)
        for first in (firsts[number] for number in self.ranks.share(len(firsts))):
            numbers = tuple(range(first, min(first + at_a_time, len(cohorts))))
            orders = [np.argsort(cohorts[number].clients, kind="stable") for number in numbers]
            factors, key = [], []
            for number, order in zip(numbers, orders, strict=True):
                cohort = cohorts[number]
                sizes = self._experiments[number].step_sizes(cohort, 0)
                factors.append((sizes / cohort.batch_sizes)[order])
                key += [cohort.clients[order].tobytes(), factors[-1].tobytes()]
            whole = all(self._uses_all_records(number, cohorts[number]) for number in numbers)
            known, prepared = self._whole_passes.get(first, ([], None))
            if prepared is None or known != key:
                prepared = self._joined_pass(numbers, cohorts, orders, factors)
                if whole:
                    self._whole_passes[first] = key, prepared
            yield prepared

    def _uses_all_records(self, number: int, cohort: Cohort) -> bool:
        plan = self._experiments[number].plan
        rates = np.asarray(plan.sampling_rates)[cohort.clients]
        return plan.contract.sampler.takes_all(rates)

    def _joined_pass(
        self, numbers: tuple[int, ...], cohorts: Sequence[Cohort], orders: Sequence[IntArray],
        factors: Sequence[FloatArray],
    ) -> PreparedPass:  # fmt: skip
        rows, row_scale = [], []
        multiple = _WIDTH_MULTIPLE
        for number in numbers:
            plan = self._experiments[number].plan
            fixed = plan.contract.sampler.has_constant_batches or self._uses_all_records(
                number, cohorts[number]
            )
            if not fixed or np.ptp(plan.batch_sizes) > 0:  # a round is seldom as wide as another
                multiple = _JOINED_MULTIPLE
        for number, order, own in zip(numbers, orders, factors, strict=True):
            drawn = cohort_rows(self._experiments[number], cohorts[number], 0)
            each = [drawn[i] for i in order.tolist()]
            rows.append(np.concatenate(each))
            row_scale.append(np.repeat(own, [part.size for part in each]))
        step = pack(
            rows,
            [np.zeros(2, dtype=np.uint64)] * len(numbers),
            scale=[1.0] * len(numbers),
            spread=[0.0] * len(numbers),
            clip=[self._experiments[number].plan.training.clip for number in numbers],
            multiple=multiple,
            pinned=self._device.type == "cuda",
            row_scale=row_scale,
        )
        return PreparedPass(numbers[0], numbers, numbers, (step,))

    def _run_by_draw(
        self, cohorts: Sequence[Cohort], parameters: Sequence[Tensor], updates: list[Tensor]
    ) -> None:
        idle: queue.SimpleQueue[ClippedNetwork] = queue.SimpleQueue()
        for network in self.networks:
            idle.put(network)
        distributed = {
            e: torch.zeros(self._dimension, dtype=torch.int64, device=self._device)
            for e, experiment in enumerate(self._experiments)
            if experiment.releases_sums
        }

        def run(task: tuple[list[Draw], Turn | None]) -> None:
            if next(begun) >= min(self.workers, len(tasks)):
                all_busy.set()
            network = idle.get()
            draws, turn = task
            try:
                if draws[0].number in distributed:
                    self._add_integers(network, draws, parameters, distributed[draws[0].number])
                elif turn is None:
                    self._run(network, draws, parameters, updates)
                else:
                    self._run_into_sum(network, draws[0], parameters, turn)
            finally:
                idle.put(network)

        tasks = list(self._tasks(cohorts, updates))
        begun, all_busy = itertools.count(1), threading.Event()
        with one_thread_each():
            self.networks[0].record_frequent_passes(
                parameters[0],
                workers=self.workers,
                gather=None if self._records.transform else self._records.gather_from,
                stored=self._records.stored,
            )
            if self._isolated:
                self._isolated[0].record_frequent_passes(parameters[0], workers=self.workers)
            if self.workers == 1:
                for task in tasks:
                    run(task)
            else:
                done = self._pool.map(run, tasks)
                if tasks:
                    all_busy.wait()
                ready = self._made_ready(cohorts[0].round + 1)
                list(done)
                self._ready = ready
            self.ranks.collect(self._all_updates, self.ranks.share(len(self._all_updates)))
            for e, total in distributed.items():
                self.ranks.add(total)
                if self.ranks.leads:  # noise once, on the integers of all ranks
                    one = self._experiments[e]
                    updates[e][0] = release_sum(total, cohorts[e], one, dtype=updates[e].dtype)

    def _made_ready(self, t: int) -> dict[tuple[int, ...], _Ready]:
        """What workers of a round to come would do first, one after the other, if it is known.

        Python's lock would keep the last of them from its pass until the others have begun theirs.
        """
        cohorts = None if self._is_private or not self.networks[0].steps else self._upcoming(t)
        if cohorts is None:
            return {}
        self._prepared = cohorts, []
        try:
            draws = itertools.islice(self._parts_in_order(cohorts), _READY * self.workers)
            return {_key(draw): _ready(draw) for draw in draws}
        except InputError:  # the round itself will say what is wrong
            return {}

    def _tasks(
        self, cohorts: Sequence[Cohort], updates: list[Tensor]
    ) -> Iterator[tuple[list[Draw], Turn | None]]:
        """What workers take, in this order: draws, or a part of one, and when it may add.

        Of several ranks each has the rows of its share, with all that adds to them.
        """
        if self._is_private or self._linear or self._draws_per_pass not in (None, 1):
            yield from ((draws, None) for draws in self._chunks(cohorts))
            return
        turns = [[turns_to_add_to(row[None]) for row in rows] for rows in updates]
        for draw in self._parts_in_order(cohorts):
            rows = turns[draw.number]
            corrected = draw.experiment.optimiser.local is not None
            several = self._local_steps > 1 and not self._has_partial_sums(draw.number)
            alone = several or corrected
            yield [draw], None if alone else next(rows[draw.position % len(rows)])

    def _parts_in_order(self, cohorts: Sequence[Cohort]) -> Iterator[Draw]:
        """Draws, or parts of them: the same part of several draws first."""
        own = self._own_rows(cohorts)
        for e, cohort in enumerate(cohorts):
            count = self._row_count(e, len(cohort))
            parts = [self._parts(int(size)) for size in cohort.batch_sizes]
            if self._experiments[e].optimiser.local is not None:  # a correction is of the whole
                parts = [[(0, None)] for _ in parts]
            for first in range(0, len(cohort), PARTIAL_SUMS):
                block = range(first, min(first + PARTIAL_SUMS, len(cohort)))
                for k in range(max(len(parts[i]) for i in block)):
                    for i in block:
                        if k < len(parts[i]) and i % count in own[e]:
                            yield Draw(self._experiments[e], e, cohort, i, parts[i][k])

    def _parts(self, batch_size: int) -> list[tuple[int, int | None]]:
        """The parts of a batch that workers take: of so many records that a pass can hold.

        They depend on public numbers only; a batch that is longer than expected has a long last
        part. So has one of which little would be left: whoever took that would wait for the part
        before. A draw that takes several steps takes them as a whole.
        """
        if self._local_steps > 1:
            return [(0, None)]
        short = self.micro_batch // 2
        ends = range(self.micro_batch, batch_size - short, self.micro_batch)
        return list(itertools.pairwise([0, *ends, None]))

    def _chunks(self, cohorts: Sequence[Cohort]) -> Iterator[list[Draw]]:
        """Draws that share a pass: one on a CPU, whole experiments or parts of one elsewhere."""
        every = [draw for e, cohort in enumerate(cohorts) for draw in self._draws(e, cohort)]
        if self._drawn_ahead and self._prepared and _same(self._prepared[0], cohorts):
            every = self._drawn_ahead
        self._drawn_ahead = []
        if self._device_draws is None:  # of every draw its own rank draws the batch and the noise
            own = self._own_rows(cohorts)
            every = [draw for draw in every if draw.position in own[draw.number]]
        draws = [draw for draw in every if not draw.experiment.releases_sums]
        sums = [draw for draw in every if draw.experiment.releases_sums]
        if self._joined is None:
            yield from ([draw] for draw in sums)
        else:
            yield from (list(own) for _, own in itertools.groupby(sums, lambda draw: draw.number))
        at_a_time = self._draws_of_a_pass(cohorts)
        for start in range(0, len(draws), at_a_time):
            yield draws[start : start + at_a_time]

    def _draws_of_a_pass(self, cohorts: Sequence[Cohort]) -> int:
        limit = self._draws_per_pass
        if self._linear is not None and limit is None:
            widest = max(int(cohort.batch_sizes.max()) for cohort in cohorts)
            limit = self._linear.draws_at_a_time(widest, formed=self._is_private)
        elif self._is_private:  # on an accelerator the noise of several is made at once
            wide = _FORMED_NUMBERS.get(self._device.type, 1) // self._dimension
            limit = 1 if self._device.type == "cpu" and not self._joined else max(1, wide)
        if limit is None:
            widest = max(int(cohort.batch_sizes.max()) for cohort in cohorts)
            limit = 1 if self._device_draws is None else max(1, self.micro_batch // widest)
        size = len(cohorts[0])
        if limit >= size and all(len(cohort) == size for cohort in cohorts):
            limit -= limit % size  # whole experiments: their draws start from shared weights
        return limit

    @torch.no_grad()
    def _run(
        self,
        network: ClippedNetwork,
        draws: list[Draw],
        parameters: Sequence[Tensor],
        updates: list[Tensor],
    ) -> None:
        """Local steps of the draws of one pass; writes their updates."""
        if len(draws) == 1:  # straight into its place
            at = draws[0].position
            moved = updates[draws[0].number][at : at + 1].zero_()
            self._take_steps(network, draws, parameters, moved, self._local_steps)
            return
        moved = parameters[0].new_zeros(len(draws), self._dimension)
        self._take_steps(network, draws, parameters, moved, self._local_steps)
        place = 0
        for number, some in itertools.groupby(draws, key=lambda draw: draw.number):
            own = [draw.position for draw in some]
            updates[number][own[0] : own[-1] + 1] = moved[place : place + len(own)]
            place += len(own)

    @torch.no_grad()
    def _run_into_sum(
        self, network: ClippedNetwork, draw: Draw, parameters: Sequence[Tensor], turn: Turn
    ) -> None:
        """Adds the update of a draw, or of a part of one, to a sum when its turn comes.

        Of a sum of several draws, whose noise is merged, the last step's noise is left out.
        """
        last = self._local_steps - 1
        merged = draw.experiment.only_sum_counts
        with turn as row:
            if last == 0 and network.steps:
                left = self._in_two_calls(network, draw, parameters, row)
                if left is None:
                    return
                draw = left
            weights = parameters[draw.number][None]
            moved = None
            if last > 0:
                moved = torch.zeros_like(weights)
                self._take_steps(network, [draw], parameters, moved, last)
                weights = weights - moved
            scale = draw.scale(last) if merged else None
            self._add_sums(network, [draw], last, weights, row, scale=scale)
            if moved is not None:
                row().add_(moved)
            if not merged and draw.part[1] is None:
                self._scale_and_add_noise([draw], last, row())

    def _in_two_calls(
        self, network: ClippedNetwork, draw: Draw, parameters: Sequence[Tensor],
        row: Callable[[], Tensor],
    ) -> Draw | None:  # fmt: skip
        """Take a step where it is recorded and all is finite; otherwise the draw is given back.

        Between operations Python's lock is needed, of which there is one for all workers.
        """
        ready = self._ready.pop(_key(draw), None) or _ready(draw)
        width = _width_of(draw, ready.rows.size)
        step = network.steps.get(width)
        left = replace(draw, known_rows=ready.rows)
        if step is None or width == 0:
            return left
        begin, end = step
        merged = draw.experiment.only_sum_counts
        rows = np.full(width, ready.rows[0])
        rows[: ready.rows.size] = ready.rows
        weights = parameters[draw.number][None]
        scale = weights.new_zeros(1, width)
        scale[:, : ready.rows.size] = ready.scale if merged else 1.0
        finite, found = begin(
            torch.from_numpy(rows),
            *self._records.stored,
            weights,
            self._clips[draw.number],
            scale,
        )
        if not finite:
            return left
        place = row()
        last, noise = draw.part[1] is None and not merged, self._noise_memory(place)
        end(place, found, last, ready.scale, noise, ready.rng, ready.spread)
        return None

    def _take_steps(
        self, network: ClippedNetwork, draws: list[Draw], parameters: Sequence[Tensor],
        moved: Tensor, steps: int,
    ) -> None:  # fmt: skip
        """The first ``steps`` local steps of the draws; adds them to ``moved``, which is zero."""
        owners = tuple(draw.number for draw in draws)
        weights = weights_of(_evenly_shared(owners), parameters)
        total = moved
        for step in range(steps):
            if step > 0:
                weights = weights_of(owners, parameters) - moved
                total = torch.zeros_like(moved)
            if self._is_private:
                self._add_private_steps(network, draws, step, weights, total)
            else:
                self._add_sums(network, draws, step, weights, total)
                self._scale_and_add_noise(draws, step, total)
            for row, draw in enumerate(draws):
                at = weights[row * weights.shape[0] // len(draws)]
                correction = draw.correction(at, parameters[draw.number])
                if correction is not None:
                    total[row].add_(correction, alpha=draw.step_size(step))
            if step > 0:
                moved += total

    def _add_private_steps(
        self, network: ClippedNetwork, draws: list[Draw], step: int, weights: Tensor,
        total: Tensor,
    ) -> None:  # fmt: skip
        """Add the steps alpha (sum / B + sigma noise) [draws, D], each on its lattice.

        Only sums with their noise leave it; those of public clients have none.
        """
        rows: list[int] = []
        per_group = len(draws) // len(weights)
        for row, draw in enumerate(draws):
            if draw.noise_multiplier == 0.0:
                at = weights[row // per_group]
                self._add_sums(network, [draw], step, at[None], total[row : row + 1])
                total[row] *= draw.scale(step)
            else:
                rows.append(row)
        if not rows:
            return
        private = [draws[row] for row in rows]
        lattices = [lattice_of(draw.noise_multiplier, draw.clip) for draw in private]
        totals = None
        if len(private) == len(draws):
            totals = self._joined_sums(private, step, weights, lattices)
        if totals is None:
            own = [weights[row // per_group] for row in rows]
            totals = self._private_sums(network, private, step, own, lattices)
        pairs = list(zip(private, lattices, strict=True))
        noisy = release(
            totals,
            [lattice.exponent for lattice in lattices],
            [draw.experiment.streams.noise_key(**draw.name, step=step) for draw in private],
            factors=[lattice.unit * draw.scale(step) for draw, lattice in pairs],
            dtype=total.dtype,
            meanwhile=lambda: self._draw_ahead(draws[0].cohort.round + 1),
        )
        if len(rows) == len(draws):
            total += noisy
        else:
            total[rows] += noisy

    def _joined_sums(
        self, draws: list[Draw], step: int, weights: Tensor, lattices: Sequence[Lattice], *,
        together: bool = False,
    ) -> Tensor | None:  # fmt: skip
        """The integers of draws from passes that they share; None where they share none."""
        if self._joined is None:
            return None
        per_group, rooms = len(draws) // len(weights), []
        for first in range(0, len(draws), per_group):
            own = draws[first : first + per_group]
            plan = own[0].experiment.plan
            clients = [draw.client for draw in own]
            sizes = np.asarray(plan.population.sizes)[clients]
            rates = np.asarray(plan.sampling_rates)[clients]
            rooms.append(room_for(plan.contract.sampler, sizes, rates))
        joined = [
            JoinedDraw(draw.rows(step), lattice)
            for draw, lattice in zip(draws, lattices, strict=True)
        ]
        return self._joined.sums(weights, joined, room=max(rooms), together=together)

    def _draw_ahead(self, t: int) -> None:
        """Draw the batches of a round to come while the device computes, if its cohorts are known.

        Batches of several local steps may be drawn together, so these are left to the round.
        """
        if self._joined is None or self._local_steps > 1 or self._drawn_ahead:
            return
        cohorts = self._upcoming(t)
        if cohorts is not None:
            self._prepared = cohorts, []
            draws = [draw for e, one in enumerate(cohorts) for draw in self._draws(e, one)]
            self._drawn_ahead = [replace(draw, known_rows=draw.rows(0)) for draw in draws]

    @torch.no_grad()
    def _add_integers(
        self, network: ClippedNetwork, draws: list[Draw], parameters: Sequence[Tensor],
        total: Tensor,
    ) -> None:  # fmt: skip
        """Add draws' clipped gradients to the integers of their cohort, with distributed noise."""
        lattices = member_lattices(draws[0].cohort, draws[0].experiment.plan)
        both = [(draw, one) for draw in draws if (one := lattices[draw.position]) is not None]
        if not both:
            return
        weights, weighted = parameters[draws[0].number], [draw for draw, _ in both]
        joined = self._joined_sums(
            weighted, 0, weights[None], [lattice for _, lattice in both], together=True
        )
        if joined is not None:
            total += joined[0]
            self._draw_ahead(draws[0].cohort.round + 1)
            return
        for draw, lattice in both:
            (own,) = self._private_sums(network, [draw], 0, [weights], [lattice])
            with self._adding:
                total += own

    def _private_sums(
        self, network: ClippedNetwork, draws: list[Draw], step: int, weights: Sequence[Tensor],
        lattices: Sequence[Lattice],
    ) -> Tensor:  # fmt: skip
        """Clipped gradients of batches, each by itself on its lattice, [draws, D] integers."""
        return self._isolated[self.networks.index(network)].clipped_sums(
            weights,
            lattices,
            [draw.rows(step) for draw in draws],
            self._records.gather,
            [draw.batch_size for draw in draws],
        )

    def _add_sums(
        self, network: ClippedNetwork, draws: list[Draw], step: int, weights: Tensor,
        total: Tensor | Callable[[], Tensor], scale: float | None = None,
    ) -> None:  # fmt: skip
        if self._linear is not None:
            assert isinstance(total, Tensor)
            sums, lost = self._linear.clipped_sums(
                weights.repeat_interleave(len(draws) // len(weights), dim=0),
                [draw.rows(step) for draw in draws],
                self._records.gather,
                [draw.batch_size for draw in draws],
                clips=[draw.clip for draw in draws],
            )
            total += sums
            network.raw_nonfinite_count += lost
            return
        batches = [draw.rows(step) for draw in draws]
        multiple = _WIDTH_MULTIPLE
        if len(draws) == 1:
            multiple = max(1, _width_of(draws[0], batches[0].size))
        rows, mask = pad_batches(batches, multiple=multiple)
        if rows.shape[1] == 0:
            return
        inputs, targets = self._records.gather(rows.reshape(-1))
        network.clipped_sums(
            weights,
            inputs.view(*rows.shape, *inputs.shape[1:]),
            targets.view(*rows.shape, *targets.shape[1:]),
            clip=weights.new_tensor([draw.clip for draw in draws]),
            scale=None if scale is None else weights.new_full(rows.shape, scale),
            mask=None if mask.all() else torch.as_tensor(mask, device=self._device),
            total=total,
            micro_batch=self.micro_batch,
        )

    def _scale_and_add_noise(self, draws: list[Draw], step: int, total: Tensor) -> None:
        """From the clipped sums to the step alpha (sum / B + sigma noise), in place."""
        noise = self._noise_memory(total[:1])
        for row, draw in zip(total, draws, strict=True):
            row.mul_(draw.scale(step))
            if draw.spread(step) > 0:
                standard_noise_(noise[0], draw.experiment.streams, **draw.name, step=step)
                row.add_(noise[0], alpha=draw.spread(step))

    def _memory_for_updates(
        self, parameters: Sequence[Tensor], cohorts: Sequence[Cohort]
    ) -> list[Tensor]:
        """Where updates are written; fresh memory every round would cost more than the noise."""
        rows = [self._row_count(e, len(cohort)) for e, cohort in enumerate(cohorts)]
        shapes = [(n, p.numel()) for n, p in zip(rows, parameters, strict=True)]
        if [tuple(update.shape) for update in self._updates] != shapes:
            self._all_updates = parameters[0].new_empty(sum(rows), parameters[0].numel())
            self._updates = list(torch.split(self._all_updates, rows))
        return self._updates

    def _row_count(self, experiment: int, draws: int) -> int:
        """Rows that an experiment's updates come in."""
        if self._joins_draws or self._experiments[experiment].releases_sums:
            return 1
        return min(draws, PARTIAL_SUMS) if self._has_partial_sums(experiment) else draws

    def parts_of(self, t: int) -> int | None:
        """How many parts of a round ranks can share; None while its cohorts are not known."""
        cohorts = self._upcoming(t)
        if cohorts is None:
            return None
        if self._joins_draws:
            widest = max(int(cohort.batch_sizes.sum()) for cohort in cohorts)
            return -(-len(cohorts) // max(1, self.micro_batch // widest))
        if self._device_draws is not None:
            return -(-sum(map(len, cohorts)) // self._draws_of_a_pass(cohorts))
        return sum(
            len(cohort) if self._experiments[e].releases_sums else self._row_count(e, len(cohort))
            for e, cohort in enumerate(cohorts)
        )

    def _own_rows(self, cohorts: Sequence[Cohort]) -> list[range]:
        """The rows of each experiment that this rank computes; of a distributed sum, the draws."""
        counts = [self._row_count(e, len(cohort)) for e, cohort in enumerate(cohorts)]
        mine, own, before = self.ranks.share(sum(counts)), [], 0
        for e, count in enumerate(counts):
            rows = range(max(mine.start - before, 0), min(mine.stop - before, count))
            sums = self._experiments[e].releases_sums
            own.append(self.ranks.share(len(cohorts[e])) if sums else rows)
            before += count
        return own

    def _has_partial_sums(self, experiment: int) -> bool:
        """Whether an experiment's draws, each alone in its pass, add to partial sums."""
        if self._is_private or self._linear is not None:
            return False
        alone = self._device_draws is None and self._draws_per_pass in (None, 1)
        return alone and self._experiments[experiment].only_sum_counts

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
            # Features of a record may be many more numbers than what a small model makes of them.
            first, _ = self._records.gather(self._records.indices[:1])
            return max(1, int(limit / (4 * (path.floats_per_example + 2 * first.numel()))))
        return max(1, int(limit / (4 * path.floats_per_example)))


class _Ready(NamedTuple):
    """What the first step of a draw needs: rows, rng for its noise, factors on sum and noise."""

    rows: IntArray
    rng: torch.Generator | None
    scale: float
    spread: float


def _ready(draw: Draw) -> _Ready:
    spread = draw.spread(0) if draw.part[1] is None else 0.0
    rng = None
    if spread > 0:
        rng = draw.experiment.streams.generator("noise", **draw.name, step=0)
    rows = np.require(draw.rows(0), requirements="W")
    return _Ready(rows, rng, draw.scale(0), spread)


def _width_of(draw: Draw, rows: int) -> int:
    """Rows of a pass of one draw: batches of any size come in few widths, which are recorded."""
    if draw.experiment.plan.contract.sampler.has_constant_batches:
        return rows
    return -(-rows // _ALONE_MULTIPLE) * _ALONE_MULTIPLE


def _key(draw: Draw) -> tuple[int, ...]:
    """Which part of which draw of which experiment, and of which round."""
    return draw.number, draw.part[0], *draw.name.values()


def _indices_of(experiments: Sequence[Experiment]) -> tuple[Tensor, list[int]]:
    """The stored rows of all clients of all experiments, and where those of each begin."""
    begins: dict[int, int] = {}
    parts, total = [], 0
    for indices in (experiment.records.indices for experiment in experiments):
        if id(indices) not in begins:
            begins[id(indices)] = total
            parts.append(torch.tensor(indices, device=experiments[0].records.device))
            total += indices.size
    return torch.cat(parts), [begins[id(one.records.indices)] for one in experiments]


def _same(some: Sequence[Cohort], others: Sequence[Cohort]) -> bool:
    return len(some) == len(others) and all(
        a is b or (a.round == b.round and np.array_equal(a.clients, b.clients))
        for a, b in zip(some, others, strict=True)
    )


def _rows_of(passes: Sequence[PreparedPass]) -> range:
    """The rows of a round's updates that passes write, which follow each other."""
    if not passes:
        return range(0)
    return range(passes[0].first, passes[-1].first + len(passes[-1].owners))


def _evenly_shared(owners: tuple[int, ...]) -> tuple[int, ...]:
    """The experiments among the owners if each has equally many draws, else the owners."""
    if len(owners) == 1:
        return owners
    experiments, counts = np.unique(owners, return_counts=True)
    return tuple(experiments.tolist()) if np.all(counts == counts[0]) else owners


#: Sums that draws with merged noise add to: few, because each is cleared and added up once a round.
PARTIAL_SUMS = 16

#: A function for a row to add to; it waits, when first called, until it may be added to.
Turn = AbstractContextManager[Callable[[], Tensor]]


def turns_to_add_to(row: Tensor) -> Iterator[Turn]:
    """Turns for passes to add to a row one after the other, in the order in which they took them.

    Passes must be started in that order: the first that is not done then never waits for another.

    Args:
        row: [1, D]; what is in it does not matter.

    Example:
        >>> total = torch.empty(1, 1)
        >>> turns = turns_to_add_to(total)
        >>> for turn in [next(turns), next(turns)]:
        ...     with turn as row:
        ...         _ = row().add_(1.0)
        >>> total.tolist()
        [[2.0]]
    """
    before: threading.Event | None = None
    while True:
        done = threading.Event()
        yield _turn(row, before, done)
        before = done


@contextmanager
def _turn(
    row: Tensor, before: threading.Event | None, done: threading.Event
) -> Iterator[Callable[[], Tensor]]:
    has_come = False

    def when_due() -> Tensor:
        nonlocal has_come
        if not has_come:
            has_come = True
            if before is None:
                row.zero_()
            else:
                before.wait()
        return row

    try:
        yield when_due
        when_due()  # a pass that added nothing keeps its place in the order all the same
    finally:  # also after an error, or others would wait for ever
        done.set()
