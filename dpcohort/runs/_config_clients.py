# SPDX-License-Identifier: Apache-2.0
"""Clients of a configuration, and what they have paid beside its training. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcohort.accounting import Charge
from dpcohort.accounting._charges import after_charges, check_relation, private_clients, read_charge
from dpcohort.clients import Population
from dpcohort.clients._ids import nearest_id
from dpcohort.config import Config
from dpcohort.config._schema import DataSection
from dpcohort.data import Dataset
from dpcohort.errors import DpcohortError, FileFormatError, InputError
from dpcohort.plain_text import one_line
from dpcohort.runs._config_data import configured_data, data_section
from dpcohort.text_files import is_table

PUBLIC_CLIENT = "public-data"


#: Files beside a configuration that are looked at for charges.
_MOST_BESIDE = 1000


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
    if has_own_clients(config.data, dataset):
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


def has_own_clients(section: DataSection, data: Dataset) -> bool:
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

    The sizes are the numbers of training records, or of training persons where these are the unit.
    A list may give them, or none, or those of all records of a client with its test records.

    Args:
        config: the configuration.
        owners: the client of each training record or person.
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
    unit = config.contract.unit
    if held == 0:
        raise InputError.because(
            f"{config.clients}: the client {name!r} has no training {unit.name} in {data}."
        )
    if stated == held:
        return
    section = data_section(config)
    tested = min(round(section.test_share * stated), stated - 1)
    # How many persons are test persons follows from their names, not from their number.
    by_row = is_table(section.name) and section.person is None
    with_tests = by_row and stated - tested == held
    if not with_tests:
        raise InputError.because(
            f"{config.clients}: {name!r} has size {stated:,}, but {data} has {held:,} training "
            f"{unit.several} of it. Correct the size, or leave the column out: the data say it."
        )
