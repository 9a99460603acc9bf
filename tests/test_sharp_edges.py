# SPDX-License-Identifier: Apache-2.0
"""What the page of sharp edges says of a person with several records, computed again."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpcohort.accounting import calibrate_noise

PAGE = (Path(__file__).parents[1] / "docs" / "concepts" / "sharp-edges.md").read_text(
    encoding="utf-8"
)
_ROW = re.compile(r"^ *\| ([\d.]+); ([\d.]+); (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", re.M)


def _epsilon(records: int, z: float, rate: float, steps: int, delta: float) -> float:
    """Of one Poisson batch, m records are as one that moves the sum by a binomial number of C."""
    counts = range(records + 1)
    shares = [math.comb(records, k) * rate**k * (1 - rate) ** (records - k) for k in counts]
    loss = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        z,
        sensitivities=list(map(float, counts)),
        sampling_probs=shares,
        value_discretization_interval=4e-3 * records,
    )
    return float(loss.self_compose(steps).get_epsilon_for_delta(delta))


def test_a_person_with_several_records_has_the_epsilon_that_the_page_says():
    rows = [tuple(map(float, row)) for row in _ROW.findall(PAGE)]
    delta = float(re.search(r"ε of one record at δ = (\S+);", PAGE)[1])
    assert len(rows) >= 3
    assert all(two > 2 * epsilon and ten > 10 * epsilon for epsilon, _, _, two, _, ten in rows)
    assert "more than that\n  multiple of ε" in PAGE
    for epsilon, rate, steps, *stated in rows:
        if rate == 1 or steps > 100:  # the others take long
            continue
        z = float(
            calibrate_noise(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=int(steps))
        )
        computed = [_epsilon(m, z, rate, int(steps), delta) for m in (2, 5, 10)]
        assert stated == pytest.approx(computed, rel=0.01, abs=0.06)
