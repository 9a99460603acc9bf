# SPDX-License-Identifier: Apache-2.0
"""The tables and keys of a configuration file, and the type of each value.

Ranges and what goes together are checked where the values are used; here it is only made sure that
every key is known and every value of its kind.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dpcohort.accounting.contract import AccountantName, Neighbours, Sampler
from dpcohort.config.execution import DataSection, ModelSection, OptimiserSection, RunSection

__all__ = [
    "AggregationSection",
    "ConfigFile",
    "Draws",
    "Guard",
    "NoiseModel",
    "PopulationSection",
    "PrivacySection",
    "PublicClients",
    "RuleSection",
    "ScheduleSection",
    "Section",
    "SelectionSection",
    "TrainingSection",
    "config_keys",
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
