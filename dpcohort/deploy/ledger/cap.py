# SPDX-License-Identifier: Apache-2.0
"""The lifetime cap of one data set: the (ε, δ) that all runs on it together may ever spend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from dpcohort._validate import choice, number
from dpcohort.accounting.contract import Neighbours
from dpcohort.errors import InputError

__all__ = ["AcrossRuns", "LifetimeCap"]

AcrossRuns = Literal["composed", "summed"]


@dataclass(frozen=True, kw_only=True)
class LifetimeCap:
    """What one data set may spend over all runs; fixed when the data set is registered.

    Attributes:
        epsilon: ε for the lifetime of the data.
        delta: δ for the lifetime of the data.
        neighbours: the relation the cap speaks of; events of another kind are counted under
            replace-one, which covers both.
        across_runs: ``composed`` counts every draw made so far by one composition of them all. It
            holds when neither the terms of a run, nor how draws are shared out between runs,
            depend on what earlier draws gave out (arXiv 2602.06756). ``summed`` counts each begun
            run with the whole (ε, δ) of its terms and adds them up (a zero-out run under a
            replace-one cap with what its draws come to under replace-one); it holds also when a
            server chooses the next run after looking at the last.
        fingerprint: SHA-256 of the data, if given: the same data under a second name are refused.

    Example:
        >>> LifetimeCap(epsilon=4.0, delta=1e-5).across_runs
        'composed'
    """

    epsilon: float
    delta: float
    neighbours: Neighbours = "zero-out"
    across_runs: AcrossRuns = "composed"
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", number("epsilon", self.epsilon, above=0))
        object.__setattr__(self, "delta", number("delta", self.delta, above=0, below=1))
        choice("neighbours", self.neighbours, get_args(Neighbours))
        choice("across_runs", self.across_runs, get_args(AcrossRuns))
        if self.fingerprint is not None and not _is_sha256(self.fingerprint):
            allowed = "64 hexadecimal digits in small letters (SHA-256), or None"
            raise InputError("fingerprint", given=self.fingerprint, allowed=allowed)

    def to_dict(self) -> dict[str, Any]:
        """The cap as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LifetimeCap:
        """What :meth:`to_dict` gave.

        Raises:
            TypeError: keys are missing or unknown.
        """
        return cls(**values)


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
