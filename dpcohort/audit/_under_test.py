# SPDX-License-Identifier: Apache-2.0
"""What can be tested: dpcohort's engines, its guard and a user's own step, seen from outside.

**Engines.** The model is linear and its loss is its output, so the gradient of a record is its
input. Its parameters lie in two layers, so that clipping layer by layer would show. Hostile models
have the same gradients and arithmetic that breaks down on the way there. Where noise is
distributed, every step of every draw is a round of its own, in which the client has company that
holds nothing: what is shown is the sum of that cohort, whose noise and weights are such that the
client under test has the claimed noise multiplier.

**The guard** trains a classifier by cross-entropy. The probe's scores are always (0, 0), so the
loss of class 0 has the slope -1/2 in the first score; the first score is built to have the slope -2
x in the weights, whatever they are. So the gradient of a record is its input, to the last bit.

**A step** is a function of gradients; each of its calls gets a seed of its own.

**Third-party models** are what else dpcohort shows records to. They are trained with the noise of a
source without entropy, which is always the same and takes all records into every batch.
"""

from __future__ import annotations

import hashlib
import inspect
import multiprocessing
import os
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import FloatArray, IntArray, choice
from dpcohort.accounting import Contract
from dpcohort.accounting._distributed import NoiseShares
from dpcohort.accounting._samplers import sampler_of
from dpcohort.accounting._unit import PersonRows
from dpcohort.adaptive import ReportTerms
from dpcohort.aggregation import Mean
from dpcohort.audit._adversarial_models import CLASSES, WIDTH, Adversary, forget
from dpcohort.audit._claims import Claim, PrivateTraining, rows_of_persons
from dpcohort.audit._distributed import DistributedClaim, public_clients, stacked
from dpcohort.data import Persons, dataset_from_arrays
from dpcohort.data._persons import persons_of
from dpcohort.deploy.guard._files import GuardedData
from dpcohort.deploy.guard._terms import ModelTerms
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    Experiment,
    FlatLayout,
    Lattice,
    Optimiser,
    ReferenceEngine,
    Streams,
)
from dpcohort.engine._experiment import cohort_of
from dpcohort.engine._lattice import Bytes
from dpcohort.errors import DpcohortError, InputError
from dpcohort.models import check_trainable, precompute_features
from dpcohort.planning._noise import LocalNoise
from dpcohort.planning._reports import Reports
from dpcohort.plugins import named_function, telling
from dpcohort.runs._chooser import LossMeter, ReportHandler
from dpcohort.schedule import Schedule
from dpcohort.tasks import Task, check_own_loss
from dpcohort.training import Training

#: What can be hostile in a model.
HOSTILE = (
    "no gradient at zero",
    "factors out of range",
    "weights of 1e38",
    "weights that are not numbers",
)
_WEIGHT = 0.5  # of a distributed client under test; powers of two scale floats exactly
_COMPANY = (0.25,)  # what records of its company may do, against its own
_FACTOR = 2.0**76  # a number divided by it has a square below all 32-bit floats
_PERSON_ROWS: tuple[PersonRows, ...] = ("sum", "mean")


def step_plan(
    claim: Claim, *, cohorts: IntArray, size: int, batch_size: int, local_steps: int
) -> Any:
    """The least a plan can be: these cohorts and noise, every client with as many records."""
    clients, (rounds, draws) = int(cohorts.max()) + 1, cohorts.shape
    multipliers = np.full(clients, claim.noise_multiplier)
    return SimpleNamespace(
        training=Training(
            rounds=rounds,
            cohort_size=draws,
            batch_size=batch_size,
            local_steps=local_steps,
            clip=claim.clip,
        ),
        schedule=Schedule(cohorts=cohorts, clients=clients),
        contract=Contract.of("tight", claim.sampler),
        population=public_clients(np.full(clients, size)),
        noise_multipliers=multipliers,
        noise=LocalNoise(multipliers=multipliers, lifted=np.zeros(clients, dtype=np.bool_)),
        batch_sizes=np.full(clients, batch_size, dtype=np.int64),
        sampling_rates=claim.sampler.rates(np.full(clients, size), np.full(clients, batch_size)),
    )


class GradientProbe(nn.Module):
    """A linear model in two layers whose gradient, under ``output_itself``, is its input.

    Args:
        dimension: number of parameters, at least 2.
        raw: hold the first half as a bare parameter, which no fast path covers.
        hostile: one of ``HOSTILE``. With *no gradient at zero* a record of zeros has a pass that
            is not finite, so a broken record cannot be replaced by zeros. With *factors out of
            range* inputs are made smaller and outputs enlarged as much: products have the right
            size, squares of their factors do not. Weights are for the caller to set.
    """

    def __init__(self, dimension: int, *, raw: bool = False, hostile: str | None = None) -> None:
        super().__init__()
        self._hostile, self._raw = hostile, raw
        self._half = dimension // 2
        if raw:
            self.bare = nn.Parameter(torch.zeros(self._half))
        else:
            self.first = nn.Linear(self._half, 1, bias=False)
        self.second = nn.Linear(dimension - self._half, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum of both layers' outputs, [rows, 1]."""
        inputs, outer = hostile_factors(inputs, self._hostile)
        head, tail = inputs[:, : self._half], inputs[:, self._half :]
        first = (head * self.bare).sum(1, keepdim=True) if self._raw else self.first(head)
        output: Tensor = (first + self.second(tail)) * outer
        return output


def hostile_factors(inputs: Tensor, hostile: str | None) -> tuple[Tensor, Tensor | float]:
    """What a probe's inputs [rows, D] become, and the factor on its output; in all, factor 1."""
    if hostile == "no gradient at zero":
        sizes = inputs.abs().sum(1, keepdim=True)
        return inputs, sizes / sizes
    if hostile == "factors out of range":
        return inputs / _FACTOR, _FACTOR
    return inputs, 1.0


def hostile_start(hostile: str | None) -> float:
    """The weight that all parameters of a probe start at."""
    return {"weights of 1e38": 1e38, "weights that are not numbers": np.nan}.get(hostile or "", 0.0)


def output_itself(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that is the output, so that gradients are inputs."""
    return outputs[:, 0]


@dataclass(frozen=True)
class EngineUnderTest:
    """A ``PrivateTraining`` that is one of dpcohort's engines.

    Args:
        kind: ``reference`` or ``batched``.
        raw: test the path of models that have no fast one.
        draws_per_pass: of the batched engine; None is its default.
        merged_noise: with one noise vector a round for all last local steps. What is shown is then
            the mean of each round, [rounds, 1, D]: single updates are nobody's business there.
        distributed: with distributed noise, see above; ``sums`` then trains by a plan's whole
            claim.
        device: where it trains, ``cpu`` or ``cuda``: an accelerator has noise of its own.
        private: take batches and noise from the operating system, as a deployment does, and not
            from the seed.
        dtype: in which it trains; 64 bits show single faults best, deployments have 32.
        hostility: what is hostile in the model, one of ``HOSTILE``; None for nothing.

    Example:
        >>> training = EngineUnderTest("reference")
        >>> training(np.zeros((2, 4)), claim=Claim(sampler="fixed"), batch_size=1, seed=0,
        ...          cohorts=np.zeros((3, 2), dtype=np.int64)).shape
        (3, 2, 4)
    """

    kind: Literal["reference", "batched"]
    _: KW_ONLY
    raw: bool = False
    draws_per_pass: int | None = None
    merged_noise: bool = False
    distributed: bool = False
    device: str = "cpu"
    private: bool = False
    dtype: torch.dtype = torch.float64
    hostility: str | None = None

    #: What can be done with the rows of persons.
    person_rows: ClassVar = _PERSON_ROWS

    def __post_init__(self) -> None:
        choice("kind", self.kind, ["reference", "batched"])
        if self.hostility is not None:
            choice("hostility", self.hostility, HOSTILE)

    @property
    def hostile(self) -> Mapping[str, EngineUnderTest]:
        """The same engine on hostile models, by what is hostile."""
        names = HOSTILE if self.hostility is None else ()
        return {name: replace(self, hostility=name) for name in names}

    def __call__(
        self,
        gradients: FloatArray,
        *,
        claim: Claim,
        batch_size: int,
        seed: int,
        cohorts: IntArray,
        local_steps: int = 1,
    ) -> FloatArray:
        """Updates [rounds, draws, D], or means [rounds, 1, D]; the step size is 1."""
        size, dimension = gradients.shape
        if self.distributed:
            steps = np.tile(cohorts.reshape(1, -1), (local_steps, 1))  # first all first steps
            distributed = _distributed_claim(
                claim, steps.reshape(-1), size=size, batch_size=batch_size
            )
            company = [np.zeros((1, dimension))] * len(_COMPANY)
            held = [gradients] * (int(cohorts.max()) + 1) + company
            sums = self.sums(distributed, held, seed=seed, unit=claim) / _WEIGHT
            steps_of_draws = sums.reshape(local_steps, *cohorts.shape, dimension)
            return np.asarray(steps_of_draws.sum(axis=0))
        plan = step_plan(
            claim, cohorts=cohorts, size=size, batch_size=batch_size, local_steps=local_steps
        )
        clients = plan.population.sizes.size
        whose = {"indices": np.tile(np.arange(size), clients)}
        whose["offsets"] = np.arange(clients + 1) * size
        return self._released(plan, gradients, whose, seed, claim)

    def sums(
        self,
        claim: DistributedClaim,
        gradients: Sequence[FloatArray],
        *,
        seed: int,
        unit: Claim | None = None,
    ) -> FloatArray:
        """What the server learns in each round of a claim with distributed noise, [rounds, D].

        Args:
            claim: cohorts, weights, shares.
            gradients: raw gradients [units, D] of each client.
            seed: of batches and noise, in a simulation.
            unit: what it says of persons; None for records.
        """
        units, whose = stacked(gradients)
        means = self._released(claim, units, whose, seed, unit)[:, 0]
        return np.asarray(means * claim.schedule.cohorts.shape[1])

    def _released(
        self,
        plan: Any,
        gradients: FloatArray,
        whose: dict[str, Any],
        seed: int,
        unit: Claim | None,
    ) -> FloatArray:
        """What the server is given in each round: [rounds, draws, D], or of means [rounds, 1, D].

        The model stays where it is, so that nothing is rounded on the way to an update.
        """
        if unit is not None:
            gradients, persons = _made_of_rows(gradients, unit)
            whose = whose | {"persons": persons}
        labels = np.zeros(len(gradients), dtype=np.int64)
        experiment = Experiment(
            plan=plan,
            records=ClientRecords(gradients, labels, dtype=self.dtype, device=self.device, **whose),
            streams=Streams.from_entropy() if self.private else Streams.seeded(seed),
            optimiser=Optimiser(local_step=1.0),
            aggregation=Mean(),
            merged_noise=self.merged_noise,
        )
        engine = self._engine(experiment, gradients.shape[1])
        (state,) = engine.initial_states()
        if self.hostility is not None:  # weights that a model comes to, not weights it is made with
            state.parameters.fill_(hostile_start(self.hostility))
        rule, _ = experiment.server_step
        released = []
        for t in range(len(plan.schedule.cohorts)):
            cohort = cohort_of(plan, t)
            (arrived,) = engine.updates([state.parameters], [cohort])
            alone = not experiment.only_sum_counts
            shown = arrived.updates if alone else rule.combine(arrived.updates, cohort)[None]
            released.append(shown.clone())
        return np.asarray(torch.stack(released).cpu().numpy())

    def _engine(self, experiment: Experiment, dimension: int) -> ReferenceEngine | BatchedEngine:
        model = GradientProbe(dimension, raw=self.raw, hostile=self.hostility).to(self.dtype)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        if self.kind == "reference":
            return ReferenceEngine(model, [experiment], loss=output_itself)
        return BatchedEngine(
            model,
            [experiment],
            loss=output_itself,
            draws_per_pass=self.draws_per_pass,
            workers=1 if self.distributed else None,  # its draws are not worth a thread
        )


def _made_of_rows(gradients: FloatArray, claim: Claim) -> tuple[FloatArray, Persons | None]:
    """The rows of gradients, and whose they are where the unit is the person."""
    if claim.rows == 1:
        return gradients, None
    rows, owners = rows_of_persons(gradients, claim)
    return rows, persons_of(owners, None, most=claim.rows, person_rows=claim.person_rows)


def _distributed_claim(
    claim: Claim, clients: IntArray, *, size: int, batch_size: int
) -> DistributedClaim:
    """A round for each of these clients, with company; all members are honest."""
    own, company = int(clients.max()) + 1, len(_COMPANY)
    influence = _WEIGHT / batch_size
    weights = np.array([_WEIGHT] * own + [influence * part for part in _COMPANY])
    batches = np.array([batch_size] * own + [1] * company, dtype=np.int64)
    sizes = np.array([size] * own + [1] * company, dtype=np.int64)
    share = claim.noise_multiplier * influence / np.sqrt(1 + company)
    others = np.tile(np.arange(own, own + company), (clients.size, 1))
    cohorts = np.concatenate([clients[:, None], others], axis=1)
    multipliers = claim.noise_multiplier * influence * batches / weights
    return DistributedClaim(
        training=Training(
            rounds=clients.size, cohort_size=1 + company, batch_size=batch_size, clip=claim.clip
        ),
        schedule=Schedule(cohorts=cohorts, clients=sizes.size),
        contract=Contract.of("tight", claim.sampler, trust="distributed"),
        population=public_clients(sizes),
        noise_multipliers=multipliers,
        alone_multipliers=multipliers / np.sqrt(1 + company),
        batch_sizes=batches,
        sampling_rates=claim.sampler.rates(sizes, batches),
        distributed=NoiseShares(
            weights=weights,
            shares=np.full(sizes.size, share),
            honest=1 + company,
        ),
    )


class ScoredProbe(nn.Module):
    """A classifier of two classes whose gradient, for a record of class 0, is its input.

    Example:
        >>> model = ScoredProbe((3,))
        >>> model(torch.ones(1, 3)).abs().tolist()
        [[0.0, 0.0]]
    """

    def __init__(self, input_shape: Sequence[int], hostile: str | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(input_shape[0], 1))
        self._hostile = hostile

    def forward(self, inputs: Tensor) -> Tensor:
        """The two scores, always 0; the first has the slope -2 x in the weights."""
        inputs, outer = hostile_factors(inputs, self._hostile)
        output = (inputs @ self.weight) * outer
        score = -2 * (output - output.detach())
        return torch.cat([score, torch.zeros_like(score)], dim=1)


class GuardUnderTest:
    """A ``PrivateTraining`` that is the guard's, with the operating system's entropy.

    Args:
        source: where random bytes come from.
        hostile: what is hostile in the model, one of ``HOSTILE``; None for nothing.

    Example:
        >>> GuardUnderTest()(np.zeros((2, 4)), claim=Claim(sampler="fixed"), batch_size=1, seed=0,
        ...                  cohorts=np.zeros((3, 2), dtype=np.int64)).shape
        (3, 2, 4)
    """

    #: What can be done with the rows of persons.
    person_rows: ClassVar = _PERSON_ROWS

    def __init__(self, source: Bytes = os.urandom, *, hostile: str | None = None) -> None:
        self._source, self._hostile = source, hostile

    @property
    def hostile(self) -> Mapping[str, GuardUnderTest]:
        """The guard on hostile models, by what is hostile."""
        names = HOSTILE if self._hostile is None else ()
        return {name: GuardUnderTest(self._source, hostile=name) for name in names}

    def __call__(
        self,
        gradients: FloatArray,
        *,
        claim: Claim,
        batch_size: int,
        seed: int,
        cohorts: IntArray,
        local_steps: int = 1,
    ) -> FloatArray:
        """Updates [rounds, draws, D]; the step size is 1, and the seed is ignored."""
        size, dimension = gradients.shape
        rows, persons = _made_of_rows(gradients, claim)
        with np.errstate(over="ignore"):
            inputs = rows.astype(np.float32)
        training = LocalTraining(
            ModelTerms(
                name="dpcohort.audit._under_test:ScoredProbe",
                input_shape=(dimension,),
                classes=2,
                options={} if self._hostile is None else {"hostile": self._hostile},
            ),
            GuardedData(inputs, np.zeros(len(inputs), np.int64), "", persons),
            self._source,
        )
        weights = np.full(dimension, hostile_start(self._hostile), dtype=np.float32)
        lattice = Lattice(claim.noise_multiplier, claim.clip)
        rate = float(claim.sampler.rates(np.array([size]), np.array([batch_size]))[0])
        batches = (claim.sampler, rate, batch_size)
        updates = [
            training.update(weights, lattice, batches, [1.0] * local_steps)
            for _ in range(cohorts.size)
        ]
        return np.stack(updates).reshape(*cohorts.shape, dimension).astype(np.float64)


#: Where records meet a third-party model.
MODEL_PLACES = ("batched", "reference", "reports", "frozen", "guard", "guard-reports")
_LARGEST = float(np.finfo(np.float32).max)
_REPORTED = ReportTerms(loss_bound=2.0, mini_batch=True)


class _ChosenBatches:
    """Bytes that draw the records which are chosen, and noise that is always the same."""

    def __init__(self, records: int) -> None:
        self.chosen = np.zeros(records, dtype=bool)

    def __call__(self, size: int) -> bytes:
        if size != 8 * self.chosen.size:
            return bytes(size)
        return np.where(self.chosen, np.uint64(0), np.uint64(2**64 - 1)).tobytes()

    def draws(self, batch: IntArray) -> None:
        self.chosen[:] = False
        self.chosen[batch] = True


@dataclass(frozen=True)
class ModelsUnderTest:
    """Training with a third-party model or loss, as :func:`~dpcohort.audit.isolation` takes it.

    On a processor every sequence of batches is run in a copy of the process that built the
    training, so that none meets what another left behind.

    Args:
        place: where records meet the model: in an engine's private steps (``batched``,
            ``reference``), in reports of losses, in a frozen encoder whose features are computed
            once, in the guard's steps and in its reports.
        device: where engines train, ``cpu`` or ``cuda``.
        examined: try models and losses on made-up records first, as a training does; without it,
            as if that had passed.

    Example:
        >>> from dpcohort.audit._adversarial_models import MODELS
        >>> inputs, labels = np.zeros((5, WIDTH)), np.zeros(5, dtype=np.int64)
        >>> run = ModelsUnderTest("guard")(MODELS["Centred"], inputs, labels)
        >>> run([np.array([0, 2]), np.array([1])]).shape
        (2, 63)
    """

    place: str
    device: str = "cpu"
    examined: bool = True

    def __post_init__(self) -> None:
        choice("place", self.place, MODEL_PLACES)

    @property
    def takes_losses(self) -> bool:
        """Whether a loss is computed there."""
        return self.place != "frozen"

    def __call__(
        self, case: Adversary, inputs: FloatArray, labels: IntArray
    ) -> Callable[[Sequence[IntArray]], FloatArray]:
        """What gives the releases of batches, [batches, D], in units of the clip.

        Args:
            case: the model or loss.
            inputs: [records, WIDTH], or of persons [persons, rows, WIDTH].
            labels: of the same shape but for the last axis.
        """
        build = {"frozen": self._of_features, "guard": self._of_guard}.get(
            self.place.partition("-")[0], self._of_engine
        )
        given: Any = (case, inputs.astype(np.float32), labels.astype(np.int64))
        if self.device == "cpu":
            run = build(*given)
            return lambda batches: _in_a_copy(run, batches)
        build(*given)  # to be refused before a batch is drawn

        def run_anew(batches: Sequence[IntArray]) -> FloatArray:
            forget()
            return np.asarray(build(*given)(batches))

        return run_anew

    def _of_engine(self, case: Adversary, inputs: Any, labels: IntArray) -> Any:
        model, size, source = case.model(), len(inputs), _ChosenBatches(len(inputs))
        public = size // 2  # what sums are divided by; they are multiplied by it again
        plan = step_plan(
            Claim(sampler=sampler_of("poisson")),
            cohorts=np.zeros((1, 1), dtype=np.int64),
            size=size,
            batch_size=public,
            local_steps=1,
        )
        task = _task(case)
        if self.examined:
            check_own_loss(task)
            check_trainable(model, input_shape=(WIDTH,), classes=CLASSES)
        records = ClientRecords(
            inputs.reshape(-1, WIDTH),
            labels.reshape(-1),
            persons=_persons(labels),
            indices=np.arange(size),
            offsets=np.array([0, size]),
            dtype=torch.float32,
            device=self.device,
        )
        streams, loss = Streams(None, source), task.loss_on(self.device)
        if self.place == "reports":
            caps = np.ones(1, dtype=np.int64)
            plan.reports = Reports.of(_REPORTED, caps, np.ones(1))
            start = FlatLayout(model).flatten(model).to(self.device)
            meter = LossMeter(model, records, loss=loss)
            handler = ReportHandler(plan, meter, streams=streams)

            def released() -> FloatArray:
                value = handler.ask(0, [0], start)[0]
                return np.array([(value - _REPORTED.half_range) / _REPORTED.half_range])
        else:
            steps = Optimiser(local_step=1.0)
            experiment = Experiment(plan=plan, records=records, streams=streams, optimiser=steps)
            kind = ReferenceEngine if self.place == "reference" else BatchedEngine
            engine = kind(model, [experiment], loss=loss)
            (state,), cohort = engine.initial_states(), cohort_of(plan, 0)

            def released() -> FloatArray:
                (arrived,) = engine.updates([state.parameters], [cohort])
                return np.asarray(arrived.updates[0].double().cpu().numpy())

        return _drawing(source, released, public)

    def _of_features(self, case: Adversary, inputs: Any, labels: IntArray) -> Any:
        """Sums of clipped features: the gradients of a linear model whose loss is its output.

        What a person's rows give is added up and clipped as one, as an engine does.
        """
        encoder = case.model().requires_grad_(requires_grad=False)

        def run(batches: Sequence[IntArray]) -> FloatArray:
            sums = []
            for batch in batches:  # a data set holds finite numbers only
                data = dataset_from_arrays(
                    "trial",
                    train_inputs=np.nan_to_num(inputs[batch].reshape(-1, WIDTH), nan=_LARGEST),
                    train_labels=labels[batch].reshape(-1),
                    test_inputs=np.zeros((1, WIDTH), np.float32),
                    test_labels=np.zeros(1, np.int64),
                    classes=CLASSES,
                )
                features = precompute_features(data, encoder, device=self.device, isolated=True)
                rows = np.nan_to_num(
                    features.train_inputs.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0
                )
                units = rows.reshape(len(batch), -1, rows.shape[1]).sum(axis=1)
                sizes = np.linalg.norm(units, axis=1, keepdims=True)
                sums.append((units / np.maximum(sizes, 1)).sum(axis=0))
            return np.stack(sums)

        return run

    def _of_guard(self, case: Adversary, inputs: Any, labels: IntArray) -> Any:
        model, source, public = case.model(), _ChosenBatches(len(inputs)), len(inputs) // 2
        terms = ModelTerms(
            name="audited", input_shape=(WIDTH,), classes=CLASSES, task=_task_terms(case)
        )
        start = FlatLayout(model).flatten(model).numpy()
        rows = inputs.reshape(-1, WIDTH), labels.reshape(-1)
        data = GuardedData(*rows, "", _persons(labels))
        training = LocalTraining(terms, data, source, module=model)
        batches = (sampler_of("poisson"), 0.5, public)
        if self.place == "guard":
            lattice = Lattice(1.0, 1.0)
            return _drawing(source, lambda: training.update(start, lattice, batches, [1.0]), public)
        half = _REPORTED.half_range
        lattice = Lattice(1.0, half)
        return _drawing(
            source, lambda: training.report(start, lattice, batches, _REPORTED) / half, public
        )


def _persons(labels: IntArray) -> Persons | None:
    """Whose rows are, of labels [persons, rows]; None of records."""
    return Persons(rows=np.arange(labels.size).reshape(labels.shape)) if labels.ndim > 1 else None


def _task_terms(case: Adversary) -> dict[str, str]:
    return {"loss": case.loss} if case.loss else {}


def _task(case: Adversary) -> Task:
    return Task.from_dict(_task_terms(case), outputs=CLASSES)


def _drawing(
    source: _ChosenBatches, released: Callable[[], Any], public: int
) -> Callable[[Sequence[IntArray]], FloatArray]:
    """One release for each batch, as the sum that it is a public share of."""

    def run(batches: Sequence[IntArray]) -> FloatArray:
        sums = []
        for batch in batches:
            source.draws(batch)
            sums.append(np.asarray(released(), dtype=np.float64) * public)
        return np.stack(sums)

    return run


def _in_a_copy(
    run: Callable[[Sequence[IntArray]], FloatArray], batches: Sequence[IntArray]
) -> FloatArray:
    """What ``run`` gives in a copy of this process, which then ends; or its error."""

    def child(sender: Any) -> None:
        torch.set_num_threads(1)  # threads do not go along
        try:
            sender.send((run(batches), None, ""))
        except (Exception, SystemExit) as error:
            kind = InputError if isinstance(error, DpcohortError) else RuntimeError
            name = "" if kind is InputError else f"{type(error).__name__}: "
            sender.send((None, kind, f"{name}{error}"))

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(sender,))
    process.start()
    sender.close()
    with receiver:
        try:
            releases, kind, message = receiver.recv()
        except EOFError:
            releases, kind, message = None, RuntimeError, "the process has ended"
    process.join()
    process.close()
    if kind is InputError:
        raise InputError.because(message)
    if kind is not None:
        raise RuntimeError(message)
    return np.asarray(releases)


_FORMS = (
    "step(gradients, *, clip, noise_multiplier, batch_size, rng_seed), which returns the noisy "
    "mean or sum [D], or the PrivateTraining protocol: training(gradients, *, claim, batch_size, "
    "seed, cohorts, local_steps=1), which returns updates [rounds, draws, D]"
)


class StepUnderTest:
    """A ``PrivateTraining`` that takes one noisy step after the other by a function of the user's.

    The function is called as ``step(gradients, clip=C, noise_multiplier=z, batch_size=B,
    rng_seed=seed)``, with the raw gradients of all records, [records, D]; where the unit is the
    person also ``persons=``, whose each row is. It draws its batch, at the rate B / records (or
    persons), clips, adds up, adds noise, and returns [D] numbers. A deployment takes
    its randomness from the operating system and ignores the seed; a simulation uses it.

    A failure of the function is an :class:`InputError` about the step.

    Args:
        step: the function; or a whole ``PrivateTraining`` of the user's.
        returns: whether it returns the ``mean``, divided by the public B, or the ``sum``.
        draws_batches: whether it draws its batches; if not, it is given Poisson batches, and its
            sampler is not tested.
        name: what the function is called in an error.
        whole: whether it is a whole training, which is called as it stands.

    Example:
        >>> def step(gradients, *, clip, noise_multiplier, batch_size, rng_seed):
        ...     return np.zeros(gradients.shape[1])
        >>> StepUnderTest(step)(np.zeros((2, 4)), claim=Claim(sampler="poisson"), batch_size=1,
        ...                     seed=0, cohorts=np.zeros((3, 2), dtype=np.int64)).shape
        (3, 2, 4)
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        returns: Literal["mean", "sum"] = "mean",
        draws_batches: bool = True,
        name: str = "of this function",
        whole: bool = False,
    ) -> None:
        choice("returns", returns, ["mean", "sum"])
        self._step, self._returns, self._name = step, returns, name
        self._training = step if whole else self._steps
        self.draws_batches = getattr(step, "draws_batches", True) if whole else draws_batches
        self.hostile: Mapping[str, PrivateTraining] = getattr(step, "hostile", {}) if whole else {}

    def __call__(self, gradients: FloatArray, **settings: Any) -> FloatArray:
        """Updates [rounds, draws, D]; every step has a seed of its own."""
        # Gradients that are not finite are given on purpose; a warning about them is no news.
        with telling(f"the step {self._name} failed on gradients of shape {gradients.shape}"):
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                updates = self._training(gradients, **settings)
            return _as_array(updates, (*settings["cohorts"].shape, gradients.shape[1]))

    def _steps(
        self, gradients: FloatArray, *, claim: Claim, batch_size: int, seed: int,
        cohorts: IntArray, local_steps: int = 1,
    ) -> FloatArray:  # fmt: skip
        updates = []
        for t, cohort in enumerate(cohorts.tolist()):
            for draw, client in enumerate(cohort):
                names = [(seed, t, client, draw, step) for step in range(local_steps)]
                updates.append(sum(self._one(gradients, claim, batch_size, n) for n in names))
        return np.stack(updates).reshape(*cohorts.shape, gradients.shape[1])

    def _one(
        self, gradients: FloatArray, claim: Claim, batch_size: int, name: tuple[int, ...]
    ) -> FloatArray:
        units, rows, persons = np.arange(len(gradients)), gradients.copy(), {}
        if claim.rows > 1:
            rows, units = rows_of_persons(gradients, claim)
        if not self.draws_batches:
            chance = np.random.default_rng(_seed_of("batch", name)).random(len(gradients))
            drawn = chance[units] < batch_size / len(gradients)
            rows, units = rows[drawn], units[drawn]
        if claim.rows > 1:
            persons = {"persons": units}
        released = self._step(
            rows,
            **persons,
            clip=claim.clip,
            noise_multiplier=claim.noise_multiplier,
            batch_size=batch_size,
            rng_seed=_seed_of("noise", name),
        )
        result = _as_array(released, (gradients.shape[1],))
        return result / batch_size if self._returns == "sum" else result


def step_by_name(
    name: str,
    *,
    returns: Literal["mean", "sum"] = "mean",
    draws_batches: bool = True,
    persons: bool = False,
) -> StepUnderTest:
    """The training behind ``module:function``, in either of the two forms.

    Args:
        name: ``module:function``; modules in the current folder are found too.
        returns: for a plain step, see :class:`StepUnderTest`.
        draws_batches: for a plain step.
        persons: whether a plain step must take ``persons``, whose each row is.

    Raises:
        InputError: there is no such function, or it has neither form; later, from the training
            itself, if the function fails or returns something else.
    """
    function = named_function("--step", name, example="my_project.training:noisy_step")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        parameters = types.MappingProxyType({})
    accepted = set(parameters)
    if not accepted & {"cohorts", "rng_seed"}:
        raise InputError("--step", given=name, allowed=f"a function of one of two forms: {_FORMS}")
    whole = "cohorts" in accepted
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    if persons and not (whole or takes_all or "persons" in accepted):
        allowed = "a function that takes persons=, an array that says whose each row is"
        raise InputError("--step", given=name, allowed=allowed)
    return StepUnderTest(
        function, returns=returns, draws_batches=draws_batches, name=name, whole=whole
    )


def _as_array(released: Any, shape: tuple[int, ...]) -> FloatArray:
    """What a user's function returned, as floats of the shape it should have."""
    try:
        array = np.asarray(released)
        if array.dtype != np.float32:
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError("what the step returns", given=released, allowed="numbers") from None
    if array.shape != shape:
        raise InputError("shape of what the step returns", given=array.shape, allowed=f"{shape}")
    return array


def _seed_of(purpose: str, name: tuple[int, ...]) -> int:
    """A seed of 63 bits for one purpose of one step."""
    digest = hashlib.blake2b(f"{purpose}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
