# SPDX-License-Identifier: Apache-2.0
"""Compare the attack rates of a letter with riskcal's, on dp-accounting's loss distributions.

    pip install riskcal
    python benchmarks/attack_risk.py

riskcal (Kulynych et al., arXiv 2407.02191) computes an attack's hits from the privacy loss
distribution of Google's library; we from our own composition. Both are upper bounds, so neither
need be below the other; they should agree to what their grids cost. Nothing else needs riskcal.
"""

from __future__ import annotations

import sys

from dpcohort.accounting import Event, History, attack_risk
from dpcohort.accounting._sampler import Neighbours

DELTA = 1e-5
FALSE_ALARMS = (0.001, 0.01, 0.05, 0.3)
CASES: dict[str, tuple[float, float, int, Neighbours]] = {
    "whole client, 20 steps": (8.0, 1.0, 20, "zero-out"),
    "a tenth, 50 steps": (2.0, 0.1, 50, "zero-out"),
    "a tenth, 50 steps, replace-one": (4.0, 0.1, 50, "replace-one"),
    "1 %, 1,000 steps": (1.5, 0.01, 1000, "zero-out"),
    "a fifth, 100 steps, little noise": (0.7, 0.2, 100, "zero-out"),
}


def main() -> int:
    """Print both, and how far they are apart; 1 if that is more than a tenth of a point."""
    try:
        from riskcal.analysis import get_beta_from_pld
    except ImportError:
        print("riskcal is not installed: pip install riskcal")
        return 2
    worst = 0.0
    print(f"{'':34} {'false alarms':>12} {'hits, ours':>12} {'riskcal':>12} {'difference':>12}")
    for name, (noise, rate, steps, neighbours) in CASES.items():
        event = Event.of(
            noise_multiplier=noise, sampling_rate=rate, steps=steps, neighbours=neighbours
        )
        risk = attack_risk(History((event,)), delta=DELTA)
        theirs = _library_distribution(noise, rate, steps, neighbours)
        for alpha in FALSE_ALARMS:
            ours, other = risk.hits(alpha), 1 - float(get_beta_from_pld(theirs, alpha=alpha))
            worst = max(worst, abs(ours - other))
            print(f"{name:34} {alpha:12.3%} {ours:12.4%} {other:12.4%} {ours - other:12.2e}")
        print(f"{'':34} mu of the closest Gaussian curve {risk.mu:.4f}")
    print(f"largest difference {worst:.2e}")
    return int(worst > 1e-3)


def _library_distribution(noise: float, rate: float, steps: int, neighbours: str) -> object:
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    relations = dp_accounting.NeighboringRelation
    zero_out = neighbours == "zero-out"
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        value_discretization_interval=1e-4,
        # Zero-out moves a sum by C, as adding or removing a record does; riskcal knows that name.
        neighboring_relation=relations.ADD_OR_REMOVE_ONE if zero_out else relations.REPLACE_ONE,
    ).self_compose(steps)


if __name__ == "__main__":
    sys.exit(main())
