# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from dpcohort.engine.randomness import Streams
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


def test_a_longer_request_begins_like_a_shorter_one() -> None:
    streams = Streams.seeded(1)
    assert np.array_equal(
        streams.words("batch", 100, **NAME)[:7], streams.words("batch", 7, **NAME)
    )


def test_draw_and_step_do_not_run_into_each_other() -> None:
    streams = Streams.seeded(1)
    a = streams.words("batch", 4, round=0, client=0, draw=0, step=1)
    b = streams.words("batch", 4, round=0, client=0, draw=1, step=0)
    assert not np.any(a == b)


def test_seeds_that_agree_in_32_bits_give_different_noise() -> None:
    # torch.Generator.manual_seed would give both the same.
    a = Streams.seeded(5).normal_(torch.empty(50), **NAME)
    b = Streams.seeded(5 + 2**32).normal_(torch.empty(50), **NAME)
    assert not torch.any(a == b)


def test_all_of_the_generators_state_is_set() -> None:
    # The twister's 624 words all come from the stream: no two states share any.
    def state(seed: int) -> np.ndarray:
        return Streams.seeded(seed).generator().get_state().view(torch.int64).numpy()[3:627]

    assert not np.any(state(1) == state(2))
    assert np.all((state(1) >= 0) & (state(1) < 2**32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_standard_normal(dtype: torch.dtype) -> None:
    noise = Streams.seeded(2).normal_(torch.empty(100_000, dtype=dtype), **NAME)
    assert stats.kstest(noise.double().numpy(), "norm").pvalue > 1e-6
    pooled = torch.cat(
        [Streams.seeded(2).normal_(torch.empty(40), round=r, client=0) for r in range(2000)]
    )
    assert stats.kstest(pooled.double().numpy(), "norm").pvalue > 1e-6


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
    with pytest.raises(InputError, match="no private noise"):
        Streams.seeded(0).noise_key(**NAME)


def test_a_seed_is_a_whole_number() -> None:
    with pytest.raises(InputError, match="seed"):
        Streams.seeded(-1)
    with pytest.raises(InputError, match="seed"):
        Streams.seeded(0.5)  # type: ignore[arg-type]


def test_words_are_those_of_a_fresh_generator() -> None:
    # A stream asked for in any order, after any others, is Philox keyed and counted by its name.
    streams = Streams.seeded(3)
    for name in (NAME, {"round": 0, "client": 0, "draw": 0, "step": 0}, NAME | {"draw": 7}):
        for count in (5, 1, 12):
            counter = np.array(
                [0, (name["draw"] << 32) | name["step"], name["client"], name["round"]],
                dtype=np.uint64,
            )
            fresh = np.random.Philox(counter=counter, key=streams._key("batch"))
            assert np.array_equal(streams.words("batch", count, **name), fresh.random_raw(count))
