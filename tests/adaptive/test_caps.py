# SPDX-License-Identifier: Apache-2.0
"""Caps: the automatic ones, and what is refused before training."""

from __future__ import annotations

import pytest

from dpcohort import Population, Training
from dpcohort.adaptive.rules import ClusteredUpdates, DonatedData, PowerOfChoice
from dpcohort.adaptive.caps import make_caps
from dpcohort.errors import InputError


def test_the_automatic_cap_is_twice_the_mean(people, settings):
    caps = make_caps(people, settings, PowerOfChoice(d=4))
    assert caps.draws.tolist() == [3] * 8  # ceil(2 * 6 * 2 / 8)
    assert caps.reports.tolist() == [6] * 8  # min(6, ceil(2 * 6 * 4 / 8))


def test_a_cap_is_at_most_the_rounds_unless_more_is_needed():
    three = Population.from_arrays(sizes=[50] * 3, epsilon=1.0, delta=1e-5)
    caps = make_caps(three, Training(rounds=4, cohort_size=3, batch_size=5), PowerOfChoice())
    assert caps.draws.tolist() == [4] * 3
    caps = make_caps(three, Training(rounds=4, cohort_size=6, batch_size=5), PowerOfChoice())
    assert caps.draws.tolist() == [8] * 3


def test_public_clients_have_no_cap_of_their_own(settings):
    mixed = Population.from_arrays(
        sizes=[50] * 3,
        epsilon=[1.0, 1.0, float("nan")],
        delta=[1e-5, 1e-5, float("nan")],
        public=[False, False, True],
    )
    caps = make_caps(mixed, settings, PowerOfChoice(), participation_cap=1)
    assert caps.draws.tolist() == [1, 1, 12]
    assert caps.reports.tolist() == [6, 6, 6]


@pytest.mark.parametrize("cap", [0, -1, 1.5, "many", True])
def test_a_cap_of_nothing_is_refused(people, settings, cap):
    with pytest.raises(InputError, match="participation_cap"):
        make_caps(people, settings, PowerOfChoice(), participation_cap=cap)
    with pytest.raises(InputError, match="report_cap"):
        make_caps(people, settings, PowerOfChoice(), report_cap=cap)


def test_caps_that_cannot_hold_the_training_are_refused(people, settings):
    with pytest.raises(InputError, match="at least 2 for 6 rounds of 2 draws among 8 clients"):
        make_caps(people, settings, PowerOfChoice(), participation_cap=1)


def test_settings_that_do_not_fit_the_population_are_refused(people, settings):
    with pytest.raises(InputError, match=r"d = 9 .* at most the number of clients, 8"):
        make_caps(people, settings, PowerOfChoice(d=9))
    with pytest.raises(InputError, match=r"d = 1 .* at least the cohort size, 2"):
        make_caps(people, settings, PowerOfChoice(d=1))
    with pytest.raises(InputError, match=r"clusters = 9 .* at most the number of clients, 8"):
        make_caps(people, settings, ClusteredUpdates(clusters=9))
    with pytest.raises(InputError, match="needs public clients"):
        make_caps(people, settings, DonatedData())


def test_a_rule_that_never_asks_has_no_reports(people, settings):
    assert make_caps(people, settings, ClusteredUpdates()).reports.tolist() == [0] * 8
