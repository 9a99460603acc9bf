# SPDX-License-Identifier: Apache-2.0
"""What the paper's noise really buys: declared against certified ε, and the variance wasted.

The paper's noise (Lemmas 1 and 2, arXiv 2602.22633) is printed without a proof that covers fresh
batches and a record that is replaced, so it is checked here client by client: in most settings it
spends a fraction of the declared ε, at a few steps with a large ε it spends more than declared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import BoolArray, FloatArray, float_array
from dpcohort.accounting.broadcast import broadcast_fields
from dpcohort.accounting.contract import Neighbours, Sampler, resolve_neighbours
from dpcohort.accounting.paper import paper_noise_multiplier
from dpcohort.accounting.pld import certified_epsilon
from dpcohort.accounting.tight import calibrate_noise

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

    sampler: Sampler
    neighbours: Neighbours
    declared_epsilon: FloatArray
    paper_noise_multiplier: FloatArray
    certified_epsilon: FloatArray
    tight_noise_multiplier: FloatArray
    wasted_variance: FloatArray
    holds: BoolArray


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
    relation = resolve_neighbours(sampler, neighbours)
    declared, delta, rate, count = np.atleast_1d(
        *broadcast_fields(
            epsilon=float_array("epsilon", epsilon, above=0),
            delta=float_array("delta", delta, above=0, below=1),
            sampling_rate=float_array("sampling_rate", sampling_rate, above=0, at_most=1),
            steps=float_array("steps", steps, at_least=1),
        )
    )
    paper = np.asarray(
        paper_noise_multiplier(epsilon=declared, delta=delta, sampling_rate=rate, steps=count)
    )
    certified = np.asarray(
        certified_epsilon(
            delta=delta,
            noise_multiplier=paper,
            sampling_rate=rate,
            steps=count,
            sampler=sampler,
            neighbours=relation,
        )
    )
    tight = np.asarray(
        calibrate_noise(
            epsilon=declared,
            delta=delta,
            sampling_rate=rate,
            steps=count,
            sampler=sampler,
            neighbours=relation,
        )
    )
    return PaperAudit(
        sampler="fixed" if sampler == "fixed" else "poisson",
        neighbours=relation,
        declared_epsilon=declared.copy(),
        paper_noise_multiplier=paper,
        certified_epsilon=certified,
        tight_noise_multiplier=tight,
        wasted_variance=(paper / tight) ** 2,
        holds=certified <= declared,
    )
