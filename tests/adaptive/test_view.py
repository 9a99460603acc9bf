# SPDX-License-Identifier: Apache-2.0
"""Views: candidates and public dice."""

from __future__ import annotations

import numpy as np


def test_candidates_are_below_their_caps(view_of):
    view = view_of([1, 1, 1], draws_left=np.array([0, 1, 2]), reports_left=np.array([1, 0, 3]))
    assert view.candidates.tolist() == [1, 2]
    assert view.can_report.tolist() == [2]


def test_dice_are_uniform_repeatable_and_named(view_of):
    view = view_of([1] * 4000)
    dice = view.chances("a")
    assert np.array_equal(dice, view.chances("a"))
    assert abs(np.corrcoef(dice, view.chances("b"))[0, 1]) < 0.1
    assert abs(np.corrcoef(dice, view_of([1] * 4000, round=1).chances("a"))[0, 1]) < 0.1
    assert 0 < dice.min() < dice.max() < 1
    counts = np.histogram(dice, bins=10, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 40  # chi-square with 9 degrees: below 1e-5


def test_dice_belong_to_the_client_not_to_its_place(view_of, permuted):
    view, order = view_of([1, 2, 3]), np.array([2, 0, 1])
    assert np.array_equal(permuted(view, order).chances("a"), view.chances("a")[order])
