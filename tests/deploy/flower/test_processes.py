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


def test_an_exception_ends_them_too(tmp_path):
    pids = []

    def interrupted():
        with Processes(tmp_path) as processes:
            processes.start("one", SLEEP)
            pids.append(processes.pid("one"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert _gone(pids[0])


def test_one_that_was_killed_leaves_a_child_which_is_ended_with_the_block(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start("one", [sys.executable, "-c", STUBBORN])
        processes.await_that("one", lambda: processes.tail("one"), "speak", seconds=30)
        child = int(processes.tail("one"))
        processes.kill("one")
        assert not processes.is_running("one")
        assert _alive(child)
        processes.start("one", SLEEP)  # the same name, after a crash
        assert processes.is_running("one")
    assert _gone(child)


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


def test_a_program_that_is_not_there_is_said(tmp_path):
    with Processes(tmp_path) as processes, pytest.raises(InputError, match="cannot be started"):
        processes.start("one", [str(tmp_path / "none")])


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


def test_free_ports_are_different_and_free():
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_a_group_is_its_own(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start("one", SLEEP)
        assert os.getpgid(processes.pid("one")) == processes.pid("one") != os.getpgid(0)
