# SPDX-License-Identifier: Apache-2.0
"""What a person with several records with one client is promised, beside one with a single record.

``python benchmarks/several_records.py`` prints a table of sharp-edges.md. Of m records k
are in a Poisson batch with the probability of a binomial, and then move the sum by k C at most. The
library's distribution of that mixture gives the ε at the same δ; it is no less than the truth.
"""

from __future__ import annotations

import math

from dp_accounting.pld import privacy_loss_distribution

from dpcohort.accounting import calibrate_noise

DELTA = 1e-5
RECORDS = (2, 5, 10)
#: ε of one record, sampling rate and steps.
SETTINGS = ((1.0, 0.01, 1000), (1.0, 0.1, 100), (1.0, 1.0, 20), (4.0, 0.1, 100))


def epsilon_of(records: int, noise_multiplier: float, rate: float, steps: int) -> float:
    """The ε at `DELTA` of a person with so many records (zero-out)."""
    counts = range(1, records + 1)
    shares = [math.comb(records, k) * rate**k * (1 - rate) ** (records - k) for k in counts]
    one = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise_multiplier,
        sensitivities=[0.0, *map(float, counts)],
        sampling_probs=[max(0.0, 1 - math.fsum(shares)), *shares],
        value_discretization_interval=1e-4 * records,
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(DELTA))


def main() -> None:
    """Print the table."""
    print(
        f"| ε of one record at δ = {DELTA:g}; rate; steps | 2 records | 5 | 10 |\n|---|---|---|---|"
    )
    for epsilon, rate, steps in SETTINGS:
        z = calibrate_noise(epsilon=epsilon, delta=DELTA, sampling_rate=rate, steps=steps)
        cells = [f"{epsilon_of(m, float(z), rate, steps):.1f}" for m in RECORDS]
        print(f"| {epsilon:g}; {rate:g}; {steps} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
