# SPDX-License-Identifier: Apache-2.0
"""``dpcohort bound``: what the convergence theorems say about a selection, term by term."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Any

from typer import Option

from dpcohort.cli import (
    ClientsOption,
    JsonOption,
    SetOption,
    SourceArgument,
    console,
    print_json,
    read_config,
)
from dpcohort.config import Config
from dpcohort.errors import InputError
from dpcohort.plan import selection_problem
from dpcohort.runs import configured_data, configured_population, configured_training
from dpcohort.selection import rule_from_settings, selected
from dpcohort_lab.theorems import (
    Constants,
    NonconvexBound,
    StronglyConvexBound,
    best_total_steps,
    error_terms,
    nonconvex_bound,
    strongly_convex_bound,
)


def bound(
    source: SourceArgument = None,
    clients: ClientsOption = None,
    changes: SetOption = None,
    gradient_bound: Annotated[float, Option(help="B1, largest gradient norm.")] = 1.0,
    initial_gap: Annotated[float, Option(help="F(w1) - F*, where training starts.")] = 2.303,
    strong_convexity: Annotated[
        float | None, Option(help="mu; gives Theorem 1 and Corollary 1 as well.")
    ] = None,
    dissimilarity: Annotated[float, Option(help="B2; 0 with one local step.")] = 0.0,
    clipping_gap: Annotated[float, Option(help="max_t ||Delta_t||_1.")] = 0.0,
    as_printed: Annotated[
        bool, Option("--as-printed", help="The paper's statements, uncorrected.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every term of Theorems 1 and 2, the best T, and when a bound says nothing."""
    given = {
        "gradient_bound": gradient_bound,
        "initial_gap": initial_gap,
        "strong_convexity": strong_convexity,
        "dissimilarity": dissimilarity,
        "clipping_gap": clipping_gap,
        "biased_clipping_gap": clipping_gap,
    }
    config = read_config(source, clients, changes)
    try:
        _show(config, given, as_printed=as_printed, as_json=as_json)
    except (OverflowError, ZeroDivisionError):
        raise InputError.because(
            "the bound is beyond what a computer can hold with these constants; use constants "
            "nearer to 1."
        ) from None


def _show(config: Config, given: dict[str, Any], *, as_printed: bool, as_json: bool) -> None:
    if config.is_adaptive:
        raise InputError.because(
            f"the bounds are about probabilities fixed before the training, and {config.rule} "
            "chooses each cohort during it. Give a config with a planned rule."
        )
    data = None if config.data is None else configured_data(config)
    training = configured_training(config, data)
    population = configured_population(config, data)
    problem, (level, _) = selection_problem(
        population, training, contract=config.contract, noise_model=config.noise_model
    )
    chosen = selected(rule_from_settings(config.rule, **config.rule_settings), problem)
    convexity, scale = given["strong_convexity"], None
    if as_printed and convexity:  # beta must be strictly above this limit
        scale = 1.001 * given["gradient_bound"] / (training.clip * convexity)
    constants = Constants(
        smoothness=training.smoothness, clip=training.clip, step_scale=scale, **given
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
        noise_levels=level,
        dimension=training.dimension,
    )
    threshold = problem.threshold
    convex: dict[str, StronglyConvexBound] = {}
    if convexity is not None:
        in_the_limit = error_terms(constants, noise_levels=level, **shared)
        convex = {
            "theorem_1": strongly_convex_bound(constants, errors, **how),
            "corollary_1": strongly_convex_bound(
                constants, in_the_limit, total_steps=math.inf, as_printed=as_printed
            ),
        }
    if as_json:
        steps = asdict(best)
        del steps["probabilities"]
        print_json(
            eta=chosen.eta,
            unbiased_optimal_below_eta=threshold,
            theorem_2={**asdict(theorem_2), "vacuous": theorem_2.vacuous},
            best_total_steps=steps,
            **{name: {**asdict(b), "vacuous": b.vacuous} for name, b in convex.items()},
        )
        return
    _print(theorem_2, convex)
    console.print(f"Best length (Corollary 2, best selection for each T): {best.sentence}")
    weight = "" if chosen.eta is None else f" The plan uses η = {chosen.eta:.4g}."
    console.print(f"Below η₀ = {threshold:.4g} unbiased selection is optimal.{weight}")


def _print(theorem_2: NonconvexBound, convex: dict[str, StronglyConvexBound]) -> None:
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
    sentences = [theorem_2.sentence]
    if convex:
        theorem_1 = convex["theorem_1"]
        rows += [
            ("Theorem 1: vanishing error", theorem_1.vanishing),
            ("  clipping  G^b,clip", theorem_1.clipping),
            ("  selection and privacy", theorem_1.selection_and_privacy),
            (f"Theorem 1 (Γ = {theorem_1.balance:.3g})", theorem_1.total),
            ("Corollary 1, T → ∞", convex["corollary_1"].total),
        ]
        sentences.append(theorem_1.sentence)
    for name, value in rows:
        console.print(f"{name:<32} {value:>12.5g}")
    console.print("\n".join(["", *sentences]))
