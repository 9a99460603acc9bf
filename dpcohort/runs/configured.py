# SPDX-License-Identifier: Apache-2.0
"""From a configuration to its data, clients, plan and training; up to the plan without torch."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpcohort._validate import number
from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plan import Plan, make_plan
from dpcohort.plugins import REGISTRIES, full_name
from dpcohort.progress import Progress, silent
from dpcohort.selection.rules import rule_from_settings
from dpcohort.text_files import toml_text

if TYPE_CHECKING:
    from dpcohort.aggregation import AggregationRule
    from dpcohort.config.schema import DataSection, OptimiserSection
    from dpcohort.data import Dataset, Partition
    from dpcohort.engine import Optimiser
    from dpcohort.runs.job import Job


PUBLIC_CLIENT = "public-data"


def data_section(config: Config) -> DataSection:
    """The [data] of a configuration.

    Raises:
        InputError: it has none.
    """
    if config.data is None:
        raise InputError.because(
            "the config has no [data], so there is nothing to train on. Add one, or see: "
            "dpcohort new --from digits"
        )
    return config.data


def configured_data(config: Config) -> Dataset:
    """The data set that a configuration names.

    Raises:
        InputError: it names none.
        DataMissingError: it is not on this machine.
    """
    from dpcohort.data import load_dataset

    section = data_section(config)
    name = section.name
    if name.endswith((".npz", ".npy")) or "/" in name:
        return load_dataset(config.folder / name)
    return load_dataset(name, data_dir=None if section.dir is None else config.folder / section.dir)


def configured_population(config: Config, data: Dataset | None = None) -> Population:
    """The clients of a configuration, and the public one of its ``public_share`` after them.

    Args:
        config: the configuration.
        data: its data set, if it is loaded already; loaded only where the clients depend on it.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> len(configured_population(loads_config(commented_config("hospitals"))))
        61
    """
    if config.data is None:
        return config.population()
    dataset = configured_data(config) if data is None else data
    public = round(config.data.public_share * len(dataset))
    _check_total_size(config, len(dataset) - public)
    clients = config.population(len(dataset) - public)
    if public == 0:
        return clients
    return Population.from_arrays(
        ids=[*clients.ids, PUBLIC_CLIENT],
        sizes=np.append(clients.sizes, public),
        epsilon=np.append(clients.epsilon, np.nan),
        delta=np.append(clients.delta, np.nan),
        batch_sizes=np.append(clients.batch_sizes, 0),
        public=np.append(clients.public, True),
        allow_large_delta=clients.allow_large_delta,
    )


def _check_total_size(config: Config, left: int) -> None:
    stated = config.values.get("population", {}).get("total_size")
    if isinstance(stated, int) and stated > left:
        raise InputError(
            "population.total_size",
            given=stated,
            allowed=f"at most {left}, the records there are for clients with a budget",
            next_step="Leave it out (--set population.total_size= does): they share all of them.",
        )


def configured_plan(
    config: Config,
    data: Dataset | None = None,
    *,
    population: Population | None = None,
    shift: int = 0,
    progress: Progress = silent,
) -> Plan:
    """The plan of a configuration, with fixed cohorts or with a rule that chooses them.

    Args:
        config: the configuration.
        data: its data set, if it is loaded already.
        population: other clients than the configuration's.
        shift: added to the seed of the schedule, or of the rule's dice; 0, 1, 2, ... for the runs
            of several seeds.
        progress: told how far it is.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> config = loads_config(commented_config("digits"))
        >>> configured_plan(config).training.rounds
        100
        >>> config = config.with_overrides(["selection.rule=power-of-choice", "selection.d=12"])
        >>> configured_plan(config).selection.rule
        'power-of-choice'
    """
    if population is None:
        population = configured_population(config, data)
    seed = config.seed
    if seed is None and config.data is not None:
        seed = config.run.seed
    common: Any = {
        "accountant": config.contract,
        "guard": config.guard,
        "seed": None if seed is None else seed + shift,
        "progress": progress,
    }
    if config.is_adaptive:
        from dpcohort.adaptive import make_adaptive_plan

        return make_adaptive_plan(
            population,
            config.training,
            rule=config.rule,
            rule_settings=config.rule_settings,
            **config.report_settings,
            **common,
        )
    return make_plan(
        population,
        config.training,
        selection=rule_from_settings(config.rule, **config.rule_settings),
        noise_model=config.noise_model,
        draws=config.draws,
        **common,
    )


_SPLIT_STREAM, _PARTITION_STREAM = 21, 22


def configured_job(
    config: Config,
    *,
    data: Dataset | None = None,
    population: Population | None = None,
    partition: Partition | None = None,
    shift: int = 0,
    device: str | None = None,
    private_entropy: bool = False,
    label: str = "",
) -> Job:
    """The training of a configuration.

    Args:
        config: the configuration.
        data: its data set, if it is loaded already.
        population: other clients than the configuration's, with a partition for them.
        partition: who holds which record, if that is not as the configuration says.
        shift: added to the seeds of run and schedule; a partition whose seed is given stays.
        device: instead of the configuration's.
        private_entropy: batches and noise from the operating system's entropy.
        label: what the run is called in comparisons.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> job = configured_job(loads_config(commented_config("digits")), device="cpu")
        >>> job.model_name, len(job.plan.population)
        ('logistic', 20)
    """
    from dpcohort.runs.job import make_job

    tuning = config.tuning or {}
    if private_entropy and tuning.get("source") == "charged" and not tuning.get("private"):
        raise InputError.because(
            "the settings were chosen on the clients' records in a simulation (tuning.private is "
            "not true), which no budget pays for: a run of them cannot be private. Tune again "
            "with --private-entropy, or with --source none."
        )
    dataset = configured_data(config) if data is None else data
    plan = configured_plan(config, dataset, population=population, shift=shift)
    seed = config.run.seed + shift
    section = data_section(config)
    partition_seed = seed if section.seed is None else section.seed
    if partition is None:
        partition = _partition(config, plan, dataset, partition_seed)
    rule, settings = config.aggregation
    return make_job(
        plan,
        config.model.name,
        dataset,
        partition=partition,
        engine=config.run.engine,
        optimiser=configured_optimiser(config.optimiser, clip=config.training.clip),
        aggregation=rule,
        aggregation_settings=settings,
        seed=seed,
        device=device or config.run.device,
        evaluate_every=config.run.evaluate_every,
        checkpoint_every=config.run.checkpoint_every,
        private_entropy=private_entropy,
        merged_noise=config.run.merged_noise,
        model_options=config.model.options,
        label=label,
        config=toml_text(config.values),
        tuning=config.tuning,
    )


def held_out_within(
    config: Config, data: Dataset, share: float = 0.1
) -> tuple[Dataset, Population, Partition]:
    """Part of each client's records in the place of the test records; sizes are of the rest.

    The test records are not in the result, so nothing that is done with it can look there.

    Args:
        config: who holds which records.
        data: the whole set.
        share: of each client's records to hold out; a client of one record keeps it.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> config = loads_config(commented_config("digits"))
        >>> rest, clients, partition = held_out_within(config, configured_data(config), 0.2)
        >>> len(clients), bool((partition.sizes == clients.sizes).all()), len(rest.test_labels)
        (20, True, 290)
    """
    from dpcohort.data import Partition

    number("held_out", share, above=0, below=1)
    plan = configured_plan(config, data)
    section = data_section(config)
    whole = _partition(
        config, plan, data, config.run.seed if section.seed is None else section.seed
    )
    rng = np.random.default_rng(_HELD_OUT_SEED)
    kept, held = [], []
    for k in range(len(whole)):
        records = rng.permutation(np.asarray(whole.client(k)))
        count = min(round(share * len(records)), len(records) - 1)
        held.append(records[:count])
        kept.append(np.sort(records[count:]))
    scored, rest = np.concatenate(held), np.concatenate(kept)
    if not scored.size:
        allowed = "a share that leaves records on each side"
        raise InputError("held_out", given=share, allowed=allowed)
    sizes = [len(records) for records in kept]
    partition = Partition(
        indices=np.arange(rest.size),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        records=int(rest.size),
        rule={**whole.rule, "held_out": share},
        names=whole.names,
    )
    left = replace(
        data,
        name=f"{data.name} (held out {share:g} of each client)",
        train_inputs=data.train_inputs[rest],
        train_labels=data.train_labels[rest],
        test_inputs=data.train_inputs[scored],
        test_labels=data.train_labels[scored],
    )
    return left, plan.population.with_sizes(sizes), partition


#: Always the same split, so that searches can be compared and it is not chosen by its outcome.
_HELD_OUT_SEED = 20_260_222


def combinations(config: Config) -> Iterator[tuple[str, Config]]:
    """Every combination of the grid, with a name that says what is special about it.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> config = loads_config(commented_config("digits"))
        >>> [name for name, _ in combinations(config)]
        ['unbiased', 'privacy-aware']
    """
    if not config.grid:
        raise InputError.because(
            "the config has no [grid]. Say what to vary, for example: [grid] "
            'selection = { rule = ["unbiased", "privacy-aware"] }'
        )
    keys = list(config.grid)
    for values in itertools.product(*(config.grid[key] for key in keys)):
        changes = [f"{key}={json.dumps(value)}" for key, value in zip(keys, values, strict=True)]
        words = [
            str(value) if isinstance(value, str) else f"{key.split('.')[-1]} {value}"
            for key, value in zip(keys, values, strict=True)
        ]
        yield ", ".join(words), config.with_overrides(changes)


def _partition(config: Config, plan: Plan, data: Dataset, seed: int) -> Partition:
    from dpcohort.data import dirichlet_partition, join_clients, paper_partition, public_split

    section, labels = data_section(config), data.train_labels
    has_public = round(section.public_share * len(data)) > 0
    private, public = public_split(
        len(data),
        share=section.public_share,
        rng=np.random.default_rng([seed, _SPLIT_STREAM]),
    )
    sizes = plan.population.sizes[:-1] if has_public else plan.population.sizes
    rng = np.random.default_rng([seed, _PARTITION_STREAM])
    if section.column is not None:
        ids = plan.population.ids[:-1] if has_public else plan.population.ids
        found = _by_column(config.folder / section.column, private, len(data), ids)
    elif section.alpha is not None:
        found = dirichlet_partition(
            labels, sizes=sizes, alpha=section.alpha, records=private, rng=rng
        )
    else:
        found = paper_partition(
            labels, sizes=sizes, similarity=section.similarity, records=private, rng=rng
        )
    if not has_public:
        return found
    return join_clients(found, [public], names=[PUBLIC_CLIENT] if found.names else [])


def _by_column(
    path: Path,
    records: np.ndarray[tuple[int], np.dtype[np.int64]],
    total: int,
    ids: tuple[str, ...],
) -> Partition:
    """The partition by a column, its clients in the order of the population."""
    from dpcohort.data import Partition, column_partition
    from dpcohort.data.arrays import map_npy

    values = map_npy(path)
    if values.shape != (total,):
        raise FileFormatError(path, f"has shape {values.shape}; the data has {total} records.")
    split = column_partition(values, records=records)
    places = {name: place for place, name in enumerate(split.names)}
    missing = [name for name in ids if name not in places]
    if missing or len(ids) != len(places):
        other = missing[0] if missing else next(n for n in split.names if n not in set(ids))
        where = "the clients but not in the column" if missing else "the column but not a client"
        raise InputError.because(f"{path}: {other!r} is in {where}.")
    groups = [split.client(places[name]) for name in ids]
    return Partition(
        indices=np.concatenate(groups),
        offsets=np.concatenate([[0], np.cumsum([len(group) for group in groups])]),
        records=total,
        rule=split.rule,
        names=ids,
    )


def configured_optimiser(section: OptimiserSection, *, clip: float) -> Optimiser:
    """The optimiser that [optimiser] asks for; ``clip`` is what inverse-root steps divide by."""
    from dpcohort.engine import ConstantStep, InverseRootStep, InverseTimeStep, Optimiser, StepSize

    step: StepSize = ConstantStep(0.1 if section.learning_rate is None else section.learning_rate)
    if section.step == "inverse-time" and section.beta is not None:
        step = InverseTimeStep(section.beta, 1.0 if section.gamma is None else section.gamma)
    if section.step == "inverse-root" and section.gradient_bound is not None:
        step = InverseRootStep(section.gradient_bound, clip)
    return Optimiser(
        local_step=step,
        server_learning_rate=section.server_learning_rate,
        server_momentum=section.server_momentum,
        average_decay=section.average_decay,
    )


#: What stands for a column that is the plan's own.
PLANS_OWN = "the plan's"
_REGISTRY = REGISTRIES["aggregation"]


def aggregation_for(
    plan: Plan, aggregation: str | AggregationRule, settings: Mapping[str, Any] | None = None
) -> AggregationRule:
    """The rule by its name, with what the plan knows filled in; a rule itself as it is.

    Raises:
        InputError: there is no such rule, it does not go with this plan, or it is no rule.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 100], epsilon=[1.0, 8.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=4, cohort_size=2, batch_size=20), seed=1)
        >>> aggregation_for(plan, "trimmed-mean", {"trim": 0.2})
        TrimmedMean(trim=0.2)
    """
    from dpcohort.aggregation import for_plan

    if isinstance(aggregation, str):
        made = for_plan(aggregation, plan, **(settings or {}))
    else:
        made = aggregation
    if isinstance(made, type) or not callable(getattr(made, "combine", None)):
        raise InputError(
            "aggregation",
            given=aggregation,
            allowed="the name of a rule, or an object with combine(updates, cohort)",
            next_step="See: dpcohort rules",
        )
    return made


def described_aggregation(rule: AggregationRule, plan: Plan) -> dict[str, Any] | None:
    """Name and settings in plain values; None for the plain mean, which every run has unless told.

    Columns that are the plan's are not repeated; others are told by their hash.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[300, 100], epsilon=[1.0, 8.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=4, cohort_size=2, batch_size=20), seed=1)
        >>> described_aggregation(aggregation_for(plan, "size-weighted"), plan)
        {'rule': 'size-weighted', 'settings': {'sizes': "the plan's"}}
    """
    from dpcohort.aggregation import Mean

    if type(rule) is Mean:
        return None
    name, thing = getattr(rule, "name", None), cast("Any", rule)
    known = isinstance(name, str) and name in _REGISTRY.built_in
    is_ours = known and _REGISTRY.find(str(name)) is type(rule)
    settings = {}
    if is_dataclass(thing):
        settings = {f.name: _plain(f.name, getattr(thing, f.name), plan) for f in fields(thing)}
    return {"rule": name if is_ours else full_name(rule), "settings": settings}


def _plain(field: str, value: Any, plan: Plan) -> Any:
    if not isinstance(value, np.ndarray):
        return json.loads(json.dumps(value, default=repr))
    if field in _REGISTRY.filled:
        from dpcohort.aggregation import plan_column

        planned = np.asarray(plan_column(field, plan), dtype=value.dtype)
        if np.array_equal(planned, value, equal_nan=True):
            return PLANS_OWN
    return "sha256:" + hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
