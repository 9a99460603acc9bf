# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpcohort.engine.randomness import Streams
from dpcohort.engine.sampling import draw_positions, pad_batches
from dpcohort.errors import InputError


def draw(
    sampler: str, round: int, *, size: int = 20, rate: float = 0.3, batch: int = 6
) -> np.ndarray:
    return draw_positions(
        Streams.seeded(0), sampler, size=size, rate=rate, batch_size=batch,
        round=round, client=0, draw=0, step=0,
    )  # fmt: skip


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_positions_are_distinct_sorted_and_in_range(sampler: str) -> None:
    for round in range(50):
        positions = draw(sampler, round)
        assert np.all(np.diff(positions) > 0)
        assert positions.size == 0 or (positions[0] >= 0 and positions[-1] < 20)


def test_fixed_batches_have_b_records_and_every_subset_is_as_likely() -> None:
    subsets = [tuple(draw("fixed", r, size=5, batch=2)) for r in range(4000)]
    counts = [subsets.count(s) for s in sorted(set(subsets))]
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > 1e-6


def test_poisson_batches_have_binomial_sizes() -> None:
    sizes = np.array([draw("poisson", r).size for r in range(4000)])
    seen = np.bincount(np.clip(sizes, 1, 11), minlength=12)[1:]
    law = stats.binom(20, 0.3)
    expected = np.array([law.cdf(1), *law.pmf(np.arange(2, 11)), law.sf(10)]) * 4000
    assert stats.chisquare(seen, expected).pvalue > 1e-6


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_rates_at_the_ends_are_certain(rate: float) -> None:
    assert all(draw("poisson", r, rate=rate).size == 20 * rate for r in range(200))


def test_a_record_is_drawn_whatever_the_other_records_are() -> None:
    # Position j's fate does not depend on how many records follow it.
    for round in range(20):
        longer = draw("poisson", round, size=30)
        assert np.array_equal(longer[longer < 20], draw("poisson", round, size=20))


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_every_name_has_a_batch_of_its_own(sampler: str) -> None:
    # Composition counts every step of every draw of every round as a new batch.
    names = [(r, c, d, t) for r in range(2) for c in range(2) for d in range(2) for t in range(2)]
    batches = {
        tuple(
            draw_positions(
                Streams.seeded(0), sampler, size=400, rate=0.5, batch_size=200,
                round=r, client=c, draw=d, step=t,
            )
        )
        for r, c, d, t in names
    }  # fmt: skip
    assert len(batches) == len(names)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(InputError, match="batch_size"):
        draw("fixed", 0, batch=21)
    with pytest.raises(InputError, match="rate"):
        draw("poisson", 0, rate=1.5)
    with pytest.raises(InputError, match="sampler"):
        draw("shuffle", 0)


def test_padding_never_cuts_a_batch() -> None:
    batches = [np.arange(5), np.array([], dtype=np.int64), np.array([9])]
    padded = pad_batches(batches, multiple=4)
    assert padded.positions.shape == (3, 8)
    for row, batch in enumerate(batches):
        assert np.array_equal(padded.positions[row][padded.mask[row]], batch)
    assert pad_batches([np.array([], dtype=np.int64)]).positions.shape == (1, 0)
