# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dpcohort.accounting._samplers import sampler_of
from dpcohort.engine import Streams, draw_batches
from dpcohort.engine._randomness import pad_batches
from dpcohort.errors import InputError

NAME = {"round": 3, "client": 5, "draw": 1, "step": 2}


def test_a_stream_depends_on_its_name_alone() -> None:
    one, two = Streams.seeded(11), Streams.seeded(11)
    two.words("noise", 9, round=0, client=0)
    two.normal_(torch.empty(5), **NAME)
    assert np.array_equal(one.words("batch", 8, **NAME), two.words("batch", 8, **NAME))
    assert torch.equal(one.normal_(torch.empty(33), **NAME), two.normal_(torch.empty(33), **NAME))


@pytest.mark.parametrize("part", ["round", "client", "draw", "step"])
def test_every_part_of_the_name_matters(part: str) -> None:
    streams = Streams.seeded(0)
    other = NAME | {part: NAME[part] + 1}
    assert not np.any(streams.words("batch", 50, **NAME) == streams.words("batch", 50, **other))
    a = streams.normal_(torch.empty(50), **NAME)
    assert not torch.any(a == streams.normal_(torch.empty(50), **other))


def test_seed_and_purpose_matter() -> None:
    words = Streams.seeded(1).words("batch", 50, **NAME)
    assert not np.any(words == Streams.seeded(2).words("batch", 50, **NAME))
    assert not np.any(words == Streams.seeded(1).words("noise", 50, **NAME))


def test_seeds_that_agree_in_32_bits_give_different_noise() -> None:
    # torch.Generator.manual_seed would give both the same.
    a = Streams.seeded(5).normal_(torch.empty(50), **NAME)
    b = Streams.seeded(5 + 2**32).normal_(torch.empty(50), **NAME)
    assert not torch.any(a == b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_standard_normal(dtype: torch.dtype) -> None:
    noise = Streams.seeded(2).normal_(torch.empty(100_000, dtype=dtype), **NAME)
    assert stats.kstest(noise.double().numpy(), "norm").pvalue > 1e-6
    distributed = torch.cat(
        [Streams.seeded(2).normal_(torch.empty(40), round=r, client=0) for r in range(2000)]
    )
    assert stats.kstest(distributed.double().numpy(), "norm").pvalue > 1e-6


def test_entropy_never_repeats() -> None:
    streams = Streams.from_entropy()
    assert streams.seed is None
    assert not streams.is_reproducible
    assert not np.any(streams.words("batch", 9, **NAME) == streams.words("batch", 9, **NAME))
    assert streams.noise_key(**NAME) != streams.noise_key(**NAME)


def test_private_noise_has_keys_and_no_floats() -> None:
    """A key is a function of fresh entropy and of what it is for; seeds have none."""
    streams = Streams(None, bytes)
    named = {streams.noise_key(round=r, client=c, draw=d, step=s)
             for r in (0, 1) for c in (0, 1) for d in (0, 1) for s in (0, 1)}  # fmt: skip
    assert len(named) == 16
    assert all(len(key) == 32 for key in named)
    with pytest.raises(InputError, match="for simulation"):
        streams.normal_(torch.empty(5), **NAME)
    with pytest.raises(InputError, match="for simulation"):
        streams.generator("noise", **NAME)
    with pytest.raises(InputError, match="no private noise"):
        Streams.seeded(0).noise_key(**NAME)


def test_a_seed_is_a_whole_number() -> None:
    with pytest.raises(InputError, match="seed"):
        Streams.seeded(-1)
    with pytest.raises(InputError, match="seed"):
        Streams.seeded(0.5)  # type: ignore[arg-type]


def draw(
    sampler: str, round: int, *, size: int = 20, rate: float = 0.3, batch: int = 6
) -> np.ndarray:
    batches = draw_batches(
        Streams.seeded(0), sampler_of(sampler), size=size, rate=rate, batch_size=batch,
        round=round, client=0, draw=0,
    )  # fmt: skip
    return batches(0)


def private(sampler: str, source: Any, **settings: Any) -> np.ndarray:
    streams = Streams(None, source)
    return draw_batches(streams, sampler_of(sampler), **settings, round=0, client=0, draw=0)(0)


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
            draw_batches(
                Streams.seeded(0), sampler_of(sampler), size=400, rate=0.5, batch_size=200,
                round=r, client=c, draw=d,
            )(t)
        )
        for r, c, d, t in names
    }  # fmt: skip
    assert len(batches) == len(names)


def test_padding_never_cuts_a_batch() -> None:
    batches = [np.arange(5), np.array([], dtype=np.int64), np.array([9])]
    positions, mask = pad_batches(batches, multiple=4)
    assert positions.shape == (3, 8)
    for row, batch in enumerate(batches):
        assert np.array_equal(positions[row][mask[row]], batch)
    assert pad_batches([np.array([], dtype=np.int64)])[0].shape == (1, 0)


# Private batches: the promised rate, never above it, and every subset equally likely.


def test_poisson_includes_each_record_at_its_rate(keystream):
    source = keystream("p")
    seen = np.zeros((2000, 50), np.int64)
    for row in seen:
        row[private("poisson", source, size=50, rate=0.3, batch_size=15)] = 1
    assert stats.binomtest(int(seen.sum()), seen.size, 0.3).pvalue > 1e-4
    sizes = seen.sum(1)
    assert sizes.var() == pytest.approx(50 * 0.3 * 0.7, rel=0.15)  # independent, not a fixed size
    assert stats.chisquare(seen.sum(0)).pvalue > 1e-4


def test_the_rate_is_rounded_down():
    words = np.array([2**62 - 1, 2**62], dtype="<u8").tobytes()
    found = private("poisson", lambda size: words, size=2, rate=0.25, batch_size=1)
    assert found.tolist() == [0]
    third = int(1 / 3 * 2**64)  # the float below 1/3: its own value, nothing more
    words = np.array([third - 1, third], dtype="<u8").tobytes()
    found = private("poisson", lambda size: words, size=2, rate=1 / 3, batch_size=1)
    assert found.tolist() == [0]


def test_fixed_batches_are_uniform_subsets(keystream):
    source = keystream("f")
    counts = dict.fromkeys(combinations(range(5), 3), 0)
    for _ in range(4000):
        found = private("fixed", source, size=5, rate=0.6, batch_size=3)
        counts[tuple(found.tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_tied_keys_are_drawn_again():
    answers = iter([np.array([1, 1, 0]), np.array([5, 1, 3])])
    source = lambda size: next(answers).astype("<u8").tobytes()  # noqa: E731
    found = private("fixed", source, size=3, rate=1.0, batch_size=2)
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize(
    "changes",
    [
        {"sampler": "shuffle"},
        {"sampler": "poisson", "rate": 1.1},
        {"batch_size": 0},
        {"batch_size": 6},
    ],
    ids=str,
)
def test_what_cannot_be_drawn_is_refused(changes):
    settings = {"sampler": "fixed", "size": 5, "rate": 0.5, "batch_size": 2, **changes}
    with pytest.raises(InputError):
        private(settings.pop("sampler"), os.urandom, **settings)
