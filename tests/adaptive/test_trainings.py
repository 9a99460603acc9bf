# SPDX-License-Identifier: Apache-2.0
"""Adaptive trainings: engines, neighbours and crashes change no cohort; rules never reach data."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpcohort import Population, make_plan
from dpcohort.adaptive._rule import rule_cohort
from dpcohort.engine import BatchedEngine, ClientRecords, EngineState, Experiment, Streams
from dpcohort.engine._experiment import cohort_of
from dpcohort.errors import InputError
from dpcohort.plugins import RULES
from dpcohort.runs import train_side_by_side, verify_run
from dpcohort.runs._chooser import Chooser, ReportHandler
from dpcohort.runs._journal import Journal
from dpcohort.runs._training import train_job

NAMES = [name for name in RULES["adaptive"] if name != "donated"]
ZEROS = torch.zeros(15)


def cohorts(run):
    return [run.ledger.cohort(t).tolist() for t in sorted(run.ledger.rounds)]


def assert_same(one, other):
    """The same cohorts, counts and model, to the bit."""
    assert cohorts(one) == cohorts(other)
    assert np.array_equal(one.ledger.draws, other.ledger.draws)
    assert np.array_equal(one.ledger.reports, other.ledger.reports)
    for name, weights in one.model.items():
        assert np.array_equal(weights, other.model[name])


def replayed(plan, *entries):
    journal = Journal(plan)
    for entry in entries:
        journal.replay(entry)
    return journal


@pytest.mark.parametrize("rule", NAMES)
def test_engines_agree(plan_of, job_of, rule):
    plan = plan_of(rule)
    one, two = (train_job(job_of(plan, engine=engine)) for engine in ("batched", "reference"))
    assert cohorts(one) == cohorts(two)
    for name, weights in one.model.items():
        assert np.allclose(weights, two.model[name], atol=1e-5)


def test_a_training_with_donated_data(plan_of, job_of):
    public = np.array([False] * 6 + [True] * 2)
    mixed = Population.from_arrays(
        sizes=[30] * 8,
        epsilon=np.where(public, np.nan, 2.0),
        delta=np.where(public, np.nan, 1e-5),
        public=public,
    )
    plan = plan_of("donated", population=mixed, rule_settings={"public_share": 0.5})
    run = train_job(job_of(plan))
    assert run.ledger.draws[public].sum() == 6
    spent = plan.spent_epsilon(run.ledger.draws, run.ledger.reports)
    assert (spent[~public] <= 2.0).all()
    assert np.isnan(spent[public]).all()


def test_side_by_side_adaptive_and_fixed_plans_give_what_each_gives_alone(
    plan_of, people, settings, job_of
):
    plans = [
        plan_of("power-of-choice"),
        make_plan(people, settings, seed=0),
        plan_of("ucb-cs", seed=9),
        plan_of("clustered"),
    ]
    together = train_side_by_side([job_of(plan, seed=k) for k, plan in enumerate(plans)])
    for k, (plan, run) in enumerate(zip(plans, together, strict=True)):
        assert_same(run, train_job(job_of(plan, seed=k)))


def test_an_engine_prepares_no_round_that_is_not_chosen(
    plan_of, people, settings, model, records_of
):
    """On an accelerator the next round is prepared during this one, before a rule has chosen it."""
    records, fixed = records_of(), make_plan(people, settings, seed=0)

    def engine_of(*plans):
        streams = Streams.seeded(0)
        return BatchedEngine(
            model, [Experiment(plan=plan, records=records, streams=streams) for plan in plans]
        )

    (upcoming,) = engine_of(fixed)._upcoming(1)
    assert upcoming.clients.tolist() == fixed.schedule.cohorts[1].tolist()
    assert engine_of(fixed)._upcoming(settings.rounds) is None
    assert engine_of(fixed, plan_of())._upcoming(1) is None


def test_an_engine_trains_the_cohort_it_is_told_whatever_it_has_prepared(
    plan_of, model, records_of
):
    plan = plan_of()
    engine = BatchedEngine(
        model, [Experiment(plan=plan, records=records_of(), streams=Streams.seeded(0))]
    )
    told = [cohort_of(plan, 1, np.array([3, 4]))]
    (expected,) = engine.updates([ZEROS], told)
    expected = expected.updates.clone()
    engine._prepared = ([cohort_of(plan, 1, np.array([1, 2]))], [])
    (arrived,) = engine.updates([ZEROS], told)
    assert arrived.cohort is told[0]
    assert torch.equal(arrived.updates, expected)


@contextmanager
def crash(owner, name, when):
    """A method dies when it is called so."""
    method = getattr(owner, name)

    def dying(self, *arguments):
        if when(*arguments):
            raise KeyboardInterrupt
        return method(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.parametrize("rule", NAMES)
def test_a_round_lost_after_it_was_counted_is_done_again(plan_of, job_of, tmp_path, rule):
    plan = plan_of(rule)
    whole = train_job(job_of(plan))
    with crash(BatchedEngine, "updates", lambda _, cohorts: cohorts[0].round == 3):
        train_job(job_of(plan), out=tmp_path / "run")
    assert Journal.read(plan, tmp_path / "run" / "ledger.jsonl").rounds == {0, 1, 2, 3}
    assert_same(train_job(job_of(plan), out=tmp_path / "run", resume=True), whole)
    assert verify_run(tmp_path / "run").holds


def test_answers_that_were_never_counted_do_not_verify(plan_of, job_of, tmp_path):
    train_job(job_of(plan_of("power-of-choice")), out=tmp_path / "run")
    path = tmp_path / "run" / "ledger.jsonl"
    header, counted, *rest = path.read_text().splitlines(keepends=True)
    assert '"reports"' in counted
    path.write_text("".join([header, *rest]))
    found = [finding.message for finding in verify_run(tmp_path / "run").findings]
    assert "round 0: the clients that reported are not those the rule asks." in found


@pytest.mark.parametrize("rule", [name for name in NAMES if name != "clustered"])
def test_a_crash_between_the_count_of_reports_and_their_answers_changes_nothing(
    plan_of, job_of, tmp_path, rule
):
    """The reports are counted once, and made again as the very same ones."""
    plan = plan_of(rule)
    whole = train_job(job_of(plan))
    with crash(ReportHandler, "ask", lambda round, *_: round == 2):
        train_job(job_of(plan), out=tmp_path / "run")
    stopped = Journal.read(plan, tmp_path / "run" / "ledger.jsonl")
    assert stopped.asked(2)
    assert stopped.answers(2) == {}
    assert_same(train_job(job_of(plan), out=tmp_path / "run", resume=True), whole)
    found = verify_run(tmp_path / "run")
    assert found.holds, found.findings


@pytest.mark.parametrize("cut", ["counted", "answered"])
def test_a_crash_within_a_decision_changes_no_cohort(plan_of, job_of, tmp_path, cut):
    """At a cap of one report the client asked is no candidate for a second one, yet is drawn."""
    plan, path = plan_of("rpow-d", report_cap=1), tmp_path / "ledger.jsonl"
    whole = Journal(plan, path)
    cohort = job_of(plan).chooser(whole, {}).cohort(0, ZEROS)
    whole.close()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: 2 if cut == "counted" else 3]))
    again = Journal(plan, path)
    assert np.array_equal(job_of(plan).chooser(again, {}).cohort(0, ZEROS), cohort)
    again.close()
    assert again.answers(0) == whole.answers(0)
    assert np.array_equal(again.reports, whole.reports)


def test_with_entropy_a_lost_report_stays_spent(plan_of, job_of, tmp_path):
    """It cannot be made again as the same one, so the rule does without it."""
    plan, private = plan_of("rpow-d", report_cap=1), {"simulate": None}
    with crash(ReportHandler, "ask", lambda round, *_: round == 0):
        train_job(job_of(plan, **private), out=tmp_path / "run")
    lost = Journal.read(plan, tmp_path / "run" / "ledger.jsonl").asked(0)
    run = train_job(job_of(plan, **private), out=tmp_path / "run", resume=True)
    assert lost
    assert not any(lost & set(run.ledger.answers(t)) for t in range(6))
    assert (run.ledger.reports <= 1).all()
    assert [len(cohort) for cohort in cohorts(run)] == [2] * 6
    assert run.is_private
    found = verify_run(tmp_path / "run")
    assert found.holds, found.findings


def reachable(start):
    """Every object that can be reached from one without passing through modules or classes."""
    seen, queue = {}, [start]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, type) or type(thing).__name__ == "module":
            continue
        if callable(thing) and hasattr(thing, "__globals__"):
            queue.extend(c.cell_contents for c in thing.__closure__ or ())
            queue.append(getattr(thing, "__self__", None))  # of a bound method
            continue
        seen[id(thing)] = thing
        queue.extend(gc.get_referents(thing))
    return list(seen.values())


@pytest.mark.parametrize("rule", NAMES)
def test_neither_rule_nor_view_leads_to_data(plan_of, job_of, monkeypatch, rule):
    seen = []

    def watched(rule, view, ask):
        seen.append((rule, view))
        return rule_cohort(rule, view, ask)

    monkeypatch.setattr("dpcohort.planning._participation.rule_cohort", watched)
    job = job_of(plan_of(rule))
    train_job(job)
    kinds = (torch.Tensor, torch.nn.Module, ClientRecords, ReportHandler, Streams, EngineState)
    assert len(seen) == 6
    assert bool(seen[-1][1].updates) == (rule == "clustered")
    for start in seen[-1]:
        assert not [thing for thing in reachable(start) if isinstance(thing, (*kinds, Journal))]
    assert any(isinstance(thing, ClientRecords) for thing in reachable(job.reporter()))


@pytest.mark.parametrize("rule", ["power-of-choice", "cpow-d"])
def test_a_client_that_is_not_asked_changes_no_cohort(plan_of, job_of, store, rule):
    plan = plan_of(rule, rule_settings={"d": 3})
    first, other = Journal(plan), Journal(plan)
    cohort = job_of(plan).chooser(first, {}).cohort(0, ZEROS)
    silent = sorted(set(range(8)) - set(first.answers(0)))
    inputs = store[0].reshape(8, 30, 4).copy()
    inputs[silent] = 1e3
    assert np.array_equal(job_of(plan, inputs).chooser(other, {}).cohort(0, ZEROS), cohort)
    assert other.answers(0) == first.answers(0)


@pytest.mark.parametrize("rule", ["rpow-d", "ucb-cs", "oort", "clustered"])
def test_a_client_that_is_never_drawn_changes_nothing(plan_of, job_of, store, settings, rule):
    plan = plan_of(rule, training=replace(settings, rounds=2))
    run = train_job(job_of(plan))
    never = np.flatnonzero(run.ledger.draws == 0)
    assert never.size > 0
    inputs = store[0].reshape(8, 30, 4).copy()
    inputs[never] = -1e3
    assert_same(train_job(job_of(plan, inputs)), run)


def test_loss_decides_when_reports_are_raw(plan_of, job_of, model, store):
    """d = N and raw: exactly the largest local losses."""
    plan = plan_of(reports="raw")
    parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    cohort = job_of(plan).chooser(Journal(plan), {}).cohort(0, parameters)
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(
            model(torch.tensor(store[0])), torch.tensor(store[1]), reduction="none"
        )
    means = losses.clamp(max=5.0).view(8, 30).mean(1).numpy()
    assert set(cohort.tolist()) == set(np.argsort(means)[-2:].tolist())
    assert not train_job(job_of(plan, simulate=None)).is_private


def test_raw_reports_cannot_go_on(plan_of, job_of):
    plan = plan_of(reports="raw")
    journal = replayed(plan, {"round": 0, "reports": ["client-1"]})
    with pytest.raises(InputError, match="never written"):
        job_of(plan).chooser(journal, {})


@pytest.fixture
def watcher_of(plan_of):
    """A chooser whose rule looks at updates."""

    def make(**options):
        plan = plan_of("clustered")
        return Chooser(plan.participation, Journal(plan), lambda: None, repeats=True, **options)

    return make


def sketches(chooser):
    return {name.rpartition(".")[2]: sketch for name, sketch in chooser.to_arrays().items()}


def test_sketches_keep_inner_products(watcher_of):
    torch.manual_seed(0)
    updates = torch.randn(2, 20_000)
    updates[1] += 0.5 * updates[0]
    watcher = watcher_of()
    watcher.saw(np.array([0, 1]), updates)
    first, second = sketches(watcher).values()
    assert first.size < 1000
    cosine = (first @ second) / np.linalg.norm(first) / np.linalg.norm(second)
    true = torch.nn.functional.cosine_similarity(updates[0], updates[1], dim=0).item()
    assert cosine == pytest.approx(true, abs=0.1)
