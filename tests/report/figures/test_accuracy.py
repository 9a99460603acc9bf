# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.report.figures.accuracy import accuracy_band, accuracy_figure
from dpcohort.runs import train


def test_the_band_is_the_interval_over_seeds(runs):
    rounds, found = accuracy_band(runs)
    assert rounds.tolist() == [2, 4, 6]
    last = [100 * run.test_accuracy for run in runs]
    assert found[-1].mean == pytest.approx(np.mean(last))
    assert found[-1].low < min(last) <= max(last) < found[-1].high


def test_lines_and_bands(runs):
    axis = accuracy_figure({"two seeds": runs, "one seed": runs[:1]}).axes[0]
    assert [line.get_label() for line in axis.lines] == ["two seeds", "one seed"]
    assert axis.lines[0].get_linestyle() != axis.lines[1].get_linestyle()
    assert len(axis.collections) == 1  # a single seed has no band
    assert axis.lines[1].get_ydata()[-1] == pytest.approx(100 * runs[0].test_accuracy)


def test_only_rounds_that_all_were_evaluated_at_count(plans, runs):
    other = train(
        plans["privacy-aware"], "logistic", "digits", device="cpu", seed=2, evaluate_every=3
    )
    rounds, found = accuracy_band([*runs, other])
    assert rounds.tolist() == [6]
    assert found[0].count == 3


def test_nothing_to_draw():
    with pytest.raises(InputError, match="at least one group"):
        accuracy_figure({})
