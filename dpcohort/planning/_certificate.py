# SPDX-License-Identifier: Apache-2.0
"""Certificate of a plan: the epsilon each client will have spent if it is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpcohort._validate import BoolArray, FloatArray
from dpcohort.clients import Population
from dpcohort.errors import InputError
from dpcohort.planning._participation import refuse_clients

__all__ = ["Certificate", "DistributedCertificate"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """Epsilon of each client at its delta, of a capped rule when it reaches both its caps.

    Attributes:
        epsilon: 0 for a client that never takes part, NaN for a public one.

    Example:
        >>> Certificate(epsilon=np.array([0.5])).alone_epsilon.tolist()
        [0.5]
    """

    epsilon: FloatArray

    def __post_init__(self) -> None:
        for column in self.columns().values():
            column.setflags(write=False)

    @property
    def alone_epsilon(self) -> FloatArray:
        """The same if all others collude, so that each own noise alone protects."""
        return self.epsilon

    def columns(self) -> dict[str, FloatArray]:
        """Columns by name, as a plan's file and hash have them."""
        return {"epsilon": self.epsilon, **self.worst_case()}

    def worst_case(self) -> dict[str, FloatArray]:
        """Columns about the case in which all others collude, where that makes a difference."""
        return {}

    def check(self, population: Population, held: BoolArray) -> None:
        """Refuse a certificate of other clients.

        Args:
            population: the clients.
            held: those with a budget that take part.
        """
        for column in self.columns().values():
            if column.size != len(population):
                raise InputError.because(
                    f"the certificate is for {column.size} clients but the population has "
                    f"{len(population)}."
                )


@dataclass(frozen=True, kw_only=True, eq=False)
class DistributedCertificate(Certificate):
    """Epsilon with distributed noise, and the worst case in which all others collude.

    Attributes:
        epsilon: with the noise of the honest members.
        worst_epsilon: with the own noise alone.
    """

    worst_epsilon: FloatArray

    @property
    def alone_epsilon(self) -> FloatArray:
        """The epsilon if all others collude."""
        return self.worst_epsilon

    def worst_case(self) -> dict[str, FloatArray]:
        """Epsilon of each client if all others collude."""
        return {"alone_epsilon": self.worst_epsilon}

    def check(self, population: Population, held: BoolArray) -> None:
        """Refuse a worst case that is none."""
        super().check(population, held)
        refuse_clients(
            population,
            np.isnan(self.worst_epsilon) != population.public,
            "has a budget and no epsilon alone, or is public and has one",
        )
        refuse_clients(
            population,
            held & ~(self.worst_epsilon >= self.epsilon),
            "would be protected better by its own noise alone than by all of it",
        )


def certificate_from_dict(values: Mapping[str, FloatArray]) -> Certificate:
    """The certificate from :meth:`Certificate.columns`.

    Args:
        values: columns by name.
    """
    if "alone_epsilon" in values:
        return DistributedCertificate(
            epsilon=values["epsilon"], worst_epsilon=values["alone_epsilon"]
        )
    return Certificate(epsilon=values["epsilon"])
