# SPDX-License-Identifier: Apache-2.0
"""The paper's figure of selection probabilities in numbers: two weights of the noise, and unbiased.

The paper prints no numbers for it, but says two things: clients with more records and larger
budgets are more likely to be selected, and a larger eta deviates more from the unbiased selection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.clients import Population
from dpcohort.lab.recipes.judgement import Finding, RecipeResult
from dpcohort.lab.recipes.recipe import Recipe
from dpcohort.plan import selection_problem
from dpcohort.selection.rules import rule_from_settings

__all__ = ["judge_panels", "selection_panels"]


def selection_panels(recipe: Recipe) -> tuple[Population, dict[str, FloatArray]]:
    """The clients, and the probabilities of each panel by its title.

    Example:
        >>> from dpcohort.lab.recipes import load_recipe
        >>> _, panels = selection_panels(load_recipe("selection-probability"))
        >>> list(panels)[-1]
        'unbiased'
    """
    config = recipe.base
    population = config.population()
    problem, _ = selection_problem(
        population, config.training, contract=config.contract, noise_model=config.noise_model
    )
    panels = {}
    for eta in _etas(recipe):
        chosen = rule_from_settings("privacy-aware", eta=eta).select(problem)
        panels[f"privacy-aware, η = {eta:g}"] = chosen.probabilities
    panels["unbiased"] = population.unbiased
    return population, panels


def judge_panels(
    recipe: Recipe, population: Population, panels: Mapping[str, FloatArray]
) -> RecipeResult:
    """Whether the panels show what the paper says about them."""
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
            findings.append(
                Finding(
                    text=f"{title}: more records and larger budgets, more likely selected",
                    holds=by_epsilon > 0 and by_size > 0,
                    detail=f"rank correlation {by_epsilon:.2f} with ε, {by_size:.2f} with size",
                )
            )
    told = [distances[title] for title in panels if title != "unbiased"]
    findings.append(
        Finding(
            text="a larger η deviates more from the unbiased selection",
            holds=_rises(told),
            detail="distance " + ", ".join(f"{d:.2f}" for d in told),
        )
    )
    return RecipeResult(recipe=recipe, cells=(), findings=findings, extra={"panels": rows})


def _etas(recipe: Recipe) -> list[float]:
    return sorted(recipe.header.selection.eta) if recipe.header.selection else []


def _rises(values: Sequence[float]) -> bool:
    return all(low < high for low, high in pairwise(values))
