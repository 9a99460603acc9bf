# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.accounting import Event, History
from dpcohort.deploy._formats import replace
from dpcohort.deploy.ledger import LifetimeCap, LifetimeCapError
from dpcohort.deploy.ledger import _spending as spending
from dpcohort.deploy.ledger._spending import (
    check_cap,
    composed,
    counted_relation,
    fits_cap,
    fitting_steps,
    spent_epsilon,
)

CAP = LifetimeCap(epsilon=1.5, delta=1e-5)


@pytest.fixture
def other(terms):
    return replace(terms, sampling_rate=0.05, least_noise_multiplier=1.5, local_steps=2)


def test_mixed_runs_compose_as_one_history(terms, other):
    expected = History(
        (
            Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=15),
            Event.of(noise_multiplier=1.5, sampling_rate=0.05, steps=14),
        )
    )
    draws = [(terms, 10), (other, 7), (terms, 5)]
    assert spent_epsilon(CAP, draws) == expected.epsilon(1e-5)
    assert len(composed(CAP, draws).events) == 2


def test_mixed_relations_count_under_the_stronger(terms):
    fixed = replace(terms, sampler="fixed", neighbours="replace-one", least_noise_multiplier=9.0)
    both = [(terms, 5), (fixed, 5)]
    assert counted_relation(CAP, both) == "replace-one"
    assert spent_epsilon(CAP, both) > spent_epsilon(CAP, [(terms, 5)])
    strong = replace(CAP, neighbours="replace-one")
    assert spent_epsilon(strong, [(terms, 5)]) > spent_epsilon(CAP, [(terms, 5)])


def test_summed_runs_count_in_full_and_as_written(terms):
    cap = LifetimeCap(epsilon=1.0, delta=1e-5, across_runs="summed")
    tenth = replace(terms, epsilon=0.1, delta=1e-6)
    assert fits_cap(cap, [(tenth, 1)] * 10)  # 10 x 0.1 is 1, whatever binary says
    assert not fits_cap(cap, [(tenth, 1)] * 11)
    assert not fits_cap(cap, [(replace(tenth, delta=2e-6), 1)] * 6)
    assert spent_epsilon(cap, [(tenth, 1)] * 3) == pytest.approx(0.3)


def test_summed_runs_count_under_the_relation_of_the_cap(terms):
    """Zero-out terms promise nothing about replacing a record: there they count as more."""
    cap = LifetimeCap(epsilon=2.0, delta=1e-5, neighbours="replace-one", across_runs="summed")
    replaced = History((terms.charge(terms.draws),)).promoted().epsilon(terms.delta)
    assert replaced > 1.5 * terms.epsilon
    once = [(terms, 1)]
    assert (counted_relation(cap, once), spent_epsilon(cap, once)) == ("replace-one", replaced)
    assert not fits_cap(cap, once)
    with pytest.raises(LifetimeCapError):
        check_cap({}, "d", cap, {"a": (terms, 0)}, "a")
    assert fits_cap(replace(cap, epsilon=replaced), [(terms, 1)])


def test_replace_one_runs_cover_a_summed_zero_out_cap_as_they_stand(terms):
    cap = LifetimeCap(epsilon=4.0, delta=2e-5, across_runs="summed")
    fixed = replace(terms, sampler="fixed", neighbours="replace-one", least_noise_multiplier=9.0)
    both = [(terms, 1), (fixed, 1)]
    assert (counted_relation(cap, both), spent_epsilon(cap, both)) == ("zero-out", 4.0)
    assert fits_cap(cap, both)


@pytest.mark.parametrize("across_runs", ["composed", "summed"])
def test_the_filter_grants_exactly_what_fits(terms, other, across_runs):
    """Two runs in turns, against a plain check of every single draw."""
    cap = replace(CAP, across_runs=across_runs, epsilon=1.5 if across_runs == "composed" else 3.0)
    runs = {"a": (replace(terms, epsilon=1.9), 0), "b": (other, 0)}
    known = {}
    granted = 0
    for turn in range(100):
        run = "ab"[turn % 3 == 0]
        one, count = runs[run]
        after = {**runs, run: (one, count + 1)}
        if fits_cap(cap, after.values()):
            check_cap(known, "d", cap, runs, run)
            runs, granted = after, granted + 1
        else:
            with pytest.raises(LifetimeCapError):
                check_cap(known, "d", cap, runs, run)
    assert 0 < granted < 100


def test_the_refusal_has_the_numbers(terms):
    one = replace(terms, local_steps=7, draws=8)
    runs = {"a": (one, 5)}
    with pytest.raises(
        LifetimeCapError, match=r"Spent so far: 1\.39.*5 steps of this run"
    ) as found:
        check_cap({}, "d", CAP, runs, "a")
    spent, requested = (spent_epsilon(CAP, [(one, draws)]) for draws in (5, 6))
    assert spent < CAP.epsilon < requested
    assert f"Spent so far: {spent:.6g}; with the draw: {requested:.6g}" in str(found.value)
    # 35 steps are spent; the most that fit are 40, so not one more draw of 7.
    assert found.value.exit_code == 4


def test_fitting_steps_is_the_last_that_fits(terms, other):
    runs = {"a": (terms, 20), "b": (other, 3)}
    fit = fitting_steps(CAP, runs, "a")
    assert 0 < fit < 40
    assert fits_cap(CAP, [(terms, 20 + fit), (other, 3)])
    assert not fits_cap(CAP, [(terms, 21 + fit), (other, 3)])
    assert fitting_steps(replace(CAP, epsilon=90.0), runs, "a") == 40  # the run's own terms


def test_thousands_of_draws_need_few_compositions(terms, monkeypatch):
    calls = []
    monkeypatch.setattr(spending, "fits_cap", lambda *a: calls.append(1) or fits_cap(*a))
    many = replace(terms, draws=5000, sampling_rate=0.001)
    known, cap = {}, LifetimeCap(epsilon=3.0, delta=1e-5)
    for count in range(5000):
        check_cap(known, "d", cap, {"a": (many, count), "b": (many, 0)}, "a")
    assert len(calls) == 1
    for count in range(40):  # close to the cap, two runs in turns
        check_cap(
            known,
            "e",
            CAP,
            {"a": (terms, count // 2), "b": (terms, (count + 1) // 2)},
            "ba"[count % 2],
        )
    assert len(calls) < 30


def test_data_sets_do_not_share_what_was_certified(terms):
    known = {}
    check_cap(known, "rich", LifetimeCap(epsilon=50.0, delta=1e-5), {"a": (terms, 50)}, "a")
    with pytest.raises(LifetimeCapError):
        check_cap(known, "poor", CAP, {"a": (terms, 50)}, "a")
    with pytest.raises(LifetimeCapError):
        check_cap(known, "rich", CAP, {"a": (terms, 50)}, "a")
