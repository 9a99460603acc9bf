# SPDX-License-Identifier: Apache-2.0
"""A selection rule of your own, held against the exact optimum of Problem 1."""

import numpy as np

from dpcohort import Population, Training, make_plan
from dpcohort.selection import PlannedRule, Selection, SelectionProblem, evaluated


class Halves(PlannedRule):
    """Draw the clients with the larger budgets only, by size."""

    name = "halves"

    def select(self, problem: SelectionProblem) -> Selection:
        """Zero for budgets below the median."""
        kept = problem.epsilon >= np.median(problem.epsilon)
        weights = np.where(kept, problem.unbiased, 0.0)
        return evaluated(self.name, weights / weights.sum(), problem, settings={})


rng = np.random.default_rng(0)
clients = Population.from_arrays(
    sizes=rng.integers(200, 900, 40), epsilon=rng.uniform(0.05, 1, 40), delta=1e-5
)
training = Training(rounds=50, cohort_size=8, batch_size=64, dimension=5_000)
for rule in ("unbiased", Halves(), "privacy-aware"):
    plan = make_plan(clients, training, selection=rule, seed=0)
    chosen = plan.selection
    print(
        f"{chosen.rule:14} noise {plan.noise_to_clip:.2f} C, moved {chosen.bias:.2f}, "
        f"objective {chosen.objective:.4g}, at most {chosen.gap:.2g} above the optimum"
    )
