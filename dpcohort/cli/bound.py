# SPDX-License-Identifier: Apache-2.0
"""``dpcohort bound``: what the convergence theorems say about a selection, term by term."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from dpcohort.cli.output import console, print_json
from dpcohort.cli.source import ClientsOption, JsonOption, SetOption, SourceArgument, read_config
from dpcohort.config import Config
from dpcohort.errors import InputError
from dpcohort.lab.error_terms import Constants, error_terms
from dpcohort.lab.theorems import (
    BestSteps,
    NonconvexBound,
    StronglyConvexBound,
    best_total_steps,
    nonconvex_bound,
    strongly_convex_bound,
    strongly_convex_limit,
)
from dpcohort.plan import selection_problem
from dpcohort.runs.configured import configured_population
from dpcohort.selection.path import SelectionPath
from dpcohort.selection.problem import selected
from dpcohort.selection.rules import rule_from_settings

__all__ = ["command"]


def command(
    source: SourceArgument = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    gradient_bound: Annotated[float, typer.Option(help="B1, largest gradient norm.")] = 1.0,
    initial_gap: Annotated[float, typer.Option(help="F(w1) - F*, where training starts.")] = 2.303,
    strong_convexity: Annotated[
        float | None, typer.Option(help="mu; gives Theorem 1 and Corollary 1 as well.")
    ] = None,
    dissimilarity: Annotated[float, typer.Option(help="B2; 0 with one local step.")] = 0.0,
    clipping_gap: Annotated[float, typer.Option(help="max_t ||Delta_t||_1.")] = 0.0,
    as_printed: Annotated[
        bool, typer.Option("--as-printed", help="The paper's statements, uncorrected.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every term of Theorems 1 and 2, the best T, and when a bound says nothing."""
    try:
        _show(
            read_config(source, clients, changes),
            gradient_bound=gradient_bound,
            initial_gap=initial_gap,
            strong_convexity=strong_convexity,
            dissimilarity=dissimilarity,
            clipping_gap=clipping_gap,
            as_printed=as_printed,
            as_json=as_json,
        )
    except (OverflowError, ZeroDivisionError):
        raise InputError.because(
            "the bound is beyond what a computer can hold with these constants; use constants "
            "nearer to 1."
        ) from None


def _show(
    config: Config,
    *,
    gradient_bound: float,
    initial_gap: float,
    strong_convexity: float | None,
    dissimilarity: float,
    clipping_gap: float,
    as_printed: bool,
    as_json: bool,
) -> None:
    if config.is_adaptive:
        raise InputError.because(
            f"the bounds are about probabilities fixed before the training, and {config.rule} "
            "chooses each cohort during it. Give a config with a planned rule."
        )
    training, population = config.training, configured_population(config)
    problem, levels = selection_problem(
        population, training, contract=config.contract, noise_model=config.noise_model
    )
    chosen = selected(rule_from_settings(config.rule, **config.rule_settings), problem)
    constants = Constants(
        smoothness=training.smoothness,
        gradient_bound=gradient_bound,
        clip=training.clip,
        initial_gap=initial_gap,
        strong_convexity=strong_convexity,
        dissimilarity=dissimilarity,
        clipping_gap=clipping_gap,
        biased_clipping_gap=clipping_gap,
        # As printed, beta must be strictly above this limit.
        step_scale=1.001 * gradient_bound / (training.clip * strong_convexity)
        if as_printed and strong_convexity
        else None,
    )
    shared: dict[str, Any] = {
        "probabilities": chosen.probabilities,
        "unbiased": problem.unbiased,
        "dimension": training.dimension,
    }
    errors = error_terms(
        constants,
        noise_levels=problem.noise_costs / training.dimension,
        linear_levels=problem.linear_costs / training.dimension,
        **shared,
    )
    how: dict[str, Any] = {"total_steps": training.total_steps, "as_printed": as_printed}
    theorem_2 = nonconvex_bound(constants, errors, **how)
    # The search is over T, so it weighs only the noise that grows with T.
    best = best_total_steps(
        constants,
        unbiased=problem.unbiased,
        noise_levels=levels.level,
        dimension=training.dimension,
    )
    threshold = SelectionPath(
        problem.unbiased, problem.noise_costs, linear_costs=problem.linear_costs
    ).threshold
    convex = limit = None
    if strong_convexity is not None:
        convex = strongly_convex_bound(constants, errors, **how)
        in_the_limit = error_terms(constants, noise_levels=levels.level, **shared)
        limit = strongly_convex_limit(constants, in_the_limit, as_printed=as_printed)
    if as_json:
        print_json(_as_dict(theorem_2, convex, limit, best, chosen.eta, threshold))
    else:
        _print(theorem_2, convex, limit, best, chosen.eta, threshold)


def _as_dict(
    theorem_2: NonconvexBound,
    convex: StronglyConvexBound | None,
    limit: StronglyConvexBound | None,
    best: BestSteps,
    eta: float | None,
    threshold: float,
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "eta": eta,
        "unbiased_optimal_below_eta": threshold,
        "theorem_2": {**asdict(theorem_2), "vacuous": theorem_2.vacuous},
        "best_total_steps": {
            key: value for key, value in asdict(best).items() if key != "probabilities"
        },
    }
    if convex is not None and limit is not None:
        found["theorem_1"] = {**asdict(convex), "vacuous": convex.vacuous}
        found["corollary_1"] = {**asdict(limit), "vacuous": limit.vacuous}
    return found


def _print(
    theorem_2: NonconvexBound,
    convex: StronglyConvexBound | None,
    limit: StronglyConvexBound | None,
    best: BestSteps,
    eta: float | None,
    threshold: float,
) -> None:
    errors = theorem_2.errors
    rows = [
        ("selection gap  ||p - p^u||_1", errors.selection_gap),
        ("G^select,clip", errors.selection_error),
        ("G^DP", errors.privacy_error),
        ("non-vanishing error", theorem_2.non_vanishing),
        ("vanishing error", theorem_2.vanishing),
        ("Theorem 2", theorem_2.total),
        ("  before it was loosened", theorem_2.sharper_total),
    ]
    if convex is not None and limit is not None:
        rows += [
            ("Theorem 1: vanishing error", convex.vanishing),
            ("  clipping  G^b,clip", convex.clipping),
            ("  selection and privacy", convex.selection_and_privacy),
            (f"Theorem 1 (Γ = {convex.balance:.3g})", convex.total),
            ("Corollary 1, T → ∞", limit.total),
        ]
    for name, value in rows:
        console.print(f"{name:<32} {value:>12.5g}", markup=False)
    console.print()
    console.print(theorem_2.sentence, markup=False)
    if convex is not None:
        console.print(convex.sentence, markup=False)
    console.print(f"Best length (Corollary 2, best selection for each T): {best.sentence}")
    weight = "" if eta is None else f" The plan uses η = {eta:.4g}."
    console.print(f"Below η₀ = {threshold:.4g} unbiased selection is optimal.{weight}")
