# SPDX-License-Identifier: Apache-2.0
"""Batches: the promised rate, never above it, and every subset equally likely."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from dpcohort.errors import InputError
from dpcohort.guard.sampling import draw_batch


def test_poisson_includes_each_record_at_its_rate(keystream):
    source = keystream("p")
    seen = np.zeros((2000, 50), np.int64)
    for row in seen:
        row[draw_batch("poisson", records=50, rate=0.3, batch_size=15, source=source)] = 1
    assert stats.binomtest(int(seen.sum()), seen.size, 0.3).pvalue > 1e-4
    sizes = seen.sum(1)
    assert sizes.var() == pytest.approx(50 * 0.3 * 0.7, rel=0.15)  # independent, not a fixed size
    assert stats.chisquare(seen.sum(0)).pvalue > 1e-4


def test_the_rate_is_rounded_down():
    words = np.array([2**62 - 1, 2**62], dtype="<u8").tobytes()
    found = draw_batch("poisson", records=2, rate=0.25, batch_size=1, source=lambda size: words)
    assert found.tolist() == [0]
    third = int(1 / 3 * 2**64)  # the float below 1/3: its own value, nothing more
    words = np.array([third - 1, third], dtype="<u8").tobytes()
    found = draw_batch("poisson", records=2, rate=1 / 3, batch_size=1, source=lambda size: words)
    assert found.tolist() == [0]


def test_rate_one_takes_everything():
    found = draw_batch("poisson", records=4, rate=1.0, batch_size=4, source=lambda size: b"")
    assert found.tolist() == [0, 1, 2, 3]


def test_fixed_batches_are_uniform_subsets(keystream):
    source = keystream("f")
    counts = dict.fromkeys(combinations(range(5), 3), 0)
    for _ in range(4000):
        found = draw_batch("fixed", records=5, rate=0.6, batch_size=3, source=source)
        counts[tuple(found.tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_tied_keys_are_drawn_again():
    answers = iter([np.array([1, 1, 0]), np.array([5, 1, 3])])
    found = draw_batch(
        "fixed",
        records=3,
        rate=1.0,
        batch_size=2,
        source=lambda size: next(answers).astype("<u8").tobytes(),
    )
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize(
    "changes",
    [{"sampler": "shuffle"}, {"rate": 0.0}, {"rate": 1.1}, {"batch_size": 0}, {"batch_size": 6}],
    ids=str,
)
def test_what_cannot_be_drawn_is_refused(changes):
    settings = {"sampler": "poisson", "records": 5, "rate": 0.5, "batch_size": 2, **changes}
    with pytest.raises(InputError):
        draw_batch(settings.pop("sampler"), **settings)
