# SPDX-License-Identifier: Apache-2.0
"""The mini-batch variant chooses as power-of-choice does, and is charged as a mini-batch."""

from __future__ import annotations

import numpy as np

from dpcohort.adaptive.rules import MiniBatchPowerOfChoice, PowerOfChoice


def test_it_chooses_as_power_of_choice(view_of):
    view, answers = view_of([10] * 6), {0: 0.3, 2: 1.7, 3: 0.9}
    for method in ("ask",):
        ours = getattr(MiniBatchPowerOfChoice(d=3), method)(view)
        assert np.array_equal(ours, getattr(PowerOfChoice(d=3), method)(view))
    assert MiniBatchPowerOfChoice(d=3).choose(view, answers).tolist() == [2, 3]


def test_its_reports_are_subsampled_events(plan_of):
    plan = plan_of("cpow-d")
    assert plan.terms.mini_batch
    assert plan.history(0, draws=1, reports=2).events[1].sampling_rate == 10 / 30
    # The same share buys less noise on the sum than a look at all records does.
    assert (plan.report_multipliers < plan_of("power-of-choice").report_multipliers).all()
