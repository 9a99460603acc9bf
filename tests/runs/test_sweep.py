# SPDX-License-Identifier: Apache-2.0
"""Sweeps in several processes: same numbers as in one, what is lost is told, nothing hangs."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from dpcohort.config import commented_config, loads_config
from dpcohort.errors import DpcohortError, InputError
from dpcohort.runs import Workers, configured_job, train_side_by_side

SHORT = ["training.rounds=2", "run.evaluate_every=2"]


@pytest.fixture(scope="module")
def cells():
    config = loads_config(commented_config("digits")).with_overrides(SHORT)
    jobs = [configured_job(config, shift=seed, device="cpu") for seed in range(4)]
    return [partial(train_side_by_side, [job]) for job in jobs]


def scores(workers, cells):
    return {place: runs[0].test.loss for place, runs in workers.results(cells)}


@pytest.mark.filterwarnings("ignore")  # of Dask and its web server, at start and end
def test_cells_on_a_cluster_are_those_of_one_process_though_a_worker_is_killed(cells):
    distributed = pytest.importorskip("distributed")
    alone = scores(Workers(), cells)
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        workers = Workers(backend=f"dask={cluster.scheduler_address}")
        done = {}
        for place, runs in workers.results(cells):
            if not done:
                os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
            done[place] = runs[0].test.loss
    assert done == alone


def test_cells_in_processes_here_are_those_of_one_and_errors_come_back(cells):
    (job,) = cells[0].args[0]
    wild = partial(cells[0].func, [job], outs=["/proc/nowhere/at/all"])
    alone = scores(Workers(), cells[:2])
    assert scores(Workers(2), cells[:2]) == alone
    with pytest.raises(DpcohortError, match="nowhere"):
        scores(Workers(2), [wild])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"jobs": 0}, "--jobs = 0"),
        ({"backend": "slurm=here"}, "dask=tcp"),
        ({"backend": "dask"}, "dask=tcp"),
    ],
)
def test_what_is_no_backend(given, message):
    with pytest.raises(InputError, match=message):
        Workers(**given)


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_is_not_there(monkeypatch, cells):
    pytest.importorskip("distributed")
    monkeypatch.setattr("dpcohort.runs._sweep._SECONDS_TO_ANSWER", "1s")
    with pytest.raises(InputError, match="no Dask scheduler answers at tcp"):
        scores(Workers(backend="dask=tcp://127.0.0.1:9"), cells)


def test_what_cannot_be_sent(cells):
    with pytest.raises(InputError, match="cannot be sent to another process"):
        scores(Workers(2), [lambda *, callbacks=(): None])
