# SPDX-License-Identifier: Apache-2.0
"""Two accountants on mixed histories."""

from __future__ import annotations

import pytest

from dpcohort.accounting.events import Event, History, history_epsilon


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize(
    ("z", "rate", "steps", "report_z", "report_rate", "reports"),
    [(2.0, 0.1, 50, 20.0, 1.0, 10), (8.0, 0.3, 20, 30.0, 0.3, 40), (1.0, 0.05, 5, 5.0, 1.0, 1)],
    ids=["usual", "mini-batch", "few"],
)
def test_they_agree(neighbours, z, rate, steps, report_z, report_rate, reports):
    history = History(
        (
            Event(noise_multiplier=z, sampling_rate=rate, steps=steps, neighbours=neighbours),
            Event(
                noise_multiplier=report_z,
                sampling_rate=report_rate,
                steps=reports,
                neighbours=neighbours,
            ),
        )
    )
    ours, theirs = (history_epsilon(history, 1e-5, method) for method in ("pld", "auto"))
    assert ours == pytest.approx(theirs, rel=2e-3)


def test_the_library_is_not_asked_where_it_is_not_sound():
    fixed = History((Event(noise_multiplier=5.0, sampling_rate=0.1, steps=9, sampler="fixed"),))
    assert history_epsilon(fixed, 1e-5) == fixed.epsilon(1e-5)
    tiny = History((Event(noise_multiplier=5.0, sampling_rate=0.1, steps=9),))
    assert history_epsilon(tiny, 1e-12) == tiny.epsilon(1e-12)


def test_steps_all_but_without_noise_hide_nothing_whatever_else_there_was():
    usual = Event(noise_multiplier=5.0, sampling_rate=0.1, steps=9)
    bare = Event(noise_multiplier=1e-8, sampling_rate=1.0, steps=1)
    both = History((usual, bare))
    assert both.epsilon(1e-5) >= History((bare,)).epsilon(1e-5) > 1e15


def test_nothing_spends_nothing():
    assert history_epsilon(History(), 1e-5) == 0.0
