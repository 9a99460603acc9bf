# SPDX-License-Identifier: Apache-2.0
"""Partition of a training: of a configuration, of a continued run, or with records held out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpcohort._validate import IntArray, number
from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.data import (
    Dataset,
    Partition,
    column_partition,
    dirichlet_partition,
    join_clients,
    load_partition,
    paper_partition,
    public_split,
)
from dpcohort.data._arrays import map_npy
from dpcohort.data._partition import dealt
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plan import Plan
from dpcohort.runs._config_clients import PUBLIC_CLIENT, has_own_clients
from dpcohort.runs._config_data import data_section
from dpcohort.runs._configured import configured_plan
from dpcohort.runs._folder import BEFORE, PARTITION, PLAN, SETTINGS, read_json


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


_SPLIT_STREAM, _PARTITION_STREAM = 21, 22


def configured_partition(
    config: Config, plan: Plan, data: Dataset, run_seed: int, after: Path | None = None
) -> Partition:
    """Who holds which records in the training of a configuration, as [data] says.

    Args:
        config: the configuration.
        plan: its clients.
        data: its data set.
        run_seed: where the configuration has no seed for the data.
        after: folder of the run that is continued, if one is.
    """
    section, labels = data_section(config), partition_labels(data)
    if has_own_clients(section, data):
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
    places = {name: place for place, name in enumerate(split.names)}
    if missing := [name for name in ids if name not in places]:
        raise InputError.because(
            f"the plan has the client {missing[0]!r}, and no training record of the data is of it. "
            "Bring its rows, or plan without it."
        )
    groups = [split.client(places[name]) for name in ids]
    sizes = [len(group) for group in groups]
    return dealt(np.concatenate(groups), sizes, total, split.rule, tuple(ids))


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
        >>> from dpcohort.runs import configured_data
        >>> config = loads_config(commented_config("digits"))
        >>> rest, clients, partition = held_out_within(config, configured_data(config), 0.2)
        >>> len(clients), bool((partition.sizes == clients.sizes).all()), len(rest.test_labels)
        (20, True, 290)
    """
    number("held_out", share, above=0, below=1)
    plan = configured_plan(config, data)
    whole = configured_partition(config, plan, data, config.run.seed)
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


def _holders(after: Path, data: Dataset) -> dict[int, str] | None:
    """Whose each record has been, in a run and those before it; None if its data were others.

    Args:
        after: the run's folder.
        data: the data set that goes on.
    """
    runs_before = len(Plan.load(after / PLAN).past.segments)
    places = [after / BEFORE / str(i + 1) for i in range(runs_before)]
    found: dict[int, str] = {}
    for place in (*places, after):
        said = read_json(place / SETTINGS).get("data")
        told = said if isinstance(said, dict) else {}
        if (told.get("name"), told.get("records")) != (data.name, len(data)):
            return None
        partition, ids = load_partition(place / PARTITION), Plan.load(place / PLAN).population.ids
        for k, name in enumerate(ids):
            found.update(dict.fromkeys(partition.client(k).tolist(), name))
    return found


def carried_partition(
    after: Path, plan: Plan, data: Dataset, rng: np.random.Generator
) -> Partition:
    """Who stays keeps its records; who joins or brings more gets records that were nobody's.

    For simulated clients. With records of its own a client brings them by the column.

    Raises:
        InputError: the data are others, or too few records were nobody's.
    """
    held = _holders(after, data)
    if held is None:
        raise InputError.because(
            f"{data.name} with {len(data)} records is not the data of {after}. Where data change, "
            "a column must say whose records are whose: data.column."
        )
    free = rng.permutation(np.array(sorted(set(range(len(data))) - set(held)), dtype=np.int64))
    mine: dict[str, list[int]] = {}
    for record, name in sorted(held.items()):
        mine.setdefault(name, []).append(record)
    groups: list[IntArray] = []
    used = 0
    for name, size in zip(plan.population.ids, plan.population.sizes.tolist(), strict=True):
        had = np.array(mine.get(name, [])[:size], dtype=np.int64)
        more = size - had.size
        if used + more > free.size:
            raise InputError.because(
                f"{name!r} brings {more} more records, and {free.size - used} of {data.name} were "
                f"nobody's in {after}; records of clients that left stay theirs. Give it fewer, or "
                "data with a column of its own."
            )
        groups.append(np.concatenate([had, free[used : used + more]]))
        used += more
    begun_with = read_json(after / SETTINGS)["partition"]["sha256"]
    rule = {"rule": "carried on", "from": str(begun_with)}
    sizes, names = [group.size for group in groups], tuple(plan.population.ids)
    return dealt(np.concatenate(groups), sizes, len(data), rule, names)


def check_holders(after: Path, plan: Plan, partition: Partition, data: Dataset) -> None:
    """Refuse a record that was another client's: under a new name its history would be lost.

    Raises:
        InputError: one has changed hands.
    """
    held = _holders(after, data)
    for k, name in enumerate(plan.population.ids):
        for record in partition.client(k).tolist() if held else ():
            was = (held or {}).get(record, name)
            if was != name:
                raise InputError.because(
                    f"record {record} was of client {was!r} in {after} and is of {name!r} now: "
                    "what was spent on it counts under its old id. Give clients the ids they had."
                )
