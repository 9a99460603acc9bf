# SPDX-License-Identifier: Apache-2.0
"""Measurements beside the paper's numbers: mean and interval, difference, verdict, claims.

All values are test accuracies in per cent; differences are in percentage points. Intervals are
Student's t over seeds, 95 %; mechanisms are compared seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dpcohort.lab.recipes.cell_store import CellStore, Measurement
from dpcohort.lab.recipes.recipe import Cell, Form, Recipe
from dpcohort.lab.recipes.schema import ClaimSection, Value
from dpcohort.runs.evaluation import Interval, mean_interval

__all__ = ["REDUCED", "CellResult", "Finding", "RecipeResult", "judge"]

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


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence that the measurements support or do not.

    Attributes:
        text: the sentence.
        holds: whether it does; None where nothing can be said.
        detail: the numbers.
    """

    text: str
    holds: bool | None
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"text": self.text, "holds": self.holds, "detail": self.detail}


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
    findings: Sequence[Finding]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def promises_hold(self) -> bool:
        """Every receipt of every training certifies at most what the client declared."""
        return all(m.promises_hold for cell in self.cells for m in cell.measurements)

    @property
    def seconds(self) -> float:
        """Training time of all measurements."""
        return sum(m.seconds for cell in self.cells for m in cell.measurements)


def judge(recipe: Recipe, store: CellStore) -> RecipeResult:
    """Set a recipe's measurements beside its numbers."""
    cells = []
    for cell in recipe.cells:
        found = store.of(cell, recipe.seeds)
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


def _comparisons(recipe: Recipe, cells: Sequence[CellResult]) -> list[Finding]:
    """The judged mechanism against every other, at each value of the axes, paired by seed."""
    found = []
    for ours in cells:
        if ours.cell.mechanism != recipe.judged:
            continue
        for other in cells:
            if other.cell.mechanism == recipe.judged or other.cell.axes != ours.cell.axes:
                continue
            found.append(_paired(ours, other))
    return found


def _paired(ours: CellResult, other: CellResult) -> Finding:
    theirs = {m.seed: m.accuracy for m in other.measurements}
    points = [m.accuracy - theirs[m.seed] for m in ours.measurements if m.seed in theirs]
    text = f"{ours.cell.label} above {other.cell.mechanism}"
    if not points:
        return Finding(text=text, holds=None, detail="no seed in common")
    gap = mean_interval(points)
    if not math.isfinite(gap.low):
        return Finding(text=text, holds=None, detail=f"{gap.mean:+.1f} points with one seed")
    detail = f"{gap.mean:+.1f} points, 95 % CI {gap.low:.1f} to {gap.high:.1f}"
    return Finding(text=text, holds=gap.low > 0, detail=detail)


def _claims(recipe: Recipe, cells: Sequence[CellResult]) -> list[Finding]:
    found = []
    for claim in recipe.header.claims:
        about = [c for c in cells if _about(c, claim.when)]
        is_reduced = recipe.form != "full"
        holds, detail = _tested(claim, about, cells) if about else (None, "not in this form")
        found.append(Finding(text=claim.text, holds=None if is_reduced else holds, detail=detail))
    return found


def _about(result: CellResult, when: Mapping[str, Value]) -> bool:
    place: dict[str, Any] = {"mechanism": result.cell.mechanism, **result.cell.axes}
    return all(place.get(key) == value for key, value in when.items())


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
