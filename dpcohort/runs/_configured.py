# SPDX-License-Identifier: Apache-2.0
"""Plan of a configuration, and those of its grid. Without torch, where the dimension is given."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dpcohort.accounting import Charge
from dpcohort.accounting._charges import after_charges
from dpcohort.accounting._distributed import refuse_undistributable
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.config._schema import EvaluationSection
from dpcohort.data import Dataset
from dpcohort.errors import InputError
from dpcohort.plan import Plan, make_plan
from dpcohort.progress import Progress, silent
from dpcohort.runs._config_clients import configured_charges, promised_population
from dpcohort.runs._config_data import configured_data
from dpcohort.runs._noised_metrics import is_worth_asking
from dpcohort.selection import rule_from_settings
from dpcohort.text_files import is_table
from dpcohort.training import Training


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
        from dpcohort.engine.clipping import FlatLayout
        from dpcohort.runs._job import built_model
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
    trial = population is not None
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
        "evaluation": None if trial else kept_for_evaluation(config, data, population),
    }
    if config.is_adaptive:
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


def population_to_train(config: Config, data: Dataset) -> Population:
    """The clients with what charges, and the share for an evaluation, leave for a training.

    Args:
        config: the configuration.
        data: its data set.
    """
    whole = promised_population(config, data)
    kept = kept_for_evaluation(config, data, whole) or 0.0
    return after_charges(whole, configured_charges(config), kept=kept)


def kept_for_evaluation(
    config: Config, data: Dataset | None, population: Population
) -> float | None:
    """The share of each budget that a plan keeps for an evaluation; None where none is needed.

    A private run asks for one unless it is told not to, where it can be had and tells something.

    Args:
        config: the configuration.
        data: its data set, whose test records need none if they are public.
        population: who pays for it.

    Raises:
        InputError: there are no test records.
    """
    asked = config.evaluation
    if asked is not None and asked.ask and data is None:
        raise InputError.because(
            "[evaluation] needs test records, and the config has no [data]. Add it, or leave "
            "[evaluation] out."
        )
    if data is None or data.test_is_public or (asked is not None and not asked.ask):
        return None
    if asked is not None:
        return asked.share
    share = EvaluationSection().share
    asks = config.run.simulate is None and is_worth_asking(data, population, config.contract, share)
    return share if asks else None


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
