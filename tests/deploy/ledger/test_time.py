# SPDX-License-Identifier: Apache-2.0
"""Caps in any window of time and permits that end, whatever is done to a machine's clock."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from datetime import datetime
from fractions import Fraction

import pytest
from scipy.stats import norm

from dpcohort.accounting import Event, History
from dpcohort.deploy._formats import replace
from dpcohort.deploy.ledger import (
    ClientLedger,
    DrawKey,
    LifetimeCap,
    LifetimeCapError,
    RunTerms,
    _clock,
    lifetime_receipt,
    read_state,
    verify_ledger,
)
from dpcohort.deploy.ledger._clock import ClockReading, MonotoneClock
from dpcohort.errors import BudgetExceededError, InputError

DAY = 86_400
WEEK = LifetimeCap(epsilon=2.0, delta=1e-5, per="7 days")
#: Draws of all records: their composition has a closed form.
FULL = RunTerms(
    epsilon=200.0, delta=1e-6, clip=1.0, sampling_rate=1.0, local_steps=1, rounds=1000, draws=1000,
    least_noise_multiplier=100.0,
)  # fmt: skip


class Machine:
    """A machine with a true time, a clock that can be set, and starts."""

    def __init__(self):
        self.true, self.ahead, self.starts, self.started = 1.8e9, 0.0, 0, 1.8e9 - 1000

    def __call__(self):
        date, uptime = int(self.true + self.ahead), int(self.true - self.started)
        return ClockReading(date, f"boot {self.starts}", uptime)

    def restart(self):
        self.true += 90.0
        self.starts, self.started = self.starts + 1, self.true - 5


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(_clock, "machine_clock", made)
    return made


@pytest.fixture
def weekly(path, machine, terms):
    with ClientLedger.create(path) as made:
        made.register("ward", WEEK)
        made.accept("ward", "spring", replace(terms, epsilon=40.0, rounds=900, draws=900))
        yield made


@pytest.fixture
def spend(weekly, key, step):
    """Reserve and release the next draw."""
    rounds = iter(range(900))

    def make():
        draw = key(next(rounds))
        weekly.reserve(draw, step, clip=1.0)
        weekly.release(draw, b"noisy")

    return make


def use_up(spend):
    count = 0
    with suppress(LifetimeCapError):
        while True:
            spend()
            count += 1
    return count


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("across_runs", ["composed", "summed"])
def test_no_window_ever_has_more_than_the_cap(path, machine, across_runs, seed):
    """Random spending, waiting, clocks set and machines restarted; windows of the true time."""
    dice = random.Random(seed)
    cap = LifetimeCap(epsilon=2.0, delta=1e-5, per="7 days", across_runs=across_runs)
    noises = {"a": 4.0, "b": 5.0, "c": 6.0}
    epsilons = {"a": 0.9, "b": 0.8, "c": 0.7}
    spent: list[tuple[float, str]] = []  # when it went out, and of which run
    refused = 0
    ledger = ClientLedger.create(path)
    ledger.register("ward", cap)
    for run, noise in noises.items():
        one = replace(FULL, least_noise_multiplier=noise)
        if across_runs == "summed":
            one = replace(FULL, epsilon=epsilons[run], draws=30, least_noise_multiplier=100.0)
        ledger.accept("ward", run, one)
        noises[run] = one.least_noise_multiplier
    held: list[DrawKey] = []
    for number in range(250):
        what = dice.choice(["spend"] * 6 + ["release"] * 5 + ["wait"] * 3 + ["set", "restart"])
        if what == "spend":
            key = DrawKey(dataset="ward", run=dice.choice("abc"), round=number, draw=0)
            step = Event.of(noise_multiplier=noises[key.run], sampling_rate=1.0, steps=1)
            try:
                ledger.reserve(key, step, clip=1.0)
                held.append(key)
            except BudgetExceededError as error:
                refused += isinstance(error, LifetimeCapError)
        elif what == "release" and held:
            key = held.pop(dice.randrange(len(held)))
            with suppress(BudgetExceededError):
                ledger.release(key, b"noisy")
                spent.append((machine.true, key.run))
        elif what == "wait":
            machine.true += dice.choice([0.4, 3600.0, DAY, DAY, 2 * DAY, 6.99 * DAY, 7 * DAY])
        elif what == "set":
            machine.ahead = dice.choice([0, 1, 1, -1]) * dice.choice([30.0, DAY, 8 * DAY])
        else:  # no clock is set ahead while nobody looks, over a restart: no program could know
            ledger.register(f"other {number}", LifetimeCap(epsilon=1.0, delta=1e-5))
            ledger.close()
            machine.restart()
            ledger, held = ClientLedger(path), []
    assert len(spent) > 10
    assert refused > 5
    for start, _ in spent:
        inside = [run for when, run in spent if start <= when <= start + 7 * DAY]
        if across_runs == "summed":
            total = sum(Fraction(str(epsilons[run])) for run in set(inside))
            assert total <= Fraction(str(cap.epsilon))
        else:
            mu = math.sqrt(sum(noises[run] ** -2 for run in inside))
            delta = norm.cdf(mu / 2 - cap.epsilon / mu)
            delta -= math.exp(cap.epsilon) * norm.cdf(-mu / 2 - cap.epsilon / mu)
            assert delta <= cap.delta
    assert verify_ledger(path).findings == ()


def test_a_window_of_its_length_and_a_second_more_is_free_again(weekly, machine, spend):
    limit = use_up(spend)
    assert limit > 5
    machine.true += 7 * DAY
    with pytest.raises(LifetimeCapError, match=r"in any 7 days.*The next draw fits after") as found:
        spend()
    assert found.value.exit_code == 4
    said = datetime.fromisoformat(str(found.value).rpartition("fits after ")[2].rstrip("."))
    assert said.timestamp() == machine().date + 1
    assert weekly.affordable_draws("ward", "spring") == 0
    machine.true += 1
    assert weekly.affordable_draws("ward", "spring") == limit
    assert use_up(spend) == limit


def test_spending_comes_back_as_it_went_out(machine, spend):
    for _ in range(4):
        spend()
    machine.true += 3 * DAY
    later = use_up(spend)
    machine.true += 4 * DAY + 1
    assert use_up(spend) == 4  # those of today leave, the later ones still count
    machine.true += 3 * DAY
    assert use_up(spend) == later


def test_a_clock_set_back_spends_nothing_and_says_so(weekly, path, machine, spend, key, step):
    spend()
    machine.true += DAY
    spend()
    machine.ahead = -DAY / 2
    with pytest.raises(BudgetExceededError, match="clock was set back") as found:
        spend()
    assert found.value.exit_code == 4
    assert read_state(path).counted("ward")["spring"][1] == 2
    machine.ahead = -30  # a correction
    spend()
    machine.ahead = -DAY / 2
    machine.true += DAY / 2  # the clock has passed what was seen
    spend()


def test_a_lifetime_needs_no_clock(ledger, machine, key, step):
    ledger.reserve(key(0), step, clip=1.0)
    machine.ahead = -1000 * DAY
    ledger.reserve(key(1), step, clip=1.0)


def test_a_clock_set_ahead_frees_nothing(machine, spend):
    use_up(spend)
    machine.ahead = 400 * DAY
    assert use_up(spend) == 0
    machine.restart()
    assert use_up(spend) == 0


def test_an_output_given_out_late_counts_from_then(weekly, machine, spend, key, step):
    weekly.reserve(key(899), step, clip=1.0)
    machine.true += 6 * DAY
    weekly.release(key(899), b"late")
    limit = use_up(spend)
    machine.true += 6 * DAY  # twelve days after it was reserved
    assert weekly.affordable_draws("ward", "spring") == 0
    machine.true += DAY + 1
    assert use_up(spend) == limit + 1


def test_what_counts_no_longer_is_not_given_out(weekly, machine, key, step):
    weekly.reserve(key(0), step, clip=1.0)
    machine.true += 8 * DAY
    with pytest.raises(BudgetExceededError, match="counts no longer"):
        weekly.release(key(0), b"very late")


def test_a_permit_ends_with_its_last_day(weekly, machine, terms, key, step):
    last = MonotoneClock().after(machine()).day
    weekly.accept("ward", "autumn", replace(terms, until=last))
    weekly.reserve(key(0, run="autumn"), step, clip=1.0)
    machine.true += DAY
    for action in (
        lambda: weekly.reserve(key(1, run="autumn"), step, clip=1.0),
        lambda: weekly.release(key(0, run="autumn"), b"late"),
    ):
        with pytest.raises(BudgetExceededError, match=f"permit ended with {last}"):
            action()
    machine.ahead = -DAY  # what was refused was seen
    with pytest.raises(BudgetExceededError, match="permit ended"):
        weekly.reserve(key(1, run="autumn"), step, clip=1.0)
    assert weekly.affordable_draws("ward", "autumn") == 0
    with pytest.raises(BudgetExceededError, match="permit ended"):
        weekly.accept("ward", "winter", replace(terms, until=last))
    assert verify_ledger(weekly.path).holds


def test_asking_in_vain_does_not_fill_the_disk(weekly, machine, spend):
    use_up(spend)
    rows = weekly.head[0]
    for _ in range(20):
        machine.true += 600
        assert use_up(spend) == 0
    assert 0 < weekly.head[0] - rows < 5


def test_a_receipt_has_the_fullest_window_and_all_that_was_spent(weekly, path, machine, spend):
    limit = use_up(spend)
    machine.true += 8 * DAY
    spend()
    receipt = lifetime_receipt(read_state(path), "ward")
    single = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=1)
    counts = (limit, limit + 1, 1)
    epsilon = [History((Event(single.mechanism, n),)).epsilon(1e-5) for n in counts]
    numbers = receipt.certified_epsilon, receipt.ever_epsilon, receipt.counting_epsilon
    assert numbers == tuple(epsilon)
    assert receipt.holds
    assert "epsilon 2 at delta 1e-05 over all runs in any 7 days" in receipt.text()
    assert datetime.fromisoformat(receipt.fewer_after).timestamp() == machine().date + 7 * DAY + 1


def test_a_window_that_was_passed_is_found(path, machine, terms, key, step, monkeypatch):
    monkeypatch.setattr("dpcohort.deploy.ledger._ledger.check_cap", lambda *_, **__: None)
    with ClientLedger.create(path) as ledger:
        ledger.register("ward", replace(WEEK, epsilon=0.8))
        ledger.accept("ward", "spring", terms)
        for round in range(40):
            machine.true += DAY if not 10 < round < 25 else 0  # many in the middle
            ledger.reserve(key(round), step, clip=1.0)
    assert [one["what"] for one in verify_ledger(path).findings] == ["cap"]


@pytest.mark.parametrize(
    "per", ["", "0 days", "-1 days", "1.5 days", "a year", 365, None, "07 days"]
)
def test_periods_of_files(per):
    with pytest.raises(InputError, match="per = "):
        LifetimeCap(epsilon=1.0, delta=1e-5, per=per)


@pytest.mark.parametrize("until", ["", "soon", "2027-02-30", 3, None, datetime(2027, 3, 31)])
def test_ends_of_permits(terms, until):
    with pytest.raises(InputError, match="until = "):
        replace(terms, until=until)
