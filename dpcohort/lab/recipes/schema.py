# SPDX-License-Identifier: Apache-2.0
"""The keys of a recipe's table [recipe], and the type of each value.

Only names and types are checked here; what goes together is checked in ``checking``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Adaptive",
    "AxisSection",
    "ClaimSection",
    "FigureKind",
    "MechanismSection",
    "NumberSection",
    "QuickSection",
    "RecipeSection",
    "SearchSection",
    "SelectionSection",
    "Value",
    "WhereSection",
    "recipe_keys",
]

#: What an axis may hold.
Value = str | int | float
#: The two forms of the paper's biased baseline.
Adaptive = Literal["biased-raw", "biased-private"]
#: How the results are drawn.
FigureKind = Literal["bars", "curves", "lines", "selection"]


class _Section(BaseModel):
    """Known keys only, and no silent change of type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MechanismSection(_Section):
    """One table [[recipe.mechanisms]]: a way to choose clients, or one more step of an ablation."""

    name: str
    after: str | None = None
    only: dict[str, Value] = Field(default_factory=dict)
    set: list[str] = Field(default_factory=list)
    adaptive: Adaptive | None = None


class AxisSection(_Section):
    """One table [[recipe.axes]]: a setting that is varied."""

    name: str
    key: str
    values: list[Value]


class WhereSection(_Section):
    """One table [[recipe.where]]: settings of some cells only."""

    when: dict[str, Value]
    set: list[str]


class NumberSection(_Section):
    """One line of ``recipe.numbers``: what the paper reports for a cell, and what we aim for."""

    when: dict[str, Value]
    paper: float | None = None
    goal: float | None = None


class ClaimSection(_Section):
    """One table [[recipe.claims]]: a sentence of the paper that has no number for each cell."""

    text: str
    when: dict[str, Value] = Field(default_factory=dict)
    below: float | None = None
    gain: float | None = None
    over: str | None = None
    within: float = 5.0
    rises_along: str | None = None


class QuickSection(_Section):
    """[recipe.quick]: the reduced form for two cores and a few minutes."""

    seeds: int = 2
    set: list[str] = Field(default_factory=list)
    axes: dict[str, list[Value]] = Field(default_factory=dict)
    mechanisms: list[str] = Field(default_factory=list)


class SearchSection(_Section):
    """[recipe.search]: settings the paper leaves out, tried on held-out training records.

    [recipe.baseline_search] is the same for the baselines, which want settings of their own.
    """

    when: dict[str, Value] = Field(default_factory=dict)
    seeds: int = 2
    held_out: float = 0.1
    grid: dict[str, list[Value]] = Field(default_factory=dict)
    candidates: list[list[str]] = Field(default_factory=list)


class SelectionSection(_Section):
    """[recipe.selection]: the panels of the figure of selection probabilities."""

    eta: list[float]


class RecipeSection(_Section):
    """The whole table [recipe]."""

    title: str
    of: str
    figure: FigureKind
    seeds: int = 5
    tolerance: float | None = None
    judged: str | None = None
    across: str | None = None
    search_result: str | None = None
    notes: list[str] = Field(default_factory=list)
    mechanisms: list[MechanismSection] = Field(default_factory=list)
    axes: list[AxisSection] = Field(default_factory=list)
    where: list[WhereSection] = Field(default_factory=list)
    numbers: list[NumberSection] = Field(default_factory=list)
    claims: list[ClaimSection] = Field(default_factory=list)
    quick: QuickSection = Field(default_factory=QuickSection)
    search: SearchSection | None = None
    baseline_search: SearchSection | None = None
    selection: SelectionSection | None = None

    @property
    def searches(self) -> dict[str, SearchSection]:
        """The searches there are, by the names of their tables."""
        both = {"search": self.search, "baseline_search": self.baseline_search}
        return {name: section for name, section in both.items() if section is not None}


def recipe_keys() -> dict[str, list[str]]:
    """The known keys of each table of a recipe, by the table's name.

    Example:
        >>> recipe_keys()["recipe.axes"]
        ['name', 'key', 'values']
    """
    tables: dict[str, type[BaseModel]] = {
        "recipe": RecipeSection,
        "recipe.mechanisms": MechanismSection,
        "recipe.axes": AxisSection,
        "recipe.where": WhereSection,
        "recipe.numbers": NumberSection,
        "recipe.claims": ClaimSection,
        "recipe.quick": QuickSection,
        "recipe.search": SearchSection,
        "recipe.baseline_search": SearchSection,
        "recipe.selection": SelectionSection,
    }
    return {name: list(table.model_fields) for name, table in tables.items()}
