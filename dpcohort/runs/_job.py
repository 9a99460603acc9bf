# SPDX-License-Identifier: Apache-2.0
"""One training, ready to begin: plan, model, data and settings, checked against each other."""

from __future__ import annotations

import copy
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpcohort._validate import FloatArray, choice, whole_number
from dpcohort.accounting._charges import refuse_simulated
from dpcohort.aggregation import AggregationRule, Mean
from dpcohort.config import Config
from dpcohort.data import Dataset, Partition, load_dataset, paper_partition
from dpcohort.data._arrays import is_mapped
from dpcohort.data._dataset import affine_map, simulation_seed, without_label
from dpcohort.engine import (
    ClientRecords,
    Evaluator,
    Experiment,
    Loss,
    Optimiser,
    Streams,
    evaluator_on,
    outputs_on,
)
from dpcohort.engine._experiment import refuse_unmergeable
from dpcohort.engine._lattice import delta_of_sampling
from dpcohort.engine._preconditioner import Preconditioner
from dpcohort.engine._rounds import LaterStep
from dpcohort.engine.clipping import FlatLayout, can_be_mapped, per_example_gradients
from dpcohort.errors import InputError
from dpcohort.metrics import trivial_outputs
from dpcohort.models import (
    build_model,
    check_trainable,
    described_weights,
    split_features,
)
from dpcohort.plan import Plan
from dpcohort.plugins import full_name
from dpcohort.round_record import RoundRecord
from dpcohort.runs._aggregation_record import aggregation_for, described_aggregation
from dpcohort.runs._chooser import Ask, Chooser, LossMeter, ReportHandler
from dpcohort.runs._continuation import going_on
from dpcohort.runs._journal import Journal
from dpcohort.runs._paid_evaluation import EvaluationTerms, Group
from dpcohort.runs._partitions import carried_partition, check_holders, partition_labels
from dpcohort.runs._prediction import model_outputs
from dpcohort.runs._provenance import PRIVATE_NOISE
from dpcohort.runs._run import Run
from dpcohort.runs._success import judgement, plan_warnings
from dpcohort.tasks import Task, check_own_loss
from dpcohort.text_files import toml_text
from dpcohort.training import EngineName

#: Keeps the partition's stream apart from any other made of the same seed.
_PARTITION_STREAM = 11
#: Larger training sets stay bytes on the device and are normalised batch by batch.
_MOST_RESIDENT_FLOATS = 300_000_000
#: Test records whose gradients are looked at, and numbers of them that are formed at a time.
_SOME_RECORDS, _FORMED_NUMBERS = 200, 1 << 22


class ConfigSource(NamedTuple):
    """The configuration that a training came from.

    Attributes:
        text: TOML; empty where the server of a federation has none.
        folder: what relative paths in it start from.
        tuning: where its settings came from, if ``dpcohort tune`` chose them.
    """

    text: str = ""
    folder: Path | None = None
    tuning: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, config: Config) -> ConfigSource:
        """A configuration as a training takes it along."""
        return cls(toml_text(config.values), config.folder, config.tuning)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingJob(ABC):
    """What the loop and the record need to know of a training, wherever its data are.

    Attributes:
        plan: cohorts and noise.
        model: with its initial weights; it is not changed.
        partition: who holds which records.
        optimiser: step sizes, momentum, average.
        aggregation: how a round's updates are combined.
        simulate: seed of batches and noise; None takes the operating system's entropy.
        device: where it runs.
        checkpoint_every: rounds between checkpoints.
        source: the configuration that it came from, if any.
        after: folder of the run that it goes on from, if its plan does.
        carried: state of the model it goes on from; empty for fresh weights.
        weights: whose weights it starts from and what of them is frozen, as ``run.json`` has it;
            None for the start that a seed gives.
    """

    plan: Plan
    model: nn.Module
    partition: Partition
    optimiser: Optimiser
    aggregation: AggregationRule = field(default_factory=Mean)
    simulate: int | None = None
    device: str = "cpu"
    checkpoint_every: int = 1
    source: ConfigSource | None = None
    after: Path | None = None
    carried: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        parameters, dimension = self.carried.get("parameters"), self.plan.training.dimension
        if parameters is not None and parameters.size != dimension:
            raise InputError.because(
                f"{self.after} trained a model of {parameters.size:,} parameters and the plan is "
                f"for {dimension:,}. Go on with the model of that run."
            )

    @property
    def tuning(self) -> dict[str, dict[str, Any]]:
        """What ``run.json`` says of where the settings came from, if it says anything."""
        known = self.source is not None and self.source.tuning
        return {"tuning": dict(known)} if known else {}

    @property
    def private(self) -> bool:
        """Whether batches and noise come from the operating system's entropy."""
        return self.simulate is None

    @property
    def repeats(self) -> bool:
        """Whether a round computed again after a crash is the very same release."""
        return not self.private

    def initial(self) -> torch.Tensor:
        """The initial parameters as one vector, on the CPU."""
        if self.carried:
            return torch.from_numpy(np.array(self.carried["parameters"]))
        return FlatLayout(self.model).flatten(self.model).cpu()

    def model_settings(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """What ``run.json`` says of the model."""
        return {
            "name": name,
            "options": dict(options),
            "parameters": self.plan.training.dimension,
            "initial_sha256": hashlib.sha256(self.initial().numpy().tobytes()).hexdigest(),
            **({} if self.weights is None else {"weights": dict(self.weights)}),
        }

    @property
    def evaluation(self) -> EvaluationTerms | None:
        """The evaluation that the plan keeps a share of each budget for, if it is made here."""
        return None

    def noised_sums(self, run: Run, terms: EvaluationTerms) -> dict[Group, FloatArray]:
        """What clients release for it, alone or together, by positions, once it is charged."""
        raise NotImplementedError

    @property
    @abstractmethod
    def task(self) -> Task:
        """What is predicted, and by which loss."""

    @abstractmethod
    def tested(self) -> tuple[nn.Module, Dataset] | None:
        """A model with its test records; None where there are none that may be told of."""

    def evaluator(self) -> Evaluator | None:
        """The test set on the device; None where its results may not be written."""
        if (tested := self.tested()) is None:
            return None
        model, data = tested
        inputs, labels = data.normalised(data.test_inputs), data.test_labels.copy()
        return evaluator_on(model, inputs, labels, task=self.task, device=self.device)

    def judge(self, parameters: torch.Tensor, history: Sequence[RoundRecord]) -> dict[str, Any]:
        """What ``result.json`` says about the final model; warnings of the plan where no more.

        Args:
            parameters: of the model that is scored.
            history: rounds with their test results.
        """
        if (tested := self.tested()) is None:
            return {"warnings": plan_warnings(self.plan)}
        model, data = tested
        task, inputs, labels = self.task, data.normalised(data.test_inputs), data.test_labels
        vector = parameters.detach().to(self.device)
        constant = torch.as_tensor(trivial_outputs(task, labels), dtype=torch.float32)
        return judgement(
            task,
            outputs_on(model, inputs, device=self.device)(vector).cpu().numpy(),
            labels,
            plan=self.plan,
            history=history,
            trivial_loss=float(task.losses(constant, torch.as_tensor(labels.copy())).mean()),
            clipped_share=self._clipped_share(model, vector, inputs, labels),
        )

    def _clipped_share(
        self, model: nn.Module, vector: torch.Tensor, inputs: NDArray[Any], labels: NDArray[Any]
    ) -> float | None:
        """The share of a few test records with a gradient beyond the clip; None if unknown."""
        # It is only for a warning: what a device has no room for must not cost a finished run.
        with suppress(RuntimeError):
            copied = copy.deepcopy(model).to(vector.device).eval()
            loss = self.task.loss_on(vector.device)
            at_a_time = max(1, _FORMED_NUMBERS // vector.numel())
            some = min(len(labels), _SOME_RECORDS if at_a_time > 1 else _SOME_RECORDS // 10)
            x = torch.as_tensor(inputs[:some].copy(), device=vector.device)
            y = torch.as_tensor(labels[:some].copy(), device=vector.device)
            vectorised = can_be_mapped(copied, loss, x[:2], y[:2])
            gradients = per_example_gradients(copied, loss, vectorised=vectorised)
            parts = [slice(i, i + at_a_time) for i in range(0, some, at_a_time)]
            norms = torch.cat([gradients(vector, x[part], y[part]).norm(dim=1) for part in parts])
            if bool(torch.isfinite(norms).all()):
                return float((norms > self.plan.training.clip).double().mean())
        return None

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What ``run.json`` holds, and a resume must agree with."""

    @abstractmethod
    def reporter(self, records: ClientRecords | None = None) -> Ask:
        """What gets clients' reports for a rule that chooses from them.

        Args:
            records: what clients report on, if they are on the device already.
        """

    def chooser(
        self, journal: Journal, arrays: Mapping[str, Any], records: ClientRecords | None = None
    ) -> Chooser:
        """What names the cohorts of a run.

        Args:
            journal: where reports are counted.
            arrays: of the checkpoint that a run goes on from.
            records: what clients report on, if they are on the device already.

        Raises:
            InputError: a run with raw reports cannot go on, for they were never written down.
        """
        if not journal.is_empty:
            self.plan.reports.refuse_resume()
        return Chooser(
            self.plan.participation,
            journal,
            lambda: self.reporter(records),
            repeats=self.repeats,
            arrays=arrays,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Job(TrainingJob):
    """A training on this machine that can begin.

    Attributes:
        model_name: what the model is called in files.
        data: training and test records.
        seed: of model and partition; public.
        engine: ``batched`` or ``reference``.
        evaluate_every: rounds between evaluations.
        merged_noise: one noise vector a round for all last local steps; in simulation only.
        label: what the run is called in comparisons.
        model_options: of a model given by name.
    """

    model_name: str
    data: Dataset
    seed: int = 0
    engine: EngineName = "batched"
    evaluate_every: int = 1
    merged_noise: bool = False
    label: str = ""
    model_options: Mapping[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """What it was made from; what it computed of that is computed anew in another process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def title(self) -> str:
        """Its label, or else the rules that make it what it is."""
        combined = described_aggregation(self.aggregation, self.plan)
        rules = [self.plan.rule] + ([] if combined is None else [combined["rule"]])
        rules += [*self.plan.reports.title, *self.plan.noise.title]
        return self.label or ", ".join(rules)

    @cached_property
    def streams(self) -> Streams:
        """Where batches and noise come from; private ones take fresh entropy for every number."""
        if self.simulate is None:
            return Streams.from_entropy()
        seed = self.simulate
        for before in self.plan.past.segments[-1:]:
            # Rounds are numbered anew, and must not repeat the noise of the old.
            name = f"{seed} after {before.ledger}".encode()
            seed = int.from_bytes(hashlib.sha256(name).digest()[:7], "big")
        return Streams.seeded(seed)

    @property
    def _split(self) -> tuple[nn.Module, Dataset]:
        """The model after its fixed features, and the data with these computed."""
        return split_features(self.model, self.data, device=self.device, isolated=self.private)

    @property
    def trained(self) -> nn.Module:
        """What the engine trains: the model after its fixed features, which are computed once."""
        return self._split[0]

    def settings(self) -> dict[str, Any]:
        """What ``run.json`` holds, and a resume must agree with.

        A run without ``aggregation`` takes the plain mean, one without ``merged_noise`` draws the
        noise of every draw, and a simulation without ``simulate`` has the seed of the run.
        """
        combined = described_aggregation(self.aggregation, self.plan)
        return {
            "format": "dpcohort run",
            "schema": 1,
            "label": self.title,
            "plan": self.plan.sha256,
            "seed": self.seed,
            "randomness": "entropy" if self.private else "seeded",
            **({"noise": PRIVATE_NOISE} if self.private else {}),
            **({} if self.simulate in (None, self.seed) else {"simulate": self.simulate}),
            "data": {
                "name": self.data.name,
                "records": len(self.data),
                "classes": self.data.classes,
                "input_shape": list(self.data.input_shape),
            },
            "partition": {"sha256": self.partition.sha256, "rule": dict(self.partition.rule)},
            "model": self.model_settings(self.model_name, self.model_options),
            "optimiser": _described(self.optimiser),
            **({} if combined is None else {"aggregation": combined}),
            **({"merged_noise": True} if self.merged_noise else {}),
            **({"task": said} if (said := self.task.to_dict()) else {}),
            **self.tuning,
            "engine": self.engine,
            "evaluate_every": self.evaluate_every,
            "checkpoint_every": self.checkpoint_every,
        }

    @property
    def task(self) -> Task:
        """What is predicted, and by which loss."""
        return self.data.task

    @cached_property
    def loss(self) -> Loss:
        """The loss of each record, as its engine takes it."""
        return self.task.loss_on(self.device)

    @cached_property
    def evaluation(self) -> EvaluationTerms | None:
        """The evaluation on test records that are not public, if the plan keeps a share for it."""
        if not self.plan.past.paid.kept or self.data.test_is_public:
            return None
        return EvaluationTerms.of(self.plan, self.data)

    def noised_sums(self, run: Run, terms: EvaluationTerms) -> dict[Group, FloatArray]:
        """What clients release for it, alone or together, by positions, once it is charged."""
        outputs = model_outputs(run, self.data.test_inputs, model=self.model, isolated=self.private)
        return terms.sums(self.data, outputs, terms.keys(self.simulate))

    @property
    def may_test(self) -> bool:
        """Whether results on test records may be written: they are public, or all is simulated."""
        return not self.private or self.data.test_public

    def records(self) -> ClientRecords:
        """The clients' records on the device."""
        _, data = self._split
        inputs, transform = data.train_inputs, None
        # What is mapped from a file stays there: memory is then that of a cohort.
        mapped = is_mapped(inputs) and self.device == "cpu" and inputs.ndim == 2
        if inputs.dtype == np.int64 or (inputs.size <= _MOST_RESIDENT_FLOATS and not mapped):
            inputs = data.normalised(inputs)
        else:
            transform = _normaliser(data, self.device)
        # torch warns about arrays that are closed for writing.
        inputs, labels = (np.require(a, requirements="W") for a in (inputs, data.train_labels))
        return ClientRecords(
            inputs,
            labels,
            indices=self.partition.indices,
            offsets=self.partition.offsets,
            device=self.device,
            dtype=torch.float32,
            transform=transform,
            unusable=without_label(data.train_labels) if data.unusable else None,
            persons=data.persons,
        )

    def experiment(self, records: ClientRecords | None = None) -> Experiment:
        """What an engine trains.

        Args:
            records: the clients' records, if they are on the device already.
        """
        return Experiment(
            plan=self.plan,
            records=self.records() if records is None else records,
            streams=self.streams,
            optimiser=self.optimiser,
            aggregation=self.aggregation,
            initial=self.initial(),
            merged_noise=self.merged_noise,
        )

    def reporter(self, records: ClientRecords | None = None) -> Ask:
        """Reports on these records, by the terms of the plan."""
        meter = LossMeter(self.trained, records or self.records(), loss=self.loss)
        return ReportHandler(self.plan, meter, streams=self.streams).ask

    def tested(self) -> tuple[nn.Module, Dataset] | None:
        """What the engine trains with the test records, where their results may be written."""
        if not self.may_test:
            return None
        return self._split

    def judge(self, parameters: torch.Tensor, history: Sequence[RoundRecord]) -> dict[str, Any]:
        """The model beside the best constant on the test set, where that may be told."""
        if not self.may_test:
            silent = (
                "the test records are not public and this run is private, so nothing that is "
                "computed from them is written: no result tells how good the model is. With "
                "[evaluation] share = 0.05 (in Python make_plan(..., evaluation=0.05)) a share of "
                "each budget pays for one, which is asked for by itself where it tells enough."
            )
            return {
                "withheld": True,
                "warnings": [
                    *([silent] if self.evaluation is None else []),
                    *self.data.remarks,
                    *plan_warnings(self.plan),
                ],
            }
        found = super().judge(parameters, history)
        return {**found, "warnings": [*self.data.remarks, *found["warnings"]]}


class JobOptions(TypedDict, total=False):
    """What ``train`` and ``make_job`` take beside plan, model and data; every key may be left out.

    Attributes:
        partition: who holds which records; by default an IID partition of exactly the plan's
            sizes, from the seed.
        engine: ``batched`` (the default) or ``reference``.
        optimiser: step sizes, server optimiser, average of iterates.
        aggregation: how a round's noisy updates are combined: a rule, or its name (``dpcohort
            rules`` lists them); by default the mean.
        aggregation_settings: of a rule given by name.
        seed: of the initial weights and the default partition, which are public; 0 by default.
        simulate: seed of batches and noise. Whoever knows it can take the noise off again, so
            receipts say NOT PRIVATE. By default ``seed`` where the data are public; of any others
            both come from the operating system's entropy: nothing can be repeated, and a round
            that was counted before a crash is lost, never computed again.
        device: ``auto`` (the default), ``cpu`` or ``cuda``.
        evaluate_every: rounds between evaluations on the test set; about 20 in all by default.
        checkpoint_every: rounds between checkpoints; about 20 in all by default.
        merged_noise: draw the noise of all last local steps of a round as one vector. The model
            has the same law and comes faster, but single updates then lack noise: in simulation
            only, and with the plain mean only.
        model_options: of a model given by name.
        weights: of a model given by name: a safetensors file to start from.
        weights_source: whose weights these are and what they were trained on, for receipts.
        frozen: of a model given by name: parameters, or parts of it, that are not trained.
        after: folder of the run that a plan of ``replan`` continues, with its model.
        label: what the run is called in comparisons.
    """

    partition: Partition | None
    engine: str
    optimiser: Optimiser | None
    aggregation: str | AggregationRule
    aggregation_settings: Mapping[str, Any] | None
    seed: int
    simulate: int | None
    device: str | None
    evaluate_every: int | None
    checkpoint_every: int | None
    merged_noise: bool
    model_options: Mapping[str, Any] | None
    weights: str | Path | None
    weights_source: str
    frozen: Sequence[str]
    after: str | Path | None
    label: str


def make_job(
    plan: Plan, model: str | nn.Module, data: str | Dataset, **options: Unpack[JobOptions]
) -> Job:
    """Check that plan, model and data belong together.

    Args:
        plan: cohorts, noise, clip; its dimension must be the model's.
        model: a name for ``build_model``, or a module.
        data: a data set, or the name of one.
        options: see `JobOptions`.

    Raises:
        InputError: they do not, with both numbers and what to change.
    """
    for name in options:
        choice("option of a training", name, JobOptions.__annotations__)
    seed = whole_number("seed", options.get("seed", 0), at_least=0)
    engine = choice("engine", options.get("engine", "batched"), get_args(EngineName))
    rule = aggregation_for(
        plan, options.get("aggregation", "mean"), options.get("aggregation_settings")
    )
    device = resolve_device(options.get("device") or "auto")
    dataset = data if isinstance(data, Dataset) else load_dataset(data)
    simulate = simulation_seed(options.get("simulate"), public=dataset.public, seed=seed)
    if simulate is not None:
        whole_number("simulate", simulate, at_least=0)
        dataset.refuse_unusable()
    check_own_loss(dataset.task)
    weights, frozen = options.get("weights"), options.get("frozen", ())
    model_options = options.get("model_options") or {}
    if isinstance(model, str):
        name, module = model, built_model(model, dataset, seed, model_options, weights, frozen)
    else:
        name, module = _own_model(model, dataset, has_weights=weights is not None or bool(frozen))
    dimension = FlatLayout(module).dimension
    if dimension != plan.training.dimension:
        raise InputError.because(
            f"the plan was made for a model of {plan.training.dimension:,} parameters but {name} "
            f"trains {dimension:,}. Make the plan again with training.dimension = {dimension}."
        )
    plan.verify_unless_made_here()
    optimiser = fitted(options.get("optimiser") or Optimiser(), plan, module, dataset.task)
    after = None if (given := options.get("after")) is None else Path(given)
    carried = carried_state(plan, after, optimiser)
    partition = options.get("partition")
    if partition is None:
        rng = np.random.default_rng([seed, _PARTITION_STREAM])
        if after is not None:
            partition = carried_partition(after, plan, dataset, rng)
        else:
            labels = partition_labels(dataset)
            partition = paper_partition(labels, sizes=plan.population.sizes, rng=rng)
    _check_unit(plan, dataset)
    _check_partition(plan, partition, dataset)
    if after is not None:
        check_holders(after, plan, partition, dataset)
    private = simulate is None
    if private:
        refuse_simulated(plan.past.paid.charges)
        check_stated(dataset)
        _check_sampling(plan)
    if merged := options.get("merged_noise", False):
        _check_mergeable(plan, rule, private=private)
    if plan.past.paid.kept and not dataset.test_is_public:
        _ = EvaluationTerms.of(plan, dataset)  # refused before anything is spent
    often = max(1, plan.training.rounds // 20)
    evaluate, keep = options.get("evaluate_every"), options.get("checkpoint_every")
    if private:  # such a round cannot be computed again, so each is kept as soon as it is done
        keep = 1
    return Job(
        plan=plan,
        model=module,
        model_name=name,
        data=dataset,
        partition=partition,
        optimiser=optimiser,
        aggregation=rule,
        after=after,
        carried=carried,
        seed=seed,
        simulate=simulate,
        engine="reference" if engine == "reference" else "batched",
        device=device,
        evaluate_every=often
        if evaluate is None
        else whole_number("evaluate_every", evaluate, at_least=1),
        checkpoint_every=often
        if keep is None
        else whole_number("checkpoint_every", keep, at_least=1),
        merged_noise=merged,
        label=options.get("label", ""),
        model_options=dict(model_options),
        weights=described_weights(
            module, path=weights, source=options.get("weights_source", ""), frozen=frozen
        ),
    )


def _check_mergeable(plan: Plan, rule: AggregationRule, *, private: bool) -> None:
    """Refuse merged noise where somebody sees single updates."""
    refuse_unmergeable(Streams.from_entropy() if private else Streams.seeded(0), rule)
    if plan.participation.watches_updates:
        raise InputError.because(
            f"merged_noise does not go with the rule {plan.rule}: it looks at single "
            "updates, which would carry no noise of their last step. Leave it off."
        )


def carried_state(plan: Plan, after: str | Path | None, optimiser: Optimiser) -> dict[str, Any]:
    """The state that a plan goes on from, as far as the optimiser uses it; empty without any."""
    if after is None:
        return {}
    arrays, used = going_on(plan, after), optimiser.kept_names
    if any(name not in arrays for name in used if name.startswith("server.")):
        used = frozenset(name for name in used if not name.startswith("server."))
    return {name: arrays[name] for name in ("parameters", *sorted(used)) if name in arrays}


def fitted(optimiser: Optimiser, plan: Plan, model: nn.Module, task: Task) -> Optimiser:
    """The optimiser of a plan and model: Newton's where the model sends second moments.

    Its step sizes go on where the runs before the plan ended.
    """
    newton = Preconditioner.of(model, task)
    if newton is not None and plan.training.local_steps > 1:
        raise InputError.because(
            f"training.local_steps is {plan.training.local_steps}, and a model with second_moments "
            "takes one Newton step a round, at the server. Set it to 1, or leave model.options out."
        )
    optimiser = replace(optimiser, preconditioner=newton)
    done = plan.past.rounds * plan.training.local_steps
    if done == 0 or isinstance(optimiser.local_step, int | float):
        return optimiser
    return replace(optimiser, local_step=LaterStep(optimiser.local_step, done))


def resolve_device(device: str) -> str:
    """``auto`` as the device there is, and any other device if it can be used.

    Example:
        >>> resolve_device("cpu")
        'cpu'
    """
    kind = choice("device", device.partition(":")[0], ["auto", "cpu", "cuda"])
    has_cuda = torch.cuda.is_available()
    if kind == "auto":
        return "cuda" if has_cuda else "cpu"
    if kind == "cuda":
        place = device.partition(":")[2] or "0"
        if not has_cuda or not place.isdecimal() or int(place) >= torch.cuda.device_count():
            raise InputError(
                "device",
                given=device,
                allowed="a device of this machine",
                next_step="There is no such GPU, or this torch cannot use it; --device cpu works.",
            )
    return device


def built_model(
    name: str,
    data: Dataset,
    seed: int,
    options: Mapping[str, Any] | None = None,
    weights: str | Path | None = None,
    frozen: Sequence[str] = (),
) -> nn.Module:
    """The model of that name for a data set, with the weights of a file or those of the seed.

    Example:
        >>> built_model("logistic", load_dataset("digits"), 0)[1].out_features
        10
    """
    return build_model(
        name,
        input_shape=data.input_shape,
        classes=data.classes,
        seed=seed,
        options=options,
        input_dtype=_input_dtype(data),
        weights=weights,
        frozen=frozen,
    )


def _input_dtype(data: Dataset) -> torch.dtype:
    return torch.int64 if data.train_inputs.dtype == np.int64 else torch.float32


def _own_model(model: nn.Module, data: Dataset, *, has_weights: bool) -> tuple[str, nn.Module]:
    if not isinstance(model, nn.Module):
        raise InputError("model", given=model, allowed="the name of a model, or a torch.nn.Module")
    if has_weights:
        raise InputError.because(
            "weights and frozen are for a model given by name. Load them into your module, and set "
            "requires_grad=False where it is not to be trained."
        )
    dtype = _input_dtype(data)
    check_trainable(model, input_shape=data.input_shape, classes=data.classes, input_dtype=dtype)
    return type(model).__name__, model


def _check_unit(plan: Plan, data: Dataset) -> None:
    """Refuse data whose records are other units than those of the plan's promises."""
    planned, held = plan.contract.unit.name, "record" if data.persons is None else "person"
    if planned != held:
        step = "Say whose its rows are: [data] person, or persons=... of dataset_from_arrays."
        if planned == "record":
            step = 'Plan for persons, Contract(unit="person"), or leave them out of the data.'
        raise InputError.because(
            f"the unit of the plan is the {planned}, and a record of {data.name} is a {held}: what "
            f"is promised is not what would be done. {step}"
        )


def _check_partition(plan: Plan, partition: Partition, data: Dataset) -> None:
    if partition.records != len(data):
        raise InputError.because(
            f"the partition is of {partition.records} records but {data.name} has {len(data)}. "
            "Use the partition of this data set."
        )
    names = partition.names
    if names and names != plan.population.ids:
        raise InputError.because(
            "the partition names other clients than the plan, or in another order. Make the plan "
            "for the clients of this partition."
        )
    planned = plan.population.sizes
    if len(partition) != planned.size:
        raise InputError.because(
            f"the plan has {planned.size} clients but the partition has {len(partition)}. "
            "Make the plan for the clients of this partition."
        )
    wrong = np.flatnonzero(partition.sizes != planned)
    if wrong.size:
        k = int(wrong[0])
        raise InputError.because(
            f"{plan.population.ids[k]!r} has {int(partition.sizes[k])} records but was planned "
            f"with {int(planned[k])}; its noise would not fit. Make the plan for this partition."
        )


def check_stated(data: Dataset) -> None:
    """Refuse to train in private on a set whose classes were counted from its records.

    Raises:
        InputError: they were; the message shows what to write.

    Example:
        >>> check_stated(load_dataset("digits"))
    """
    if data.counted_classes:
        raise InputError.because(
            f"nobody said how many classes {data.name} has: they were counted from the labels of "
            "private records, so that one record can change the model, and no budget pays for "
            "that. Say how many there can be, as is publicly known: classes = ... in [data], an "
            "array 'classes' in the .npz file, or classes=... of dataset_from_arrays."
        )


def _check_sampling(plan: Plan) -> None:
    """Refuse a private run whose δ the distance of drawn noise from its law could show in.

    What a record contributes stays 5e-7 below the clip, which is worth far more of a δ than the
    billionth part that is allowed here. Where noise is distributed every member's noise is drawn
    so.
    """
    population, steps = plan.population, np.asarray(plan.steps)
    numbers = plan.noise.summands(plan.training.cohort_size) * plan.training.dimension
    for k in np.flatnonzero(~population.public & (steps > 0)).tolist():
        epsilon, delta = float(population.epsilon[k]), float(population.delta[k])
        if delta_of_sampling(epsilon, numbers, int(steps[k])) > 1e-9 * delta:
            raise InputError.because(
                f"{population.ids[k]!r} has epsilon {epsilon:g} at delta {delta:g}: an epsilon so "
                "large that the noise, drawn with an error of 2^-130, cannot keep it. It would "
                "promise nothing anyway: give a smaller epsilon, or public = true."
            )


def _normaliser(data: Dataset, device: str) -> Any:
    shape = (-1,) + (1,) * (data.train_inputs.ndim - 2)
    parts = (torch.as_tensor(part, device=device) for part in affine_map(data.normalisation))
    multiplier, offset = (part.view(shape) for part in parts)
    return lambda inputs: inputs * multiplier + offset


def _described(optimiser: Optimiser) -> dict[str, Any]:
    """The optimiser in plain values; a user's own step size by its repr."""
    step: Any = optimiser.local_step
    if isinstance(step, int | float):
        said = {"kind": "ConstantStep", "size": step}
    else:
        known = is_dataclass(step) and not isinstance(step, type)
        said = {"kind": type(step).__name__, **(asdict(step) if known else {"repr": repr(step)})}
    values = {f.name: getattr(optimiser, f.name) for f in fields(optimiser)} | {"local_step": said}
    if isinstance(optimiser.server, type):
        values["server"] = full_name(optimiser.server)
    del values["preconditioner"]  # the model's options say it
    if not optimiser.server:
        del values["server"], values["server_settings"]
    if (rule := values.pop("local")) is not None:
        thing: Any = rule
        settings = asdict(thing) if is_dataclass(rule) else {"repr": repr(rule)}
        values["local"] = {"rule": getattr(rule, "name", full_name(rule)), **settings}
    plain: dict[str, Any] = json.loads(json.dumps(values, default=repr))
    return plain
