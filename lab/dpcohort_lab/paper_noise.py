# SPDX-License-Identifier: Apache-2.0
"""What the paper's noise really buys: declared against certified ε, and the variance wasted.

The paper's noise (Lemmas 1 and 2, arXiv 2602.22633) is printed without a proof that covers fresh
batches and a record that is replaced, so it is checked here client by client: in most settings it
spends a fraction of the declared ε, at a few steps with a large ε it spends more than declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpcohort.accounting import (
    Contract,
    calibrate_noise,
    certify_epsilon,
    paper_noise_multiplier,
)
from dpcohort.errors import InputError
from dpcohort_lab.checks import FloatArray

__all__ = ["PaperAudit", "audit_paper_noise"]


@dataclass(frozen=True, kw_only=True)
class PaperAudit:
    """The paper's noise against the truth, one entry per client.

    Attributes:
        sampler: how batches are drawn.
        neighbours: what counts as a neighbouring data set.
        declared_epsilon: the ε the paper's formula was given.
        paper_noise_multiplier: the z it prints, σ_k B_k / C.
        certified_epsilon: an upper bound on the ε this z spends.
        tight_noise_multiplier: the z that spends the declared ε.
        wasted_variance: paper z² / tight z²; above 1 is noise without a gain in privacy.
        holds: certified ε at most declared.

    Example:
        >>> audit = audit_paper_noise(epsilon=1.0, delta=1e-5, sampling_rate=0.2, steps=100)
        >>> audit.sampler, audit.neighbours, bool(audit.holds.all())
        ('fixed', 'replace-one', True)
    """

    sampler: str
    neighbours: str
    declared_epsilon: FloatArray
    paper_noise_multiplier: FloatArray
    certified_epsilon: FloatArray
    tight_noise_multiplier: FloatArray
    wasted_variance: FloatArray
    holds: NDArray[np.bool_]


def audit_paper_noise(
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    sampling_rate: ArrayLike,
    steps: ArrayLike,
    sampler: str = "fixed",
    neighbours: str | None = None,
) -> PaperAudit:
    """Certify the noise multiplier of the paper's formula, and compare it with the tight one.

    Args:
        epsilon: declared ε_k > 0.
        delta: δ_k in (0, 1).
        sampling_rate: r_k in (0, 1].
        steps: T_k T^l, at least 1.
        sampler: ``fixed`` (the paper's own reading) or ``poisson``.
        neighbours: ``replace-one`` or ``zero-out``; by default the sampler's own.

    Returns:
        Arrays of the broadcast shape, at least one-dimensional.

    Example:
        >>> audit = audit_paper_noise(epsilon=[1.0, 12.0], delta=1e-5,
        ...                           sampling_rate=128 / 600, steps=1)
        >>> (audit.certified_epsilon / audit.declared_epsilon).round(2)
        array([0.67, 1.  ])
        >>> audit.holds
        array([ True, False])
    """
    contract = Contract.of("paper", sampler, neighbours)
    if np.any(np.asarray(steps) < 1):
        raise InputError("steps", given=steps, allowed="at least 1")
    given: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "sampling_rate": sampling_rate}
    given["steps"] = steps
    paper = np.atleast_1d(paper_noise_multiplier(**given))
    promises: Any = {name: np.broadcast_to(value, paper.shape) for name, value in given.items()}
    tight = calibrate_noise(**promises, **contract.sampling())
    spent = {name: column for name, column in promises.items() if name != "epsilon"}
    certified = certify_epsilon(noise_multiplier=paper, **spent, **contract.sampling())
    return PaperAudit(
        sampler=contract.sampler.name,
        neighbours=contract.neighbours,
        declared_epsilon=np.array(promises["epsilon"], dtype=np.float64),
        paper_noise_multiplier=paper,
        certified_epsilon=certified,
        tight_noise_multiplier=tight,
        wasted_variance=(paper / tight) ** 2,
        holds=certified <= promises["epsilon"],
    )
