# SPDX-License-Identifier: Apache-2.0
"""Trainings to be run side by side: what each reads of its plan, its records, its merged noise.

**Records** of all clients lie on the device in one store and are gathered by index. Rows of inputs
and targets are kept once; a partition says which rows are whose, in compressed form
(``indices[offsets[k]:offsets[k + 1]]`` are the rows of client k). Images lie channels-last, so that
a gathered batch is already in the layout convolutions like best.

**Merged noise** is one noise vector a round in place of one for each draw, where only the mean of
the draws counts. The noise of a draw's *last* local step enters nothing but its update: no gradient
is taken after it. Under the plain mean of M draws those noises enter the model as

    1/M sum_i alpha sigma_i n_i,    n_i independent and standard normal,

and that has the very law of ``s n`` with one standard normal n and s = sqrt(sum_i (alpha
sigma_i)^2) / M. Drawing n instead of the n_i saves M - 1 normal vectors a round and changes nothing
that anybody sees who sees the models only. The earlier steps of a draw keep noise of their own,
because gradients are taken behind it.

It is for simulation. Whoever sees single updates, as the server of a deployment does, would see
them without the noise of their last step: the switch is therefore refused where streams cannot be
drawn again, and with every rule but the plain mean. What is accounted for is the same mechanism, so
plans, ledgers and receipts stay as they are.

**Distributed noise** is merged by nature: under secure aggregation nobody sees single updates, and
the noise on a cohort's sum is that of all its members' shares. Draws are weighted by the plan. A
simulation draws that noise as above. A private run on one machine, which releases models only, adds
up the integers of all draws on one lattice and releases their sum, once a round, with one draw of
noise from a cryptographic stream: nothing else of a round leaves the engine.

With shares s_k, weights g_k and batches B_k the sum of ``g_k mean_k`` has noise of standard
deviation S C, S = sqrt(sum_k s_k^2), and a record of k moves it by g_k C / B_k at most. On the
lattice 2^e is S C, so such a record may contribute 2^e / M_k with M_k = S B_k / g_k, one e for all.
That is at least what was accounted for, the noise of h shares, k's own among them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import BoolArray, FloatArray, IntArray, whole_number
from dpcohort.accounting._distributed import common_lattice
from dpcohort.accounting._sampler import Batches
from dpcohort.aggregation import AggregationRule, Cohort, Mean
from dpcohort.aggregation._rule import sum_of_rows
from dpcohort.data._arrays import let_go
from dpcohort.engine._lattice import Lattice, release
from dpcohort.engine._randomness import Streams, draw_batches, draw_fixed_batches, noise_std
from dpcohort.engine._rounds import (
    EngineState,
    Evaluator,
    Optimiser,
    ServerStep,
    Trainer,
    train_rounds,
)
from dpcohort.engine.clipping import FlatLayout, Loss
from dpcohort.errors import InputError
from dpcohort.models._persons import PersonBatches, PersonModel
from dpcohort.round_record import RoundRecord

if TYPE_CHECKING:
    from dpcohort.data import Persons
    from dpcohort.engine._isolated import IsolatedModel
    from dpcohort.plan import Plan


#: In the place of a client: the noise is that of a whole cohort.
_ALL_MEMBERS = -1


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What may differ between experiments that run side by side.

    Attributes:
        plan: cohorts, noise, clip, sampler; any object with these parts of a plan will do.
        records: the clients' data.
        streams: where batches and noise come from.
        optimiser: step sizes, momentum, average.
        aggregation: how updates are combined.
        initial: initial parameters [D]; None takes the model's own.
        merged_noise: draw the noise of all last local steps of a round as one vector, of the same
            law. Only in simulation, and only with the plain mean.
    """

    plan: Plan
    records: ClientRecords
    streams: Streams
    optimiser: Optimiser = field(default_factory=Optimiser)
    aggregation: AggregationRule = field(default_factory=Mean)
    initial: Tensor | None = None
    merged_noise: bool = False

    #: The sum of a cohort has the same bits on any number of threads.
    adds_row_by_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.aggregation) is not Mean:
            what = f"the aggregation {type(self.aggregation).__name__} needs single updates"
            self.plan.noise.refuse_single_updates(what, "the aggregation mean")
        self.plan.noise.check_local_steps(self.plan.training.local_steps)
        if (local := self.optimiser.local) is not None:
            if self.only_sum_counts:
                kind = "merged_noise" if self.merged_noise else "distributed noise"
                raise InputError.because(
                    f"the local rule {local.name} corrects single draws by their noisy updates, "
                    f"and with {kind} these lack the noise of their last step. Leave one of them "
                    "out."
                )
            if self.plan.training.local_steps == 1 and not local.first_step:
                raise InputError.because(
                    f"the local rule {local.name} corrects the steps after the first, and "
                    "training.local_steps is 1. Take more local steps, or leave the rule out."
                )
        if self.releases_sums:  # what no lattice holds is refused before anything is computed
            for t in range(len(self.plan.schedule.cohorts)):
                _common_lattice(cohort_of(self.plan, t), self.plan)
        if self.merged_noise:
            refuse_unmergeable(self.streams, self.aggregation)

    @property
    def only_sum_counts(self) -> bool:
        """Whether updates come without the noise of their last step, which their sum gets once."""
        return self.merged_noise or self.plan.noise.only_sums

    @property
    def releases_sums(self) -> bool:
        """Whether only the sum of a cohort's updates, with its noise, leaves the engine."""
        return self.plan.noise.only_sums and not self.streams.is_reproducible

    @property
    def server_step(self) -> ServerStep:
        """What its server does with updates."""
        return self if self.only_sum_counts else self.aggregation, self.optimiser

    def combine(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """The plain mean of updates that lack the noise of their last step, with that noise once.

        The sum that a private engine releases has its noise already.
        """
        # On an accelerator the sum may be of other rows than the draws: see the engine's draws.
        mean = sum_of_rows(updates).div_(len(cohort))
        return self.add_merged_noise_(mean, cohort) if self.streams.is_reproducible else mean

    def add_merged_noise_(self, mean: Tensor, cohort: Cohort) -> Tensor:
        """Add to the mean of a cohort's updates the noise that their last local steps left out.

        The stream is named by seed, purpose and round, and its purpose is its own: it never
        coincides with the noise of a draw.
        """
        training, stds = self.plan.training, cohort.noise_stds
        if cohort.shares is not None:  # what each member adds, whatever its own budget
            stds = cohort.shares * training.clip
        std = merged_std(stds, self.step_size(cohort.round, training.local_steps - 1))
        if std == 0.0:  # public clients only
            return mean
        return merged_noise_(mean, std, self.streams, round=cohort.round)

    def step_size(self, round: int, step: int) -> float:
        """Of one local step of a round, alpha_{t^g,t^l}."""
        return self.optimiser.step_size(self.plan.training, round=round, step=step)

    def step_sizes(self, cohort: Cohort, step: int) -> FloatArray:
        """Factor on the mean gradient of each draw, alpha; times its weight, if it has one."""
        weights = np.ones(len(cohort)) if cohort.weights is None else cohort.weights
        return self.step_size(cohort.round, step) * weights

    def adds_noise_at(self, step: int) -> bool:
        """Whether a draw has noise of its own in this local step."""
        return not self.only_sum_counts or step + 1 < self.plan.training.local_steps


def draw_numbers(clients: IntArray) -> IntArray:
    """For each draw of a round, how many earlier draws of the round the same client had.

    Example:
        >>> draw_numbers(np.array([4, 2, 4, 4])).tolist()
        [0, 0, 1, 2]
    """
    seen: dict[int, int] = {}
    numbers = np.empty(clients.size, dtype=np.int64)
    for i, client in enumerate(clients.tolist()):
        numbers[i] = seen.get(client, 0)
        seen[client] = seen.get(client, 0) + 1
    return numbers


def cohort_of(plan: Plan, round: int, clients: IntArray | None = None) -> Cohort:
    """The draws of one round of a plan.

    Args:
        plan: noise, batches and clip.
        round: the round.
        clients: who is drawn; by default whom the plan's schedule draws.

    Raises:
        InputError: the plan has no cohort for the round, or a drawn client has no noise multiplier;
            nothing is computed for it.
    """
    if clients is None:
        if round >= len(plan.schedule.cohorts):
            raise InputError.because(f"the cohort of round {round} is not chosen yet.")
        clients = plan.schedule.cohorts[round]
    clients = np.asarray(clients, dtype=np.int64)
    multipliers = np.asarray(plan.noise_multipliers, dtype=np.float64)[clients]
    if not np.all(np.isfinite(multipliers) & (multipliers >= 0)):
        worst = int(clients[~(np.isfinite(multipliers) & (multipliers >= 0))][0])
        raise InputError(
            f"noise_multipliers[{worst}]",
            given=float(plan.noise_multipliers[worst]),
            allowed="a finite number at least 0 for a client that is drawn",
            next_step="Make the plan again: the schedule and the noise do not belong together.",
        )
    batches = np.asarray(plan.batch_sizes, dtype=np.int64)[clients]
    weights, shares = plan.noise.draw_terms(clients, batches)
    return Cohort(
        round=round,
        clients=clients,
        draws=draw_numbers(clients),
        noise_multipliers=multipliers,
        batch_sizes=batches,
        noise_stds=noise_std(multipliers, plan.training.clip, batches),
        weights=weights,
        shares=shares,
    )


class ClientRecords:
    """Inputs and targets of all clients.

    Args:
        inputs: [rows, ...] floats, or integers for models that start with an embedding.
        targets: [rows, ...].
        indices: rows of client 0, then of client 1, and so on.
        offsets: where in ``indices`` each client starts; one longer than there are clients.
        device: where the records are kept.
        dtype: floating type to which inputs are brought when gathered; None keeps their own.
        transform: applied to each gathered batch after that, for example a fixed normalisation.
        unusable: [rows] which rows contribute nothing; private runs alone have any. SENSITIVE.
        persons: whose each row is, where a record is a person; ``indices`` are then persons.

    Example:
        >>> records = ClientRecords(np.arange(6.0).reshape(3, 2), np.array([0, 1, 0]),
        ...                         indices=np.array([2, 0, 1]), offsets=np.array([0, 1, 3]))
        >>> records.sizes.tolist(), records.rows(1, np.array([1])).tolist()
        ([1, 2], [1])
    """

    def __init__(
        self,
        inputs: Any,
        targets: Any,
        *,
        indices: IntArray,
        offsets: IntArray,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        unusable: BoolArray | None = None,
        persons: Persons | None = None,
    ) -> None:
        stored = torch.as_tensor(inputs)
        if stored.is_floating_point() and dtype is not None:
            stored = stored.to(dtype)
        self._is_image = stored.dim() == 4
        if self._is_image:
            stored = stored.permute(0, 2, 3, 1).contiguous()
        self._inputs = stored.to(device)
        self._targets = torch.as_tensor(targets).to(device)
        self._unusable, self._records = unusable, len(stored)
        self._persons: PersonBatches | None = None
        if persons is not None:
            self._persons = PersonBatches(persons, device, unusable)
            self._unusable, self._records = self._persons.unusable, len(persons)
        self.indices = np.asarray(indices, dtype=np.int64)
        self.offsets = np.asarray(offsets, dtype=np.int64)
        self.dtype = dtype
        self.transform = transform
        self._check()

    def repartitioned(self, partition: Any) -> ClientRecords:
        """The same rows in other hands, without a second copy: for experiments side by side.

        Args:
            partition: anything with ``indices`` and ``offsets``.
        """
        other = copy.copy(self)
        other.indices = np.asarray(partition.indices, dtype=np.int64)
        other.offsets = np.asarray(partition.offsets, dtype=np.int64)
        other._check()
        return other

    def __len__(self) -> int:
        return int(self.offsets.size) - 1

    @property
    def sizes(self) -> IntArray:
        """Number of records of each client."""
        return np.diff(self.offsets)

    @property
    def device(self) -> torch.device:
        """Where the records are."""
        return self._inputs.device

    def shares_rows_with(self, other: ClientRecords) -> bool:
        """Whether both look at the very same stored rows."""
        return self._inputs is other._inputs and self._targets is other._targets

    def rows(self, client: int | IntArray, positions: IntArray) -> IntArray:
        """Rows of the store at the given positions among a client's records.

        Those that cannot be used are left out, which is all that comes of them in a private run.
        """
        rows: IntArray = self.indices[self.offsets[client] + positions]
        let_go(self.indices)
        return rows if self._unusable is None else rows[~self._unusable[rows]]

    def gather(self, rows: IntArray | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the given rows, ready for the model."""
        # Part of a partition that is closed for writing is copied: torch warns about it.
        given = rows if isinstance(rows, Tensor) else np.require(rows, requirements="W")
        return self.gather_from(torch.as_tensor(given, device=self.device), *self.stored)

    @property
    def stored(self) -> tuple[Tensor, Tensor]:
        """All inputs, as they are kept, and targets. SENSITIVE."""
        return self._inputs, self._targets

    def gather_from(self, rows: Tensor, stored: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """As ``gather``, of records that are kept like these."""
        if self._persons is None:
            return self._gather_rows(rows, stored, targets)
        return self._persons.gather(rows, lambda own: self._gather_rows(own, stored, targets))

    def _gather_rows(self, rows: Tensor, stored: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        inputs = stored.index_select(0, rows)
        if self._is_image:
            inputs = inputs.permute(0, 3, 1, 2)
        # Integers stay integers (they are tokens) unless they are bytes of an image.
        if self.dtype is not None and (inputs.is_floating_point() or inputs.dtype == torch.uint8):
            inputs = inputs.to(self.dtype)
        if self.transform is not None:
            inputs = self.transform(inputs)
        return inputs, targets.index_select(0, rows)

    def fit(self, model: nn.Module) -> nn.Module:
        """A copy of the model where the records are, in their floating type; of whole records."""
        copied = copy.deepcopy(model).to(self.device)
        copied = copied if self.dtype is None else copied.to(self.dtype)
        return copied if self._persons is None else PersonModel(copied)

    def loss(self, of_rows: Loss) -> Loss:
        """The loss of each record, from that of its rows."""
        return of_rows if self._persons is None else self._persons.loss(of_rows)

    def check_against(self, plan: Plan) -> None:
        """Refuse data whose clients are not the plan's: the noise was made for other sizes."""
        planned = np.asarray(plan.population.sizes, dtype=np.int64)
        if planned.size != len(self):
            raise InputError.because(
                f"the plan has {planned.size} clients but the data has {len(self)}. "
                "Plan for this partition, or load the one the plan was made for."
            )
        if np.any(planned != self.sizes):
            client = int(np.flatnonzero(planned != self.sizes)[0])
            raise InputError.because(
                f"client {client} has {int(self.sizes[client])} records but was planned with "
                f"{int(planned[client])}; its noise would not fit. "
                "Plan for this partition, or load the one the plan was made for."
            )

    def _check(self) -> None:
        rows, records = self._inputs.shape[0], self._records
        if self._targets.shape[0] != rows:
            raise InputError.because(
                f"there are {rows} inputs but {self._targets.shape[0]} targets."
            )
        increasing = self.offsets.size >= 2 and bool(np.all(np.diff(self.offsets) >= 0))
        if not increasing or self.offsets[0] != 0 or self.offsets[-1] != self.indices.size:
            raise InputError(
                "offsets",
                given=self.offsets.tolist(),
                allowed=f"increasing from 0 to the number of indices, {self.indices.size}",
            )
        if self.indices.size and not 0 <= self.indices.min() <= self.indices.max() < records:
            raise InputError(
                "indices",
                given=[int(self.indices.min()), int(self.indices.max())],
                allowed=f"numbers of records from 0 to {records - 1}",
            )
        let_go(self.indices)


def merged_std(noise_stds: FloatArray, step_size: float) -> float:
    """Standard deviation of the noise on a round's mean, sqrt(sum_i (alpha sigma_i)^2) / M.

    Args:
        noise_stds: sigma_i = z C / B of each draw.
        step_size: alpha of the last local step; all draws of a round take the same.

    Example:
        >>> merged_std(np.array([3.0, 4.0]), 0.1)
        0.25
    """
    return float(step_size * np.linalg.norm(noise_stds) / noise_stds.size)


def member_lattices(cohort: Cohort, plan: Plan) -> list[Lattice | None]:
    """The lattices of the draws of a distributed cohort; they have one unit in their sum.

    Args:
        cohort: with weights and shares.
        plan: clip and sizes.

    Returns:
        None for a draw of no weight, which adds nothing.

    Raises:
        InputError: a weight too small or too large for the noise of the cohort.
    """
    _, multipliers, exponent = _common_lattice(cohort, plan)
    return [
        Lattice(multiplier, plan.training.clip, exponent) if multiplier < math.inf else None
        for multiplier in multipliers.tolist()
    ]


def _common_lattice(cohort: Cohort, plan: Plan) -> tuple[float, FloatArray, int]:
    """S; M_k = S B_k / g_k of each draw, infinite without weight; the exponent of them all."""
    assert cohort.weights is not None
    assert cohort.shares is not None
    level, multipliers, exponent = common_lattice(
        cohort.clients,
        weights=cohort.weights,
        shares=cohort.shares,
        batch_sizes=cohort.batch_sizes,
        population=plan.population,
        sampler=plan.contract.sampler,
    )
    return float(level), multipliers, int(exponent)


def release_sum(
    total: Tensor, cohort: Cohort, experiment: Experiment, *, dtype: torch.dtype
) -> Tensor:
    """The sum of a distributed cohort's updates with the noise of all its shares: what may leave.

    Args:
        total: [D] int64, the integers of all draws on ``member_lattices``. SENSITIVE.
        cohort: who is in it.
        experiment: with private streams.
        dtype: of the result.
    """
    level, _, exponent = _common_lattice(cohort, experiment.plan)
    unit = math.ldexp(level * experiment.plan.training.clip, -exponent)
    factor = experiment.step_size(cohort.round, 0) * unit
    if not np.any(cohort.shares):  # public clients only
        return (total.double() * factor).to(dtype)
    key = experiment.streams.noise_key(round=cohort.round, client=_ALL_MEMBERS)
    return release(total[None], [exponent], [key], factors=[factor], dtype=dtype)[0]


def merged_noise_(mean: Tensor, spread: float, streams: Streams, *, round: int) -> Tensor:
    """Add ``spread`` times the standard normal noise of a round to a mean.

    Example:
        >>> noise = merged_noise_(torch.zeros(3), 1.0, Streams.seeded(0), round=0)
        >>> torch.equal(noise, merged_noise_(torch.zeros(3), 1.0, Streams.seeded(0), round=1))
        False
    """
    return streams.add_normal_(mean, spread, purpose="merged noise", round=round, client=0)


def refuse_unmergeable(streams: Streams, aggregation: AggregationRule) -> None:
    """Raise unless this is a simulation of the plain mean.

    Example:
        >>> refuse_unmergeable(Streams.seeded(0), Mean())
        >>> refuse_unmergeable(Streams.from_entropy(), Mean())
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: merged_noise is for simulation: ...
    """
    if not streams.is_reproducible:
        raise InputError.because(
            "merged_noise is for simulation: updates would carry no noise of their last step, and "
            "streams from entropy are there to protect somebody. Leave it off, or use a seed."
        )
    # A subclass, or a rule around the mean, may look at single updates.
    if type(aggregation) is not Mean:
        raise InputError.because(
            f"merged_noise goes with the plain mean only; {type(aggregation).__name__} looks at "
            "single updates, which would carry no noise of their last step. Leave it off."
        )


@dataclass(frozen=True)
class Draw:
    """One draw of one experiment in one round.

    Attributes:
        experiment: whose draw it is.
        number: the experiment's place among those side by side.
        cohort: all draws of its round.
        position: its place in the cohort.
        part: from which record of its batch to which, if not to the end.
        known_rows: the rows of the first step, if somebody has drawn them.
    """

    experiment: Experiment
    number: int
    cohort: Cohort
    position: int
    part: tuple[int, int | None] = (0, None)
    known_rows: IntArray | None = None

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

    @property
    def batch_size(self) -> int:
        """The public batch size B."""
        return int(self.cohort.batch_sizes[self.position])

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier z; 0 of a public client."""
        return float(self.cohort.noise_multipliers[self.position])

    def rows(self, step: int) -> IntArray:
        """The stored rows of its batch, or of its part of it, in one local step. SENSITIVE."""
        if step == 0 and self.known_rows is not None:
            return self.known_rows
        positions = self.batches(step)[slice(*self.part)]
        return self.experiment.records.rows(self.client, positions)

    @cached_property
    def batches(self) -> Batches:
        """Its batches by local step: of private streams drawn once, when first asked. SENSITIVE."""
        plan = self.experiment.plan
        return draw_batches(
            self.experiment.streams,
            plan.contract.sampler.over(plan.training.local_steps),
            size=int(plan.population.sizes[self.client]),
            rate=float(plan.sampling_rates[self.client]),
            batch_size=self.batch_size,
            **self.name,
        )

    def step_size(self, step: int) -> float:
        """Factor on its mean gradient."""
        weights, alpha = self.cohort.weights, self.experiment.step_size(self.cohort.round, step)
        return alpha if weights is None else alpha * float(weights[self.position])

    def scale(self, step: int) -> float:
        """Factor on the sum of clipped gradients, alpha / B."""
        return self.step_size(step) / self.batch_size

    def correction(self, weights: Tensor, received: Tensor) -> Tensor | None:
        """What the local rule adds to its noisy mean gradient; None without a rule.

        Args:
            weights: before the step.
            received: the model that the draw started from.
        """
        rule, controls = self.experiment.optimiser.local, self.cohort.controls
        if rule is None:
            return None
        control = None if controls is None else controls[self.position].to(weights)
        return rule.correction(weights, received, control)

    def noise_std(self, step: int) -> float:
        """Standard deviation of the noise on its mean gradient; 0 where the noise is merged."""
        adds_noise = self.experiment.adds_noise_at(step)
        return float(self.cohort.noise_stds[self.position]) if adds_noise else 0.0

    def spread(self, step: int) -> float:
        """Factor on the standard normal noise, alpha sigma."""
        return self.step_size(step) * self.noise_std(step)


def cohort_rows(experiment: Experiment, cohort: Cohort, step: int) -> list[IntArray]:
    """The stored rows of every draw of a cohort, as ``Draw.rows`` gives them. SENSITIVE.

    Batches of one size are drawn together, which takes half the time.
    """
    records, batch_size = experiment.records, int(cohort.batch_sizes[0])
    constant = experiment.plan.contract.sampler.has_constant_batches
    alike = constant and not np.any(cohort.batch_sizes != batch_size)
    if not (alike and experiment.streams.is_reproducible):
        return [Draw(experiment, 0, cohort, i).rows(step) for i in range(len(cohort))]
    names = np.stack([cohort.clients, cohort.draws], axis=1).tolist()
    sizes = np.asarray(experiment.plan.population.sizes)[cohort.clients]
    positions = draw_fixed_batches(
        experiment.streams, names, sizes, batch_size=batch_size, round=cohort.round, step=step
    )
    return list(records.rows(cohort.clients[:, None], positions))


class Engine(Trainer):
    """What trains experiments side by side: seeds, rules or settings that share shapes.

    Args:
        model: the module they train, any whose examples do not mix; it is not changed.
        experiments: plans, streams and optimisers; as many rounds and local steps each.
    """

    #: What computes the records of a private training; None in a simulation.
    isolated: IsolatedModel | None = None

    def __init__(self, model: nn.Module, experiments: Sequence[Experiment]) -> None:
        _check_side_by_side(experiments)
        self._experiments = list(experiments)
        self._records = experiments[0].records
        self._model = self._records.fit(model)

    def initial_states(self) -> list[EngineState]:
        """Every experiment before its first round."""
        own = FlatLayout(self._model).flatten(self._model)
        states = []
        for experiment in self._experiments:
            start = own if experiment.initial is None else experiment.initial.to(own)
            if start.shape != own.shape:
                raise InputError(
                    "initial", given=tuple(start.shape), allowed=f"a vector {tuple(own.shape)}"
                )
            states.append(EngineState(start.clone()))
        return states

    def rounds(
        self,
        states: Sequence[EngineState],
        *,
        evaluator: Evaluator | None = None,
        evaluate_every: int = 1,
    ) -> Iterator[tuple[RoundRecord, ...]]:
        """Do the remaining rounds of fixed plans; after each, the states are complete.

        Args:
            states: of the experiments, all at the same round.
            evaluator: test set, None for none.
            evaluate_every: rounds between evaluations; the last round is always evaluated.

        Yields:
            The records of one round, one for each experiment. Their seconds are those of all.
        """
        at = [state.next_round for state in states]
        if len(set(at)) != 1 or len(at) != len(self._experiments):
            allowed = f"{len(self._experiments)} states at the same round"
            raise InputError("states", given=at, allowed=allowed)
        return train_rounds(
            self,
            [experiment.server_step for experiment in self._experiments],
            states,
            rounds=self._experiments[0].plan.training.rounds,
            choose=self._planned,
            evaluator=evaluator,
            evaluate_every=whole_number("evaluate_every", evaluate_every, at_least=1),
        )

    def _draws(self, number: int, cohort: Cohort) -> list[Draw]:
        """The draws of a cohort of one of the experiments."""
        experiment = self._experiments[number]
        return [Draw(experiment, number, cohort, i) for i in range(len(cohort))]

    def _planned(self, t: int) -> list[Cohort]:
        return [cohort_of(experiment.plan, t) for experiment in self._experiments]


def _check_side_by_side(experiments: Sequence[Experiment]) -> None:
    if not experiments:
        raise InputError("experiments", given=[], allowed="at least one")
    first = experiments[0]
    for experiment in experiments:
        experiment.records.check_against(experiment.plan)
        ours, theirs = experiment.plan.training, first.plan.training
        if (ours.rounds, ours.local_steps) != (theirs.rounds, theirs.local_steps):
            raise InputError.because(
                "experiments side by side need as many rounds and local steps each; "
                f"one has {ours.rounds} x {ours.local_steps}, another {theirs.rounds} x "
                f"{theirs.local_steps}."
            )
        if experiment.streams.is_reproducible != first.streams.is_reproducible:
            raise InputError.because(
                "experiments side by side are all simulations with a seed, or all private."
            )
        if not experiment.records.shares_rows_with(first.records):
            raise InputError.because(
                "experiments side by side must read the same stored rows; "
                "use ClientRecords.repartitioned for another partition of them."
            )
