# SPDX-License-Identifier: Apache-2.0
"""A recipe and its cells: what is varied, and the configuration of each point of it.

A cell is one mechanism at one value of every axis. ``reading`` makes a recipe from its file,
``checking`` says what the types of its keys cannot say, ``forms`` spreads it out into cells.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dpcohort._validate import whole_number
from dpcohort.config import Config
from dpcohort.config.problems import Lines
from dpcohort.errors import FileFormatError
from dpcohort.lab.recipes.schema import Adaptive, RecipeSection, Value

__all__ = ["MECHANISM", "Cell", "Form", "Recipe", "as_changes", "fits"]

Form = Literal["full", "quick", "smallest"]

#: What a ``when`` calls the mechanism, beside the names of the axes.
MECHANISM = "mechanism"

#: The paper's biased baseline: in every round the clients with the largest local loss. The paper
#: ran it with exact ("raw") losses, which keeps nothing private; private ones are clipped, noised
#: and charged to the budgets. A client is drawn at most twice as often as on average, and its noise
#: is calibrated to that cap: the paper's own T_k cannot be known before the training.
_BIASED = (
    "selection.rule=power-of-choice",
    "selection.report_share=0.1",
    "privacy.guard=lift",
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One mechanism at one value of every axis.

    Attributes:
        mechanism: its name.
        axes: value of each axis by the axis's name.
        config: the whole configuration.
        adaptive: how clients are chosen from their losses; None for a planned mechanism.
        paper: what the paper reports, in per cent.
        goal: what we aim for, in per cent.
    """

    mechanism: str
    axes: Mapping[str, Value]
    config: Config = field(repr=False)
    adaptive: Adaptive | None = None
    paper: float | None = None
    goal: float | None = None

    @property
    def label(self) -> str:
        """The cell in words."""
        parts = [self.mechanism]
        parts += [f"{name} = {_plain(value)}" for name, value in self.axes.items()]
        return ", ".join(parts)

    @property
    def slug(self) -> str:
        """The cell as a file name."""
        return re.sub(r"[^A-Za-z0-9.-]+", "_", self.label.replace(" = ", "-")).strip("_.")

    @property
    def sha256(self) -> str:
        """Hash of all that decides the result but the seed; where it runs is no part of it."""
        values = json.loads(json.dumps(self.config.values, sort_keys=True))
        values.get("data", {}).pop("dir", None)
        values.get("run", {}).pop("device", None)
        values.get("run", {}).pop("checkpoint_every", None)
        text = json.dumps([values, self.adaptive], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def seeded(self, shift: int) -> Config:
        """The configuration of one repetition: other clients, cohorts, weights, batches, noise."""
        base = self.config
        clients = int(base.values.get("population", {}).get("seed", 0))
        schedule = base.run.seed if base.seed is None or self.adaptive else base.seed
        changes = [
            f"schedule.seed={schedule + shift}",
            f"run.seed={base.run.seed + shift}",
        ]
        if self.adaptive:
            changes += [*_BIASED, f"selection.reports={self.adaptive.removeprefix('biased-')}"]
        if "clients" not in base.values.get("population", {}):
            changes.insert(0, f"population.seed={clients + shift}")
        return base.with_overrides(changes)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A table or figure of the paper, or what goes beyond it.

    Attributes:
        name: what it is called on the command line.
        path: its file.
        header: the table [recipe].
        base: the configuration all cells start from.
        cells: every cell.
        form: ``full``, ``quick`` or ``smallest``.
        seeds: how many repetitions.
    """

    name: str
    path: Path
    header: RecipeSection
    base: Config = field(repr=False)
    cells: tuple[Cell, ...] = field(repr=False)
    form: Form = "full"
    seeds: int = 5
    lines: Lines = field(default_factory=dict, repr=False, compare=False)

    @property
    def sha256(self) -> str:
        """Hash of all cells; a result belongs to a recipe if this is the same."""
        parts = sorted(f"{cell.slug} {cell.sha256}" for cell in self.cells)
        return hashlib.sha256("\n".join([self.form, *parts]).encode()).hexdigest()

    @property
    def judged(self) -> str | None:
        """The mechanism that is compared with the others."""
        return self.header.judged

    def in_form(
        self, form: Form, *, seeds: int | None = None, changes: Sequence[str] = ()
    ) -> Recipe:
        """The recipe in another form.

        Args:
            form: ``full``, ``quick`` (two cores, minutes) or ``smallest`` (embedded digits).
            seeds: repetitions; by default the form's.
            changes: settings to change in every cell, such as ``data.dir=...``.
        """
        from dpcohort.lab.recipes.forms import cells_in_form

        usual = {"full": self.header.seeds, "quick": self.header.quick.seeds, "smallest": 1}[form]
        count = whole_number("seeds", usual if seeds is None else seeds, at_least=1)
        if self.header.figure == "selection":
            return self  # it trains nothing, so there is nothing to reduce
        made = replace(self, form=form, seeds=count)
        return replace(made, cells=tuple(cells_in_form(made, changes)))

    def cells_of(self, when: Mapping[str, Value]) -> list[Cell]:
        """The cells that a ``when`` is about."""
        return [cell for cell in self.cells if fits(cell.mechanism, cell.axes, when)]

    def problem(self, key: str, words: str) -> FileFormatError:
        """An error about one key of the recipe's own table, or deeper, with its line."""
        where = ("recipe", *key.split("."))
        around = [where[:end] for end in range(len(where) - 1, 0, -1)]
        places: list[tuple[str | int, ...]] = [where, (*where, 0), *around]
        line = next((self.lines[place] for place in places if self.lines.get(place)), None)
        return FileFormatError(self.path, f"recipe.{key} {words}", line=line)


def fits(mechanism: str, axes: Mapping[str, Value], when: Mapping[str, Value]) -> bool:
    """Whether a ``when`` is about the cell at that place.

    Example:
        >>> fits("unbiased", {"s": 0}, {"mechanism": "unbiased"}), fits("unbiased", {}, {"s": 0})
        (True, False)
    """
    place: dict[str, Any] = {MECHANISM: mechanism, **axes}
    return all(key in place and place[key] == value for key, value in when.items())


def as_changes(setting: Mapping[str, Value]) -> tuple[str, ...]:
    """Values of keys as changes of a configuration.

    Example:
        >>> as_changes({"training.clip": 0.1, "data.name": "digits"})
        ('training.clip=0.1', 'data.name="digits"')
    """
    return tuple(f"{key}={json.dumps(value)}" for key, value in setting.items())


def _plain(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
