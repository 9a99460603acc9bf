# SPDX-License-Identifier: Apache-2.0
"""Records of a configuration: its data set, the columns of its table, its task. Without torch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

from dpcohort.config import Config
from dpcohort.config._schema import DataSection
from dpcohort.config._settings import within
from dpcohort.data import Dataset, PersonTerms, TableColumns, load_dataset, read_table
from dpcohort.data._arrays import load_arrays, map_npy, of_path
from dpcohort.data._column_names import spread_out
from dpcohort.data._private_bounds import read_estimate
from dpcohort.data._tables import Table, client_names, table_dataset
from dpcohort.errors import DpcohortError, FileFormatError, InputError
from dpcohort.tasks import refined_task
from dpcohort.text_files import is_table


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
        InputError: it names none, or does not say whose its rows are where the unit is the person.
        DataMissingError: it is not on this machine.
    """
    section, found = data_section(config), _named_data(config, clients)
    if section.public in (None, found.public):
        return found
    return replace(found, public=section.public).knowing_rare_classes()


def _named_data(config: Config, clients: Collection[str] | None) -> Dataset:
    section = data_section(config)
    name = section.name
    has_columns = is_table(name) or name.endswith((".npz", ".npy")) or "/" in name
    by_person = config.contract.unit.name == "person"
    if by_person and section.person is None:
        words = "says whose a row is, which the unit person needs. Name the column of the table, "
        words += 'or the array of the .npz file; or say privacy.unit = "record".'
        raise config.problem("data", InputError.about("person", words))
    if section.person is not None and not has_columns:
        words = f"names a column of a table or an array of a file of yours; {name} has none."
        raise config.problem("data", InputError.about("person", words))
    if is_table(name):
        return _table_data(config, section, clients)
    if has_columns:
        given = config.task.model_dump(exclude_none=True)
        stated = section.model_dump(include={"classes", "test_public"}, exclude_unset=True)
        if section.person is None:
            return with_task(config, load_arrays(config.folder / name, given, stated))
        whose = _array_owners(config, section)
        data = load_arrays(config.folder / name, given, stated, section.person, **whose)
        if not by_person:
            data = replace(data, persons=None, test_persons=None)
        return with_task(config, data)
    data_dir = None if section.dir is None else config.folder / section.dir
    return with_task(config, load_dataset(name, data_dir=data_dir))


def person_terms(config: Config) -> PersonTerms:
    """How the rows of a person are used, as [data] says."""
    names = [field.name for field in fields(PersonTerms)]
    return PersonTerms(**data_section(config).model_dump(include=set(names)))


def _array_owners(config: Config, section: DataSection) -> dict[str, Any]:
    """Whose the rows of arrays are, beside their persons."""
    owners = None if section.column is None else map_npy(config.folder / section.column)
    return {"clients": owners, "terms": person_terms(config)}


def with_task(config: Config, data: Dataset) -> Dataset:
    """The data set with what [task] adds to the task it has.

    Raises:
        InputError: [task] is of another kind than the data, or does not go with them.
    """
    try:
        task = refined_task(data.task, config.task.model_dump(exclude_none=True))
    except InputError as error:
        raise InputError.because(within("task", error)[1]) from None
    return data if task == data.task else replace(data, task=task)


def _table_data(config: Config, section: DataSection, clients: Collection[str] | None) -> Dataset:
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
            categories=spread_out(section.categories, section.features),
            bounds=spread_out(bounds, section.features),
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
    section = data_section(config)
    if section.estimated_bounds is None:
        return None
    return read_estimate(config.folder / section.estimated_bounds)[1]


def seen_columns(config: Config) -> TableColumns:
    """What the columns of a configuration's table mean, with the features by name."""
    columns = table_columns(config)
    if columns.features:
        return columns
    path = config.folder / data_section(config).name
    return replace(columns, features=columns.seen(read_table(path)))
