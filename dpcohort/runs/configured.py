# SPDX-License-Identifier: Apache-2.0
"""From a configuration to a training: its partition, model and optimiser."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpcohort.config import Config
from dpcohort.config.schema import OptimiserSection
from dpcohort.data import (
    Dataset,
    Partition,
    column_partition,
    dirichlet_partition,
    join_clients,
    paper_partition,
    public_split,
)
from dpcohort.data.arrays import map_npy
from dpcohort.engine import (
    ConstantStep,
    InverseRootStep,
    InverseTimeStep,
    Optimiser,
    StepSize,
)
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plan import Plan
from dpcohort.runs.configured_plan import (
    PUBLIC_CLIENT,
    configured_any_plan,
    configured_data,
    data_section,
)
from dpcohort.runs.job import Job, make_job
from dpcohort.text_files import toml_text

__all__ = ["combinations", "configured_job", "configured_optimiser"]

_SPLIT_STREAM, _PARTITION_STREAM = 21, 22


def configured_job(
    config: Config,
    *,
    data: Dataset | None = None,
    shift: int = 0,
    device: str | None = None,
    private_entropy: bool = False,
    label: str = "",
) -> Job:
    """The training of a configuration.

    Args:
        config: the configuration.
        data: its data set, if it is loaded already.
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
    dataset = configured_data(config) if data is None else data
    plan = configured_any_plan(config, dataset, shift=shift)
    seed = config.run.seed + shift
    section = data_section(config)
    partition_seed = seed if section.seed is None else section.seed
    rule, settings = config.aggregation
    return make_job(
        plan,
        config.model.name,
        dataset,
        partition=_partition(config, plan, dataset, partition_seed),
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
    )


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
    return Optimiser(
        local_step=_step(section, clip),
        server_learning_rate=section.server_learning_rate,
        server_momentum=section.server_momentum,
        average_decay=section.average_decay,
    )


def _step(section: OptimiserSection, clip: float) -> StepSize:
    if section.step == "inverse-time" and section.beta is not None:
        return InverseTimeStep(section.beta, 1.0 if section.gamma is None else section.gamma)
    if section.step == "inverse-root" and section.gradient_bound is not None:
        return InverseRootStep(section.gradient_bound, clip)
    return ConstantStep(0.1 if section.learning_rate is None else section.learning_rate)
