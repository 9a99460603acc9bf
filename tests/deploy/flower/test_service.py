# SPDX-License-Identifier: Apache-2.0
"""The service that keeps a run going, over a SuperLink by script."""

from __future__ import annotations

import os

import pytest

from dpcohort.deploy.flower._certificates import key_fingerprint
from dpcohort.deploy.flower._service import Service
from dpcohort.errors import InputError, VerificationError, WaitingError
from dpcohort.runs._status import ASKED, Status, executed_by, read_status


class Script:
    """A SuperLink whose runs do what is scripted, a step at each look of the service."""

    def __init__(self, *steps):
        self.steps, self.started, self.slept, self.said = list(steps), [], [], []
        self.registered, self.away, self.stopped = {}, False, []

    def start(self, app, config):
        assert (app / "pyproject.toml").is_file()
        self.started.append(config)
        return len(self.started)

    def has_ended(self, run):
        return False

    def stop(self, run):
        self.stopped.append(run)

    def nodes(self):
        if self.away:
            self.away = False
            raise WaitingError.because("the SuperLink at 127.0.0.1:8000")
        return self.registered

    def register(self, public, name):
        self.registered[key_fingerprint(public)] = (len(self.registered), name)

    def unregister(self, node):
        self.registered = {k: v for k, v in self.registered.items() if v[0] != node}

    def sleep(self, seconds):
        self.slept.append(seconds)
        assert len(self.slept) < 50, self.said
        if self.steps:
            self.steps.pop(0)()


@pytest.fixture
def out(small):
    return small.kit / "server" / "run"


def _service(small, script, **how):
    path = small.kit / "server" / "federation.toml"
    return Service(path, script, say=script.said.append, sleep=script.sleep, **how)


def _execute(out, *told, error=None):
    """What a server app does, from its start to its end."""
    with Status(out, rounds=3) as status:
        for group, waiting, answered in told:
            status.asks(group, waiting, answered)
        if error is not None:
            raise error


def _finish(out):
    _execute(out, ("2", {}, ["lab"]))
    out.mkdir()
    (out / "result.json").write_text("{}")


def _failing(out, error, *told):
    def step():
        with pytest.raises(type(error)):
            _execute(out, *told, error=error)

    return step


def test_it_goes_on_whatever_ends_the_run_and_says_what_it_waits_for(small, out):
    away = WaitingError.because("not every client's terms cover the plan.\n  lab: no answer")
    held = []

    def hold():
        held.append(Status(out, rounds=3))
        held[0].asks("1", {"lab": "its node is not online", "ward 7": ASKED}, [])

    def die():  # without a last word, as one that is killed
        held[0]._file.close()

    script = Script(
        lambda: None,  # the SuperLink is away
        _failing(out, away),
        lambda: None,  # rests
        hold, lambda: None, die,
        lambda: None,
        lambda: _finish(out),
    )  # fmt: skip
    script.away = True
    _service(small, script).run()
    assert script.said == [
        "waiting: the SuperLink at 127.0.0.1:8000",
        "started run 1 of Flower",
        "waiting: not every client's terms cover the plan. lab: no answer",
        "started run 2 of Flower",
        "round 2 of 3: waiting for lab (its node is not online)",
        "waiting: the server app ended without a word; it is started again.",
        "started run 3 of Flower",
        f"finished: dpcohort verify {out}",
    ]
    assert all(config["resume"] and config["out"] == str(out) for config in script.started)
    assert {name for _, name in script.registered.values()} == {"ward 7", "lab"}


def test_it_waits_longer_as_long_as_no_round_is_done(small, out):
    away = WaitingError.because("nobody there")
    script = Script(*[_failing(out, away), lambda: None] * 9, lambda: _finish(out))
    _service(small, script).run()
    rests = script.slept[1::2]
    assert rests == [2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_what_waiting_does_not_mend_ends_it(small, out):
    script = Script(_failing(out, VerificationError("the ledger was changed")))
    with pytest.raises(InputError, match="the ledger was changed"):
        _service(small, script).run()
    assert len(script.started) == 1


def test_a_run_by_hand_is_left_alone_until_its_process_is_gone(small, out):
    by_hand = Status(out, rounds=3)
    assert executed_by(out) == f"process {os.getpid()}"
    with pytest.raises(WaitingError, match=rf"in use: process {os.getpid()} executes this run"):
        Status(out, rounds=3)
    script = Script(lambda: None, lambda: by_hand._file.close(), lambda: None, lambda: _finish(out))
    _service(small, script).run()
    assert executed_by(out) is None
    assert len(script.started) == 1


def test_two_services_for_one_run(small, out):
    def second():
        with pytest.raises(WaitingError, match=r"run.lock is in use: process \d+ is a service"):
            _service(small, Script()).run()
        _finish(out)

    _service(small, Script(second)).run()


def test_stopping_it_stops_the_run(small):
    def interrupt():
        raise KeyboardInterrupt

    script = Script(interrupt)
    with pytest.raises(KeyboardInterrupt):
        _service(small, script).run()
    assert script.stopped == [1]


def test_a_new_key_is_let_in_and_the_old_one_is_not(small, out):
    script = Script(lambda: _finish(out))
    script.registered = {"old": (7, "lab"), "of another": (8, "elsewhere")}
    _service(small, script).run()
    names = sorted(name for _, name in script.registered.values())
    assert "old" not in script.registered
    assert names == ["elsewhere", "lab", "ward 7"]


def test_a_status_keeps_since_when_a_client_is_missing(small, out):
    now = [100.0]

    def status():
        return Status(out, rounds=3, clock=lambda: now[0])

    with status() as first:
        first.asks("0", {"lab": "its node is not online"}, ["ward 7"])
    now[0] = 200.0
    with status() as second:  # after a crash of the server app
        second.asks("0", {"lab": "no guard answers", "ward 7": ASKED}, [])
        assert read_status(out)["missing"] == {"lab": {"since": 100.0, "why": "no guard answers"}}
        second.asks("0", {}, ["lab", "ward 7"])
        assert read_status(out)["missing"] == {}
    assert read_status(out)["doing"] == "finished"


def test_without_the_app_it_says_where_it_belongs(small, tmp_path):
    (small.kit / "app").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"server/app is not there: copy the kit's folder app"):
        _service(small, Script())
