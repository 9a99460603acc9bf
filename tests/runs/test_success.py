# SPDX-License-Identifier: Apache-2.0
"""Every run is set beside the best constant, and says when it is not better."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.consent import allow_code
from dpcohort.data import Dataset, dataset_from_arrays
from dpcohort.engine import ConstantStep, Optimiser
from dpcohort.round_record import RoundRecord, TestResult
from dpcohort.runs import Run, compare_runs, train, verify_run
from dpcohort.runs._job import make_job
from dpcohort.runs._success import check_of, judgement, plan_warnings, task_of
from dpcohort.tasks import Task

STAY = Task(kind="regression", outputs=1, bounds=(0.0, 20.0))


def stays(noise: float = 0.5) -> Dataset:
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (500, 3))
    y = 10 + 5 * x[:, 0] - 3 * x[:, 1] + rng.normal(0, noise, 500)
    return dataset_from_arrays(
        "stays", train_inputs=x[:400], train_labels=y[:400], test_inputs=x[400:],
        test_labels=y[400:], task=STAY, test_public=True, public=True,
    )  # fmt: skip


def plan_of(epsilon: float = 50.0, rounds: int = 40, **changes: object):
    clients = Population.from_arrays(sizes=[100] * 4, epsilon=[epsilon] * 4, delta=1e-5)
    settings = {"cohort_size": 3, "batch_size": 50, "clip": 0.08, "dimension": 4, **changes}
    return make_plan(clients, Training(rounds=rounds, **settings), selection="unbiased", seed=0)


def trained(data: Dataset, plan=None, *, step: float = 3.0, **options: object) -> Run:
    steps = Optimiser(local_step=ConstantStep(step))
    return train(plan or plan_of(), "logistic", data, optimiser=steps, device="cpu", **options)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return trained(stays(), out=tmp_path_factory.mktemp("runs") / "good")


def test_result_json_has_the_metrics_the_constant_and_the_warnings(good):
    result = json.loads((good.path / "result.json").read_text())
    assert list(result["metrics"]) == list(result["trivial"])
    assert result["metrics"]["rmse"] < 2 < 3 < result["trivial"]["rmse"]
    assert result["metrics"]["rmse"] == pytest.approx(result["test"]["value"], rel=1e-6)
    assert result["check"]["is_better"]
    assert result["warnings"] == []
    stored = json.loads((good.path / "run.json").read_text())
    assert stored["task"] == {"kind": "regression", "loss": "squared", "bounds": [0.0, 20.0]}
    assert verify_run(good.path).holds


def test_a_run_read_back_says_the_same(good):
    again = Run.load(good.path)
    assert again.check == good.check
    assert (again.task, again.metric.name) == (STAY, "rmse")
    assert np.array_equal(again.curve().score, good.curve().score)
    assert again.curve().score[-1] < again.curve().score[0]
    (good.path / "copy").mkdir()
    assert again.judged["metrics"] == good.judged["metrics"]


def test_a_model_that_learns_nothing_is_said_to_be_none():
    useless = trained(stays(), step=1e-6)
    words = " ".join(useless.judged["warnings"])
    assert not useless.check.is_better
    assert "NOT BETTER than always saying" in words
    assert "whatever they hold" in words


def test_runs_are_compared_by_the_metric_of_their_task(good):
    worse = trained(stays(), step=1e-6)
    found = compare_runs([good], [worse], names=("good", "bad"))
    assert found.difference.mean == pytest.approx(worse.test.score - good.test.score)
    assert found.sentence.startswith("good better than bad by ")
    assert " in RMSE with one seed" in found.sentence
    back = compare_runs([worse], [good], names=("bad", "good"))
    assert "But bad: test RMSE" in back.sentence
    assert "NOT BETTER" in back.sentence


def test_a_diverging_model_is_named():
    wild = trained(stays(), plan_of(epsilon=0.2, rounds=30), step=20.0, evaluate_every=3)
    assert any("diverges" in words for words in wild.judged["warnings"])


def test_probabilities_worse_than_those_of_a_constant_are_named():
    labels = np.arange(200) % 2
    sure = np.where(labels[:, None] == [0, 1], 9.0, -9.0)
    sure[:30] *= -1  # right of 85 %, and as sure where it is wrong
    judged = judgement(Task(outputs=2), sure, labels, plan=plan_of(), history=[])
    assert judged["check"]["is_better"]
    assert any("worse than a constant's: log loss 2.7, 0.693" in s for s in judged["warnings"])
    assert (
        judgement(Task(outputs=2), sure / 9, labels, plan=plan_of(), history=[])["warnings"] == []
    )


def test_a_clip_that_binds_all_is_named():
    warnings = trained(stays(), plan_of(clip=1e-5)).judged["warnings"]
    assert any("100 % of the test records have a gradient longer than" in one for one in warnings)


@dataclass(frozen=True, kw_only=True, eq=False)
class WithPrivateTest(Dataset):
    """A data set whose test records are clients' too."""

    test_public: bool = False


def test_private_test_records_leave_no_trace_in_a_private_run(tmp_path):
    data = stays()
    fields = {name: getattr(data, name) for name in data.__dataclass_fields__}
    held = WithPrivateTest(**{**fields, "test_public": False, "public": False})
    run = trained(held, plan_of(rounds=4), out=tmp_path / "private")
    result = json.loads((tmp_path / "private" / "result.json").read_text())
    assert result["test"] is None
    assert not {"metrics", "trivial", "check"} & set(result)
    assert "not public and this run is private" in result["warnings"][0]
    assert '"test"' not in (tmp_path / "private" / "rounds.jsonl").read_text()
    assert not run.has_test
    assert result["withheld"]
    with pytest.raises(ValueError, match="tells nothing of its test records"):
        _ = Run.load(tmp_path / "private").test
    assert run.check is None
    # A simulation is not private anyway, and public records may be told of.
    assert trained(held, plan_of(rounds=4), simulate=0).check is not None
    assert trained(replace(data, public=False), plan_of(rounds=4)).check is not None


def test_noise_above_any_signal_is_told_from_the_plan():
    assert plan_warnings(plan_of(epsilon=50.0)) == []
    loud = plan_of(epsilon=0.01)
    ratio = loud.noise_to_clip / np.sqrt(40)
    assert ratio > 1
    assert f"{ratio:.2g} times as long" in plan_warnings(loud)[0]


def test_a_selection_that_moves_nothing_is_told_with_its_threshold():
    clients = Population.from_arrays(sizes=[90] * 3, epsilon=[0.5, 4.0, 8.0], delta=1e-5)
    settings = Training(rounds=20, cohort_size=2, batch_size=9)

    def words(eta):
        from dpcohort.selection import rule_from_settings

        plan = make_plan(clients, settings, seed=0,
                         selection=rule_from_settings("privacy-aware", eta=eta))  # fmt: skip
        return [one for one in plan_warnings(plan) if "selection" in one]

    (said,) = words(1e-3)
    threshold = float(said.split("η₀ = ")[1].split()[0])
    assert "your η is 0.001" in said
    # It is exact: just below nothing moves, just above something does.
    assert words(0.999 * threshold)
    assert not words(1.01 * threshold)


def test_an_own_loss_is_tried_before_anything_is_made(tmp_path, monkeypatch):
    (tmp_path / "own_losses_of_a_job.py").write_text(
        "from dpcohort import plugin\n@plugin('loss')\n"
        "def mean(outputs, targets):\n"
        "    return (outputs[:, 0] - targets).square().mean().expand(len(targets))\n"
    )
    monkeypatch.chdir(tmp_path)
    allow_code("own_losses_of_a_job")
    data = stays()
    mixed = replace(data, task=replace(STAY, loss="own_losses_of_a_job:mean"))
    with pytest.raises(ValueError, match="mixes the examples"):
        make_job(plan_of(), "logistic", mixed, device="cpu")


def test_runs_of_older_versions_are_judged_by_their_counts():
    test = TestResult(accuracy=0.9, loss=0.3, class_accuracy=(0.9, 0.9), class_counts=(60, 40))
    found = check_of({}, test)
    assert (found.trivial, found.is_better) == (0.6, True)
    assert check_of({"check": {"broken": 1}}, test) is None


def test_without_scikit_learn_there_are_no_metrics_and_it_is_said(monkeypatch):
    def gone(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("dpcohort.metrics.importlib", SimpleNamespace(import_module=gone))
    line = RoundRecord(round=0, clients=(0,), noise_stds=(0.1,), seconds=0.1)
    found = judgement(STAY, np.zeros((4, 1)), np.linspace(-1, 1, 4), plan=plan_of(), history=[line])
    assert found["metrics"] == {}
    assert any("scikit-learn" in words for words in found["warnings"])
    assert found["check"]["metric"] == "rmse"


@pytest.mark.parametrize("said", [{"kind": "guessing"}, {"kind": 3}, "counts"])
def test_a_task_that_nobody_knows_is_shown_as_plain_classes(said):
    assert task_of({"data": {"classes": 4}, "task": said}).kind == "classification"
