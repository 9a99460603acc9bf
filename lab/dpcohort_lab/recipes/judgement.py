# SPDX-License-Identifier: Apache-2.0
"""Measurements beside the paper's numbers: mean and interval, difference, verdict, claims.

All values are test accuracies in per cent; differences are in percentage points. Intervals are
Student's t over seeds, 95 %; mechanisms are compared seed by seed. NAME.json holds it all, small
enough to be kept with the code. A figure of selection probabilities is judged by its panels.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort.atomic_file import write_text
from dpcohort.clients import Population
from dpcohort.runs import Interval, mean_interval
from dpcohort_lab.checks import FloatArray
from dpcohort_lab.figures import panels_at
from dpcohort_lab.recipes.execution import Measurement
from dpcohort_lab.recipes.recipe import Cell, ClaimSection, Form, Recipe, fits

REDUCED: dict[Form, str] = {
    "full": "",
    "quick": "REDUCED (--quick): fewer cells, seeds and rounds; says nothing of the paper.",
    "smallest": "SMALLEST FORM: two rounds on the embedded digits, to see that the recipe runs.",
}


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """A cell with its measurements and what they mean.

    Attributes:
        cell: which.
        measurements: one a seed.
        accuracy: mean and interval in per cent.
        verdict: in words; empty if there is nothing to judge by.
    """

    cell: Cell
    measurements: Sequence[Measurement]
    accuracy: Interval
    verdict: str

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points; None if the paper has no number."""
        return None if self.cell.paper is None else self.accuracy.mean - self.cell.paper

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the curve is the mean over seeds."""
        found, first = self.accuracy, self.measurements[0]
        difference = self.difference
        count = len(self.measurements)
        points = zip(*(m.curve for m in self.measurements), strict=False)
        return {
            "mechanism": self.cell.mechanism,
            "adaptive": self.cell.adaptive,
            "axes": dict(self.cell.axes),
            "settings_sha256": self.cell.sha256,
            "paper": self.cell.paper,
            "goal": self.cell.goal,
            "mean": round(found.mean, 3),
            "half_width": round(found.half_width, 3) if math.isfinite(found.half_width) else None,
            "difference": None if difference is None else round(difference, 3),
            "verdict": self.verdict,
            "accuracy": [m.accuracy for m in self.measurements],
            "last": [m.last for m in self.measurements],
            "curve": [[p[0][0], round(sum(a for _, a in p) / count, 3)] for p in points],
            "clients_drawn": [m.clients_drawn for m in self.measurements],
            "clients_lifted": [m.clients_lifted for m in self.measurements],
            "promises_hold": all(m.promises_hold for m in self.measurements),
            "seconds": round(sum(m.seconds for m in self.measurements), 2),
            "device": first.device,
        }


def _finding(text: str, holds: bool | None, detail: str) -> dict[str, Any]:
    """A sentence, whether the measurements support it (None: nothing can be said), the numbers."""
    return {"text": text, "holds": holds, "detail": detail}


@dataclass(frozen=True, kw_only=True)
class RecipeResult:
    """All cells of a recipe, judged.

    Attributes:
        recipe: which, in which form.
        cells: results in the order of the recipe.
        findings: comparisons of mechanisms, and claims of the paper.
    """

    recipe: Recipe
    cells: Sequence[CellResult]
    findings: Sequence[dict[str, Any]]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def promises_hold(self) -> bool:
        """Every receipt of every training certifies at most what the client declared."""
        return all(m.promises_hold for cell in self.cells for m in cell.measurements)

    @property
    def seconds(self) -> float:
        """Training time of all measurements."""
        return sum(m.seconds for cell in self.cells for m in cell.measurements)


def judge(recipe: Recipe, measured: Mapping[str, Mapping[int, Measurement]]) -> RecipeResult:
    """Set a recipe's measurements, by slug and seed, beside its numbers."""
    cells = []
    for cell in recipe.cells:
        own = measured[cell.slug]
        found = [own[seed] for seed in range(recipe.seeds) if seed in own]
        accuracy = mean_interval([m.accuracy for m in found])
        words = _verdict(cell, accuracy, recipe)
        cells.append(CellResult(cell=cell, measurements=found, accuracy=accuracy, verdict=words))
    findings = [*_comparisons(recipe, cells), *_claims(recipe, cells)]
    return RecipeResult(recipe=recipe, cells=cells, findings=findings)


def _verdict(cell: Cell, found: Interval, recipe: Recipe) -> str:
    if recipe.form != "full":
        return "reduced" if cell.paper is not None else ""
    words = []
    tolerance = recipe.header.tolerance
    if cell.paper is not None:
        difference = found.mean - cell.paper
        if tolerance is not None and abs(difference) <= tolerance:
            words.append(f"within {tolerance:g}")
        elif found.low > cell.paper:
            words.append("above the paper")
        elif found.high < cell.paper:
            words.append("below the paper")
        else:
            words.append("no clear difference")
    if cell.goal is not None:
        reached = "reached" if found.mean >= cell.goal else "missed"
        words.append(f"goal {cell.goal:g} {reached}")
    return ", ".join(words)


def _comparisons(recipe: Recipe, cells: Sequence[CellResult]) -> list[dict[str, Any]]:
    """The judged mechanism against every other, at each value of the axes, paired by seed."""
    judged = recipe.header.judged
    return [
        _paired(ours, other)
        for ours in cells
        for other in cells
        if ours.cell.mechanism == judged != other.cell.mechanism
        and other.cell.axes == ours.cell.axes
    ]


def _paired(ours: CellResult, other: CellResult) -> dict[str, Any]:
    theirs = {m.seed: m.accuracy for m in other.measurements}
    points = [m.accuracy - theirs[m.seed] for m in ours.measurements if m.seed in theirs]
    text = f"{ours.cell.label} above {other.cell.mechanism}"
    if not points:
        return _finding(text, None, "no seed in common")
    gap = mean_interval(points)
    if not math.isfinite(gap.low):
        return _finding(text, None, f"{gap.mean:+.1f} points with one seed")
    detail = f"{gap.mean:+.1f} points, 95 % CI {gap.low:.1f} to {gap.high:.1f}"
    return _finding(text, gap.low > 0, detail)


def _claims(recipe: Recipe, cells: Sequence[CellResult]) -> list[dict[str, Any]]:
    found = []
    for claim in recipe.header.claims:
        about = [c for c in cells if fits(c.cell.mechanism, c.cell.axes, claim.when)]
        holds, detail = _tested(claim, about, cells) if about else (None, "not in this form")
        found.append(_finding(claim.text, holds if recipe.form == "full" else None, detail))
    return found


def _tested(
    claim: ClaimSection, about: Sequence[CellResult], cells: Sequence[CellResult]
) -> tuple[bool | None, str]:
    means = [c.accuracy.mean for c in about]
    if claim.below is not None:
        return max(means) < claim.below, f"at most {max(means):.1f} %"
    if claim.gain is not None:
        gains = [
            c.accuracy.mean - o.accuracy.mean
            for c in about
            for o in cells
            if o.cell.mechanism == claim.over and o.cell.axes == c.cell.axes
        ]
        if not gains:
            return None, "the other mechanism is not there"
        gain = sum(gains) / len(gains)
        return abs(gain - claim.gain) <= claim.within, f"{gain:+.1f} points"
    if claim.rises_along is not None:
        along = claim.rises_along
        points = sorted((float(c.cell.axes[along]), c.accuracy.mean) for c in about)
        shown = ", ".join(f"{mean:.1f}" for _, mean in points)
        pairs = pairwise(points)
        return all(low[1] <= high[1] for low, high in pairs), shown
    return None, ", ".join(f"{mean:.1f} %" for mean in means)


_FORMAT = "dpcohort reproduction"

_SEARCHED = (
    "Settings the paper leaves out were searched on held-out training records; the search is not "
    "charged to the clients' budgets, as in the paper."
)
_SIMULATED = "Runs are seeded simulations: NOT PRIVATE."


def result_note(recipe: Recipe) -> str:
    """What stands beside every number of a recipe, above all if it depends on a search.

    Example:
        >>> from dpcohort_lab.recipes import load_recipe
        >>> result_note(load_recipe("mnist-variants"))
        'Runs are seeded simulations: NOT PRIVATE.'
    """
    return f"{_SEARCHED} {_SIMULATED}" if recipe.header.search_result else _SIMULATED


def _command(recipe: Recipe) -> str:
    own = recipe.path.parent.resolve() != Path(__file__).parent.resolve()
    option = "" if recipe.form == "full" else f" --{recipe.form}"
    source = shlex.quote(recipe.path.name) if own else recipe.name
    return f"dpcohort reproduce {source}{option} --seeds {recipe.seeds}"


def write_result(
    result: RecipeResult, folder: Path, environment: Mapping[str, Any] | None = None
) -> tuple[Path, dict[str, Any]]:
    """Write a result, and return the file and what it holds; a reduced one is named so."""
    recipe = result.recipe
    values = {
        "format": _FORMAT,
        "schema": 1,
        "recipe": recipe.name,
        "title": recipe.header.title,
        "of": recipe.header.of,
        "form": recipe.form,
        "warning": REDUCED[recipe.form],
        "note": result_note(recipe),
        "notes": list(recipe.header.notes),
        "recipe_sha256": recipe.sha256,
        "command": _command(recipe),
        "search": recipe.header.search_result,
        "seeds": recipe.seeds,
        "promises_hold": result.promises_hold,
        "seconds": round(result.seconds, 1),
        "environment": environment or {},
        "findings": list(result.findings),
        "cells": [cell.to_dict() for cell in result.cells],
        **result.extra,
    }
    path = folder / f"{recipe.name}{'' if recipe.form == 'full' else f'.{recipe.form}'}.json"
    write_lines(path, values, listed=("cells", "findings"))
    return path, values


def write_lines(path: Path, values: Mapping[str, Any], *, listed: Sequence[str]) -> None:
    """Write JSON, one line a key or an item of the lists named, so that a change shows where."""
    lines = []
    for key, value in values.items():
        text = json.dumps(value, ensure_ascii=False)
        if key in listed and value:
            items = (json.dumps(item, ensure_ascii=False) for item in value)
            text = "[\n  " + ",\n  ".join(items) + "]"
        lines.append(f" {json.dumps(key)}: {text}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def selection_panels(recipe: Recipe) -> tuple[Population, dict[str, FloatArray]]:
    """The clients, and the probabilities of each panel by its title.

    Example:
        >>> from dpcohort_lab.recipes import load_recipe
        >>> _, panels = selection_panels(load_recipe("selection-probability"))
        >>> list(panels)[-1]
        'unbiased'
    """
    shown, population = recipe.header.selection, recipe.base.population()
    etas = [] if shown is None else sorted(shown.eta)
    return population, panels_at(recipe.base, population, etas)


def judge_panels(
    recipe: Recipe, population: Population, panels: Mapping[str, FloatArray]
) -> RecipeResult:
    """Whether the panels show what the paper says about them.

    The paper prints no numbers for them, but says two things: clients with more records and larger
    budgets are more likely to be selected, and a larger eta deviates more from the unbiased
    selection.
    """
    from scipy.stats import spearmanr

    distances = {title: float(np.abs(p - population.unbiased).sum()) for title, p in panels.items()}
    rows: list[dict[str, Any]] = []
    findings = []
    for title, p in panels.items():
        by_epsilon = float(spearmanr(p, population.epsilon).statistic)
        by_size = float(spearmanr(p, population.sizes).statistic)
        rows.append(
            {
                "panel": title,
                "distance_to_unbiased": round(distances[title], 4),
                "rank_correlation_epsilon": round(by_epsilon, 4),
                "rank_correlation_size": round(by_size, 4),
                "smallest": float(f"{p.min():.3g}"),
                "largest": float(f"{p.max():.3g}"),
            }
        )
        if title != "unbiased":
            text = f"{title}: more records and larger budgets, more likely selected"
            detail = f"rank correlation {by_epsilon:.2f} with ε, {by_size:.2f} with size"
            findings.append(_finding(text, by_epsilon > 0 and by_size > 0, detail))
    told = [distances[title] for title in panels if title != "unbiased"]
    text = "a larger η deviates more from the unbiased selection"
    detail = "distance " + ", ".join(f"{d:.2f}" for d in told)
    findings.append(_finding(text, all(low < high for low, high in pairwise(told)), detail))
    return RecipeResult(recipe=recipe, cells=(), findings=findings, extra={"panels": rows})
