# SPDX-License-Identifier: Apache-2.0
"""The tables and keys of a configuration file, the type of each value, and what goes together.

The tables make sure that every key is known and every value of its kind. Below them are the checks
of the tables that say how a plan is executed, and of the keys that go with every adaptive rule;
the other values are checked where they are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpcohort._validate import choice, nearest, number, whole_number
from dpcohort.accounting.contract import AccountantName, Neighbours, Sampler
from dpcohort.config.problems import about_key
from dpcohort.errors import InputError
from dpcohort.limits import MOST_CELLS
from dpcohort.plugins import REGISTRIES
from dpcohort.training import LARGEST_STEP

__all__ = [
    "REPORT_KEYS",
    "AggregationSection",
    "ConfigFile",
    "DataSection",
    "Draws",
    "Guard",
    "ModelSection",
    "NoiseModel",
    "OptimiserSection",
    "PopulationSection",
    "PrivacySection",
    "PublicClients",
    "RuleSection",
    "RunSection",
    "ScheduleSection",
    "Section",
    "SelectionSection",
    "TrainingSection",
    "check_data",
    "check_optimiser",
    "check_run",
    "config_keys",
    "flat_grid",
    "split_report_settings",
]


NoiseModel = Literal["exact", "paper"]
Guard = Literal["refuse", "lift"]
Draws = Literal["systematic", "independent"]


class Section(BaseModel):
    """A table of a configuration: known keys only, and no silent change of type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PublicClients(Section):
    """One table [[population.public]]: clients whose data needs no privacy."""

    size: int
    count: int = 1


class PopulationSection(Section):
    """The keys of [population]; either ``clients``, or ``count`` and what to draw."""

    clients: str | None = None
    count: int | None = None
    total_size: int | None = None
    size: Any = None
    epsilon: Any = None
    delta: float = 1e-5
    seed: int = 0
    allow_large_delta: bool = False
    public: list[PublicClients] = Field(default_factory=list)


class TrainingSection(Section):
    """The keys of [training]: the fields of ``Training``, which has the defaults."""

    rounds: int | None = None
    cohort_size: int | None = None
    local_steps: int | None = None
    batch_size: int | None = None
    sampling_rate: float | None = None
    oversized_batch: Literal["error", "whole"] | None = None
    clip: float | None = None
    dimension: int | None = None
    smoothness: float | None = None


class RuleSection(Section):
    """A table that names a rule; the other keys are the rule's settings, which it checks itself."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    rule: str

    @property
    def settings(self) -> dict[str, Any]:
        """What is given beside the keys that every rule has."""
        return dict(self.model_extra or {})


class SelectionSection(RuleSection):
    """The keys of [selection]; beside them, the settings of the rule."""

    rule: str = "privacy-aware"
    noise_model: NoiseModel = "exact"


class AggregationSection(RuleSection):
    """The keys of [aggregation]; beside them, the settings of the rule."""

    rule: str = "mean"


class PrivacySection(Section):
    """The keys of [privacy]."""

    accountant: AccountantName = "tight"
    sampler: Sampler | None = None
    neighbours: Neighbours | None = None
    guard: Guard = "refuse"


class ScheduleSection(Section):
    """The keys of [schedule]."""

    draws: Draws = "systematic"
    seed: int | None = None


# How a plan is executed. Planning does not need these; ``dpcohort train`` and ``compare`` do.
class DataSection(Section):
    """The keys of [data]: which records, and who holds them."""

    name: str = "digits"
    dir: str | None = None
    partition: Literal["paper", "dirichlet", "column"] = "paper"
    similarity: float = 100.0
    alpha: float | None = None
    column: str | None = None
    public_share: float = 0.0
    seed: int | None = None


class ModelSection(Section):
    """The keys of [model]."""

    name: str = "logistic"
    options: dict[str, Any] = Field(default_factory=dict)


class OptimiserSection(Section):
    """The keys of [optimiser]; ``step`` says which of the others give the local step size."""

    step: Literal["constant", "inverse-time", "inverse-root"] = "constant"
    learning_rate: float | None = None
    beta: float | None = None
    gamma: float | None = None
    gradient_bound: float | None = None
    server_learning_rate: float = 1.0
    server_momentum: float = 0.0
    average_decay: float | None = None


class RunSection(Section):
    """The keys of [run]."""

    seed: int = 0
    engine: Literal["batched", "reference"] = "batched"
    device: str = "auto"
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    merged_noise: bool = False


class ConfigFile(Section):
    """The whole file."""

    population: PopulationSection
    training: TrainingSection = Field(default_factory=TrainingSection)
    selection: SelectionSection = Field(default_factory=SelectionSection)
    aggregation: AggregationSection = Field(default_factory=AggregationSection)
    privacy: PrivacySection = Field(default_factory=PrivacySection)
    schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    data: DataSection | None = None
    model: ModelSection = Field(default_factory=ModelSection)
    optimiser: OptimiserSection = Field(default_factory=OptimiserSection)
    run: RunSection = Field(default_factory=RunSection)
    grid: dict[str, Any] = Field(default_factory=dict)


def config_keys() -> dict[str, list[str]]:
    """The known keys of each section; the sections themselves under "".

    Example:
        >>> config_keys()["schedule"]
        ['draws', 'seed']
    """
    sections: dict[str, type[BaseModel]] = {
        "population": PopulationSection,
        "population.public": PublicClients,
        "training": TrainingSection,
        "selection": SelectionSection,
        "aggregation": AggregationSection,
        "privacy": PrivacySection,
        "schedule": ScheduleSection,
        "data": DataSection,
        "model": ModelSection,
        "optimiser": OptimiserSection,
        "run": RunSection,
    }
    keys = {name: list(section.model_fields) for name, section in sections.items()}
    # [grid] has the names of other settings for keys.
    return {"": list(ConfigFile.model_fields), **keys, "grid": []}


#: Which keys of [optimiser] each kind of step takes.
_REMOVE = "Remove it (--set data.{}= does)."
_STEP_KEYS = {
    "constant": ("learning_rate",),
    "inverse-time": ("beta", "gamma"),
    "inverse-root": ("gradient_bound",),
}


def check_data(section: DataSection | None) -> DataSection | None:
    """The section, if its values go together.

    Example:
        >>> check_data(DataSection(partition="dirichlet", alpha=0.3)).alpha
        0.3
    """
    if section is None:
        return None
    number("similarity", section.similarity, at_least=0, at_most=100)
    number("public_share", section.public_share, at_least=0, below=1)
    if section.seed is not None:
        whole_number("seed", section.seed, at_least=0)
    for key, kind in (("alpha", "dirichlet"), ("column", "column")):
        given, wanted = getattr(section, key) is not None, section.partition == kind
        if wanted and not given:
            raise about_key(key, f'is missing: partition = "{kind}" needs it.')
        if given and not wanted:
            words = f'goes with partition = "{kind}", and only with it. '
            raise about_key(key, words + _REMOVE.format(key))
    if section.alpha is not None:
        number("alpha", section.alpha, above=0)
    if "similarity" in section.model_fields_set and section.partition != "paper":
        words = 'goes with partition = "paper", and only with it. '
        raise about_key("similarity", words + _REMOVE.format("similarity"))
    return section


def check_optimiser(section: OptimiserSection) -> OptimiserSection:
    """The section, if its values go together."""
    wanted = _STEP_KEYS[section.step]
    for keys in _STEP_KEYS.values():
        for key in keys:
            if key not in wanted and getattr(section, key) is not None:
                raise about_key(
                    key, f'is not for step = "{section.step}", which takes {", ".join(wanted)}.'
                )
    for key in wanted:
        value = getattr(section, key)
        if value is not None:
            number(key, value, above=0, at_most=LARGEST_STEP)
        elif section.step != "constant" and key != "gamma":
            raise about_key(key, f'is missing; step = "{section.step}" needs it.')
    number("server_learning_rate", section.server_learning_rate, above=0, at_most=LARGEST_STEP)
    number("server_momentum", section.server_momentum, at_least=0, below=1)
    if section.average_decay is not None:
        number("average_decay", section.average_decay, at_least=0, below=1)
    return section


def check_run(section: RunSection) -> RunSection:
    """The section, if its numbers can be used."""
    whole_number("seed", section.seed, at_least=0)
    for key in ("evaluate_every", "checkpoint_every"):
        value = getattr(section, key)
        if value is not None:
            whole_number(key, value, at_least=1)
    return section


def flat_grid(table: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The settings to be varied, ``section.key`` to its values.

    Example:
        >>> flat_grid({"selection": {"rule": ["unbiased", "privacy-aware"]}})
        {'selection.rule': ('unbiased', 'privacy-aware')}
    """
    found = dict(_leaves(table, ""))
    for key in found:
        if "." not in key or key.startswith("grid.") or key == "run.seed":
            raise about_key(key, "must name a setting, as in selection.rule = [...].")
    combinations = math.prod(len(values) for values in found.values())
    if combinations > MOST_CELLS:
        raise about_key(
            min(found, key=lambda key: -len(found[key])),
            f"and the other lists make {combinations:,} combinations; at most {MOST_CELLS:,} are "
            "allowed. Shorten a list.",
        )
    return found


def _leaves(table: Mapping[str, Any], around: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{around}{key}.")
        elif isinstance(value, list) and value and not any(isinstance(v, dict) for v in value):
            yield around + key, tuple(value)
        else:
            raise about_key(around + key, "must be a list of values to try, such as [1, 2].")


# The keys of [selection] that go with every rule that chooses cohorts during the training:
#
#     participation_cap = "auto"   draws of a client, at most
#     reports = "private"          noised and charged; "raw" stamps the run NOT PRIVATE
#     report_share = 0.1           of each budget
#     report_cap = "auto"          reports of a client, at most
#     loss_bound = 5.0             to which each record's loss is clipped in a report


def _cap(field: str, value: Any) -> None:
    if value != "auto":
        if isinstance(value, str):
            raise InputError(field, given=value, allowed="'auto' or a whole number of at least 1")
        whole_number(field, value, at_least=1)


#: Every key with its check.
_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "participation_cap": _cap,
    "reports": lambda field, value: choice(field, value, ["private", "raw"]),
    "report_share": lambda field, value: number(field, value, above=0, below=1),
    "report_cap": _cap,
    "loss_bound": lambda field, value: number(field, value, above=0),
}
REPORT_KEYS = tuple(_CHECKS)


def split_report_settings(
    rule: str, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rule's own settings, and those about caps and reports, checked.

    Raises:
        InputError: a value out of range, or a key about reports for a rule that asks for none.

    Example:
        >>> split_report_settings("power-of-choice", {"d": 6, "report_share": 0.2})
        ({'d': 6}, {'report_share': 0.2})
    """
    known = REGISTRIES["adaptive"].settings_of(rule)
    own = {key: value for key, value in settings.items() if key not in _CHECKS or key in known}
    about = {key: value for key, value in settings.items() if key not in own}
    for key, value in about.items():
        _CHECKS[key](key, value)
    asks = getattr(REGISTRIES["adaptive"].find(rule), "statistic", None) is not None
    for key in about:
        if not asks and key != "participation_cap":
            words = f"{key} says nothing: the rule {rule} asks for no reports. Remove it."
            error = InputError.because(words)
            error.field = key
            raise error
    for key in own:
        if key not in known:
            hint = nearest(key, [*known, *REPORT_KEYS])
            takes = ", ".join([*known, *(REPORT_KEYS if asks else ("participation_cap",))])
            words = f"{key} is not a setting of the rule {rule}. It takes {takes}."
            error = InputError.because(f"{words} Did you mean {hint!r}?" if hint else words)
            error.field = key
            raise error
    return own, about
