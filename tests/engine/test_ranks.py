# SPDX-License-Identifier: Apache-2.0
"""Shares of a round put together are the round, to the bit, however many ranks there are."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcohort.engine import BatchedEngine, Experiment, Streams
from dpcohort.engine._experiment import cohort_of
from dpcohort.engine._ranks import LostRankError, Ranks, own_gpu
from dpcohort.errors import BudgetExceededError, InputError

from .conftest import seeded

SIZES = [20, 9, 15, 16, 12, 18, 14, 10, 17, 11]
COHORTS = [[0, 1, 0, 2, 3, 1, 4, 5, 6, 7, 2], [2, 3, 3, 0, 0, 3, 8, 9, 9, 1, 1]]
NOISE = [0.7, 0.0, 1.9, 0.2, 1.0, 0.4, 0.5, 0.6, 0.8, 0.9]  # client 1 is public
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class KeptShare(Ranks):
    """A rank that keeps what it would send."""

    def begin(self, *_: Any) -> None:
        self.rows: dict[int, Tensor] = {}
        self.total: Tensor | None = None

    def is_any(self, found: bool) -> bool:
        return found

    def collect(self, rows: Tensor, mine: range) -> None:
        self.count_of_rows = len(rows)
        self.rows = {i: rows[i].clone() for i in mine}

    def add(self, total: Tensor) -> None:
        self.total = total.clone()


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def records_on(make_records: Any, device: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        inputs = torch.randn(160, 4)
    return make_records(inputs, SIZES, dtype=torch.float32, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ranks", [2, 30])
@pytest.mark.parametrize("local_steps", [1, 2])
@pytest.mark.parametrize("merged", [False, True])
def test_shares_of_a_round_are_the_round(
    make_plan: Any, make_records: Any, merged: bool, local_steps: int, ranks: int, device: str
) -> None:
    """Three experiments side by side, batches in parts, noise of each draw or of all together."""
    plan = make_plan(SIZES, COHORTS, batch_size=8, local_steps=local_steps, noise=NOISE)
    records = records_on(make_records, device)
    experiments = [seeded(plan, records, s, merged_noise=merged) for s in (1, 2, 3)]
    engine = BatchedEngine(model(), experiments, micro_batch=60 if device == "cuda" else 3)
    parameters = [state.parameters for state in engine.initial_states()]
    cohorts = [cohort_of(plan, 1)] * 3
    whole = torch.cat([each.updates for each in engine.updates(parameters, cohorts)]).clone()
    found: list[int] = []
    for rank in range(ranks):
        share = BatchedEngine(model(), experiments, micro_batch=engine.micro_batch, workers=2)
        share.ranks = KeptShare(rank, ranks)
        share.updates(parameters, cohorts)
        assert share.ranks.count_of_rows == len(whole)
        for i, row in share.ranks.rows.items():
            assert torch.equal(row, whole[i])
        found += share.ranks.rows
    assert found == list(range(len(whole)))


def test_private_draws_are_shared_and_have_their_noise(make_plan: Any, make_records: Any) -> None:
    plan = make_plan(SIZES, COHORTS, batch_size=8)
    records = records_on(make_records, "cpu")
    experiment = Experiment(plan=plan, records=records, streams=Streams.from_entropy())
    cohort, found = cohort_of(plan, 0), []
    for rank in range(3):
        engine = BatchedEngine(model(), [experiment])
        engine.ranks = KeptShare(rank, 3)
        start = engine.initial_states()[0].parameters
        engine.updates([start], [cohort])
        mine = list(engine.ranks.rows)
        rows = {i: engine.ranks.rows[i] for i in mine}
        engine.updates([start], [cohort])
        for i in mine:
            again = engine.ranks.rows[i]
            assert not torch.equal(rows[i], again)
            assert torch.count_nonzero(rows[i]) > 0
        found += mine
    assert found == list(range(len(cohort)))


def test_a_distributed_private_sum_is_that_of_all_ranks_and_the_first_releases_it(
    make_plan: Any, make_records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = SIZES[:5]
    plan = make_plan(
        sizes, [[0, 1, 2, 3, 4]], batch_size=1, weights=[0.5, 1.0, 0.7, 0.2, 0.9], honest=3
    )
    plan.sampling_rates[:] = 1.0  # everybody's records, whatever the rng say
    released: list[Tensor] = []

    def release(total: Tensor, *_: Any, **__: Any) -> Tensor:
        released.append(total.clone())
        return total.float()

    monkeypatch.setattr("dpcohort.engine._batched.release_sum", release)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        records = make_records(torch.randn(160, 4), sizes, dtype=torch.float32)
    experiment = Experiment(plan=plan, records=records, streams=Streams.from_entropy())
    alone = BatchedEngine(model(), [experiment])
    start, cohorts = alone.initial_states()[0].parameters, [cohort_of(plan, 0)]
    alone.updates([start], cohorts)
    whole = released.pop()
    sums = []
    for rank in range(3):
        engine = BatchedEngine(model(), [experiment])
        engine.ranks = KeptShare(rank, 3)
        engine.updates([start], cohorts)
        sums.append(engine.ranks.total)
        assert len(released) == 1  # the first rank's, and no other's
    assert torch.equal(sum(sums[1:], sums[0]), whole)
    assert not torch.equal(sums[0], whole)


@pytest.mark.parametrize("units", [0, 1, 7, 8, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_every_unit_has_one_rank_and_shares_differ_by_one(units: int, count: int) -> None:
    shares = [Ranks(rank, count).share(units) for rank in range(count)]
    assert [unit for share in shares for unit in share] == list(range(units))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert units == 0 or shares[0]  # the first always has something to do


def test_rows_and_integers_come_together_on_the_first_rank(wire: Any) -> None:
    def rank() -> tuple[Tensor, Tensor, list[bool]]:
        ranks = Ranks.joined()
        rows, mine = torch.zeros(5, 2), ranks.share(5)
        rows[mine.start : mine.stop] = torch.arange(mine.start, mine.stop).float()[:, None]
        ranks.collect(rows, mine)
        total = torch.tensor([10**ranks.rank, 1])
        ranks.add(total)
        return rows, total, [ranks.is_any(ranks.rank == 2), ranks.is_any(False)]

    found = wire(3).run(rank, rank, rank)
    assert found[0][0].tolist() == [[float(row)] * 2 for row in range(5)]
    assert found[0][1].tolist() == [111, 3]
    assert [anywhere for _, _, anywhere in found] == [[True, False]] * 3


def test_rows_that_no_rank_or_two_have_computed_are_noticed(wire: Any) -> None:
    def rank() -> None:
        Ranks.joined().collect(torch.zeros(4, 1), range(2))

    with pytest.raises(RuntimeError, match=r"the ranks have the rows \[0, 1, 0, 1\] of 4"):
        wire(2).run(rank, rank)


def test_the_first_rank_says_what_is_done_and_nothing_else_before_it_is(wire: Any) -> None:
    cohort = SimpleNamespace(round=7, clients=np.array([2, 0, 2]))

    def first() -> None:
        ranks = Ranks.joined()
        ranks.tell(jobs=["a"])
        ranks.begin([torch.tensor([1.5, 2.5])], [cohort])
        with pytest.raises(InputError, match="left the ranks at different places"):
            ranks.tell(jobs=["b"])
        ranks.done()
        ranks.end(3)

    def second() -> list[Any]:
        ranks = Ranks.joined()
        told = [ranks.hear(), ranks.hear()]
        return [*told, ranks.copy_from_first(torch.zeros(2)).tolist(), ranks.hear()]

    _, heard = wire(2).run(first, second)
    begun = {"round": 7, "clients": [[2, 0, 2]]}
    assert heard == [{"jobs": ["a"]}, begun, [1.5, 2.5], {"end": 3}]


@pytest.mark.parametrize(
    ("code", "kind"), [(BudgetExceededError.exit_code, BudgetExceededError), (2, InputError)]
)
def test_what_went_wrong_on_another_rank_keeps_its_kind(wire: Any, code: int, kind: type) -> None:
    def first() -> None:
        with pytest.raises(kind, match="on rank 1: no more"):
            Ranks.joined().answers()

    def second() -> None:
        Ranks.joined().refuse(code, "no more")

    wire(3).run(first, second, lambda: Ranks.joined().answer(4))


def test_a_rank_that_is_lost_is_noticed_on_both_sides(wire: Any) -> None:
    net = wire(2)

    def first() -> None:
        ranks = Ranks.joined()
        with pytest.raises(InputError, match="goes on with --resume"):
            ranks.answers()
        assert ranks.is_broken
        ranks.end(4)  # nobody hears it, and the store keeps it

    def second() -> int | None:
        ranks = Ranks.joined()
        before = ranks.last_word()
        assert before is None
        net.cut()
        with pytest.raises(LostRankError):
            ranks.hear()
        return None

    net.run(first, second)
    assert Ranks(1, 2).last_word() == 4


def test_ranks_that_nobody_started_cannot_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="the ranks cannot meet"):
        Ranks.joined()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="names of threads, as on Linux")
def test_no_thread_that_spoke_with_other_ranks_outlives_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that still held a tensor when Python ended would abort a run that is done."""

    def speaking() -> set[str]:
        names = {}
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it ends while we look
                names[thread.name] = (thread / "comm").read_text()
        return {one for one, name in names.items() if "gloo" in name}

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in meeting.items():
        monkeypatch.setenv(name, str(value))
    before = speaking()
    ranks = Ranks.joined()
    assert speaking() > before
    ranks.end(0)  # and the object is still there
    for _ in range(200):  # a thread that has ended is listed for a moment more
        if speaking() == before:
            break
        time.sleep(0.05)
    assert speaking() == before
    assert ranks.leads


def test_a_round_has_as_many_parts_as_rows_while_it_is_known(
    make_plan: Any, make_records: Any
) -> None:
    plan = make_plan(SIZES, COHORTS, batch_size=8, noise=NOISE)
    experiment = seeded(plan, records_on(make_records, "cpu"), 1)
    engine = BatchedEngine(model(), [experiment])
    assert engine.parts_of(0) == len(COHORTS[0])
    assert engine.parts_of(len(COHORTS)) is None


def test_rows_go_from_gpu_to_gpu_where_each_rank_has_its_own(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = []
    net = wire(2)
    monkeypatch.setattr(
        net, "new_group", lambda backend, timeout: groups.append(backend) or backend
    )
    ranks = Ranks(0, 2)
    for wanted in (True, True, False):  # a group is made once and left where it is not wanted
        ranks.use_gpus(wanted)
    assert groups == ["nccl"]
    for processes, gpus in ((2, 2), (3, 2), (1, 0)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        assert own_gpu() == (processes <= gpus)


def test_a_store_that_is_gone_has_no_last_word(wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(keys: Any) -> bool:
        raise RuntimeError("connection refused")

    monkeypatch.setattr(wire(2), "check", gone)
    assert Ranks(1, 2).last_word() is None
