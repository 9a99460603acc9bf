# SPDX-License-Identifier: Apache-2.0
"""A user-defined aggregation: the median of each coordinate."""

from dataclasses import dataclass

from dpcohort import plugin


@plugin("aggregation")
@dataclass(frozen=True, kw_only=True)
class Median:
    """The middle value in each coordinate, whatever the others are."""

    name = "median"
    needs, leaks, reference = "nothing", "nothing", "an example"
    scale: float = 1.0

    def combine(self, updates, cohort):
        return self.scale * updates.median(dim=0).values
