# SPDX-License-Identifier: Apache-2.0
"""A user-defined planned selection: by the square root of size, whatever the budgets."""

from dataclasses import dataclass

from dpcohort.selection import PlannedRule, evaluated


@dataclass(frozen=True, kw_only=True)
class SquareRoot(PlannedRule):
    """Probability proportional to a power of size."""

    name = "square-root"
    needs, leaks, reference = "sizes", "sizes", "an example"
    power: float = 0.5

    def select(self, problem):
        p = problem.unbiased**self.power
        return evaluated(self.name, p / p.sum(), problem, settings={"power": self.power})
