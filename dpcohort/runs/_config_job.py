# SPDX-License-Identifier: Apache-2.0
"""Training of a configuration: its plan with data, model, optimiser and partition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from dpcohort.clients import Population
from dpcohort.config import Config
from dpcohort.config._schema import OptimiserSection
from dpcohort.data import Dataset
from dpcohort.engine import InverseRootStep, InverseTimeStep, Optimiser, StepSize
from dpcohort.engine._local_rule import local_rule
from dpcohort.errors import InputError
from dpcohort.plan import Plan
from dpcohort.runs._config_clients import configured_charges
from dpcohort.runs._config_data import configured_data, with_task
from dpcohort.runs._configured import configured_plan, kept_for_evaluation
from dpcohort.runs._job import ConfigSource, Job, JobOptions, make_job
from dpcohort.runs._partitions import configured_partition


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
        kept = plan.past.paid.kept
        asked = kept_for_evaluation(config, dataset, plan.population) or 0.0
        says = config.evaluation is not None and not dataset.test_is_public
        if says and asked != kept:
            raise InputError.because(
                f"the config asks for an evaluation that takes {asked:g} of each budget, and the "
                f"plan keeps {kept:g} for it. Nothing was spent: make the plan from this config, "
                "or change evaluation.share."
            )
    seed, model, run = config.run.seed + shift, config.model, config.run
    rule, settings = config.aggregation
    stated: JobOptions = {
        "engine": run.engine,
        "optimiser": configured_optimiser(config.optimiser, clip=plan.training.clip),
        "aggregation": rule,
        "aggregation_settings": settings,
        "seed": seed,
        "simulate": None if run.simulate is None else run.simulate + shift,
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
        chosen["partition"] = configured_partition(config, plan, dataset, seed, folder)
    # Plans are made without torch, which jobs need.
    job = make_job(plan, model.name, dataset, **chosen)
    return replace(job, source=ConfigSource.of(config))


def _check_charges_are_counted(config: Config, plan: Plan) -> None:
    """Refuse a finished plan that knows another past, or evaluation, than a configuration."""
    counted = {charge.id for charge in plan.past.paid.charges}
    for charge in configured_charges(config):
        if charge.id not in counted:
            raise InputError.because(
                f"the config names the charge {charge.title}, and the plan does not know what it "
                "took. Make the plan from this config: dpcohort plan CONFIG -o FILE, or where it "
                "goes on from a run, dpcohort replan RUN --config CONFIG."
            )


def configured_optimiser(section: OptimiserSection, *, clip: float) -> Optimiser:
    """The optimiser that [optimiser] asks for; ``clip`` is what inverse-root steps divide by."""
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
