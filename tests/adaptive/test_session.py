# SPDX-License-Identifier: Apache-2.0
"""Sessions: engines agree, stacks agree, a replay agrees, and data is out of a rule's reach."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from dpcohort import make_plan
from dpcohort.adaptive import AdaptiveSession, adaptive_rounds, adaptive_stack
from dpcohort.adaptive.decision import round_view
from dpcohort.adaptive.desk import ReportDesk
from dpcohort.engine import (
    BatchedEngine,
    ClientRecords,
    ConstantStep,
    EngineState,
    Experiment,
    Optimiser,
    ReferenceEngine,
    StackedEngine,
    Streams,
)
from dpcohort.errors import InputError
from dpcohort.plugins import REGISTRIES

RULES = [name for name in REGISTRIES["adaptive"].built_in if name != "donated"]
OPTIMISER = Optimiser(local_step=ConstantStep(0.2))


def trained(plan, model, records, *, seed=0, engine=BatchedEngine, entries=(), stop=None, **state):
    """(session, final state) of a training, begun anew or from a state and the book's entries."""
    streams = Streams.seeded(seed)
    session = AdaptiveSession(plan, model, records, streams=streams)
    session.go_on(entries, state.get("arrays", {}))
    machine = engine(
        session.plan,
        model,
        records,
        streams=streams,
        optimiser=OPTIMISER,
        aggregation=session.aggregation,
    )
    now = state.get("start") or machine.initial_state()
    for _ in adaptive_rounds(machine, [now], [session]):
        if stop is not None and now.next_round == stop:
            break
    return session, now


@pytest.mark.parametrize("rule", RULES)
def test_engines_agree(plan_of, model, records_of, rule):
    plan = plan_of(rule)
    one, state = trained(plan, model, records_of())
    two, other = trained(plan, model, records_of(), engine=ReferenceEngine)
    assert [c.tolist() for c in one.book.cohorts_before(9)] == [
        c.tolist() for c in two.book.cohorts_before(9)
    ]
    assert torch.allclose(state.parameters, other.parameters, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_caps_and_budgets_hold(plan_of, people, model, records_of, rule):
    session, _ = trained(plan_of(rule), model, records_of())
    assert session.book.draws.sum() == 12
    assert (session.book.draws_left >= 0).all()
    assert (session.book.reports_left >= 0).all()
    assert (session.spent_epsilon() <= people.epsilon).all()
    assert not session.is_private  # seeded


def test_side_by_side_is_as_alone_and_beside_a_plan(plan_of, people, settings, model, records_of):
    records = records_of()
    plans = [plan_of("power-of-choice"), plan_of("ucb-cs", seed=9), plan_of("clustered")]
    sessions = [
        AdaptiveSession(plan, model, records, streams=Streams.seeded(seed))
        for seed, plan in enumerate(plans)
    ]
    fixed = Experiment(
        plan=make_plan(people, settings, seed=0),
        records=records,
        streams=Streams.seeded(3),
        optimiser=OPTIMISER,
    )
    experiments = [s.experiment(optimiser=OPTIMISER) for s in sessions]
    engine = StackedEngine(model, [*experiments, fixed])
    states = engine.initial_states()
    told = list(adaptive_rounds(engine, states, [*sessions, None]))
    assert len(told) == 6
    assert len(told[0]) == 4
    for seed, (plan, session, state) in enumerate(zip(plans, sessions, states[:3], strict=True)):
        alone, single = trained(plan, model, records, seed=seed)
        assert np.array_equal(alone.book.draws, session.book.draws)
        assert torch.equal(single.parameters, state.parameters)
    engine, states = adaptive_stack(
        model,
        [AdaptiveSession(plans[0], model, records, streams=Streams.seeded(0))],
        optimiser=OPTIMISER,
    )
    assert len(states) == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_training_goes_on_as_if_nothing_had_happened(plan_of, model, records_of, rule):
    plan, entries = plan_of(rule), []
    whole, end = trained(plan, model, records_of())
    streams = Streams.seeded(0)
    first = AdaptiveSession(plan, model, records_of(), streams=streams, listener=entries.append)
    machine = BatchedEngine(
        first.plan,
        model,
        records_of(),
        streams=streams,
        optimiser=OPTIMISER,
        aggregation=first.aggregation,
    )
    state = machine.initial_state()
    rounds = adaptive_rounds(machine, [state], [first])
    for _ in range(3):
        next(rounds)
    kept, arrays = EngineState.from_arrays(state.to_arrays()), first.to_arrays()
    arrays = {name: array.copy() for name, array in arrays.items()}
    next(rounds)  # a fourth round, counted, but lost with the crash
    again, resumed = trained(plan, model, records_of(), entries=entries, start=kept, arrays=arrays)
    assert torch.equal(resumed.parameters, end.parameters)
    assert np.array_equal(again.book.draws, whole.book.draws)
    assert np.array_equal(again.book.reports_made, whole.book.reports_made)


def reachable(start):
    """Every object that can be reached from one without passing through modules or classes."""
    seen, queue = {}, [start]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, type) or type(thing).__name__ == "module":
            continue
        if callable(thing) and hasattr(thing, "__globals__"):
            queue.extend(c.cell_contents for c in thing.__closure__ or ())
            continue
        seen[id(thing)] = thing
        queue.extend(gc.get_referents(thing))
    return list(seen.values())


@pytest.mark.parametrize("rule", RULES)
def test_neither_rule_nor_view_leads_to_data(plan_of, model, records_of, rule):
    session, _ = trained(plan_of(rule), model, records_of())
    view = round_view(session.adaptive_plan, session.book, 6, session._sketches())
    kinds = (torch.Tensor, torch.nn.Module, ClientRecords, ReportDesk, Streams, EngineState)
    for start in (session.adaptive_plan.rule, view):
        found = [thing for thing in reachable(start) if isinstance(thing, kinds)]
        assert not found
    assert any(isinstance(thing, ClientRecords) for thing in reachable(session))


@pytest.mark.parametrize("rule", ["power-of-choice", "cpow-d"])
def test_a_client_that_is_not_asked_changes_no_cohort(plan_of, model, records_of, store, rule):
    plan = plan_of(rule, rule_settings={"d": 3})
    first = AdaptiveSession(plan, model, records_of(), streams=Streams.seeded(0))
    parameters = torch.zeros(15)
    cohort = first.decide(0, parameters)
    silent = sorted(set(range(8)) - set(first.book.answers(0)))
    inputs = store[0].reshape(8, 30, 4).copy()
    inputs[silent] = 1e3
    other = AdaptiveSession(
        plan, model, records_of(inputs.reshape(240, 4)), streams=Streams.seeded(0)
    )
    assert np.array_equal(other.decide(0, parameters), cohort)
    assert other.book.answers(0) == first.book.answers(0)


@pytest.mark.parametrize("rule", ["rpow-d", "ucb-cs", "oort", "clustered"])
def test_a_client_that_is_never_drawn_changes_nothing(
    plan_of, model, records_of, store, rule, settings
):
    from dataclasses import replace

    plan = plan_of(rule, training=replace(settings, rounds=2))
    session, state = trained(plan, model, records_of())
    never = np.flatnonzero(session.book.draws == 0)
    assert never.size > 0
    inputs = store[0].reshape(8, 30, 4).copy()
    inputs[never] = -1e3
    other, changed = trained(plan, model, records_of(inputs.reshape(240, 4)))
    assert torch.equal(changed.parameters, state.parameters)
    assert np.array_equal(other.book.draws, session.book.draws)


def test_loss_decides_when_reports_are_raw(plan_of, model, records_of, store):
    """d = N and raw: exactly the largest local losses."""
    plan = plan_of(reports="raw")
    session = AdaptiveSession(plan, model, records_of(), streams=Streams.seeded(0))
    parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    cohort = session.decide(0, parameters)
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(
            model(torch.tensor(store[0])), torch.tensor(store[1]), reduction="none"
        )
    means = losses.clamp(max=5.0).view(8, 30).mean(1).numpy()
    assert set(cohort.tolist()) == set(np.argsort(means)[-2:].tolist())
    assert not session.is_private


def test_raw_reports_cannot_go_on(plan_of, model, records_of):
    session = AdaptiveSession(
        plan_of(reports="raw"), model, records_of(), streams=Streams.seeded(0)
    )
    with pytest.raises(InputError, match="never written"):
        session.go_on([{"round": 0, "reports": ["client-1"]}], {})


@pytest.mark.parametrize("cut", ["counted", "answered"])
def test_a_crash_within_a_decision_changes_no_cohort(plan_of, model, records_of, cut):
    """At a cap of one report the client asked is no candidate for a second one, yet is drawn."""
    plan, entries = plan_of("rpow-d", report_cap=1), []
    parameters = torch.zeros(15)
    whole = AdaptiveSession(
        plan, model, records_of(), streams=Streams.seeded(0), listener=entries.append
    )
    cohort = whole.decide(0, parameters)
    kept = entries[:1] if cut == "counted" else entries[:2]
    again = AdaptiveSession(plan, model, records_of(), streams=Streams.seeded(0))
    again.go_on(kept, {})
    assert np.array_equal(again.decide(0, parameters), cohort)
    assert again.book.answers(0) == whole.book.answers(0)
    assert np.array_equal(again.book.reports_made, whole.book.reports_made)


def test_with_entropy_a_lost_report_stays_spent(plan_of, model, records_of):
    plan = plan_of("rpow-d", report_cap=1)
    session = AdaptiveSession(plan, model, records_of(), streams=Streams.from_entropy())
    session.go_on([{"round": 0, "reports": ["client-1", "client-2"]}], {})
    cohort = session.decide(0, torch.zeros(15))
    assert not set(session.book.answers(0)) & {1, 2}
    assert cohort.size == 2
    assert session.is_private
