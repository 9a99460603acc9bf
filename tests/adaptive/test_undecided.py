# SPDX-License-Identifier: Apache-2.0
"""What is not known before an adaptive training says so."""

from __future__ import annotations

import pytest

from dpcohort.errors import InputError


def test_known_things_are_given_and_others_refused(plan_of, people):
    plan = plan_of("ucb-cs", rule_settings={"gamma": 0.5})
    assert plan.selection.rule == "ucb-cs"
    assert plan.selection.settings == {"gamma": 0.5, "exploration": 1.0}
    assert plan.schedule.counts.tolist() == plan.schedule.counts.tolist()
    assert plan.selection.bias != plan.selection.bias
    assert plan.schedule.clients == len(people)
    with pytest.raises(InputError, match="decides in each round"):
        _ = plan.selection.probabilities
    with pytest.raises(InputError, match="chosen round by round"):
        _ = plan.schedule.cohorts
