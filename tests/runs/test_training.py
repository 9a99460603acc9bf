# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpcohort.config import commented_config, loads_config
from dpcohort.consent import allow_code
from dpcohort.engine import BatchedEngine, ConstantStep, Optimiser
from dpcohort.errors import InputError, VerificationError
from dpcohort.runs import EachRound, Run, configured_job, train, train_side_by_side, verify_run
from dpcohort.runs._folder import read_log
from dpcohort.runs._job import make_job
from dpcohort.runs._journal import Journal
from dpcohort.runs._training import train_job

from .conftest import ROUNDS, small_plan

ROOT = Path(__file__).parents[2]
QUICK = {"device": "cpu", "seed": 5, "evaluate_every": 2, "checkpoint_every": 2}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class StopError(Exception):
    """What a broken cable raises."""


class StopAfter:
    def __init__(self, round: int) -> None:
        self._round = round

    def on_round(self, record, run) -> None:
        if record.round == self._round:
            raise StopError


def test_the_folder_has_everything_and_verifies(finished):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "plan.json",
        "partition.npz",
        "run.json",
        "ledger.jsonl",
        "rounds.jsonl",
        "checkpoints",
        "receipts",
        "model.safetensors",
        "result.json",
        "environment.json",
    }
    found = verify_run(finished)
    assert found.holds, found.findings
    assert found.rounds == ROUNDS


def test_in_memory_and_on_disk_give_the_same_model(plan, digits, finished):
    run = train(plan, "logistic", digits, **QUICK)
    stored = Run.load(finished)
    assert run.path is None
    for name, weights in run.model.items():
        np.testing.assert_array_equal(weights, stored.model[name])
    assert run.test_accuracy == stored.test_accuracy


def test_the_reference_engine_gives_the_same_model_up_to_rounding(plan, digits, finished):
    run = train(plan, "logistic", digits, engine="reference", **QUICK)
    for name, weights in Run.load(finished).model.items():
        np.testing.assert_allclose(run.model[name], weights, rtol=1e-4, atol=1e-5)


def test_merged_noise_changes_the_noise_and_nothing_that_is_counted(
    plan, digits, finished, tmp_path
):
    """Same ledger, receipts and records; both engines agree; a stopped run goes on."""
    options = {**QUICK, "merged_noise": True}
    whole = train(plan, "logistic", digits, out=tmp_path / "whole", **options)
    found = verify_run(tmp_path / "whole")
    assert found.holds, found.findings
    assert (tmp_path / "whole/ledger.jsonl").read_bytes() == (
        finished / "ledger.jsonl"
    ).read_bytes()
    receipts = sorted((finished / "receipts").iterdir())
    assert receipts
    for receipt in receipts:
        merged = tmp_path / "whole/receipts" / receipt.name
        assert merged.read_bytes() == receipt.read_bytes()
    plain = Run.load(finished).model
    assert not any(np.array_equal(weights, plain[name]) for name, weights in whole.model.items())
    slow = train(plan, "logistic", digits, engine="reference", **options)
    for name, weights in whole.model.items():
        np.testing.assert_allclose(slow.model[name], weights, rtol=1e-4, atol=1e-5)
    with pytest.raises(StopError):
        train(plan, "logistic", digits, out=tmp_path / "part", callbacks=[StopAfter(2)], **options)
    with pytest.raises(InputError, match="merged_noise"):
        train(plan, "logistic", digits, out=tmp_path / "part", resume=True, **QUICK)
    resumed = train(plan, "logistic", digits, out=tmp_path / "part", resume=True, **options)
    for name, weights in whole.model.items():
        np.testing.assert_array_equal(resumed.model[name], weights)


@pytest.mark.parametrize("server", ["adam", "yogi"])
def test_a_run_with_a_server_optimiser_resumes_to_the_same_bytes(plan, digits, tmp_path, server):
    steps = Optimiser(local_step=0.5, server=server, server_settings={"lr": 0.05})
    options = {**QUICK, "optimiser": steps}
    whole = train(plan, "logistic", digits, out=tmp_path / "whole", **options)
    assert whole.settings["optimiser"]["server"] == server
    with pytest.raises(StopError):
        train(plan, "logistic", digits, out=tmp_path / "part", callbacks=[StopAfter(2)], **options)
    with pytest.raises(InputError, match="optimiser"):
        train(plan, "logistic", digits, out=tmp_path / "part", resume=True, **QUICK)
    resumed = train(plan, "logistic", digits, out=tmp_path / "part", resume=True, **options)
    for name, weights in whole.model.items():
        np.testing.assert_array_equal(resumed.model[name], weights)
    merged = train(plan, "logistic", digits, merged_noise=True, **options)
    slow = train(plan, "logistic", digits, merged_noise=True, engine="reference", **options)
    for name, weights in merged.model.items():
        np.testing.assert_allclose(slow.model[name], weights, rtol=1e-4, atol=1e-4)


def test_the_ledger_is_on_disk_before_the_round_is_computed(plan, digits, tmp_path, monkeypatch):
    compute = BatchedEngine.updates
    seen = []

    def watched(self, parameters, cohorts):
        seen.append((cohorts[0].round, len(read_log(tmp_path / "run" / "ledger.jsonl")) - 1))
        return compute(self, parameters, cohorts)

    monkeypatch.setattr(BatchedEngine, "updates", watched)
    train(plan, "logistic", digits, out=tmp_path / "run", **QUICK)
    assert seen == [(t, t + 1) for t in range(ROUNDS)]


@pytest.mark.parametrize("stop", [0, 2, 5])
def test_a_stopped_run_goes_on_to_the_same_bytes(plan, digits, finished, tmp_path, stop):
    out = tmp_path / "stopped"
    with pytest.raises(StopError):
        train(plan, "logistic", digits, out=out, callbacks=[StopAfter(stop)], **QUICK)
    halfway = verify_run(out)
    assert halfway.holds, halfway.findings
    assert halfway.rounds == stop + 1
    run = train(plan, "logistic", digits, out=out, resume=True, **QUICK)
    assert sha256(out / "model.safetensors") == sha256(finished / "model.safetensors")
    assert run.rounds_done == ROUNDS
    assert verify_run(out).holds


def test_a_finished_run_can_be_resumed_and_stays_the_same(plan, digits, finished):
    before = sha256(finished / "model.safetensors")
    train(plan, "logistic", digits, out=finished, resume=True, **QUICK)
    assert sha256(finished / "model.safetensors") == before


def test_a_run_folder_is_not_overwritten(plan, digits, finished):
    with pytest.raises(InputError, match="--resume"):
        train(plan, "logistic", digits, out=finished, **QUICK)


def test_a_resume_must_agree_with_the_beginning(plan, digits, finished):
    with pytest.raises(
        InputError, match=r"plan.*\(the seed of the schedule was \d+ and is 4\).*another folder"
    ):
        train(small_plan(seed=4), "logistic", digits, out=finished, resume=True, **QUICK)
    with pytest.raises(InputError, match=r"begun with (seed|partition|model)"):
        train(plan, "logistic", digits, out=finished, resume=True, **{**QUICK, "seed": 6})
    with pytest.raises(InputError, match="begun with optimiser"):
        train(
            plan,
            "logistic",
            digits,
            out=finished,
            resume=True,
            optimiser=Optimiser(local_step=ConstantStep(0.7)),
            **QUICK,
        )


def flip(path: Path, place: int = -5) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)


def test_a_flipped_byte_in_the_newest_checkpoint_costs_nothing(plan, digits, finished):
    newest = sorted((finished / "checkpoints").iterdir())[-1]
    before = sha256(finished / "model.safetensors")
    flip(newest)
    (finished / "result.json").unlink()
    run = train(plan, "logistic", digits, out=finished, resume=True, **QUICK)
    assert "damaged" in run.warnings[0]
    assert sha256(finished / "model.safetensors") == before
    assert verify_run(finished).holds


def test_a_model_that_is_not_finite_stops_and_the_last_state_stays(plan, digits, tmp_path):
    wild = Optimiser(local_step=ConstantStep(1e30), server_learning_rate=1e30)
    with pytest.raises(InputError, match=r"not finite.*kept in.*optimiser\.learning_rate"):
        train(plan, "logistic", digits, optimiser=wild, out=tmp_path / "run", **QUICK)
    checkpoints = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert checkpoints[-1].name == "round-0000000.safetensors"
    assert not (tmp_path / "run" / "model.safetensors").exists()
    found = verify_run(tmp_path / "run")
    assert found.holds
    assert found.rounds == 1


def test_a_full_disk_stops_before_the_round_and_says_so(plan, digits, tmp_path, monkeypatch):
    out = tmp_path / "run"
    written = os.write

    def full(descriptor, data):
        if b'"round": 3, "draws"' in bytes(data):
            raise OSError(28, "No space left on device")
        return written(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError, match="No space left"):
        train(plan, "logistic", digits, out=out, **QUICK)
    monkeypatch.undo()
    assert Run.load(out).ledger.rounds == {0, 1, 2}
    assert train(plan, "logistic", digits, out=out, resume=True, **QUICK).is_finished


def test_private_noise_is_never_the_same_and_rounds_are_never_repeated(plan, secret, tmp_path):
    out = tmp_path / "private"
    with pytest.raises(StopError):
        train(plan, "logistic", secret, out=out, callbacks=[StopAfter(1)], **QUICK)
    # A crash between the ledger and the checkpoint of rounds 2 and 3.
    journal = Journal(plan, out / "ledger.jsonl")
    for t in (2, 3):
        journal.count(t, plan.schedule.cohorts[t])
    journal.close()
    run = train(plan, "logistic", secret, out=out, resume=True, **QUICK)
    assert [line.lost for line in run.history] == [False, False, True, True, False, False]
    assert "lost" in run.warnings[0]
    assert all(math.isnan(line.seconds) for line in run.history)
    assert np.array_equal(run.ledger.draws, plan.counts)
    assert verify_run(out).holds
    assert "NOT PRIVATE" not in run.receipt("client-0").stamp
    other = train(plan, "logistic", secret, **QUICK)
    assert any((other.model[name] != weights).any() for name, weights in run.model.items())


def test_seeded_receipts_are_stamped(finished):
    for path in (finished / "receipts").iterdir():
        assert json.loads(path.read_text())["stamp"].startswith("NOT PRIVATE")


def test_nothing_about_a_clients_gradients_is_written(finished):
    allowed = {"round", "clients", "noise_stds", "seconds", "test", "test_average", "lost"}
    for entry in read_log(finished / "rounds.jsonl"):
        assert set(entry) <= allowed
    words = b"".join(p.read_bytes().lower() for p in finished.rglob("*.json*"))
    for word in (b"gradient_norm", b"client_loss", b"nonfinite", b"clipped"):
        assert word not in words


def test_a_lost_ledger_stops_a_resume(plan, digits, finished):
    (finished / "result.json").unlink()
    lines = (finished / "ledger.jsonl").read_text().splitlines(keepends=True)
    for content in ("", "".join(lines[:3])):
        (finished / "ledger.jsonl").write_text(content)
        with pytest.raises(VerificationError, match="does not count round"):
            train(plan, "logistic", digits, out=finished, resume=True, **QUICK)
    (finished / "ledger.jsonl").unlink()
    with pytest.raises(VerificationError, match="does not count round 0"):
        train(plan, "logistic", digits, out=finished, resume=True, **QUICK)


def test_what_cannot_listen_is_refused_before_anything_is_counted(plan, digits, tmp_path):
    with pytest.raises(InputError, match="on_round"):
        train(plan, "logistic", digits, device="cpu", out=tmp_path / "run", callbacks=[print])
    assert not (tmp_path / "run").exists()


# side by side


def jobs(digits, **changes):
    plans = [small_plan(), small_plan(selection="privacy-aware", accountant="paper", guard="lift")]
    return [
        make_job(
            plan,
            "logistic",
            digits,
            device="cpu",
            seed=seed,
            evaluate_every=3,
            **{"optimiser": Optimiser(local_step=ConstantStep(0.2 + seed)), **changes},
        )
        for seed, plan in enumerate(plans)
    ]


@pytest.mark.parametrize("merged_noise", [False, True])
def test_each_gets_the_result_it_would_get_alone(digits, tmp_path, merged_noise):
    told = []
    together = train_side_by_side(
        jobs(digits, merged_noise=merged_noise),
        outs=[tmp_path / "first", None],
        callbacks=[EachRound(2, lambda done, runs: told.append((done, len(runs))))],
    )
    assert told == [(t + 1, 2) for t in range(ROUNDS)]
    for job, run in zip(jobs(digits, merged_noise=merged_noise), together, strict=True):
        alone = train_job(job)
        for name, weights in alone.model.items():
            np.testing.assert_array_equal(run.model[name], weights)
        assert run.test_accuracy == alone.test_accuracy
        assert np.array_equal(run.ledger.draws, job.plan.counts)
    assert verify_run(tmp_path / "first").holds
    assert together[1].path is None


def test_every_round_is_counted_before_it_is_computed(digits, tmp_path, monkeypatch):
    order = []
    count, updates = Journal.count, BatchedEngine.updates

    def counted(self, *arguments):
        order.append("count")
        return count(self, *arguments)

    def computed(self, *arguments):
        order.append("compute")
        return updates(self, *arguments)

    monkeypatch.setattr(Journal, "count", counted)
    monkeypatch.setattr(BatchedEngine, "updates", computed)
    train_side_by_side(jobs(digits), outs=[tmp_path / "first", tmp_path / "second"])
    assert order == ["count", "count", "compute"] * ROUNDS


def test_what_does_not_go_together(digits, secret):
    with pytest.raises(InputError, match="at least one"):
        train_side_by_side([])
    with pytest.raises(InputError, match="private"):
        train_side_by_side(jobs(secret))
    with pytest.raises(InputError, match="batched"):
        train_side_by_side(jobs(digits, engine="reference"))
    with pytest.raises(InputError, match="evaluate as often"):
        train_side_by_side([jobs(digits)[0], replace(jobs(digits)[1], evaluate_every=5)])
    wild = jobs(
        digits, optimiser=Optimiser(local_step=ConstantStep(1e30), server_learning_rate=1e30)
    )
    with pytest.raises(InputError, match="not finite"):
        train_side_by_side([jobs(digits)[0], *wild])


@pytest.mark.parametrize("private", [False, True])
def test_a_loss_of_ones_own_that_fails_is_named_and_privately_not_quoted(
    plan, secret, tmp_path, monkeypatch, private
):
    lines = ["from torch.nn.functional import cross_entropy", "is_odd = False"]
    lines += ["from dpcohort import plugin", "@plugin('loss')"]
    lines += ["def loss(outputs, targets):", "    if is_odd: raise ValueError('record 7 is odd.')"]
    lines += ["    return cross_entropy(outputs, targets, reduction='none')"]
    (tmp_path / "lossy.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    allow_code("lossy")
    data = replace(secret, task=replace(secret.task, loss="lossy:loss"))
    job = make_job(plan, "logistic", data, device="cpu", simulate=None if private else 0)
    after_a_round = SimpleNamespace(
        on_round=lambda record, run: monkeypatch.setattr("lossy.is_odd", True)
    )
    with pytest.raises(InputError) as caught:
        train_job(job, callbacks=[after_a_round])
    words = str(caught.value)
    assert words.startswith("the loss lossy:loss failed on records of a round (lossy.py, line 6)")
    assert ("record 7 is odd" in words) != private
    assert ("withheld" in words) == private
    monkeypatch.delitem(sys.modules, "lossy")


def test_a_run_with_code_of_ones_own_says_where_that_was_found(digits, tmp_path, monkeypatch):
    (tmp_path / "kind.py").write_text(
        "from torch.nn.functional import cross_entropy\n"
        "from dpcohort import plugin\n@plugin('loss')\n"
        "def loss(outputs, targets):\n"
        "    return cross_entropy(outputs, targets, reduction='none')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    allow_code("kind")
    changes = ["training.rounds=1", "training.cohort_size=2", "task.loss=kind:loss"]
    config = loads_config(commented_config("digits")).with_overrides(changes)
    train_job(configured_job(config, data=digits, device="cpu"), out=tmp_path / "runs" / "one")
    written = json.loads((tmp_path / "runs" / "one" / "environment.json").read_text())
    assert written["began_in"] == "../.."
    monkeypatch.delitem(sys.modules, "kind")
