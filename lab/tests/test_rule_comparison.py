# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np
import pytest

from dpcohort.config import commented_config, loads_config
from dpcohort.runs._training import train_job
from dpcohort_lab import rule_comparison
from dpcohort_lab.rule_comparison import (
    chosen_rules,
    compare_rules,
    csv_table,
    noise_after,
    plain_table,
    rule_pairs,
)

SMALL = [
    "training.rounds=4", "training.cohort_size=4", "run.evaluate_every=4", "population.count=10"
]  # fmt: skip


def made(selections, aggregations, *changes, seeds=2):
    return rule_pairs(
        loads_config(commented_config("digits")).with_overrides([*SMALL, *changes]),
        selections=chosen_rules("selection", selections),
        aggregations=chosen_rules("aggregation", aggregations),
        seeds=seeds,
        device="cpu",
    )


@pytest.fixture(scope="module")
def table():
    pairs, skipped = made("unbiased,privacy-aware", "mean,size-weighted,inverse-variance")
    told = []
    rows = compare_rules(pairs, on_row=lambda *row: told.append(row))
    assert [(done, total) for done, total, _ in told] == [(i + 1, 5) for i in range(5)]
    return rows, skipped


def test_a_row_says_what_there_is_to_say(table):
    rows = {(row.selection, row.aggregation): row for row in table[0]}
    unbiased, aware = rows["unbiased", "mean"], rows["privacy-aware", "mean"]
    assert unbiased.bias == 0.0
    assert aware.bias > 0.1
    assert 0.9 < unbiased.certified <= 1.0
    assert len(unbiased.heard) == 10
    assert unbiased.heard_public is None
    assert unbiased.accuracy.count == 2
    assert aware.noise < unbiased.noise
    assert rows["unbiased", "inverse-variance"].noise < unbiased.noise
    assert unbiased.seconds > 0
    assert not unbiased.failed
    assert [aggregation for _, aggregation, _ in table[1]] == ["size-weighted"]


def test_a_pair_gives_what_its_training_alone_gives(table):
    pairs, _ = made("privacy-aware", "inverse-variance")
    alone = [train_job(job).test_accuracy for job in pairs[0][2]]
    row = next(r for r in table[0] if (r.selection, r.aggregation) == pairs[0][:2])
    assert row.accuracy.mean == pytest.approx(np.mean(alone), abs=1e-12)


@pytest.mark.parametrize("steps", [1, 3])
def test_noise_through_the_mean_is_that_of_the_plan(steps):
    pairs, _ = made("unbiased", "mean", f"training.local_steps={steps}", seeds=1)
    job = pairs[0][2][0]
    run = train_job(job)
    assert noise_after(job, run) == pytest.approx(job.plan.noise_to_clip, rel=0.05)


def test_a_rule_that_drops_the_noise_shows_less_of_it():
    pairs, _ = made("unbiased", "mean,minimum-noise,clipped-mean(bound=0.001)", seeds=1)
    mean, least, clipped = (noise_after(jobs[0], train_job(jobs[0])) for _, _, jobs in pairs)
    assert least < mean
    # The step size is 1, so that much of an update is at most that much of the gradient.
    assert clipped <= 0.001


def test_a_model_that_explodes_is_a_row_not_the_end():
    huge = ["optimiser.server_learning_rate=1e30", "optimiser.learning_rate=1e10"]
    pairs, _ = made("unbiased", "mean,inverse-variance", *huge, seeds=1)
    rows = compare_rules(pairs)
    assert [row.accuracy for row in rows] == [None, None]
    assert "not finite" in rows[0].failed
    assert "not finite" in csv_table(rows)
    json.dumps(plain_table(rows, []))


def test_adaptive_rules_stand_in_the_same_table():
    pairs, _ = made("unbiased,power-of-choice(d=8)", "mean", seeds=1)
    rows = compare_rules(pairs)
    assert rows[1].bias is None
    assert 0 < rows[1].certified <= 1.0
    assert rows[1].accuracy.mean > 0


def test_many_pairs_at_once_give_the_same_rows(monkeypatch, table):
    pairs, _ = made("unbiased,privacy-aware", "mean,size-weighted,inverse-variance")
    monkeypatch.setattr(rule_comparison, "_stacks", lambda pairs: iter([list(pairs)]))
    together = compare_rules(pairs)
    for one, other in zip(table[0], together, strict=True):
        assert one.accuracy == other.accuracy
        assert one.heard == other.heard


def test_runs_are_kept_when_asked(tmp_path):
    pairs, _ = made("unbiased", "trimmed-mean", seeds=1)
    compare_rules(pairs, out=tmp_path)
    kept = tmp_path / "unbiased_trimmed-mean" / "seed-0"
    assert (kept / "result.json").exists()
    assert 'rule = "trimmed-mean"' in (kept / "config.toml").read_text()
