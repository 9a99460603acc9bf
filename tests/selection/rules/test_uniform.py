# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.selection.rules import Uniform


def test_everybody_is_equally_likely(problem):
    chosen = Uniform().select(problem)
    assert chosen.probabilities.tolist() == [0.25] * 4
    assert chosen.bias == pytest.approx(0.4)
