# SPDX-License-Identifier: Apache-2.0
"""A slot: one draw of one experiment in one round, and the names of its streams."""

from __future__ import annotations

from dataclasses import dataclass

from dpcohort.aggregation import Cohort

__all__ = ["Slot"]


@dataclass(frozen=True)
class Slot:
    """One draw of one experiment in one round."""

    experiment: int
    cohort: Cohort
    position: int

    @property
    def client(self) -> int:
        """The client's position in its population."""
        return int(self.cohort.clients[self.position])

    @property
    def name(self) -> dict[str, int]:
        """The part of its streams' names that is the slot's own."""
        draw = int(self.cohort.draws[self.position])
        return {"round": self.cohort.round, "client": self.client, "draw": draw}
