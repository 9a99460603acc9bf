# SPDX-License-Identifier: Apache-2.0
"""Two processes: the server's rounds here, a client's guard there, killed in the middle of a draw.

The whole federation over Flower, each part killed in turn, is ``benchmarks/storm.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from dpcohort.deploy._formats import replace
from dpcohort.deploy.flower import federate
from dpcohort.deploy.flower._exchange import InProcess
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower.client_app import carry
from dpcohort.errors import DpcohortError
from dpcohort.runs import verify_run
from dpcohort.runs._folder import read_log


class _GuardProcess:
    """A client's guard in a process of its own, started again whenever it has died."""

    def __init__(self, small, client, folder):
        self._small, self._client, self.path = small, client, folder / "guard.sock"
        self._process = None
        self.start()

    def start(self):
        folder = client_folder(self._small.kit, self._client)
        self.path.unlink(missing_ok=True)
        new_ledger = [] if (folder / "client.ledger").exists() else ["--new-ledger"]
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "dpcohort", "guard", "--terms", str(folder / "terms.toml"),
                "--data", str(folder / "data.npz"), "--ledger", str(folder / "client.ledger"),
                "--socket", str(self.path), *new_ledger,
            ],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        for _ in range(1200):
            if self.path.is_socket():
                return
            assert self._process.poll() is None, "the guard did not start"
            time.sleep(0.05)
        raise AssertionError("the guard does not listen")

    def kill(self):
        self._process.kill()
        self._process.wait()

    def carry(self, body):
        if self._process.poll() is not None:
            self.start()
        return carry(body, {"guard": str(self.path)})


@pytest.fixture
def guard(small, tmp_path_factory):
    found = _GuardProcess(small, "lab", tmp_path_factory.mktemp("s"))
    yield found
    found.kill()


def test_a_guard_killed_in_a_draw_loses_that_draw_and_counts_each_once(small, guard, tmp_path):
    federation = replace(small.federation, timeout=120.0)
    keys = federation.fingerprints
    killed = []

    def kill_when_counting():
        """Kill it as soon as a draw of a later round is counted."""
        while not killed:
            with suppress(DpcohortError):  # read while it is written
                draws = small.counted("lab")
                if any(round > 0 for round, _ in draws):
                    guard.kill()
                    killed.append(dict(draws))
            time.sleep(0.001)

    with small.guards() as others:
        transport = InProcess({keys["lab"]: guard.carry, keys["ward 7"]: others.carry})
        watcher = threading.Thread(target=kill_when_counting, daemon=True)
        watcher.start()
        run = federate(federation, transport, out=tmp_path / "run", poll=0.0)
        watcher.join(timeout=10)
    assert killed
    plan = federation.plan
    for k, client in enumerate(plan.population.ids):
        draws = small.counted(client)
        planned = {
            (t, d)
            for t in range(plan.training.rounds)
            for d in range(int((plan.schedule.cohorts[t] == k).sum()))
        }
        assert set(draws) == planned
        assert sum(draw is None for draw in draws.values()) <= (client == "lab")
    lost = sum(d is None for d in small.counted("lab").values())
    told = sum(
        len(found)
        for line in read_log(tmp_path / "run" / "exchange.jsonl")
        for found in line["lost"].values()
    )
    assert told == lost
    assert run.is_finished
    assert verify_run(tmp_path / "run").holds
