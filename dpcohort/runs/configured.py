# SPDX-License-Identifier: Apache-2.0
"""From a configuration to its data, clients, plan and training; up to the plan without torch."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import IntArray, number
from dpcohort.accounting.charges import (
    Charge,
    after_charges,
    check_relation,
    private_clients,
    read_charge,
)
from dpcohort.accounting.distributed import refuse_undistributable
from dpcohort.clients import Population
from dpcohort.clients.ids import nearest_id
from dpcohort.config import Config
from dpcohort.errors import DpcohortError, FileFormatError, InputError
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan, make_plan
from dpcohort.plugins import FILLED, RULES, find_rule, full_name
from dpcohort.progress import Progress, silent
from dpcohort.selection.rules import rule_from_settings
from dpcohort.text_files import is_table
from dpcohort.training import Training

if TYPE_CHECKING:
    from dpcohort.aggregation import AggregationRule
    from dpcohort.config.schema import DataSection, OptimiserSection
    from dpcohort.data import Dataset, Partition, PersonTerms, TableColumns
    from dpcohort.data.tables import Table
    from dpcohort.engine import Optimiser
    from dpcohort.runs.job import Job, JobOptions


PUBLIC_CLIENT = "public-data"
#: Files beside a configuration that are looked at for charges.
_MOST_BESIDE = 1000


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


def configured_data(config: Config, clients: Collection[str] | None = None) -> Dataset:
    """The data set that a configuration names.

    Args:
        config: the configuration.
        clients: who takes part, if not everybody that a table knows: rows of others are no test
            records.

    Raises:
        InputError: it names none.
        DataMissingError: it is not on this machine.
    """
    from dpcohort.data import load_dataset
    from dpcohort.data.arrays import load_arrays

    section = data_section(config)
    name = section.name
    if is_table(section.name):
        return _table_data(config, section, clients)
    if name.endswith((".npz", ".npy")) or "/" in name:
        given = config.task.model_dump(exclude_none=True)
        stated = section.model_dump(include={"classes", "test_public"}, exclude_unset=True)
        if section.person is not None:
            whose = _array_owners(config, section)
            found = load_arrays(config.folder / name, given, stated, section.person, **whose)
            kept = config.contract.unit.name == "person"
            return with_task(config, found if kept else replace(found, persons=None))
        return with_task(config, load_arrays(config.folder / name, given, stated))
    data_dir = None if section.dir is None else config.folder / section.dir
    return with_task(config, load_dataset(name, data_dir=data_dir))


def person_terms(config: Config) -> PersonTerms:
    """How the rows of a person are used, as [data] says."""
    from dpcohort.data import PersonTerms

    section = data_section(config)
    return PersonTerms(
        most=section.rows_per_person,
        person_rows=section.person_rows,
        blank=section.blank_person,
    )


def _array_owners(config: Config, section: DataSection) -> dict[str, Any]:
    """Whose the rows of arrays are, beside their persons."""
    from dpcohort.data.arrays import map_npy

    owners = None if section.column is None else map_npy(config.folder / section.column)
    return {"clients": owners, "terms": person_terms(config)}


def with_task(config: Config, data: Dataset) -> Dataset:
    """The data set with what [task] adds to the task it has.

    Raises:
        InputError: [task] is of another kind than the data, or does not go with them.
    """
    from dpcohort.config.settings import within
    from dpcohort.tasks import refined_task

    try:
        task = refined_task(data.task, config.task.model_dump(exclude_none=True))
    except InputError as error:
        raise InputError.because(within("task", error)[1]) from None
    return data if task == data.task else replace(data, task=task)


def partition_labels(data: Dataset) -> IntArray:
    """Labels that a partition in a simulation may go by: classes, or tenths of what is predicted.

    Example:
        >>> from dpcohort.data import load_dataset
        >>> partition_labels(load_dataset("digits")).max()
        np.int64(9)
    """
    labels = data.record_labels
    if data.task.predicts_classes:
        return labels
    if labels.ndim > 1:  # sets of labels, numbered
        return np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    ranks = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
    return (10 * ranks // len(ranks)).astype(np.int64)


def _table_data(config: Config, section: DataSection, clients: Collection[str] | None) -> Dataset:
    from dpcohort.data.arrays import of_path
    from dpcohort.data.tables import read_table, table_dataset

    path = config.folder / section.name
    columns = table_columns(config)
    try:
        task = columns.task(**config.values.get("task", {}))
    except InputError as error:
        raise config.problem("data" if error.field in _OF_DATA else "task", error) from None
    try:
        table = read_table(path)
        data = table_dataset(
            table,
            columns,
            task=task,
            test_share=section.test_share,
            test_public=section.test_public,
            seed=section.seed or 0,
            name=path.stem,
            tested=clients,
            public=_public_clients(config, section, table),
            persons=person_terms(config) if config.contract.unit.name == "person" else None,
        )
        return of_path(data, path)
    except FileFormatError:
        raise
    except InputError as error:
        raise FileFormatError(path, str(error)) from None


_OF_DATA = ("label", "labels")


def _public_clients(config: Config, section: DataSection, table: Table) -> list[str]:
    """Clients of a table that the list calls public; what is wrong with the list is said later."""
    from dpcohort.data.tables import client_names

    by_another = "partition" in section.model_fields_set and section.partition != "client"
    column = section.client
    if config.clients is None or by_another or column is None or column not in table:
        return []
    owners = client_names(column, table[column])
    try:
        stated = config.population(len(owners), dict(Counter(owners)))
    except DpcohortError:
        return []
    return list(itertools.compress(stated.ids, stated.public))


def table_columns(config: Config) -> TableColumns:
    """What the columns of a configuration's table mean.

    Raises:
        FileFormatError: the keys do not go together, with their line.
    """
    from dpcohort.data.tables import TableColumns

    section = data_section(config)
    label: Any = section.label
    bounds = section.bounds
    if (estimate := estimated_bounds(config)) is not None:
        bounds = {**estimate["bounds"], **{one: ends for one, ends in bounds.items() if ends}}
    try:
        return TableColumns(
            label=label,
            client=section.client,
            person=section.person,
            features=tuple(section.features),
            categories=section.categories,
            bounds=bounds,
            missing=section.missing,
            labels=tuple(section.labels),
        )
    except InputError as error:
        raise config.problem("data", error) from None


def estimated_bounds(config: Config) -> dict[str, Any] | None:
    """The estimate of bounds that a configuration names, which its clients have paid for.

    Raises:
        FileFormatError: it is not an estimate.
    """
    from dpcohort.data.private_bounds import read_estimate

    section = data_section(config)
    if section.estimated_bounds is None:
        return None
    return read_estimate(config.folder / section.estimated_bounds)[1]


def seen_columns(config: Config) -> TableColumns:
    """What the columns of a configuration's table mean, with the features by name."""
    from dpcohort.data.tables import read_table

    columns = table_columns(config)
    if columns.features:
        return columns
    path = config.folder / data_section(config).name
    return replace(columns, features=columns.seen(read_table(path)))


def configured_training(config: Config, data: Dataset | None = None) -> Training:
    """The training settings of a configuration, with the number of parameters of its model.

    Where the file states ``training.dimension`` or has no data, it is as stated; otherwise the
    model is built for the data and counted. For a table what is stated is checked as well (a job
    checks it for all data).

    Args:
        config: the configuration.
        data: its data set, if it is loaded already.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> config = loads_config(commented_config("digits"))
        >>> configured_training(config.with_overrides(["training.dimension="])).dimension
        650
    """
    stated = config.values.get("training", {}).get("dimension")
    if config.data is None or (stated is not None and not is_table(config.data.name)):
        return config.training
    try:
        from dpcohort.engine.clipping.per_example import FlatLayout
        from dpcohort.runs.job import built_model
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError.because(
            "training.dimension is missing, and without torch the model cannot be built to count "
            "its parameters. Give it, or: pip install 'dpcohort[train]'"
        ) from None
    dataset = configured_data(config) if data is None else data
    section = config.model
    weights = None if section.weights is None else config.folder / section.weights
    model = built_model(
        section.name, dataset, config.run.seed, section.options, weights, section.frozen
    )
    dimension = FlatLayout(model).dimension
    if stated not in (None, dimension):
        words = f"{dimension}, the trained parameters of {config.model.name}"
        step = "Leave it out (--set training.dimension= does): it is counted."
        wrong = InputError("dimension", given=stated, allowed=words, next_step=step)
        raise config.problem("training", wrong)
    return replace(config.training, dimension=dimension)


def configured_population(config: Config, data: Dataset | None = None) -> Population:
    """The clients of a configuration, with what charges left of their budgets.

    Args:
        config: the configuration.
        data: its data set, if it is loaded already; loaded only where the clients depend on it.

    Raises:
        BudgetExceededError: charges left nothing of a client.
        InputError: a client is not among those who paid.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> len(configured_population(loads_config(commented_config("hospitals"))))
        61
    """
    return after_charges(promised_population(config, data), configured_charges(config))


def promised_population(config: Config, data: Dataset | None = None) -> Population:
    """The clients of a configuration with all that they promised, whatever was paid of it.

    The public one of its ``public_share`` comes after the others.

    Args:
        config: the configuration.
        data: its data set, if it is loaded already; loaded only where the clients depend on it.

    Raises:
        InputError: a client is not among those who paid the charges that the configuration names.
    """
    clients = _all_clients(config, data)
    for charge in configured_charges(config):
        for _, name, _, _ in private_clients(clients):
            if name not in charge.spent and name not in charge.public:
                raise InputError.because(
                    f"{name!r} is not among the clients of which the charge {charge.title} was "
                    "taken. Use the list of clients of that time; a client that joins comes with "
                    "dpcohort replan."
                )
    return clients


def _all_clients(config: Config, data: Dataset | None) -> Population:
    if config.data is None:
        return config.population()
    dataset = configured_data(config) if data is None else data
    if _has_own_clients(config.data, dataset):
        return own_clients(config, np.asarray(dataset.record_clients), dataset.name)
    if config.data.estimated_bounds is not None:
        raise InputError.because(
            'data.estimated_bounds was paid for by the clients of the table: partition = "client".'
        )
    public = round(config.data.public_share * len(dataset))
    left, stated = len(dataset) - public, config.values.get("population", {}).get("total_size")
    if isinstance(stated, int) and stated > left:
        raise InputError(
            "population.total_size",
            given=stated,
            allowed=f"at most {left}, the records there are for clients with a budget",
            next_step="Leave it out (--set population.total_size= does): they share all of them.",
        )
    clients = config.population(left)
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


def configured_charges(config: Config) -> tuple[Charge, ...]:
    """What was paid beside a training: charges that a configuration names, its estimate's too.

    Args:
        config: the configuration.

    Returns:
        The charges, whose order is not proved yet.

    Raises:
        FileFormatError: a file is not the charge that the configuration names.
        InputError: one was paid under another meaning of neighbours.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> configured_charges(loads_config(commented_config("digits")))
        ()
    """
    found = {}
    for name, path in config.charges.items():
        charge, _ = read_charge(path)
        if charge.id != name:
            raise FileFormatError(
                path, f"it is the charge {charge.id[:12]}..., and [charges] says {name[:12]}...."
            )
        found[name] = charge
    if config.data is not None and config.data.estimated_bounds is not None:
        charge, _ = read_charge(config.folder / config.data.estimated_bounds)
        found[charge.id] = charge
    charges = tuple(found.values())
    check_relation(charges, config.contract)
    return charges


def unnamed_charge(
    config: Config, clients: Collection[str], known: Sequence[Charge], *folders: Path
) -> str | None:
    """A charge of these clients that lies beside a configuration and is not named by it, in words.

    What it took would be promised again.

    Args:
        config: the configuration.
        clients: ids of who takes part.
        known: charges that are counted.
        folders: where to look as well.
    """
    named, ids = {charge.id for charge in known}, set(clients)
    for folder in dict.fromkeys(place.resolve() for place in (config.folder, *folders)):
        for path in sorted(folder.glob("*.json"))[:_MOST_BESIDE]:
            with suppress(DpcohortError, OSError):  # any other file of the user's
                charge, _ = read_charge(path)
                paid = sorted(ids & {*charge.spent, *charge.public})
                if paid and charge.id not in named:
                    return (
                        f"{path}: the charge {charge.title} was paid by {one_line(paid[0])!r}"
                        f"{' and others' if len(paid) > 1 else ''}, and the config does not name "
                        "it: what it took would be promised again. Use the config that names it, "
                        f'or add {charge.id} = "{path.name}" under [charges] (an estimate of '
                        "bounds: data.estimated_bounds). If it is of other records, move it away."
                    )
    return None


def _has_own_clients(section: DataSection, data: Dataset) -> bool:
    """Whether the data say whose records they are, and nobody asked for another partition."""
    if "partition" in section.model_fields_set and section.partition != "client":
        return False
    if data.clients is None and section.partition == "client":
        raise InputError.because(
            f'partition = "client" needs data that say whose each record is, and {data.name} does '
            "not. For a table name its column: client = ..."
        )
    return data.clients is not None


def own_clients(config: Config, owners: NDArray[np.str_], data: str) -> Population:
    """The clients that the data know, with the budgets that the population states for them.

    The sizes are the numbers of training records. A list may give them, or those of all records of
    a client with its test records, or none.

    Args:
        config: the configuration.
        owners: the client of each training record.
        data: what the data are called.
    """
    section = data_section(config)
    if section.public_share:
        raise InputError.because(
            "data.public_share takes records from clients that the data know by name. Mark a "
            "client as public in the list of clients instead."
        )
    sizes = dict(sorted(Counter(owners.tolist()).items()))
    stated = config.population(len(owners), sizes)
    if config.clients is None:
        if len(stated) != len(sizes):
            words = f"the {len(sizes)} clients that {data} has"
            raise InputError("population.count", given=len(stated), allowed=words)
        return replace(stated, ids=tuple(sizes), sizes=np.array(list(sizes.values()), np.int64))
    unknown = sorted(set(sizes) - set(stated.ids))
    if unknown:
        hint = nearest_id(unknown[0], stated.ids)
        listed = f" Did you mean {hint!r}?" if hint else ""
        raise InputError.because(
            f"{data}: {len(unknown)} of the {len(sizes)} clients in it are not in "
            f"{config.clients}, {unknown[0]!r} for instance.{listed} Add them with their budgets, "
            "or take their records out."
        )
    for k, name in enumerate(stated.ids):
        _check_size(config, data, name, int(stated.sizes[k]), sizes.get(name, 0))
    held = np.array([sizes[name] for name in stated.ids], np.int64)
    return replace(stated, sizes=held)


def listed_clients(config: Config, path: str | Path, *, allow_large_delta: bool) -> Population:
    """The clients of a list who go on, each with its whole promise.

    Where the data are a table that says whose its rows are, it says the sizes too; rows of who is
    not in the list are not counted.

    Args:
        config: what they go on with.
        path: the list.
        allow_large_delta: accept a delta of 1/size or more.
    """
    section = config.data
    if section is None or not is_table(section.name) or section.client is None:
        return Population.from_csv(path, allow_large_delta=allow_large_delta)
    data = configured_data(config)
    owners = np.asarray(data.record_clients)
    sizes = Counter(owners.tolist())
    stated = Population.from_csv(path, sizes=sizes, allow_large_delta=allow_large_delta)
    changes = [f"population.allow_large_delta={str(allow_large_delta).lower()}"]
    whole = config.with_clients(path).with_overrides(changes)
    return own_clients(whole, owners[np.isin(owners, stated.ids)], data.name)


def _check_size(config: Config, data: str, name: str, stated: int, held: int) -> None:
    if held == 0:
        raise InputError.because(
            f"{config.clients}: the client {name!r} has no training record in {data}."
        )
    if stated == held:
        return
    section = data_section(config)
    tested = min(round(section.test_share * stated), stated - 1)
    with_tests = is_table(section.name) and stated - tested == held
    if not with_tests:
        raise InputError.because(
            f"{config.clients}: {name!r} has size {stated:,}, but {data} has {held:,} "
            "training records of it. Correct the size, or leave the column out: the data say it."
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
        population: other clients than the configuration's, with what they may spend.
        shift: added to the seed of the schedule, or of the rule's dice; 0, 1, 2, ... for the runs
            of several seeds.
        progress: told how far it is.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> config = loads_config(commented_config("digits"))
        >>> configured_plan(config).training.rounds
        100
        >>> config = config.with_overrides(["selection.rule=power-of-choice", "selection.d=12"])
        >>> configured_plan(config).rule
        'power-of-choice'
    """
    if config.data is not None and data is None:
        data = configured_data(config)
    training = configured_training(config, data)
    charges: tuple[Charge, ...] = ()
    if population is None:
        population, charges = promised_population(config, data), configured_charges(config)
    seed = config.seed
    if seed is None and config.data is not None:
        seed = config.run.seed
    common: Any = {
        "accountant": config.contract,
        "guard": config.guard,
        "seed": None if seed is None else seed + shift,
        "progress": progress,
        "charges": charges,
    }
    if config.is_adaptive:
        from dpcohort.adaptive import make_adaptive_plan

        return make_adaptive_plan(
            population,
            training,
            rule=config.rule,
            rule_settings=config.rule_settings,
            **config.report_settings,
            **common,
        )
    try:
        refuse_undistributable(config.contract, training, config.draws, len(population))
    except InputError as error:
        raise config.problem("training", error) from None
    return make_plan(
        population,
        training,
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
    shift: int = 0,
    plan: Plan | None = None,
    **options: Unpack[JobOptions],
) -> Job:
    """The training of a configuration.

    Args:
        config: the configuration.
        data: its data set, if it is loaded already.
        population: other clients than the configuration's, with a partition for them.
        shift: added to the seeds of run and schedule; a partition whose seed is given stays.
        plan: a finished plan in place of the configuration's own clients, rounds and rule; data,
            model and optimiser must fit it.
        options: in place of what the configuration says; None leaves it to the configuration.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> job = configured_job(loads_config(commented_config("digits")), device="cpu")
        >>> job.model_name, len(job.plan.population)
        ('logistic', 20)
    """
    if data is None:
        dataset = configured_data(config, None if plan is None else plan.population.ids)
    else:
        dataset = with_task(config, data)
    if plan is None:
        plan = configured_plan(config, dataset, population=population, shift=shift)
    else:
        _check_charges_are_counted(config, plan)
    seed, model, run = config.run.seed + shift, config.model, config.run
    rule, settings = config.aggregation
    stated: JobOptions = {
        "engine": run.engine,
        "optimiser": configured_optimiser(config.optimiser, clip=plan.training.clip),
        "aggregation": rule,
        "aggregation_settings": settings,
        "seed": seed,
        "device": run.device,
        "evaluate_every": run.evaluate_every,
        "checkpoint_every": run.checkpoint_every,
        "merged_noise": run.merged_noise,
        "model_options": model.options,
        "weights": None if model.weights is None else config.folder / model.weights,
        "weights_source": model.weights_source,
        "frozen": model.frozen,
    }
    given: Any = {name: value for name, value in options.items() if value is not None}
    chosen: JobOptions = {**stated, **given}
    if "partition" not in chosen:
        after = chosen.get("after")
        folder = None if after is None else Path(after)
        chosen["partition"] = _partition(config, plan, dataset, seed, folder)
    # Plans are made without torch, which jobs need.
    from dpcohort.runs.job import ConfigSource, make_job

    job = make_job(plan, model.name, dataset, **chosen)
    return replace(job, source=ConfigSource.of(config))


def _check_charges_are_counted(config: Config, plan: Plan) -> None:
    """Refuse a finished plan that promises again what the charges of a configuration took."""
    counted = {charge.id for charge in plan.past.paid.charges}
    for charge in configured_charges(config):
        if charge.id not in counted:
            raise InputError.because(
                f"the config names the charge {charge.title}, and the plan does not know what it "
                "took. Make the plan from this config: dpcohort plan CONFIG -o FILE, or where it "
                "goes on from a run, dpcohort replan RUN --config CONFIG."
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
    from dpcohort.data.partition import dealt

    number("held_out", share, above=0, below=1)
    plan = configured_plan(config, data)
    whole = _partition(config, plan, data, config.run.seed)
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
    rule = {**whole.rule, "held_out": share}
    partition = dealt(np.arange(rest.size), sizes, int(rest.size), rule, whole.names)
    left = data.held_out(rest, scored, name=f"{data.name} (held out {share:g} of each client)")
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


def _partition(
    config: Config, plan: Plan, data: Dataset, run_seed: int, after: Path | None = None
) -> Partition:
    from dpcohort.data import (
        column_partition,
        dirichlet_partition,
        join_clients,
        paper_partition,
        public_split,
    )

    section, labels = data_section(config), partition_labels(data)
    if _has_own_clients(section, data):
        split = column_partition(np.asarray(data.record_clients))
        return _in_order(split, plan.population.ids, len(data))
    has_public = round(section.public_share * len(data)) > 0
    seed = run_seed if section.seed is None else section.seed
    private, public = public_split(
        len(data),
        share=section.public_share,
        rng=np.random.default_rng([seed, _SPLIT_STREAM]),
    )
    sizes = plan.population.sizes[:-1] if has_public else plan.population.sizes
    rng = np.random.default_rng([seed, _PARTITION_STREAM])
    if after is not None and section.column is None:
        from dpcohort.runs.continuation import carried_partition

        return carried_partition(after, plan, data, rng)
    if section.column is not None:
        ids = plan.population.ids[:-1] if has_public else plan.population.ids
        path, some = config.folder / section.column, after is not None
        found = _by_column(path, private, data, ids, some_left=some)
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
    path: Path, records: IntArray, data: Dataset, ids: Sequence[str], *, some_left: bool
) -> Partition:
    """The partition by a column, its clients in the order of the population.

    Args:
        path: the column.
        records: those that are not public.
        data: the data set.
        ids: the clients.
        some_left: records of others are of clients that left, and are not used.
    """
    from dpcohort.data import column_partition
    from dpcohort.data.arrays import map_npy

    values, total = map_npy(path), len(data)
    if data.persons is not None and values.shape == data.train_labels.shape[:1]:
        values = values[data.persons.first]
    if values.shape != (total,):
        raise FileFormatError(path, f"has shape {values.shape}; the data has {total} records.")
    split = column_partition(values, records=records)
    places = {name: place for place, name in enumerate(split.names)}
    missing = [name for name in ids if name not in places]
    if missing or (len(ids) != len(places) and not some_left):
        other = missing[0] if missing else next(n for n in split.names if n not in set(ids))
        where = "the clients but not in the column" if missing else "the column but not a client"
        raise InputError.because(f"{path}: {other!r} is in {where}.")
    return _in_order(split, ids, total)


def _in_order(split: Partition, ids: Sequence[str], total: int) -> Partition:
    """The partition with its clients in the order of the population."""
    from dpcohort.data.partition import dealt

    places = {name: place for place, name in enumerate(split.names)}
    if missing := [name for name in ids if name not in places]:
        raise InputError.because(
            f"the plan has the client {missing[0]!r}, and no training record of the data is of it. "
            "Bring its rows, or plan without it."
        )
    groups = [split.client(places[name]) for name in ids]
    sizes = [len(group) for group in groups]
    return dealt(np.concatenate(groups), sizes, total, split.rule, tuple(ids))


def configured_optimiser(section: OptimiserSection, *, clip: float) -> Optimiser:
    """The optimiser that [optimiser] asks for; ``clip`` is what inverse-root steps divide by."""
    from dpcohort.engine import InverseRootStep, InverseTimeStep, Optimiser, StepSize
    from dpcohort.engine.local_rule import local_rule

    step: float | StepSize = 0.1 if section.learning_rate is None else section.learning_rate
    if section.step == "inverse-time" and section.beta is not None:
        step = InverseTimeStep(section.beta, 1.0 if section.gamma is None else section.gamma)
    if section.step == "inverse-root" and section.gradient_bound is not None:
        step = InverseRootStep(section.gradient_bound, clip)
    return Optimiser(
        local_step=step,
        server_learning_rate=section.server_learning_rate,
        server_momentum=section.server_momentum,
        server=section.server,
        server_settings=section.server_settings,
        local=local_rule(section.local, section.local_settings),
        average_decay=section.average_decay,
    )


#: What stands for a column that is the plan's own.
PLANS_OWN = "the plan's"


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
    from dpcohort.aggregation import Mean, for_plan

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
    if type(made) is not Mean:
        plan.noise.refuse_single_updates(
            f"the aggregation {getattr(made, 'name', type(made).__name__)} needs single updates",
            "the aggregation mean",
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
    known = isinstance(name, str) and name in RULES["aggregation"]
    is_ours = known and find_rule("aggregation", str(name)) is type(rule)
    settings = {}
    if is_dataclass(thing):
        settings = {f.name: _plain(f.name, getattr(thing, f.name), plan) for f in fields(thing)}
    return {"rule": name if is_ours else full_name(rule), "settings": settings}


def _plain(field: str, value: Any, plan: Plan) -> Any:
    if not isinstance(value, np.ndarray):
        return json.loads(json.dumps(value, default=repr))
    if field in FILLED["aggregation"]:
        from dpcohort.aggregation import plan_column

        planned = np.asarray(plan_column(field, plan), dtype=value.dtype)
        if np.array_equal(planned, value, equal_nan=True):
            return PLANS_OWN
    return "sha256:" + hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
