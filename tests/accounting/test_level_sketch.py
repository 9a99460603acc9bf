# SPDX-License-Identifier: Apache-2.0
"""The choice of levels: more where records are seen more often, and spacings that divide."""

from __future__ import annotations

import math

import pytest

from dpcohort.accounting.pairs import LossPair
from dpcohort.accounting.rare_losses import LevelSketch, RareLosses, first_epsilon, loss_nodes

PAIR = LossPair(kind="remove", shift=1 / 0.536, rate=1e-5)


def sketch(steps: int, coarseness: float = 1.0) -> LevelSketch:
    return LevelSketch(
        [(PAIR, steps)], epsilon=0.1, log_delta=math.log(1e-5), coarseness=coarseness
    )


def test_many_steps_need_more_levels_than_few() -> None:
    assert len(sketch(2).steps) < len(sketch(100_000).steps)
    assert sketch(100_000, coarseness=0.01).steps[0] < sketch(100_000).steps[0]


def test_spacings_are_multiples_of_each_other_and_bounds_grow() -> None:
    chosen = sketch(100_000)
    ratios = [b / a for a, b in zip(chosen.steps, chosen.steps[1:], strict=False)]
    assert ratios == pytest.approx([round(ratio) for ratio in ratios])
    assert min(ratios) >= 2
    assert chosen.bounds == sorted(chosen.bounds)
    assert len(chosen.bounds) == len(chosen.steps) - 1


def test_the_first_guess_is_near_the_answer() -> None:
    parts = [(PAIR, 100_000)]
    assert first_epsilon(parts, 1e-5) == pytest.approx(RareLosses(parts).epsilon(1e-5), rel=0.7)


def test_nodes_count_all_steps() -> None:
    _, weight = loss_nodes([(PAIR, 7), (LossPair(kind="fixed", shift=2.0, rate=1e-4), 5)], 1e-9)
    assert weight.sum() == pytest.approx(12.0, rel=1e-6)
