# SPDX-License-Identifier: Apache-2.0
"""From a configuration to its data, clients and plan; needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.errors import InputError
from dpcohort.plan import Plan, make_plan
from dpcohort.progress import Progress, silent
from dpcohort.selection.rules import rule_from_settings

if TYPE_CHECKING:
    from dpcohort.config.schema import DataSection
    from dpcohort.data import Dataset
    from dpcohort.plan import Plan

__all__ = [
    "PUBLIC_CLIENT",
    "configured_any_plan",
    "configured_data",
    "configured_plan",
    "configured_population",
    "data_section",
]

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
    shift: int = 0,
    progress: Progress = silent,
) -> Plan:
    """The plan of a configuration whose cohorts are drawn before the training.

    Raises:
        InputError: the rule chooses cohorts during the training; see ``configured_any_plan``.

    Args:
        config: the configuration.
        data: its data set, if it is loaded already.
        shift: added to the schedule's seed; 0, 1, 2, ... for the runs of several seeds.
        progress: told how far it is.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> configured_plan(loads_config(commented_config("digits"))).training.rounds
        100
    """
    if config.is_adaptive:
        raise InputError.because(
            f"the rule {config.rule} chooses cohorts during the training, so there is no schedule "
            "to look at. dpcohort plan shows its caps and noise; dpcohort train runs it."
        )
    seed = _schedule_seed(config)
    return make_plan(
        configured_population(config, data),
        config.training,
        selection=rule_from_settings(config.rule, **config.rule_settings),
        accountant=config.contract,
        noise_model=config.noise_model,
        draws=config.draws,
        guard=config.guard,
        seed=None if seed is None else seed + shift,
        progress=progress,
    )


def configured_any_plan(
    config: Config,
    data: Dataset | None = None,
    *,
    shift: int = 0,
    progress: Progress = silent,
) -> Plan:
    """The plan of a configuration, with fixed cohorts or with a rule that chooses them.

    Args:
        config: the configuration.
        data: its data set, if it is loaded already.
        shift: added to the seed of the schedule, or of the rule's dice.
        progress: told how far it is.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> config = loads_config(commented_config("digits"))
        >>> config = config.with_overrides(["selection.rule=power-of-choice", "selection.d=12"])
        >>> configured_any_plan(config).selection.rule
        'power-of-choice'
    """
    if not config.is_adaptive:
        return configured_plan(config, data, shift=shift, progress=progress)
    from dpcohort.adaptive import make_adaptive_plan

    seed = _schedule_seed(config)
    return make_adaptive_plan(
        configured_population(config, data),
        config.training,
        rule=config.rule,
        rule_settings=config.rule_settings,
        accountant=config.contract,
        guard=config.guard,
        seed=None if seed is None else seed + shift,
        progress=progress,
        **config.report_settings,
    )


def _schedule_seed(config: Config) -> int | None:
    """The schedule's seed, or else the run's; None if neither says."""
    if config.seed is None and config.data is not None:
        return config.run.seed
    return config.seed
