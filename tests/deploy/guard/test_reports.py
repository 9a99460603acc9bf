# SPDX-License-Identifier: Apache-2.0
"""Reports of a guard: accepted by its owner, counted like draws, noisy, and no others."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch
from scipy import stats

from dpcohort.accounting import Event, History
from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.adaptive import ReportTerms, make_adaptive_plan
from dpcohort.adaptive._rule import REPORT_DRAW
from dpcohort.clients import Population
from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import (
    AcceptedRun,
    DrawUpdate,
    ModelTerms,
    Refusal,
    ReportRequest,
    check_with_sampling,
)
from dpcohort.deploy.guard import _training as training
from dpcohort.deploy.guard._files import GuardedData
from dpcohort.deploy.guard._protocol import HelloRequest, ReceiptRequest
from dpcohort.deploy.guard._start import terms_in_words
from dpcohort.deploy.guard._terms import terms_from_plan
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.deploy.ledger import DrawKey, RunTerms, lifetime_receipt, read_state, verify_ledger
from dpcohort.deploy.ledger._terms import AcceptedReports
from dpcohort.engine import Lattice
from dpcohort.engine.clipping import ClippedNetwork, cross_entropy
from dpcohort.engine.clipping._per_example import example_loss
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.models import build_model
from dpcohort.tasks import Task
from dpcohort.training import Training

REPORTS = AcceptedReports(count=3, loss_bound=4.0, least_noise_multiplier=5.0)
KEY = DrawKey(dataset="ward", run="spring", round=0, draw=REPORT_DRAW)


@pytest.fixture
def reporting(with_run):
    """``reporting(count=2)``: the terms, with reports that the owner accepts."""
    return lambda **changes: with_run(
        epsilon=5.0, reports=replace(REPORTS, **changes), least_noise_multiplier=2.0
    )


@pytest.fixture
def lasting(reporting):
    """Terms whose lifetime has room for the run."""
    return replace(reporting(), lifetime_epsilon=20.0, lifetime_delta=1e-4)


@pytest.fixture
def ask(good):
    """A request for a report within the terms; ``ask(round=3)`` is the same for another round."""

    def make(**changes):
        asked = {
            **dict(good()),
            "draw": REPORT_DRAW,
            "clip": 2.0,
            "noise_multiplier": 5.0,
            "sampling_rate": 1.0,
            "batch_size": 40,
            "local_steps": 1,
            "step_sizes": [1.0],
            "statistic": "loss",
        }
        return ReportRequest(**{**asked, **changes})

    return make


class Noted:
    """A trainer that only notes what it was asked for."""

    dimension = 18

    def __init__(self, layout, ledger=None, error=None):
        self.layout, self.ledger, self.error = layout, ledger, error
        self.reports, self.updates, self.fates = [], [], []

    def report(self, *arguments, **settings):
        self.reports.append((arguments[1:], settings))
        self.fates.append(self.ledger and self.ledger.fate(KEY))
        if self.error:
            raise self.error
        return np.array([0.25], np.float32)

    def update(self, *arguments, **settings):
        self.updates.append((arguments, settings))
        return np.zeros(18, np.float32)


@pytest.fixture
def noted(good, open_handler, lasting):
    """A handler that accepts reports, with a trainer that notes what it was asked for."""
    trainer = Noted(good().layout)
    handler = open_handler(lasting, trainer=trainer)
    handler.noted, trainer.ledger = trainer, handler.ledger
    return handler


def spent(handler):
    """Rows of the ledger beyond those that open, register and accept."""
    return handler.ledger.head[0] - 3


def test_a_report_has_a_name_of_its_own():
    assert str(KEY) == "ward / spring / round 0 / report"
    for draw in (10**9 + 1, REPORT_DRAW - 1, REPORT_DRAW + 1, float(REPORT_DRAW) + 0.5):
        with pytest.raises(InputError, match="draw"):
            DrawKey(dataset="ward", run="spring", round=0, draw=draw)
    with pytest.raises(InputError, match="round"):
        DrawKey(dataset="ward", run="spring", round=-1, draw=REPORT_DRAW)


# what a guard answers


def test_a_report_is_counted_computed_stored_and_answered(open_handler, ask, lasting, folder):
    handler = open_handler(lasting)
    answer = handler.answer(ask())
    assert isinstance(answer, DrawUpdate)
    assert (answer.round, answer.draw, answer.resent) == (0, REPORT_DRAW, False)
    assert answer.vector.shape == (1,)
    assert handler.ledger.fate(KEY) == "released"
    handler.ledger.close()
    assert verify_ledger(folder / "ward.ledger").findings == ()


def test_a_report_is_counted_before_a_record_is_looked_at(noted, ask):
    noted.answer(ask())
    assert noted.noted.fates == ["lost"]  # counted, and not yet released


def test_the_owners_numbers_are_computed_with(noted, ask):
    noted.answer(ask(noise_multiplier=7.5))
    ((lattice, batches, asked), settings) = noted.noted.reports[0]
    assert (lattice.noise_multiplier, lattice.clip) == (7.5, 2.0)
    assert asked == ReportTerms(loss_bound=4.0)
    assert (batches, settings) == ((SAMPLERS["poisson"], 1.0, 40), {})
    assert noted.noted.updates == []


def test_asked_again_it_is_what_is_stored(noted, ask):
    first = noted.answer(ask())
    entries = spent(noted)
    again = noted.answer(ask())
    assert (again.resent, again.vector.tobytes()) == (True, first.vector.tobytes())
    assert (len(noted.noted.reports), spent(noted)) == (1, entries)


def test_the_runs_reports_end_and_leave_its_draws_alone(noted, ask, good):
    for round in range(3):
        assert isinstance(noted.answer(ask(round=round)), DrawUpdate)
    refusal = noted.answer(ask(round=3))
    assert (refusal.code, refusal.counted) == ("exhausted", False)
    assert "the reports accepted for this run" in refusal.message
    assert not any(letter.isdigit() for letter in refusal.message)
    assert len(noted.noted.reports) == 3
    for round in range(6):
        assert isinstance(noted.answer(good(round=round)), DrawUpdate)
    assert noted.answer(good(round=6)).code == "exhausted"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": 4.99}, "at least 5 as accepted"),
        ({"noise_multiplier": 1e-300}, "noise_multiplier must be"),
        ({"clip": 2.5}, "clip = 2.5 is not allowed"),
        ({"clip": 1.0}, "clip = 1.0 is not allowed"),
        ({"statistic": "squared-loss"}, "statistic = 'squared-loss' is not allowed"),
        ({"sampling_rate": 0.25}, "sampling_rate = 0.25 is not allowed"),
        ({"batch_size": 1}, "batch_size = 1 is not allowed"),
        ({"local_steps": 2, "step_sizes": [1.0, 1.0]}, "local_steps = 2 is not allowed"),
        ({"round": 8}, "below the 8 rounds accepted"),
        ({"round": -1}, "round = -1"),
        ({"draw": 0}, "draw = 0 is not allowed"),
        ({"neighbours": "replace-one"}, "neighbours"),
        ({"sampler": "fixed"}, "sampler"),
        ({"plan": "b" * 64}, "plan"),
        ({"model": "b" * 64}, "model"),
        ({"vector": np.full(18, np.nan, np.float32)}, "not finite"),
        ({"vector": np.zeros(17, np.float32)}, "number of parameters = 17"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_the_owner_did_not_accept_is_refused_and_costs_nothing(noted, ask, change, words):
    refusal = noted.answer(ask(**change))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.counted) == ("terms", False)
    assert words in refusal.message
    assert (noted.noted.reports, spent(noted)) == ([], 0)


def test_terms_that_say_nothing_of_reports_allow_none(open_handler, ask, good):
    trainer = Noted(good().layout)
    handler = open_handler(trainer=trainer)
    refusal = handler.answer(ask())
    assert (refusal.code, refusal.counted) == ("terms", False)
    assert "has accepted no reports" in refusal.message
    assert (trainer.reports, trainer.updates, spent(handler)) == ([], [], 0)
    with pytest.raises(InputError, match="accepted no reports"):  # nor does the ledger count one
        handler.ledger.reserve(
            KEY, Event.of(noise_multiplier=9.0, sampling_rate=1.0, steps=1), clip=1.0
        )


def test_a_draw_is_not_had_at_the_price_of_a_report(open_handler, with_run, good, lasting):
    """The same numbers, a mini-batch of one step: what is asked for must say what it is."""
    run = replace(
        lasting.runs[0], local_steps=1, reports=replace(REPORTS, loss_bound=2.0, mini_batch=True)
    )
    trainer = Noted(good().layout)
    handler = open_handler(replace(lasting, runs=(run,)), trainer=trainer)
    shared = {"draw": REPORT_DRAW, "local_steps": 1, "step_sizes": [1.0], "noise_multiplier": 5.0}
    refusal = handler.answer(good(**shared))
    assert (refusal.code, refusal.counted) == ("terms", False)
    assert "is a report, not a draw" in refusal.message
    assert (trainer.reports, trainer.updates, spent(handler)) == ([], [], 0)


# what reports cost


def test_the_guard_composes_reports_with_draws(open_handler, lasting, ask, good, folder):
    handler = open_handler(lasting, trainer=Noted(good().layout))
    for round in range(2):
        handler.answer(good(round=round))
    alone = handler.answer(ReceiptRequest(run="spring")).spending["certified_epsilon"]
    for round in range(3):
        handler.answer(ask(round=round))
    found = handler.answer(ReceiptRequest(run="spring")).spending
    assert found["reports"] == {
        "accepted": 3, "counted": 3, "released": 3, "noise_multiplier": 5.0, "sampling_rate": 1.0,
    }  # fmt: skip
    draws = Event.of(noise_multiplier=2.0, sampling_rate=0.25, steps=4)
    reports = Event.of(noise_multiplier=5.0, sampling_rate=1.0, steps=3)
    both = History((draws, reports)).epsilon(1e-5)
    assert found["certified_epsilon"] == both > alone
    assert found["counted_draws"] == 2
    assert handler.answer(HelloRequest(run="spring")).counted == 5
    handler.ledger.close()
    text = lifetime_receipt(read_state(folder / "ward.ledger"), "ward").text()
    assert "3 of 3 reports at z = 5, rate 1: epsilon" in text


def test_a_composed_cap_refuses_the_report_too_many(open_handler, lasting, ask, good):
    run = replace(lasting.runs[0], plan=None)
    tight = History((Event.of(noise_multiplier=5.0, sampling_rate=1.0, steps=2),)).epsilon(1e-4)
    terms = replace(lasting, runs=(run,), across_runs="composed", lifetime_epsilon=tight + 1e-6)
    handler = open_handler(terms, trainer=Noted(good().layout))
    codes = [getattr(handler.answer(ask(round=round)), "code", "ok") for round in range(3)]
    assert codes == ["ok", "ok", "exhausted"]


def test_terms_are_closed_over_draws_and_reports_together():
    shared = {
        "epsilon": 2.0, "delta": 1e-5, "clip": 1.0, "sampling_rate": 0.1, "local_steps": 1,
        "rounds": 60, "draws": 60, "least_noise_multiplier": 2.0,
    }  # fmt: skip
    RunTerms(**shared).check_closed()
    RunTerms(**shared, reports=replace(REPORTS, least_noise_multiplier=90.0)).check_closed()
    with pytest.raises(BudgetExceededError, match="and 3 reports at noise multiplier 5: epsilon"):
        RunTerms(**shared, reports=REPORTS).check_closed()


def test_noise_left_out_leaves_room_for_the_reports(with_run):
    run = with_run(least_noise_multiplier=None, reports=REPORTS).runs[0]
    with_reports = run.run_terms(40)
    with_reports.check_closed()
    without = replace(run, reports=None).run_terms(40)
    assert with_reports.least_noise_multiplier > without.least_noise_multiplier


def test_the_error_of_the_noise_is_paid_for_reports_too(lasting):
    accepted = lasting.runs[0].run_terms(40)
    check_with_sampling(accepted, 18)
    many = replace(REPORTS, count=10**9, least_noise_multiplier=1e6)
    loose = replace(accepted, epsilon=59.0, draws=1, reports=many)
    assert loose.history(*loose.most).delta(59.0) < 1e-5
    check_with_sampling(replace(loose, reports=None), 18)
    with pytest.raises(BudgetExceededError, match=r"2\^-130"):
        check_with_sampling(loose, 18)


def test_a_plans_terms_hold_its_reports_and_say_so():
    people = Population.from_arrays(sizes=[400] * 5, epsilon=[1, 2, 3, 4, 5], delta=1e-5)
    training = Training(rounds=4, cohort_size=1, batch_size=50, dimension=650)
    model = ModelTerms(name="logistic", input_shape=(64,), classes=10)
    for rule in ("power-of-choice", "cpow-d", "oort", "clustered"):
        plan = make_adaptive_plan(people, training, rule=rule, seed=0)
        text = terms_from_plan(plan, "client-1", run="spring", model=model, same_user=True)
        said = tomllib.loads(text)["runs"][0]
        terms = AcceptedRun(**said).run_terms(400)
        assert ("reports" in said) == (rule != "clustered")
        if rule == "clustered":
            continue
        of_reports = terms.of_reports()
        assert (
            terms.history(*terms.most).events
            == plan.history(1, draws=int(plan.counts[1]), reports=int(plan.reports.caps[1])).events
        )
        assert of_reports.clip == plan.reports.terms.half_range
        assert terms.reports.statistic == plan.reports.terms.statistic


def test_the_owner_reads_what_may_be_asked(lasting):
    words = " ".join(terms_in_words(lasting, 40))
    assert "With at most 3 reports of the mean loss of all records, losses cut at 4" in words


# the number itself


MODEL = ModelTerms(name="mlp", input_shape=(5,), classes=3, options={"hidden": [4]})
ASKED = ReportTerms(loss_bound=1.0)


@pytest.fixture
def data():
    dice = np.random.default_rng(3)
    return GuardedData(dice.normal(size=(30, 5)).astype(np.float32), dice.integers(0, 3, 30), "")


@pytest.fixture
def sums(monkeypatch):
    """The integers that noise would be added to; the release is without noise."""
    seen = []

    def release(self, total, key, *, scale):
        seen.append(int(total))
        return total.double() * (scale * self.unit)

    monkeypatch.setattr(Lattice, "release", release)
    return seen


def report(guard, weights=None, asked=ASKED, lattice=None, rate=1.0, batch_size=30):
    weights = np.full(guard.dimension, 0.3, np.float32) if weights is None else weights
    batches = (SAMPLERS["poisson"], rate, batch_size)
    return guard.report(weights, lattice or Lattice(5.0, asked.half_range), batches, asked)


@pytest.mark.parametrize("statistic", ["loss", "squared-loss"])
@pytest.mark.parametrize("bound", [0.9, 50.0])
def test_without_noise_it_is_the_mean_of_clipped_losses(data, sums, statistic, bound):
    guard = LocalTraining(MODEL, data)
    asked = ReportTerms(statistic=statistic, loss_bound=bound)
    (found,) = report(guard, asked=asked)
    built = build_model("mlp", input_shape=(5,), classes=3, seed=0, options={"hidden": [4]})
    loss_of = example_loss(built, cross_entropy)
    records = zip(torch.from_numpy(data.inputs), torch.from_numpy(data.labels), strict=True)
    losses = [float(loss_of(torch.full((guard.dimension,), 0.3), x, y)) for x, y in records]
    clipped = np.minimum(losses, bound) ** (2 if statistic == "squared-loss" else 1)
    assert asked.half_range + found == pytest.approx(clipped.mean(), abs=3e-6 * asked.half_range)


@pytest.mark.parametrize("value", [0.0, 1e6, -1e6, float("inf"), float("nan")])
def test_neighbouring_data_differ_by_what_one_record_may_add(data, sums, value):
    lattice = Lattice(5.0, ASKED.half_range)
    for inputs in (data.inputs, data.inputs.copy()):
        if inputs is not data.inputs:
            inputs[7] = value
        report(LocalTraining(MODEL, GuardedData(inputs, data.labels, "")))
    rest = np.arange(30) != 7
    report(LocalTraining(MODEL, GuardedData(data.inputs[rest], data.labels[rest], "")),
           batch_size=29)  # fmt: skip
    one, other, without = sums
    assert abs(one - without) <= lattice.bound  # zero-out: half of the range
    assert abs(other - without) <= lattice.bound
    assert abs(one - other) <= 2 * lattice.bound  # replace-one: all of it


def test_a_record_is_looked_at_alone(data, sums, monkeypatch):
    guard = LocalTraining(MODEL, data)
    for batch in (np.arange(30), np.delete(np.arange(30), 7), np.array([7]), np.array([], int)):
        monkeypatch.setattr(
            training, "draw_batches", lambda *_, batch=batch, **__: lambda step: batch
        )
        report(guard)
    whole, without, alone, nobody = sums
    assert whole - without == alone != 0  # not one last bit depends on the neighbours
    assert nobody == 0


def test_a_record_without_a_loss_adds_nothing_and_is_not_told(data, sums, monkeypatch):
    """A report that fails for one record would say that it is among them."""
    data.inputs[7] = 100.0
    real = ClippedNetwork.own_losses

    def all_but_one(self, point, inputs, labels):
        if (inputs == 100.0).any():
            raise IndexError("index out of range in self: 4711")
        return real(self, point, inputs, labels)

    monkeypatch.setattr(ClippedNetwork, "own_losses", all_but_one)
    guard = LocalTraining(MODEL, data)
    report(guard)
    without = np.delete(np.arange(30), 7)
    monkeypatch.setattr(training, "draw_batches", lambda *_, **__: lambda step: without)
    report(guard)
    assert sums[0] == sums[1] != 0


def test_the_noise_is_what_the_terms_ask_for_and_never_the_same_twice(data, keystream):
    null = GuardedData(np.zeros((30, 5), np.float32), data.labels, "")
    guard = LocalTraining(MODEL, null, keystream("reports"))
    weights, lattice = np.zeros(guard.dimension, np.float32), Lattice(5.0, 0.5)
    found = np.array([report(guard, weights, lattice=lattice)[0] for _ in range(250)])
    middle = np.log(3) if np.log(3) < 1 else 1.0  # every record has the same loss, cut at 1
    scaled = (found - (middle - 0.5)) * 30 / (5.0 * 0.5)
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], scaled.size)
    assert low < (scaled**2).sum() < high
    assert len(set(found.tolist())) > 245
    fresh = LocalTraining(MODEL, null)  # from the operating system
    assert report(fresh, weights)[0] != report(fresh, weights)[0]


def test_a_mini_batch_is_drawn_at_its_rate(data, sums):
    null = GuardedData(np.zeros((30, 5), np.float32), data.labels, "")
    guard = LocalTraining(MODEL, null)
    weights = np.zeros(guard.dimension, np.float32)
    for _ in range(300):
        report(guard, weights, rate=0.2, batch_size=6)
    report(guard, weights)
    sizes = 30 * np.array(sums[:-1]) / sums[-1]
    assert sizes.mean() == pytest.approx(6.0, abs=0.7)
    assert len(set(sizes.round())) > 3


def test_a_model_whose_loss_remembers_is_refused(data, monkeypatch):
    runs = []

    def forgetful(outputs, targets):
        runs.append(1)
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none") + len(runs)

    monkeypatch.setattr(Task, "loss_on", lambda self, device: forgetful)
    with pytest.raises(InputError, match="not the same every time"):
        LocalTraining(MODEL, data)
