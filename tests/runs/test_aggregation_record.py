# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re

import numpy as np
import pytest

from dpcohort.aggregation import SizeWeighted, TrimmedMean
from dpcohort.config import commented_config, loads_config
from dpcohort.errors import FileFormatError, InputError
from dpcohort.runs import aggregation_for, configured_job, train, train_side_by_side, verify_run
from dpcohort.runs._aggregation_record import described_aggregation
from dpcohort.runs._job import make_job
from dpcohort.runs._training import train_job

SMALL = [
    "training.rounds=4", "training.cohort_size=3", "run.evaluate_every=4", "population.count=8"
]  # fmt: skip


def config(*changes):
    return loads_config(commented_config("digits")).with_overrides([*SMALL, *changes])


def weights(run):
    return np.concatenate([run.model[name].ravel() for name in sorted(run.model)])


def test_a_name_gets_what_the_plan_knows_and_an_object_stays(plan):
    assert aggregation_for(plan, "size-weighted").sizes.tolist() == [150.0] * 8
    assert aggregation_for(plan, "trimmed-mean", {"trim": 0.2}) == TrimmedMean(trim=0.2)
    mine = TrimmedMean(trim=0.3)
    assert aggregation_for(plan, mine) is mine


@pytest.mark.parametrize("wrong", [3, None, TrimmedMean, object()])
def test_what_is_no_aggregation(plan, wrong):
    with pytest.raises(InputError, match=r"combine\(updates, cohort\)"):
        aggregation_for(plan, wrong)


def test_the_plain_mean_leaves_no_trace(plan, digits):
    job = make_job(plan, "logistic", digits, device="cpu")
    assert described_aggregation(job.aggregation, plan) is None
    assert "aggregation" not in job.settings()
    assert (job.title, job.settings()["label"]) == ("unbiased", "unbiased")


def test_other_rules_are_told_with_their_settings(plan, digits):
    job = make_job(plan, "logistic", digits, device="cpu", aggregation="size-weighted")
    told = {"rule": "size-weighted", "settings": {"sizes": "the plan's"}}
    assert job.settings()["aggregation"] == told
    assert job.title == "unbiased, size-weighted"
    other = described_aggregation(SizeWeighted(sizes=[1.0] * 8), plan)
    assert other["settings"]["sizes"].startswith("sha256:")
    json.dumps(told)


class Loudest:
    """A user's own rule, without any of our words."""

    def combine(self, updates, cohort):
        return updates[updates.norm(dim=1).argmax()].clone()


def test_a_rule_of_ones_own_is_told_by_its_place(plan, digits, tmp_path):
    told = described_aggregation(Loudest(), plan)
    assert told["rule"].endswith(":Loudest")
    train(plan, "logistic", digits, device="cpu", aggregation=Loudest(), out=tmp_path / "run")
    found = verify_run(tmp_path / "run")
    assert found.holds
    assert any("not of this package" in finding.message for finding in found.findings)


def test_alone_and_side_by_side_are_the_same(digits):
    rules = ["mean", "inverse-variance", "projected-plus"]
    jobs = [
        configured_job(config(f"aggregation.rule={rule}"), data=digits, device="cpu")
        for rule in rules
    ]
    alone = [weights(train_job(job)) for job in jobs]
    together = [weights(run) for run in train_side_by_side(jobs)]
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)
    assert not np.array_equal(alone[0], alone[1])


@pytest.mark.parametrize("rule", ["inverse-variance", "projected-plus"])
def test_a_resumed_run_ends_in_the_same_bytes(plan, digits, tmp_path, rule):
    whole = train(plan, "logistic", digits, device="cpu", aggregation=rule, seed=5)

    class Stop:
        def on_round(self, line, run):
            if line.round == 2:
                raise KeyboardInterrupt

    options = {"device": "cpu", "aggregation": rule, "seed": 5, "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        train(plan, "logistic", digits, out=tmp_path / "r", callbacks=[Stop()], **options)
    again = train(plan, "logistic", digits, out=tmp_path / "r", resume=True, **options)
    assert np.array_equal(weights(whole), weights(again))
    assert verify_run(tmp_path / "r").holds


def test_a_resume_with_another_aggregation_is_refused(plan, digits, tmp_path):
    out = tmp_path / "run"
    train(plan, "logistic", digits, device="cpu", out=out, aggregation="trimmed-mean")
    with pytest.raises(InputError, match=r"begun with aggregation = \{'rule': 'trimmed-mean'"):
        train(plan, "logistic", digits, device="cpu", out=out, resume=True)
    changed = TrimmedMean(trim=0.3)
    with pytest.raises(InputError, match="another folder"):
        train(plan, "logistic", digits, device="cpu", out=out, resume=True, aggregation=changed)


def test_verify_holds_the_record_against_plan_and_configuration(tmp_path):
    out = tmp_path / "run"
    train_job(configured_job(config("aggregation.rule=trimmed-mean"), device="cpu"), out=out)
    assert verify_run(out).holds
    stored = json.loads((out / "run.json").read_text())
    for changed, words in (
        ({"rule": "geometric-median", "settings": {}}, r"config.toml of trimmed-mean"),
        ({"rule": "trimmed-mean", "settings": {"trim": 0.9}}, "trim = 0.9"),
        ({"rule": "trimmed-mean", "settings": {"trimm": 0.1}}, "Did you mean 'trim'"),
        ("trimmed-mean", "which no run writes"),
    ):
        (out / "run.json").write_text(json.dumps({**stored, "aggregation": changed}))
        found = verify_run(out)
        assert not found.holds
        assert any(re.search(words, finding.message) for finding in found.findings)
    del stored["aggregation"]
    (out / "run.json").write_text(json.dumps(stored))
    assert any("config.toml of trimmed-mean" in f.message for f in verify_run(out).findings)


def test_configurations_are_checked_when_they_are_read():
    with pytest.raises(FileFormatError, match=r"aggregation.rule = .*Did you mean 'mean'"):
        config("aggregation.rule=meen")
    with pytest.raises(FileFormatError, match=r"aggregation.trim = 0.7"):
        config("aggregation.rule=trimmed-mean", "aggregation.trim=0.7")
    with pytest.raises(FileFormatError, match=r"trimm is not a setting .*Did you mean 'trim'"):
        config("aggregation.rule=trimmed-mean", "aggregation.trimm=0.1")
    with pytest.raises(FileFormatError, match="needs the setting 'bound'"):
        config("aggregation.rule=clipped-mean")
    good = config("aggregation.rule=trimmed-mean", "aggregation.trim=0.2")
    assert good.aggregation == ("trimmed-mean", {"trim": 0.2})
    assert good.with_overrides(["aggregation.rule=mean"]).aggregation == ("mean", {})
