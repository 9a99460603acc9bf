# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.runs import Callback, Run, train


class Listener:
    def __init__(self, stop_at: int | None = None) -> None:
        self.seen: list[int] = []
        self._stop_at = stop_at

    def on_round(self, record, run) -> None:
        assert run.history[-1] is record
        assert record.round in run.ledger.rounds
        self.seen.append(record.round)
        if record.round == self._stop_at:
            raise KeyboardInterrupt


def test_is_told_every_round(plan, digits):
    listener = Listener()
    assert isinstance(listener, Callback)
    train(plan, "logistic", digits, device="cpu", callbacks=[listener])
    assert listener.seen == list(range(plan.training.rounds))


def test_may_stop_the_run_and_nothing_is_lost(plan, digits, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(
            plan,
            "logistic",
            digits,
            device="cpu",
            out=tmp_path / "run",
            checkpoint_every=100,
            callbacks=[Listener(stop_at=2)],
        )
    assert Run.load(tmp_path / "run").rounds_done == 3
    names = [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()]
    assert names == ["round-0000003.safetensors"]
