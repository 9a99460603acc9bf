# SPDX-License-Identifier: Apache-2.0
"""Reports: cap, count, measure, clip, noise, in this order, and no other way to one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F  # noqa: N812

from dpcohort import Population, Training
from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.adaptive import ReportTerms, make_adaptive_plan
from dpcohort.engine import Lattice, Streams, draw_batches
from dpcohort.engine.clipping import FlatLayout
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.runs._chooser import REPORT_DRAW, Chooser, LossMeter, ReportHandler
from dpcohort.runs._journal import Journal

# the meter


TERMS = {
    "loss": ReportTerms(loss_bound=0.8),
    "squared": ReportTerms(loss_bound=1.5, statistic="squared-loss"),
}


def parameters(model):
    return FlatLayout(model).flatten(model)


@pytest.mark.parametrize("chunk", [7, 4096])
@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_sums_are_those_of_the_formula(model, records_of, store, terms, chunk):
    wanted = {0: None, 5: np.array([2, 3, 11])}
    found = LossMeter(model, records_of(), chunk=chunk).raw_centred_sums(
        parameters(model), wanted, terms
    )
    with torch.no_grad():
        losses = F.cross_entropy(
            model(torch.tensor(store[0])), torch.tensor(store[1]), reduction="none"
        ).numpy()
    clipped = np.minimum(losses, terms.loss_bound)
    value = clipped if terms.statistic == "loss" else clipped**2
    rows = [np.arange(30), 150 + np.array([2, 3, 11])]
    assert found == pytest.approx([(value[r] - terms.half_range).sum() for r in rows], rel=1e-5)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
@pytest.mark.parametrize("canary", [0.0, 1.0, 1e6, -1e6, float("inf"), float("nan")])
def test_one_record_moves_a_sum_by_at_most_the_range(model, records_of, store, terms, canary):
    before = LossMeter(model, records_of()).raw_centred_sums(parameters(model), {2: None}, terms)
    inputs = store[0].copy()
    inputs[65] = canary
    after = LossMeter(model, records_of(inputs)).raw_centred_sums(
        parameters(model), {2: None}, terms
    )
    assert np.isfinite(after).all()
    assert abs(after - before)[0] <= terms.top * (1 + 1e-9)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_every_record_adds_at_most_half_the_range(model, records_of, store, terms):
    meter = LossMeter(model, records_of(100 * store[0]))
    alone = [
        meter.raw_centred_sums(parameters(model), {1: np.array([i])}, terms)[0] for i in range(30)
    ]
    assert np.abs(alone).max() <= terms.half_range
    assert np.abs(alone).max() == pytest.approx(terms.half_range)  # some are really clipped


def test_a_meter_that_was_asked_before_answers_like_a_new_one(model, records_of):
    """Rows of whole clients are kept between rounds: never those of others, or in another order."""
    terms, used = ReportTerms(loss_bound=50.0), LossMeter(model, records_of())
    whole = [{0: None, 2: None}, {2: None, 0: None}, {2: None}, {1: None}]
    for asked in (*whole, {1: np.array([1, 4])}, {1: np.array([2, 3])}, {1: None}):
        expected = LossMeter(model, records_of()).raw_centred_sums(parameters(model), asked, terms)
        for _ in range(2):
            found = used.raw_centred_sums(parameters(model), asked, terms)
            np.testing.assert_array_equal(found, expected)


class Mixing(torch.nn.Module):
    """A model whose loss at a record depends on the largest number of the batch."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x) + torch.relu(x.amax() - 1e3)[None, None] * torch.tensor([1.0, 0, 0])


def test_in_units_of_a_lattice_no_model_mixes_losses(model, records_of, store):
    terms = ReportTerms(loss_bound=50.0)
    classes = model(torch.tensor(store[0][:1])).shape[1]
    mixing, found = Mixing(torch.nn.Sequential(model, torch.nn.Linear(classes, 3))), []
    for canary in (0.0, 2e3):
        inputs = store[0].copy()
        inputs[65] = canary
        meter = LossMeter(mixing, records_of(inputs))
        units = np.array([terms.half_range / 2**22])
        found.append(meter.raw_centred_sums(parameters(mixing), {2: None}, terms, units=units)[0])
    assert abs(int(found[0]) - int(found[1])) <= 2**23


@pytest.mark.parametrize("canary", [0.0, 1e6, float("inf"), float("nan")])
def test_in_units_of_a_lattice_a_record_counts_for_itself_alone(model, records_of, store, canary):
    """Integers: what one record adds is the same whatever lies beside it, and bounded."""
    terms, inputs = TERMS["loss"], store[0].copy()
    inputs[65] = canary
    meter = LossMeter(model, records_of(inputs))
    unit = np.array([terms.half_range / 2**22])

    def total(positions):
        return meter.raw_centred_sums(parameters(model), {2: positions}, terms, units=unit)[0]

    whole, without, alone = total(None), total(np.delete(np.arange(30), 5)), total(np.array([5]))
    assert whole.dtype == np.int64
    assert whole - without == alone
    assert abs(alone) <= 2**22
    floats = meter.raw_centred_sums(parameters(model), {2: None}, terms)[0]
    assert whole * unit[0] == pytest.approx(floats, abs=160 * unit[0])


# the handler


NOTHING = torch.zeros(1)


class ZeroMeter:
    """Records without any loss above or below the middle; remembers what it was asked."""

    def __init__(self):
        self.journal, self.calls, self.seen = None, 0, []

    def raw_centred_sums(self, parameters, positions, terms, *, units=None):
        self.calls += 1
        if self.journal is not None:
            self.seen.append(self.journal.reports)
        return np.zeros(len(positions))


def handler_of(plan, meter=None, streams=None, journal=None):
    journal, meter = journal or Journal(plan), meter or ZeroMeter()
    if isinstance(meter, ZeroMeter):
        meter.journal = journal
    streams = streams or Streams.seeded(0)
    handler = ReportHandler(plan, meter, streams=streams)
    repeats = streams.is_reproducible
    chooser = Chooser(plan.participation, journal, lambda: handler.ask, repeats=repeats)
    return chooser, journal, meter


def test_reports_are_counted_before_anything_is_computed(plan_of):
    handler, journal, meter = handler_of(plan_of())
    handler.reports(0, np.array([3, 5]), NOTHING)
    assert meter.seen[0].tolist() == [0, 0, 0, 1, 0, 1, 0, 0]
    assert journal.reports.sum() == 2


def test_a_count_that_fails_computes_nothing(plan_of, tmp_path):
    plan = plan_of()
    journal = Journal(plan, tmp_path / "ledger.jsonl")
    journal.close()  # every further line fails
    handler, _, meter = handler_of(plan, journal=journal)
    with pytest.raises(InputError, match="could not be written"):
        handler.reports(0, np.array([3]), NOTHING)
    assert meter.calls == 0


def test_a_client_at_its_cap_is_refused_before_anything_is_computed(plan_of):
    handler, journal, meter = handler_of(plan_of(report_cap=1))
    handler.reports(0, np.array([3]), NOTHING)
    with pytest.raises(BudgetExceededError, match="client-3"):
        handler.reports(1, np.array([2, 3]), NOTHING)
    assert meter.calls == 1
    assert journal.reports[2] == 0


@pytest.mark.parametrize("rule", ["power-of-choice", "cpow-d", "oort"])
def test_the_noise_is_that_of_the_plan(rule):
    people = Population.from_arrays(sizes=[40] * 20, epsilon=[2.0] * 20, delta=1e-5)
    training = Training(rounds=200, cohort_size=2, batch_size=10)
    plan = make_adaptive_plan(people, training, rule=rule, report_cap=200, seed=0)
    handler, _, _ = handler_of(plan, streams=Streams.seeded(4))
    told = [handler.reports(t, np.arange(20), NOTHING) for t in range(200)]
    noise = np.array([[values[k] for k in range(20)] for values in told])
    scaled = ((noise - plan.reports.terms.half_range) / plan.report_stds).ravel()
    low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], scaled.size)
    assert low < (scaled**2).sum() < high
    assert stats.kstest(scaled, "norm").pvalue > 1e-7
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.1


def test_public_clients_answer_without_noise_and_others_never(plan_of):
    nan = float("nan")
    mixed = Population.from_arrays(
        sizes=[50, 50, 50],
        epsilon=[1.0, 2.0, nan],
        delta=[1e-5, 1e-5, nan],
        public=[False, False, True],
    )
    handler, _, _ = handler_of(plan_of(population=mixed))
    told = handler.reports(0, np.arange(3), NOTHING)
    assert told[2] == 2.5
    assert told[0] != 2.5 != told[1]


def test_a_report_without_noise_is_refused_even_if_a_plan_says_so(plan_of):
    plan = plan_of()
    object.__setattr__(plan.reports, "multipliers", np.zeros(8))  # as no plan can be made
    handler, _, _ = handler_of(plan)
    with pytest.raises(InputError, match="have no noise"):
        handler.reports(0, np.array([3]), NOTHING)


def test_an_answer_is_given_again_not_made_again(plan_of):
    handler, journal, meter = handler_of(plan_of())
    first = handler.reports(0, np.array([1, 2]), NOTHING)
    assert handler.reports(0, np.array([1]), NOTHING) == {1: first[1]}
    assert meter.calls == 1
    assert journal.reports.sum() == 2


def test_a_report_lost_in_a_crash_is_repeated_only_where_it_is_the_same(plan_of):
    lost = {"round": 0, "reports": ["client-1"]}
    for streams, charged in ((Streams.seeded(0), 1), (Streams.from_entropy(), 2)):
        handler, journal, _ = handler_of(plan_of(), streams=streams)
        journal.replay(lost)
        handler.reports(0, np.array([1]), NOTHING)
        assert journal.reports[1] == charged


def test_private_reports_have_the_planned_noise_on_a_lattice(plan_of):
    plan = plan_of()
    handler = handler_of(plan, streams=Streams.from_entropy())[0]
    lattice = Lattice(float(plan.reports.multipliers[1]), plan.reports.terms.half_range)
    size = int(plan.population.sizes[1])
    noises = []
    for _ in range(2000):
        answer = handler._ask(0, [1], NOTHING)[1]
        noises.append((answer - plan.reports.terms.half_range) * size)
    assert np.std(noises) == pytest.approx(plan.report_stds[1] * size, rel=0.08)
    integers = np.array(noises) / lattice.unit
    assert np.abs(integers - integers.round()).max() < 1e-2
    public = handler_of(plan_of(), streams=Streams.from_entropy())[0]
    assert len({public.reports(0, np.array([0, 1]), NOTHING)[0] for _ in range(2)}) == 1


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
    handler_of(plan, Remember(), streams)[0].reports(0, np.arange(8), NOTHING)
    if sampler == "fixed":
        assert {chosen.size for chosen in seen.values()} == {10}
    else:
        assert len({chosen.size for chosen in seen.values()}) > 1
    for k, chosen in seen.items():
        where = {"size": 30, "rate": 1 / 3, "batch_size": 10, "round": 0, "client": k}
        training = draw_batches(streams, SAMPLERS[sampler], draw=0, **where)(0)
        assert not np.array_equal(chosen, training)
        report = draw_batches(streams, SAMPLERS[sampler], draw=REPORT_DRAW, **where)(0)
        assert np.array_equal(chosen, report)


def test_a_rule_without_reports_is_not_asked(plan_of):
    handler, _, meter = handler_of(plan_of("clustered"))
    with pytest.raises(BudgetExceededError, match="has made 0 of 0 reports"):
        handler.reports(0, np.array([1]), NOTHING)
    with pytest.raises(InputError, match="has no reports"):
        handler._ask(0, [1], NOTHING)
    assert meter.calls == 0
