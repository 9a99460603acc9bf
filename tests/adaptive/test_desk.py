# SPDX-License-Identifier: Apache-2.0
"""The desk: cap, count, clip, noise, in this order, and no other way to a report."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from dpcohort import Population, Training
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.adaptive.book import Book
from dpcohort.adaptive.desk import REPORT_DRAW, ReportDesk
from dpcohort.adaptive.meter import LossMeter
from dpcohort.engine import Streams
from dpcohort.engine.lattice import Lattice
from dpcohort.engine.layout import FlatLayout
from dpcohort.engine.randomness import draw_positions
from dpcohort.errors import BudgetExceededError, InputError

NOTHING = torch.zeros(1)


class ZeroMeter:
    """Records without any loss above or below the middle; remembers what it was asked."""

    def __init__(self, book=None):
        self.book, self.calls, self.seen = book, 0, []

    def raw_centred_sums(self, parameters, positions, terms, *, units=None):
        self.calls += 1
        if self.book is not None:
            self.seen.append(self.book.reports_made.copy())
        return np.zeros(len(positions))


def desk_of(plan, meter=None, streams=None, **book):
    kept = Book(plan, **book)
    meter = meter or ZeroMeter(kept)
    if meter.__class__ is ZeroMeter:
        meter.book = kept
    return ReportDesk(plan, kept, meter, streams=streams or Streams.seeded(0)), kept, meter


def test_reports_are_counted_before_anything_is_computed(plan_of):
    desk, book, meter = desk_of(plan_of())
    desk.ask(0, np.array([3, 5]), NOTHING)
    assert meter.seen[0].tolist() == [0, 0, 0, 1, 0, 1, 0, 0]
    assert book.reports_made.sum() == 2


def test_a_count_that_fails_computes_nothing(plan_of):
    def full_disk(entry):
        raise OSError("full")

    desk, _, meter = desk_of(plan_of(), listener=full_disk)
    with pytest.raises(OSError, match="full"):
        desk.ask(0, np.array([3]), NOTHING)
    assert meter.calls == 0


def test_a_client_at_its_cap_is_refused_before_anything_is_computed(plan_of):
    desk, book, meter = desk_of(plan_of(report_cap=1))
    desk.ask(0, np.array([3]), NOTHING)
    with pytest.raises(BudgetExceededError, match="client-3"):
        desk.ask(1, np.array([2, 3]), NOTHING)
    assert meter.calls == 1
    assert book.reports_made[2] == 0


@pytest.mark.parametrize("rule", ["power-of-choice", "cpow-d", "oort"])
def test_the_noise_is_that_of_the_plan(rule):
    people = Population.from_arrays(sizes=[40] * 20, epsilon=[2.0] * 20, delta=1e-5)
    training = Training(rounds=200, cohort_size=2, batch_size=10)
    plan = make_adaptive_plan(people, training, rule=rule, report_cap=200, seed=0)
    desk, _, _ = desk_of(plan, streams=Streams.seeded(4))
    told = [desk.ask(t, np.arange(20), NOTHING) for t in range(200)]
    noise = np.array([[values[k] for k in range(20)] for values in told])
    scaled = ((noise - plan.terms.half_range) / plan.report_stds).ravel()
    low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], scaled.size)
    assert low < (scaled**2).sum() < high
    assert stats.kstest(scaled, "norm").pvalue > 1e-7
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.1


def test_two_data_sets_give_answers_as_close_as_the_sensitivity(plan_of, model, records_of, store):
    """The same noise on both sides: what is left is what one record moved."""
    plan = plan_of(loss_bound=3.0)
    low, high = store[0].copy(), store[0].copy()
    low[2 * 30 + 4], high[2 * 30 + 4] = 0.0, 1e5  # a middling loss, and one that is clipped
    parameters = FlatLayout(model).flatten(model)
    told = [
        desk_of(plan, LossMeter(model, records))[0].ask(0, np.arange(8), parameters)
        for records in (records_of(low), records_of(high))
    ]
    assert 0 < abs(told[0][2] - told[1][2]) <= 3.0 / 30 * (1 + 1e-9)
    assert all(told[0][k] == told[1][k] for k in range(8) if k != 2)


def test_public_clients_answer_without_noise_and_others_never(plan_of):
    nan = float("nan")
    mixed = Population.from_arrays(
        sizes=[50, 50, 50],
        epsilon=[1.0, 2.0, nan],
        delta=[1e-5, 1e-5, nan],
        public=[False, False, True],
    )
    desk, _, _ = desk_of(plan_of(population=mixed))
    told = desk.ask(0, np.arange(3), NOTHING)
    assert told[2] == 2.5
    assert told[0] != 2.5 != told[1]


def test_a_report_without_noise_is_refused_even_if_a_plan_says_so(plan_of):
    plan = plan_of()
    object.__setattr__(plan.noise, "report_multiplier", np.zeros(8))  # as no plan can be made
    desk, _, _ = desk_of(plan)
    with pytest.raises(InputError, match="have no noise"):
        desk.ask(0, np.array([3]), NOTHING)


def test_raw_reports_are_raw(plan_of):
    desk, _, _ = desk_of(plan_of(reports="raw"))
    assert desk.ask(0, np.array([0]), NOTHING) == {0: 2.5}


def test_an_answer_is_given_again_not_made_again(plan_of):
    desk, book, meter = desk_of(plan_of())
    first = desk.ask(0, np.array([1, 2]), NOTHING)
    assert desk.ask(0, np.array([1]), NOTHING) == {1: first[1]}
    assert meter.calls == 1
    assert book.reports_made.sum() == 2


def test_a_report_lost_in_a_crash_is_repeated_only_where_it_is_the_same(plan_of):
    lost = [{"round": 0, "reports": ["client-1"]}]
    for streams, charged in ((Streams.seeded(0), 1), (Streams.from_entropy(), 2)):
        desk, book, _ = desk_of(plan_of(), streams=streams)
        book.replay(lost)
        desk.ask(0, np.array([1]), NOTHING)
        assert book.reports_made[1] == charged


def test_private_reports_have_the_planned_noise_on_a_lattice(plan_of):
    plan = plan_of()
    desk = desk_of(plan, streams=Streams.from_entropy())[0]
    lattice = Lattice(float(plan.report_multipliers[1]), plan.terms.half_range)
    size = int(plan.population.sizes[1])
    noises = []
    for _ in range(2000):
        answer = desk._computed(0, [1], NOTHING, plan.terms)[1]
        noises.append((answer - plan.terms.half_range) * size)
    assert np.std(noises) == pytest.approx(plan.report_stds[1] * size, rel=0.08)
    integers = np.array(noises) / lattice.unit
    assert np.abs(integers - integers.round()).max() < 1e-2
    public = desk_of(plan_of(), streams=Streams.from_entropy())[0]
    assert len({public.ask(0, np.array([0, 1]), NOTHING)[0] for _ in range(2)}) == 1


def test_entropy_never_answers_twice_alike(plan_of):
    told = {
        desk_of(plan_of(), streams=Streams.from_entropy())[0].ask(0, np.array([1]), NOTHING)[1]
        for _ in range(3)
    }
    assert len(told) == 3


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_a_mini_batch_is_the_contracts_and_none_of_training(plan_of, sampler):
    from dpcohort.accounting import Contract

    plan = plan_of("cpow-d", accountant=Contract.of("tight", sampler))
    seen = {}

    class Remember:
        def raw_centred_sums(self, parameters, positions, terms):
            seen.update(positions)
            return np.zeros(len(positions))

    streams = Streams.seeded(0)
    desk_of(plan, Remember(), streams)[0].ask(0, np.arange(8), NOTHING)
    if sampler == "fixed":
        assert {chosen.size for chosen in seen.values()} == {10}
    else:
        assert len({chosen.size for chosen in seen.values()}) > 1
    for k, chosen in seen.items():
        where = {"size": 30, "rate": 1 / 3, "batch_size": 10, "round": 0, "client": k, "step": 0}
        training = draw_positions(streams, sampler, draw=0, **where)
        assert not np.array_equal(chosen, training)
        assert np.array_equal(chosen, draw_positions(streams, sampler, draw=REPORT_DRAW, **where))


def test_a_rule_without_reports_has_no_desk(plan_of):
    desk, _, meter = desk_of(plan_of("clustered"))
    with pytest.raises(InputError, match="has no reports"):
        desk.ask(0, np.array([1]), NOTHING)
    assert meter.calls == 0
