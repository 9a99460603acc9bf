# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.engine import ConstantStep, Optimiser
from dpcohort.engine.draws import DrawRunner
from dpcohort.errors import InputError
from dpcohort.runs import verify_run
from dpcohort.runs.job import make_job
from dpcohort.runs.ledger import Ledger
from dpcohort.runs.training import train_job, train_side_by_side

from .conftest import ROUNDS, small_plan


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
        on_round=lambda done, runs: told.append((done, len(runs))),
    )
    assert told == [(t + 1, 2) for t in range(ROUNDS)]
    for job, run in zip(jobs(digits, merged_noise=merged_noise), together, strict=True):
        alone = train_job(job)
        for name, weights in alone.model.items():
            np.testing.assert_array_equal(run.model[name], weights)
        assert run.test_accuracy == alone.test_accuracy
        assert np.array_equal(run.ledger.draws, job.plan.schedule.counts)
    assert verify_run(tmp_path / "first").holds
    assert together[1].path is None


def test_every_round_is_counted_before_it_is_computed(digits, tmp_path, monkeypatch):
    order = []
    count, updates = Ledger.count, DrawRunner.updates_and_upcoming

    def counted(self, round):
        order.append("count")
        return count(self, round)

    def computed(self, *arguments):
        order.append("compute")
        return updates(self, *arguments)

    monkeypatch.setattr(Ledger, "count", counted)
    monkeypatch.setattr(DrawRunner, "updates_and_upcoming", computed)
    train_side_by_side(jobs(digits), outs=[tmp_path / "first", tmp_path / "second"])
    assert order == ["count", "count", "compute"] * ROUNDS


def test_what_does_not_go_together(digits):
    with pytest.raises(InputError, match="at least one"):
        train_side_by_side([])
    with pytest.raises(InputError, match="private"):
        train_side_by_side(jobs(digits, private_entropy=True))
    with pytest.raises(InputError, match="batched"):
        train_side_by_side(jobs(digits, engine="reference"))
    wild = jobs(
        digits, optimiser=Optimiser(local_step=ConstantStep(1e30), server_learning_rate=1e30)
    )
    with pytest.raises(InputError, match="not finite"):
        train_side_by_side([jobs(digits)[0], *wild])
