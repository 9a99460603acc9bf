# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import pytest

from dpcohort.engine.server import ConstantStep, InverseRootStep, InverseTimeStep, Optimiser
from dpcohort.errors import InputError


def test_schedules() -> None:
    assert [ConstantStep(0.3).at(t, 9) for t in (0, 8)] == [0.3, 0.3]
    assert [InverseTimeStep(6.0, 2.0).at(t, 9) for t in (0, 1, 4)] == [3.0, 2.0, 1.0]
    assert InverseRootStep(3.0, 2.0).at(4, 9) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ConstantStep(0.0),
        lambda: InverseTimeStep(-1.0),
        lambda: InverseTimeStep(1.0, gamma=0.5),
        lambda: InverseRootStep(1.0, clip=float("nan")),
        lambda: InverseRootStep(0.0, clip=1.0),
    ],
)
def test_bad_values_are_refused(build: object) -> None:
    with pytest.raises(InputError):
        build()  # type: ignore[operator]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConstantStep(1e39),
        lambda: InverseTimeStep(beta=1e39),
        lambda: Optimiser(server_learning_rate=1e39),
    ],
    ids=["constant", "inverse-time", "server"],
)
def test_steps_beyond_32_bits_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InputError, match=r"1e\+30"):
        make()
