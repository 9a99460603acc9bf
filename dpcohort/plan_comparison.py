# SPDX-License-Identifier: Apache-2.0
"""Two plans for the same clients, side by side."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpcohort.errors import InputError
from dpcohort.plan import Plan

__all__ = ["ChangedClient", "PlanComparison", "compare_plans"]


@dataclass(frozen=True, kw_only=True)
class ChangedClient:
    """A client whose probability differs between two plans."""

    client: str
    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class PlanComparison:
    """What differs between two plans for the same clients.

    Attributes:
        settings: each setting that differs, as (before, after).
        probability_distance: sum of absolute differences of the probabilities, from 0 to 2.
        changed: the clients whose probability changed most, largest first.
        noise_ratio: noise norm on a round's mean gradient, after over before.
        variance_ratio: median over clients drawn in both of the noise variance, after over before.
        excluded: clients drawn before but not after.
        included: clients drawn after but not before.
    """

    settings: dict[str, tuple[Any, Any]]
    probability_distance: float
    changed: tuple[ChangedClient, ...]
    noise_ratio: float
    variance_ratio: float
    excluded: int
    included: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, ready for JSON."""
        return asdict(self)

    def text(self) -> str:
        """The comparison in plain sentences, one a line."""
        different = ", ".join(f"{k}: {a} -> {b}" for k, (a, b) in self.settings.items())
        lines = [
            f"Settings that differ: {different or 'none'}.",
            f"The noise on a round's mean gradient is {self.noise_ratio:.3g} times as large; a "
            f"client drawn in both adds {self.variance_ratio:.3g} times the variance (median).",
            f"{self.probability_distance / 2:.1%} of all draws move to other clients; "
            f"{self.excluded} clients are no longer drawn, {self.included} newly are.",
        ]
        lines += [f"  {c.client}: {c.before:.4g} -> {c.after:.4g}" for c in self.changed]
        return "\n".join(lines)


def compare_plans(before: Plan, after: Plan, *, shown: int = 5) -> PlanComparison:
    """Compare two plans for the same clients.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[500, 500], epsilon=[0.2, 4], delta=1e-5)
        >>> training = Training(rounds=10, cohort_size=2, batch_size=50)
        >>> aware = make_plan(clients, training, seed=1)
        >>> plain = make_plan(clients, training, selection="unbiased", seed=1)
        >>> compare_plans(plain, aware).noise_ratio < 1
        True
    """
    if before.population.ids != after.population.ids:
        raise InputError.because(
            "the two plans are for different clients; compare plans of one population."
        )
    p, q = before.selection.probabilities, after.selection.probabilities
    largest = np.argsort(-np.abs(q - p), kind="stable")[:shown]
    both = before.drawn & after.drawn & ~before.population.public & ~after.population.public
    variance = (after.noise_multipliers[both] / after.batch_sizes[both]) ** 2
    variance /= (before.noise_multipliers[both] / before.batch_sizes[both]) ** 2
    settings_before, settings_after = _settings(before), _settings(after)
    return PlanComparison(
        settings={
            key: (settings_before.get(key), settings_after.get(key))
            for key in sorted(settings_before.keys() | settings_after.keys())
            if settings_before.get(key) != settings_after.get(key)
        },
        probability_distance=float(np.abs(q - p).sum()),
        changed=tuple(
            ChangedClient(client=before.population.ids[k], before=float(p[k]), after=float(q[k]))
            for k in largest
            if p[k] != q[k]
        ),
        noise_ratio=_ratio(after.noise_to_clip, before.noise_to_clip),
        variance_ratio=float(np.median(variance)) if variance.size else float("nan"),
        excluded=int((before.drawn & ~after.drawn).sum()),
        included=int((after.drawn & ~before.drawn).sum()),
    )


def _settings(plan: Plan) -> dict[str, Any]:
    return {
        **{f"training.{key}": value for key, value in asdict(plan.training).items()},
        **{f"privacy.{key}": value for key, value in asdict(plan.contract).items()},
        "selection.rule": plan.selection.rule,
        "selection.noise_model": plan.noise_model,
        **{f"selection.{key}": value for key, value in plan.selection.settings.items()},
        "schedule.draws": plan.schedule.draws,
        "schedule.seed": plan.seed,
    }


def _ratio(after: float, before: float) -> float:
    return after / before if before > 0 else (1.0 if after == 0 else float("inf"))
