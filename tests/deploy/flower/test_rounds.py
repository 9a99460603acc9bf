# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
from typing import ClassVar

import numpy as np
import pytest
import torch

from dpcohort.adaptive import make_adaptive_plan
from dpcohort.aggregation import Mean, ProjectedPlus
from dpcohort.clients import Population
from dpcohort.deploy._formats import replace
from dpcohort.deploy.flower import Federation, federate, write_kit
from dpcohort.deploy.flower._record import FederatedJob
from dpcohort.engine._experiment import cohort_of
from dpcohort.errors import InputError, VerificationError
from dpcohort.runs import Run, train, verify_run
from dpcohort.runs._folder import read_json, read_log
from dpcohort.signatures import DrawSignature
from dpcohort.training import Training

from .conftest import Fakes, identity_of, small_settings


def _federate(small, fakes, out, **changes):
    return federate(small.federation, fakes.transport(), out=out, poll=0.0, **changes)


def _planned(small, client):
    plan = small.federation.plan
    k = plan.population.index_of(client)
    cohorts = plan.schedule.cohorts
    return {(t, d) for t in range(len(cohorts)) for d in range(int((cohorts[t] == k).sum()))}


def test_a_run_asks_for_exactly_the_planned_draws_and_verifies(small, fakes, tmp_path):
    run = _federate(small, fakes, tmp_path / "run")
    for client, guard in fakes.items():
        assert sorted(guard.asked) == sorted(_planned(small, client))
    assert run.is_finished
    assert run.warnings == []
    verification = verify_run(tmp_path / "run")
    assert verification.holds, verification.findings
    assert Run.load(tmp_path / "run").test_accuracy == run.test_accuracy
    told = read_json(tmp_path / "run" / "client-ledgers.json")
    counted = {client: told[client]["spending"]["counted_draws"] for client in fakes}
    assert counted == {client: len(_planned(small, client)) for client in fakes}


def _signatures(folder):
    return [DrawSignature.from_line(line) for line in read_log(folder / "signatures.jsonl")]


def test_the_run_folder_has_the_signature_of_every_draw(small, fakes, tmp_path):
    members = {"lab": identity_of("lab").public}  # of ward 7 the first key counts
    federation = replace(small.federation, members=members)
    run = federate(federation, fakes.transport(), out=tmp_path / "run", poll=0.0)
    signatures = _signatures(tmp_path / "run")
    plan, name = small.federation.plan, small.federation.run
    for client, guard in fakes.items():
        signed = {(one.round, one.draw): one for one in signatures if one.client == client}
        assert sorted(signed) == sorted(_planned(small, client))
        assert {one.key for one in signed.values()} == {identity_of(client).public}
        for draw, one in signed.items():
            assert one.is_of(name, plan.sha256)
            assert one.released == hashlib.sha256(guard.updates[draw].tobytes()).hexdigest()
    assert run.settings["members"] == members
    sealed = read_json(tmp_path / "run" / "result.json")["sha256"]
    file = (tmp_path / "run" / "signatures.jsonl").read_bytes()
    assert sealed["signatures.jsonl"] == hashlib.sha256(file).hexdigest()


def test_a_guard_with_another_key_than_the_pinned_one_is_not_asked(small, fakes, tmp_path):
    federation = replace(small.federation, members={"lab": identity_of("somebody").public})
    with pytest.raises(InputError, match=r"lab: its guard signs with the key .* has another"):
        federate(federation, fakes.transport(), out=tmp_path / "run", poll=0.0)
    assert fakes["lab"].asked == []


@pytest.mark.parametrize("part", ["missing", "forged"])
def test_draws_without_a_signature_of_their_guard_are_lost(small, fakes, tmp_path, part):
    forged = {
        "missing": lambda update, request: update,
        "forged": lambda update, request: update.signed(
            "lab", request.plan, key=fakes["lab"].says["key"], sign=lambda b: "00" * 64
        ),
    }
    fakes["lab"].signed = forged[part]
    federation = replace(small.federation, quorum=0.1)
    federate(federation, fakes.transport(), out=tmp_path / "run", poll=0.0)
    assert {one.client for one in _signatures(tmp_path / "run")} == {"ward 7"}
    lost = [line["lost"].get("lab", {}) for line in read_log(tmp_path / "run" / "exchange.jsonl")]
    assert sum(map(len, lost)) == len(_planned(small, "lab"))


def test_signatures_of_a_resumed_run_are_there_once_and_fix_the_keys(small, fakes, tmp_path):
    class CrashError(Exception):
        pass

    class Stop:
        def on_round(self, record, run):
            raise CrashError

    with pytest.raises(CrashError):
        _federate(small, fakes, tmp_path / "run", callbacks=[Stop()])
    run, folder = small.federation.run, tmp_path / "run"
    first = _signatures(folder)
    assert first
    _federate(small, fakes, folder, resume=True)
    signatures = _signatures(folder)
    assert signatures[: len(first)] == first
    assert len(set(signatures)) == len(signatures)
    assert all(one.is_of(run, small.federation.plan.sha256) for one in signatures)


def test_a_run_whose_signatures_were_changed_is_not_continued(small, fakes, tmp_path):
    class Stop:
        def on_round(self, record, run):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _federate(small, fakes, tmp_path / "run", callbacks=[Stop()])
    file = tmp_path / "run" / "signatures.jsonl"
    file.write_text(file.read_text().replace('"draw": 0', '"draw": 9'))
    with pytest.raises(VerificationError, match="has not signed it"):
        _federate(small, fakes, tmp_path / "run", resume=True)


def test_one_letter_a_client_and_round(small, fakes, tmp_path):
    transport = fakes.transport()
    pushed = []
    push = transport.push
    transport.push = lambda letters, **how: pushed.append(len(letters)) or push(letters, **how)
    federate(small.federation, transport, out=tmp_path / "run", poll=0.0)
    cohorts = small.federation.plan.schedule.cohorts
    assert pushed == [2, *(len(set(row)) for row in cohorts.tolist())]


def _is_moved_by(run, small, fakes, rounds):
    """Whether the model is the initial one, moved by the means of these rounds."""
    job = FederatedJob.of(small.federation)
    weights = job.initial()
    plan = small.federation.plan
    for t in rounds:
        cohort = cohort_of(plan, t)
        rows = [
            fakes[plan.population.ids[k]].updates[(t, d)]
            for k, d in zip(cohort.clients.tolist(), cohort.draws.tolist(), strict=True)
        ]
        weights = weights - Mean().combine(torch.from_numpy(np.stack(rows)), cohort)
    trained = np.concatenate([run.model[name].ravel() for name, _ in job.model.named_parameters()])
    return np.allclose(trained, weights.numpy(), atol=1e-6)


def test_updates_are_combined_as_the_engine_does(small, fakes, tmp_path):
    run = _federate(small, fakes, tmp_path / "run")
    assert _is_moved_by(run, small, fakes, [0, 1, 2])


class _Overheard(ProjectedPlus):
    """A rule with memory that keeps a copy of the updates of every round."""

    heard: ClassVar[dict[int, np.ndarray]] = {}

    def combine_remembering(self, updates, cohort, memory):
        self.heard[cohort.round] = updates.numpy().copy()
        return super().combine_remembering(updates, cohort, memory)


@pytest.mark.parametrize("stop_after", [None, 0, 1])
def test_a_rule_with_memory_and_an_adaptive_server_train_the_same_model_as_on_one_machine(
    small, fakes, tmp_path, stop_after
):
    steps = {"learning_rate": 1.0, "server": "adam", "server_settings": {"lr": 0.05}}
    federation = replace(small.federation, aggregation={"rule": "projected-plus"}, optimiser=steps)
    plan, job = federation.plan, FederatedJob.of(federation)
    own = _Overheard()
    local = train(
        plan,
        "logistic",
        "digits",
        optimiser=job.optimiser,
        aggregation=own,
        seed=federation.seed,
        device="cpu",
    )
    for t, rows in own.heard.items():  # the guards answer what the local clients did
        cohort = cohort_of(plan, t)
        for k, d, row in zip(cohort.clients, cohort.draws, rows, strict=True):
            fakes[plan.population.ids[k]].updates[(t, int(d))] = row

    class StopError(Exception):
        pass

    class Stop:
        def on_round(self, record, run):
            if record.round == stop_after:
                raise StopError

    def go(**how):
        return federate(federation, fakes.transport(), out=tmp_path / "run", poll=0.0, **how)

    if stop_after is not None:
        with pytest.raises(StopError):
            go(callbacks=[Stop()])
    run = go(resume=stop_after is not None)
    assert run.settings["aggregation"]["rule"] == "projected-plus"
    for name, weights in local.model.items():
        assert np.array_equal(run.model[name], weights)


@pytest.mark.parametrize("stop_after", [0, 1, 2])
def test_a_stopped_run_goes_on_and_spends_nothing_twice(small, fakes, tmp_path, stop_after):
    class CrashError(Exception):
        pass

    class Stop:
        def on_round(self, record, run):
            if record.round == stop_after:
                raise CrashError

    with pytest.raises(CrashError):
        _federate(small, fakes, tmp_path / "run", callbacks=[Stop()])
    run = _federate(small, fakes, tmp_path / "run", resume=True)
    assert run.is_finished
    assert verify_run(tmp_path / "run").holds
    whole = small.kit.parent / "whole"
    straight = _federate(small, type(fakes)(small.federation), whole)
    for name, weights in straight.model.items():
        assert np.array_equal(run.model[name], weights)  # as if it had never stopped


def test_a_round_lost_before_its_checkpoint_is_replayed_from_the_ledgers(
    small, fakes, tmp_path, monkeypatch
):
    from dpcohort.runs._recorder import Recorder

    after = Recorder.after_round

    def crash(self, record, state):
        if record.round == 1:
            raise KeyboardInterrupt  # all answers are there; nothing of the round is kept
        return after(self, record, state)

    monkeypatch.setattr(Recorder, "after_round", crash)
    with pytest.raises(KeyboardInterrupt):
        _federate(small, fakes, tmp_path / "run")
    monkeypatch.setattr(Recorder, "after_round", after)
    _federate(small, fakes, tmp_path / "run", resume=True)
    lines = read_log(tmp_path / "run" / "exchange.jsonl")
    again = [line for line in lines if line["round"] == 1]
    assert [line["resent"] for line in again] == [0, small.federation.plan.training.cohort_size]
    for client, guard in fakes.items():
        assert set(guard.done) == _planned(small, client)  # each draw computed once
    assert verify_run(tmp_path / "run").holds


def test_a_lost_draw_is_lost_and_the_rest_is_combined(small, fakes, tmp_path):
    fakes["lab"].fails = {next(iter(_planned(small, "lab")))}
    run = _federate(small, fakes, tmp_path / "run")
    assert run.is_finished
    assert "1 of 3 draws are lost (lab)" in run.warnings[0]
    assert verify_run(tmp_path / "run").holds  # lost draws stay counted


@pytest.mark.parametrize("came", [0, 1])
def test_below_the_quorum_the_model_stays(small, fakes, tmp_path, came):
    drawn = [(client, key) for client in fakes for key in sorted(_planned(small, client))]
    for client, key in [draw for draw in drawn if draw[1][0] == 1][came:]:
        fakes[client].fails.add(key)
    run = _federate(small, fakes, tmp_path / "run")
    assert [line.lost for line in run.history] == [False, True, False]
    assert "Too few came" in run.warnings[0]
    assert verify_run(tmp_path / "run").holds
    assert _is_moved_by(run, small, fakes, [0, 2])


def test_a_round_that_was_passed_over_is_not_asked_for_again(small, fakes, tmp_path):
    class Stop:
        def on_round(self, record, run):
            if record.lost:
                raise KeyboardInterrupt

    for client, guard in fakes.items():
        guard.fails = {key for key in _planned(small, client) if key[0] == 1}
    with pytest.raises(KeyboardInterrupt):
        _federate(small, fakes, tmp_path / "run", callbacks=[Stop()])
    for guard in fakes.values():
        guard.fails = set()
    run = _federate(small, fakes, tmp_path / "run", resume=True)
    assert [line["round"] for line in read_log(tmp_path / "run" / "exchange.jsonl")] == [0, 1, 2]
    assert [line.lost for line in run.history] == [False, True, False]


def test_terms_that_do_not_fit_end_before_a_draw(small, fakes, tmp_path):
    fakes["lab"].says["accepted"]["draws"] = 1
    fakes["ward 7"].says["records"] = 7
    with pytest.raises(
        InputError, match=r"nothing spent(.|\n)*lab: its terms(.|\n)*ward 7: its data"
    ):
        _federate(small, fakes, tmp_path / "run")
    assert all(guard.asked == [] for guard in fakes.values())
    assert not (tmp_path / "run").exists()


def test_a_guard_that_does_not_run_ends_before_a_draw(small, fakes, tmp_path):
    fakes["lab"].absent = True
    with pytest.raises(InputError, match="lab: no-guard: no guard answers"):
        _federate(small, fakes, tmp_path / "run")
    assert fakes["ward 7"].asked == []
    assert not (tmp_path / "run").exists()


def test_a_client_whose_node_never_comes_ends_before_a_draw(small, fakes, tmp_path):
    federation = replace(small.federation, timeout=0.05)
    transport = fakes.transport()
    gone = federation.fingerprints["lab"]
    here = [(key, node) for key, node in transport.nodes() if key != gone]
    transport.nodes = lambda: here
    with pytest.raises(InputError, match="lab: no answer: its node was not online"):
        federate(federation, transport, out=tmp_path / "run", poll=0.01)
    assert not (tmp_path / "run").exists()


def test_another_aggregation_and_no_test_set(small, fakes, tmp_path):
    federation = replace(
        small.federation, test="", aggregation={"rule": "trimmed-mean", "trim": 0.3}
    )
    run = federate(federation, fakes.transport(), out=tmp_path / "run", poll=0.0)
    assert run.settings["aggregation"]["rule"] == "trimmed-mean"
    assert all(line.test is None for line in run.history)
    assert verify_run(tmp_path / "run").holds


def test_a_test_set_of_other_records_is_refused(small, fakes, tmp_path):
    model = replace(small.federation.model, input_shape=(64,))
    federation = replace(small.federation, model=model)
    with pytest.raises(InputError, match=r"records of shape \(1, 8, 8\), the model takes \(64,\)"):
        federate(federation, fakes.transport(), out=tmp_path / "run", poll=0.0)


def test_a_guard_that_is_being_started_is_waited_for(small, fakes, tmp_path):
    guard, tries = fakes["lab"], []
    enter = type(guard).__enter__

    class Late(type(guard)):
        def __enter__(self):
            tries.append(1)
            self.absent = len(tries) < 3
            return enter(self)

    guard.__class__ = Late
    run = _federate(small, fakes, tmp_path / "run")
    assert run.is_finished


def test_a_start_cut_short_is_begun_again_by_a_resume(small, fakes, tmp_path):
    (tmp_path / "run").mkdir()
    small.federation.plan.save(tmp_path / "run" / "plan.json")
    with pytest.raises(InputError, match="exists and holds something else"):
        _federate(small, fakes, tmp_path / "run")
    assert _federate(small, fakes, tmp_path / "run", resume=True).is_finished


def test_a_finished_run_resumed_is_the_same_run(small, fakes, tmp_path):
    before = _federate(small, fakes, tmp_path / "run")
    ledgers = (tmp_path / "run" / "client-ledgers.json").read_bytes()
    asked = {client: list(guard.asked) for client, guard in fakes.items()}
    again = _federate(small, fakes, tmp_path / "run", resume=True)
    assert {client: guard.asked for client, guard in fakes.items()} == asked
    assert (tmp_path / "run" / "client-ledgers.json").read_bytes() == ledgers
    assert all(np.array_equal(again.model[name], w) for name, w in before.model.items())
    assert verify_run(tmp_path / "run").holds


@pytest.fixture
def clustered(tmp_path):
    """A federation whose rule chooses cohorts from earlier updates, and its fake guards."""
    population = Population.from_arrays(
        ids=["ward 7", "lab", "ward 9", "clinic"],
        sizes=[300, 400, 300, 350],
        epsilon=[4.0, 8.0, 2.0, 6.0],
        delta=1e-5,
    )
    training = Training(rounds=5, cohort_size=2, local_steps=2, batch_size=60, dimension=650)
    plan = make_adaptive_plan(
        population, training, rule="clustered", rule_settings={"clusters": 2}, seed=3
    )
    kit = write_kit(tmp_path / "kit", **small_settings(plan=plan))
    federation = Federation.load(kit / "server/federation.toml")
    return federation, Fakes(federation)


@pytest.mark.parametrize("stop_after", [None, 2])
def test_an_adaptive_rule_that_asks_for_nothing_chooses_within_the_caps(
    clustered, tmp_path, stop_after
):
    federation, fakes = clustered
    plan = federation.plan

    class CrashError(Exception):
        pass

    class Stop:
        def on_round(self, record, run):
            if record.round == stop_after:
                raise CrashError

    def go(out, guards=fakes, **how):
        return federate(federation, guards.transport(), out=tmp_path / out, poll=0.0, **how)

    if stop_after is not None:
        with pytest.raises(CrashError):
            go("run", callbacks=[Stop()])
    run = go("run", resume=stop_after is not None)
    assert run.is_finished
    assert run.ledger.draws.sum() == plan.training.total_draws
    assert (run.ledger.draws <= plan.counts).all()
    assert not run.ledger.reports.any()
    for k, client in enumerate(plan.population.ids):
        assert len(fakes[client].done) == run.ledger.draws[k]  # each draw computed once
    found = verify_run(tmp_path / "run")
    assert found.holds, found.findings
    straight = go("straight", Fakes(federation))
    assert [line.clients for line in straight.history] == [line.clients for line in run.history]
    for name, weights in straight.model.items():
        assert np.array_equal(run.model[name], weights)


def test_a_rule_that_asks_for_raw_reports_is_told_that_guards_give_none(clustered, tmp_path):
    federation, fakes = clustered
    population, training = federation.plan.population, federation.plan.training
    plan = make_adaptive_plan(population, training, reports="raw", seed=3)
    asking = replace(federation, plan=plan)
    with pytest.raises(InputError, match=r"chooses from raw reports .* none without noise"):
        federate(asking, fakes.transport(), out=tmp_path / "run", poll=0.0)
    assert all(guard.asked == [] for guard in fakes.values())
    assert not (tmp_path / "run").exists()
