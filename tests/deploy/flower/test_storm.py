# SPDX-License-Identifier: Apache-2.0
"""A storm in seconds: real guards in this process, and anything dies at random moments.

With processes, TLS and a SuperLink it is ``benchmarks/storm.py``.
"""

from __future__ import annotations

import random

import pytest

from dpcohort.deploy.flower import federate
from dpcohort.deploy.flower._exchange import InProcess
from dpcohort.deploy.flower._service import Service
from dpcohort.errors import WaitingError
from dpcohort.runs import verify_run
from dpcohort.runs._status import Status


class Killed(BaseException):
    """What a server app never catches."""


class Storm:
    """A SuperLink whose runs are executed at once, and in which so many parts die."""

    def __init__(self, small, seed, kills):
        self.small, self.rng, self.kills = small, random.Random(seed), kills
        self.guards, self.said, self.started, self.died = None, [], 0, []

    def maybe(self, what):
        """Whether this dies now."""
        if len(self.died) < self.kills and self.rng.random() < 0.3:
            self.died.append(what)
            return True
        return False

    def carry(self, body):
        if self.maybe("node"):
            raise ConnectionError("the node is gone")
        if self.maybe("guard"):  # it is started anew, with its ledger
            self.guards.close()
        answer = self.guards.carry(body)
        if self.maybe("server app"):
            raise Killed
        if self.maybe("answer"):
            raise ConnectionError("the node died before it could answer")
        return answer

    def start(self, app, config):
        self.started += 1
        out = self.small.kit / "server" / "run"
        federation = self.small.federation
        keys = federation.fingerprints.values()
        try:
            with self.small.guards() as self.guards, Status(out, rounds=3) as status:
                transport = InProcess(dict.fromkeys(keys, self.carry))
                how = {"out": out, "resume": True, "poll": 0.0, "tell": status.asks}
                federate(federation, transport, **how)
        except (Killed, WaitingError):
            pass
        return self.started

    def has_ended(self, run):
        return True

    def nodes(self):
        if self.maybe("SuperLink"):
            raise WaitingError.because("the SuperLink at 127.0.0.1:8000")
        return {}

    def register(self, public, name):
        """All are let in."""


@pytest.mark.parametrize("seed", range(3))
def test_whatever_dies_every_draw_is_counted_once_and_the_run_finishes(small, seed):
    storm = Storm(small, seed, kills=8)
    path = small.kit / "server" / "federation.toml"
    Service(path, storm, say=storm.said.append, sleep=lambda seconds: None).run()
    plan, out = small.federation.plan, small.kit / "server" / "run"
    for k, client in enumerate(plan.population.ids):
        planned = {
            (t, draw)
            for t in range(plan.training.rounds)
            for draw in range(int((plan.schedule.cohorts[t] == k).sum()))
        }
        counted = small.counted(client)
        assert set(counted) == planned
    assert verify_run(out).holds
    assert len(storm.died) == 8, storm.died
    assert storm.said[-1].startswith("finished")
