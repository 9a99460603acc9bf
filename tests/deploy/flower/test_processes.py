# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from dpcohort.deploy.flower._trial import Processes, free_ports
from dpcohort.errors import DpcohortError, InputError

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
#: Ignores being asked, and has a child that does too.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", child]).pid, flush=True)
time.sleep(600)
"""


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def _gone(pid: int) -> bool:
    for _ in range(100):
        if not _alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_leaving_the_block_ends_a_process_and_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr("dpcohort.deploy.flower._trial._PATIENCE", 0.3)
    with Processes(tmp_path) as processes:
        processes.start("stubborn", [sys.executable, "-c", STUBBORN])
        processes.await_that("stubborn", lambda: processes.tail("stubborn"), "speak", seconds=30)
        pids = [processes.pid("stubborn"), int(processes.tail("stubborn"))]
        assert all(map(_alive, pids))
    assert all(map(_gone, pids))


def test_what_left_for_a_session_of_its_own_is_ended_too(tmp_path):
    code = STUBBORN.replace("child])", "child], start_new_session=True)")
    with Processes(tmp_path) as processes:
        processes.start("one", [sys.executable, "-c", code])
        processes.await_that("one", lambda: processes.tail("one"), "speak", seconds=30)
        child = int(processes.tail("one"))
        assert processes.descendants() == {processes.pid("one"), child}
        assert os.getsid(child) == child
        processes.kill("one")
        assert _alive(child)
    assert _gone(child)
    assert processes.descendants() == set()


def test_one_can_be_killed_and_the_others_stay(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start("one", SLEEP)
        processes.start("two", SLEEP)
        processes.kill("one")
        assert not processes.is_running("one")
        assert processes.is_running("two")
        assert processes.wait("two", seconds=0.05) is None
        with pytest.raises(InputError, match="not running"):
            processes.start("two", SLEEP)


def test_last_words_come_with_an_early_end(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start("one", [sys.executable, "-c", "print('port taken'); raise SystemExit(3)"])
        (port,) = free_ports(1)
        with pytest.raises(
            DpcohortError, match=r"one ended before it could listen(.|\n)*port taken"
        ):
            processes.await_port("one", port, seconds=30)
        assert processes.wait("one", seconds=30) == 3
        processes.start("two", SLEEP)
        with pytest.raises(DpcohortError, match=r"did not listen on port \d+ within 0.2 s"):
            processes.await_port("two", port, seconds=0.2)


def test_a_port_that_answers_is_noticed(tmp_path):
    with socket.socket() as listener, Processes(tmp_path) as processes:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        processes.start("one", SLEEP)
        processes.await_port("one", listener.getsockname()[1], seconds=10)
