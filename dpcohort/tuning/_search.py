# SPDX-License-Identifier: Apache-2.0
"""``tune``: rounds, batch, clip, step and η from data that cost nobody anything.

Source *none* tries settings on generated problems of the same shape, source *public* on records
that are public; both with the clients' own sizes and budgets, the noise these lead to, and the
model of the configuration. One setting after the other is varied, the others staying at the best
that is known; of all that was tried the setting is chosen that loses least to the best on each data
set, over all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, IntArray, choice, whole_number
from dpcohort.accounting import Charge
from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.data import Dataset, Normalisation, Partition, Persons, load_dataset
from dpcohort.errors import DivergedError, InputError
from dpcohort.metrics import trivial_outputs
from dpcohort.progress import Progress, silent
from dpcohort.round_record import RoundRecord
from dpcohort.runs import (
    Job,
    Run,
    configured_data,
    configured_job,
    configured_optimiser,
    configured_training,
    data_section,
    train_side_by_side,
)
from dpcohort.runs._configured import configured_plan, population_to_train
from dpcohort.runs._job import fitted
from dpcohort.runs._partitions import configured_partition
from dpcohort.runs._provenance import TUNING_SOURCES
from dpcohort.tasks import Task
from dpcohort.tuning._settings import (
    Settings,
    changes_for,
    digits,
    linear_width,
    suggested_settings,
)

Source = Literal["none", "public", "charged"]

#: Trainings side by side.
_STACK = 6
#: By how much more of the loss a search must save than what it began with.
_CLEARLY = 0.01
#: Share of public records that settings are scored on.
_HELD_OUT = 0.3
_LEAST_PUBLIC = 40


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One kind of generated problem.

    Attributes:
        name: what it is called in tables.
        separation: distance of the classes in units of their spread; of numbers to be predicted,
            signal over noise.
        decay: exponent with which the directions become less important.
        spread: standard deviation of an input where nothing is published about it.
        offset: how far the mean of an input is from 0 where nothing is published about it, in
            units of its deviation: categories and numbers within bounds are seldom centred.
        mistaken: share of labels drawn at random.
        rarest: records of the rarest class for one of the most frequent.

    Example:
        >>> PROBLEMS[0].name
        'clear'
    """

    name: str
    separation: float
    decay: float = 0.5
    spread: float = 0.5
    offset: float = 0.0
    mistaken: float = 0.0
    rarest: float = 1.0


#: From easy to hard; of real sets one does not know where they stand.
PROBLEMS = (
    Problem(name="clear", separation=4.0, spread=0.5),
    Problem(name="uneven", separation=3.0, spread=0.25, offset=1.5, mistaken=0.1, rarest=0.1),
    Problem(name="faint", separation=2.0, decay=1.0, spread=0.25, offset=1.5, mistaken=0.2),
)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """Settings that were chosen, and how.

    Attributes:
        source: ``none``, ``public`` or ``charged``.
        words: what the source is.
        settings: the choice.
        changes: of the configuration, as ``--set`` takes them.
        sets: names of the data sets that settings were scored on.
        before: the configuration as it was, on the same data sets; None if it was not scored.
        tried: everything that was tried.
        records: which public records, in words.
        charge: what was paid for the choice; None for nothing.
    """

    source: Source
    words: str
    settings: Settings
    changes: tuple[str, ...]
    sets: tuple[str, ...] = ()
    before: tuple[float, ...] | None = None
    tried: Mapping[Settings, tuple[float, ...]]
    records: str = ""
    charge: Charge | None = None

    def record(self) -> list[str]:
        """The table [tuning] of the tuned configuration, as ``--set`` takes it."""
        changes = [f"tuning.source={self.source}"]
        if self.records:
            changes.append(f"tuning.records={json.dumps(self.records)}")
        if self.charge is not None:
            changes.append(f'tuning.charge="{self.charge.id}"')
        return changes

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; of charged trials, only what was chosen."""
        shown = {} if self.source == "charged" else self.tried
        return {
            "format": "dpcohort tuning",
            "schema": 1,
            "source": self.source,
            "words": self.words,
            **({} if self.charge is None else {"charge": self.charge.id}),
            "changes": list(self.changes),
            "settings": asdict(self.settings),
            "sets": list(self.sets),
            "before": None if self.before is None else list(self.before),
            "tried": [{**asdict(one), "scores": list(scores)} for one, scores in shown.items()],
        }


#: A data set that settings are scored on: its name, repetition, and the records.
Sample = tuple[str, int, Dataset]


def tune(
    config: Config,
    *,
    source: str = "none",
    public: str | Path | None = None,
    seeds: int = 2,
    problems: Sequence[Problem] = PROBLEMS,
    most_rounds: int = 200,
    device: str | None = None,
    progress: Progress = silent,
) -> Tuned:
    """Choose rounds, batch, clip, step and η without spending anything.

    Args:
        config: with data; of source ``none`` only its shape and sizes are used.
        source: ``none`` or ``public``; see `dpcohort.tuning.tune_charged` for the third.
        public: of source ``public``, which records are: ``client`` (the public clients'), ``test``
            (the test records), or a file of records of the same shape. The public clients' if there
            are any.
        seeds: repetitions on each problem.
        problems: kinds of generated problems.
        most_rounds: the most to try.
        device: instead of the configuration's.
        progress: told how far it is.

    Raises:
        InputError: there is no data, or no public record, or nothing can be trained.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> config = loads_config(commented_config("digits"))
        >>> found = tune(config, seeds=1, problems=PROBLEMS[:1], most_rounds=5, device="cpu")
        >>> found.source, found.settings.rounds <= 5
        ('none', True)
    """
    choice("source", source, ["none", "public"])
    whole_number("seeds", seeds, at_least=1)
    data_section(config)
    data = configured_data(config)
    config = counted(config, data)
    population = population_to_train(config, data)
    samples, which, words = samples_of(source, config, data, population, public, problems, seeds)
    bench = Bench(config, population, samples, device=device)
    start = start_of(config, data, population, most_rounds)
    settings, tried = descend(bench, start, most_rounds=most_rounds, progress=progress)
    if source == "none":
        settings = _better_on_others(config, population, data, problems, seeds, settings, start)
    return Tuned(
        source="none" if source == "none" else "public",
        words=words,
        settings=settings,
        changes=tuple(changes_for(settings, config, population)),
        sets=tuple(f"{name} {seed}" for name, seed, _ in samples),
        before=bench.known[None],
        tried=tried,
        records=which,
    )


def _better_on_others(
    config: Config,
    population: Population,
    data: Dataset,
    problems: Sequence[Problem],
    seeds: int,
    found: Settings,
    start: Settings,
) -> Settings:
    """The settings found, if they are clearly better on problems they were not chosen on."""
    others = stand_ins(data, problems, range(seeds, 2 * seeds))
    new, old = map(np.mean, Bench(config, population, others).score([found, start]))
    return found if new > old + _CLEARLY else start


def counted(config: Config, data: Dataset) -> Config:
    """The configuration with its model's parameters counted: noise, and so η, goes by them."""
    dimension = configured_training(config, data).dimension
    return config.with_overrides([f"training.dimension={dimension}"])


def start_of(
    config: Config, data: Dataset, population: Population, most_rounds: int = 200
) -> Settings:
    """Where the search begins: `suggested_settings`, within the rounds that are allowed."""
    found = suggested_settings(
        population,
        dimension=config.training.dimension,
        inputs=math.prod(data.input_shape),
        rule=config.rule,
        task=data.task.kind,
        row_bound=data.row_bound if config.model.name == "logistic" else math.inf,
        width=linear_width(config, data),
        most_rounds=whole_number("rounds", most_rounds, at_least=1),
        summed_rows=data.summed_rows,
        config=config,
    )
    return found


def samples_of(
    source: str,
    config: Config,
    data: Dataset,
    population: Population,
    public: str | Path | None,
    problems: Sequence[Problem],
    seeds: int,
) -> tuple[list[Sample], str, str]:
    """The data sets that settings are scored on; which public records they are, and both in words.

    Raises:
        InputError: public records are named though none are used, or there are none.
    """
    if source == "none":
        if public is not None:
            raise InputError.because("public records go with source = public, and only with it.")
        return stand_ins(data, problems, range(seeds)), "", TUNING_SOURCES["none"]
    samples, which = public_samples(config, data, population, public, seeds)
    return samples, which, f"{TUNING_SOURCES['public']} ({which})"


def stand_ins(data: Dataset, problems: Sequence[Problem], seeds: Sequence[int]) -> list[Sample]:
    """Generated data sets of the shape of one, several of each kind."""
    return [
        (problem.name, seed, stand_in(data, problem, seed=seed))
        for problem in problems
        for seed in seeds
    ]


def public_samples(
    config: Config, data: Dataset, population: Population, which: str | Path | None, seeds: int
) -> tuple[list[Sample], str]:
    """Public records as data sets of the size of the clients', and in words which they are.

    Most of them are drawn, again and again, into as many training records as the clients have; the
    rest scores. Each repetition splits them anew.
    """
    inputs, labels, words = _public_records(config, data, population, which)
    count = len(labels)
    if count < _LEAST_PUBLIC:
        raise InputError.because(
            f"there are {count} public records ({words}), too few to tell settings apart: at least "
            f"{_LEAST_PUBLIC} are needed. Take --source none."
        )
    samples = []
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 31])
        held, rest = np.split(rng.permutation(count), [int(_HELD_OUT * count)])
        drawn = rng.choice(rest, size=len(data))
        made = replace(
            data,
            name=f"public records, {words}",
            normalisation=Normalisation(),
            train_inputs=inputs[drawn],
            train_labels=labels[drawn],
            test_inputs=inputs[held],
            test_labels=labels[held],
            test_clients=None,
            clients=data.record_clients,
            persons=None if data.persons is None else Persons.alone(len(data)),
            test_persons=None,
            public=True,
        )
        samples.append(("public", seed, made))
    return samples, words


def _public_records(
    config: Config, data: Dataset, population: Population, which: str | Path | None
) -> tuple[Any, Any, str]:
    if which is None and not population.public.any():
        raise InputError.because(
            "no client is public, so there are no public records by themselves. Say which "
            "records are public: --public test (the test records), or --public FILE.npz "
            "(records of the same shape); or take --source none."
        )
    if which is None or which == "client":
        held = _public_clients(config, data, population)
        rows = data.rows_of(held)
        inputs = data.normalised(data.train_inputs[rows])
        return inputs, data.train_labels[rows], "those of public clients"
    if which == "test":
        words = "the test records, which no longer judge the model fairly"
        return data.normalised(data.test_inputs), data.test_labels, words
    found = load_dataset(which)
    same = (found.input_shape, found.classes, found.task.kind)
    if same != (data.input_shape, data.classes, data.task.kind):
        raise InputError(
            "--public",
            given=f"{which}: records of shape {found.input_shape}, {found.classes} classes",
            allowed=f"records of shape {data.input_shape} and {data.classes} classes, as the data",
        )
    inputs = np.concatenate([found.train_inputs, found.test_inputs])
    labels = np.concatenate([found.train_labels, found.test_labels])
    return found.normalised(inputs), labels, Path(which).name


def _public_clients(config: Config, data: Dataset, population: Population) -> IntArray:
    if not population.public.any():
        raise InputError.because("no client is public: --public client has no records to take.")
    plan = configured_plan(config, data, population=population)
    partition = configured_partition(config, plan, data, config.run.seed)
    places = np.flatnonzero(population.public).tolist()
    return np.concatenate([np.asarray(partition.client(k)) for k in places])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Trial(Job):
    """A job of which nothing but the test loss is wanted."""

    def judge(self, parameters: torch.Tensor, history: Sequence[RoundRecord]) -> dict[str, Any]:
        """Nothing: metrics of models that nobody keeps would take longer than training them."""
        return {"warnings": []}


@dataclass(eq=False)
class Bench:
    """Scores settings on data sets; each is trained once.

    Attributes:
        config: model, rules and budgets.
        population: its clients.
        samples: what to train on.
        partition: who holds which record; drawn if it is not given.
        device: instead of the configuration's.
        known: the scores of all that were scored; None is the configuration as it is.
    """

    config: Config
    population: Population
    samples: Sequence[Sample]
    partition: Partition | None = None
    device: str | None = None
    known: dict[Settings | None, tuple[float, ...]] = field(default_factory=dict, init=False)
    _plans: dict[tuple[Any, ...], Job] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.config = self.config.with_overrides(_shared_out(self.config))

    @property
    def tried(self) -> dict[Settings, tuple[float, ...]]:
        """The scores of all settings that were scored."""
        return {one: scores for one, scores in self.known.items() if one is not None}

    def score(
        self, wanted: Sequence[Settings | None], told: Callable[[int], None] | None = None
    ) -> list[tuple[float, ...]]:
        """Train all that are not known yet; None is the configuration as it is."""
        missing = [one for one in dict.fromkeys(wanted) if one not in self.known]
        scores: dict[Settings | None, list[float]] = {one: [] for one in missing}
        for _, seed, data in self.samples:
            jobs = {one: self.job(one, data, seed) for one in missing}
            for stack in _stacks(jobs):
                found = scored([jobs[one] for one in stack], data)
                for one, score in zip(stack, found, strict=True):
                    scores[one].append(score)
                    if told is not None:
                        told(jobs[one].plan.training.rounds)
        self.known |= {one: tuple(scores[one]) for one in missing}
        return [self.known[one] for one in wanted]

    def job(self, settings: Settings | None, data: Dataset, seed: int) -> Job:
        """The training of settings on a data set; None is the configuration as it is."""
        changes = [] if settings is None else changes_for(settings, self.config, self.population)
        config = self.config.with_overrides(changes)
        config = config.with_overrides([f"run.evaluate_every={config.training.rounds}"])
        # Clip and step change neither cohorts nor noise: those share a plan and its certificate.
        clip = config.training.clip
        alike = (
            id(data),
            seed,
            replace(config.training, clip=1.0),
            str(config.values["selection"]),
            repr(config.model.options),
        )
        if alike not in self._plans:
            job = configured_job(
                config,
                data=data,
                population=self.population,
                partition=self.partition,
                shift=seed,
                device=self.device,
            )
            self._plans[alike] = _Trial(**{one.name: getattr(job, one.name) for one in fields(Job)})
        job = self._plans[alike]
        training = replace(job.plan.training, clip=clip)
        plan = replace(job.plan, training=training)
        optimiser = fitted(
            configured_optimiser(config.optimiser, clip=clip), plan, job.model, data.task
        )
        return replace(job, plan=plan, optimiser=optimiser)


def _shared_out(config: Config) -> list[str]:
    """Changes that make a configuration fit any records: who holds which is drawn."""
    section = data_section(config)
    changes = ["run.engine=batched"]
    if section.partition == "column":
        changes += ["data.column=", "data.partition=paper"]
    if "selection" not in config.values:
        changes.append(f"selection.rule={config.rule}")
    if config.aggregation[0] == "mean" and not config.is_adaptive:
        changes.append("run.merged_noise=true")  # the same law, sooner
    return changes


def _stacks(jobs: Mapping[Settings | None, Job]) -> Iterator[list[Settings | None]]:
    """Settings in groups whose jobs run side by side: of as many rounds, and the same model."""
    groups: dict[tuple[int, str], list[Settings | None]] = {}
    for one, job in jobs.items():
        key = job.plan.training.rounds, repr(dict(job.model_options))
        groups.setdefault(key, []).append(one)
    for group in groups.values():
        for start in range(0, len(group), _STACK):
            yield group[start : start + _STACK]


def scored(jobs: Sequence[Job], data: Dataset) -> list[float]:
    """The share of the trivial loss that each trained model saves.

    A training that leaves all numbers has -1, and does not spoil those beside it.
    """
    try:
        return [score_of(run, data) for run in train_side_by_side(jobs)]
    except DivergedError:
        if len(jobs) == 1:
            return [-1.0]
        return [scored([job], data)[0] for job in jobs]


def score_of(run: Run, data: Dataset) -> float:
    """The share of the best constant's loss that a model saves, -1 at the least.

    Of classes it is the log loss: a score that asks for honest probabilities, where accuracy does
    not tell a sure model from one that is right by a hair.
    """
    outputs = torch.as_tensor(trivial_outputs(data.task, data.test_labels), dtype=torch.float32)
    targets = torch.as_tensor(data.test_labels.copy())
    trivial = float(data.task.losses(outputs, targets).mean())
    return max(-1.0, 1.0 - run.test.loss / max(trivial, 1e-12))


def descend(
    bench: Bench, start: Settings, *, most_rounds: int, progress: Progress = silent
) -> tuple[Settings, dict[Settings, tuple[float, ...]]]:
    """Vary one setting after the other around the best that is known."""
    passes = _passes(start, most_rounds)
    settings = 1 + sum(len(vary) - 1 for vary in passes)
    rounds_of_all = settings * start.rounds + bench.config.training.rounds  # about
    done, total = 0, len(bench.samples) * rounds_of_all

    def told(rounds: int) -> None:
        nonlocal done
        done += rounds
        progress("settings", min(done, total - 1), total)

    bench.score([None], told)
    best = start
    for vary in passes:
        bench.score([replace(best, **change) for change in vary], told)
        best = _robust(bench.tried)
    progress("settings", total, total)
    return best, bench.tried


def _passes(start: Settings, most_rounds: int) -> list[list[dict[str, Any]]]:
    """What is tried in each pass, as changes of the best known setting.

    Newton steps have neither clip nor step to choose: there plain ones are tried instead.
    """
    leans: list[dict[str, Any]] = [{"lean": lean} for lean in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)]
    if start.second_moments:
        longer = {"rounds": min(2 * start.rounds, most_rounds)}
        plain = {"rounds": most_rounds, "second_moments": 0.0}
        passes = [
            [
                {},
                *(
                    {**one, "path": start.path * one["rounds"] / start.rounds}
                    for one in (longer, plain)
                ),
            ]
        ]
        return [*passes, *([leans] if start.lean is not None else [])]
    wide = [{"path": round(start.path * 10**power, 3)} for power in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    passes = [wide]
    if start.lean is not None:
        passes.append(leans)
    few = [min(most_rounds, round(start.rounds * factor)) for factor in (0.3, 1.0, 2.0)]
    passes.append([{"clip": digits(start.clip * factor)} for factor in (0.1, 0.3, 1.0)])
    passes.append([{"rounds": max(1, rounds)} for rounds in few])
    passes.append([{"rate": rate} for rate in (0.1, 0.3, 1.0)])
    return passes


def _robust(tried: Mapping[Settings, tuple[float, ...]]) -> Settings:
    """The setting that loses least to the best on each data set: on average and at worst."""
    scores = np.array(list(tried.values()))
    lost = scores.max(0) - scores
    return list(tried)[int(np.argmin(lost.mean(1) + lost.max(1)))]


# Stand-in data. What is known of a data set without looking into it is public: how many records
# there are and who holds how many, the shape of a record, the constants that scale it, what is
# predicted. Problems of that shape are drawn at random. They differ in how hard they are and in
# what decides: a setting that is good for all of them is a setting one can begin with.

#: Directions in which generated records vary; those of real tables and pictures are few as well.
_DIRECTIONS = 40
_TEST_RECORDS = 1000
#: Share of labels of a table that nothing in it explains: people's outcomes are seldom sure, and
#: where they are, settings that make a model too sure look good.
_UNEXPLAINED = 0.2
#: Of the norm that bounds allow, what rows of tables have.
_FILLED = 0.8

_Inputs = NDArray[np.float32]


def stand_in(data: Dataset, problem: Problem, *, seed: int = 0) -> Dataset:
    """A generated data set of the shape of another one, whose records are not looked at.

    Args:
        data: read for its shape, task, normalisation and number of records only.
        problem: the kind of problem.
        seed: which one of that kind.

    Example:
        >>> from dpcohort.data import load_dataset
        >>> generated = stand_in(load_dataset("digits"), PROBLEMS[0])
        >>> len(generated), generated.input_shape, generated.classes
        (1442, (1, 8, 8), 10)
    """
    wanted = len(data)
    if math.isfinite(data.row_bound):
        problem = replace(problem, mistaken=problem.mistaken + _UNEXPLAINED)
    rng = np.random.default_rng([seed, *problem.name.encode()])
    everyone = wanted + _TEST_RECORDS
    inputs: NDArray[Any]
    if data.train_inputs.dtype == np.int64:
        inputs, labels = _tokens(rng, data, problem, everyone)
    else:
        inputs, labels = _numbers(rng, data, problem, everyone)
    return Dataset(
        name=f"generated, {problem.name}",
        train_inputs=inputs[:wanted],
        train_labels=labels[:wanted],
        test_inputs=inputs[wanted:],
        test_labels=labels[wanted:],
        classes=data.classes,
        normalisation=Normalisation(),
        task=data.task,
        row_bound=data.row_bound,
        persons=None if data.persons is None else Persons.alone(wanted),
        public=True,
    )


def _numbers(
    rng: np.random.Generator, data: Dataset, problem: Problem, records: int
) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
    features = math.prod(data.input_shape)
    directions = min(features, _DIRECTIONS)
    weights = np.arange(1, directions + 1) ** -problem.decay
    weights *= math.sqrt(directions / (weights**2).sum())
    latent, labels = _labelled(rng, data.task, problem, records, directions)
    mixing = rng.standard_normal((directions, features), np.float32) / math.sqrt(directions)
    values = (latent * weights).astype(np.float32) @ mixing
    values += 0.3 * rng.standard_normal((records, features), np.float32)
    values /= values.std()
    scaled = _as_normalised(rng, values, data, problem)
    return scaled.reshape(records, *data.input_shape), labels


def _as_normalised(
    rng: np.random.Generator, values: _Inputs, data: Dataset, problem: Problem
) -> _Inputs:
    """Values of spread 1 as a model sees such inputs, by what is published about them."""
    constants = data.normalisation
    if constants.mean != (0.0,) or constants.std != (1.0,):
        return values  # published means and deviations make it so
    if constants.scale != 1.0:
        values *= 0.35
        values += 0.3
        return values.clip(0.0, 1.0)  # from 0 to the largest, as pixels are
    away = rng.standard_normal(values.shape[1], np.float32)
    values += problem.offset * away
    if math.isinf(data.row_bound):
        return problem.spread * values
    # Rows of a table within public bounds: one of its values in each column of categories makes
    # their norms alike, and numbers seldom reach their bounds.
    most = math.sqrt(data.row_bound**2 - 1)
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    scaled: _Inputs = values * np.minimum(_FILLED * most / np.sqrt((norms**2).mean()), most / norms)
    return scaled


def _labelled(
    rng: np.random.Generator, task: Task, problem: Problem, records: int, directions: int
) -> tuple[FloatArray, NDArray[np.generic]]:
    """Where records stand in their directions, and what is to be predicted of each."""
    noise = rng.normal(size=(records, directions))
    if task.predicts_classes:
        shares = np.array(task.class_shares or np.geomspace(1.0, problem.rarest, task.outputs))
        labels = rng.choice(task.outputs, size=records, p=shares / shares.sum())
        centres = rng.normal(size=(task.outputs, directions))
        centres *= problem.separation / np.sqrt((centres**2).sum(1, keepdims=True))
        latent = noise + centres[labels] * math.sqrt(2.0)
        wrong = rng.random(records) < problem.mistaken
        return latent, np.where(wrong, rng.permutation(labels), labels)
    teacher = rng.normal(size=(directions, task.outputs)) / math.sqrt(directions)
    signal = noise @ teacher + rng.normal(size=(records, task.outputs)) / problem.separation
    if task.kind == "multi-label":
        return noise, (signal > 0.5).astype(np.float32)
    if task.kind == "counts":
        most = math.inf if task.bounds is None else task.bounds[1]
        return noise, np.minimum(rng.poisson(np.exp(signal[:, 0])), most).astype(np.float32)
    return noise, np.clip(0.35 * signal[:, 0], -1.0, 1.0).astype(np.float32)


def _tokens(
    rng: np.random.Generator, data: Dataset, problem: Problem, records: int
) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
    """Token ids whose frequencies depend on where a record stands, in a vocabulary of few ids.

    How many ids there are is in the model, not in the shape of a record, so the smallest are taken.
    """
    latent, labels = _labelled(rng, data.task, problem, records, 8)
    likely = latent @ rng.normal(size=(8, _TOKENS))
    length = math.prod(data.input_shape)
    noise = rng.gumbel(size=(records, length, _TOKENS))
    ids = np.argmax(likely[:, None, :] + noise, axis=2).astype(np.int64)
    return ids.reshape(records, *data.input_shape), labels


#: Ids of generated text.
_TOKENS = 16
