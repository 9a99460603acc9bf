# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.engine.joining import joined
from dpcohort.engine.lanes import LANES


@pytest.mark.parametrize("draws", [1, 4, 5, 17, 100])
@pytest.mark.parametrize("size", [1, 700])
def test_every_draw_is_in_one_pass_in_order(draws: int, size: int) -> None:
    passes = joined([size] * draws)
    assert [draw for each in passes for draw in each] == list(range(draws))
    assert len(passes) >= min(draws, LANES)  # every lane is begun by somebody
    lengths = {len(each) for each in passes}
    assert max(lengths) - min(lengths) <= 1  # alike, so that workers are done together


def test_passes_do_not_outgrow_the_cache() -> None:
    assert all(100 * len(each) <= 600 for each in joined([100] * 100))
    assert all(len(each) == 1 for each in joined([5_000] * 12))


def test_nobody_is_no_pass() -> None:
    assert joined([]) == []
