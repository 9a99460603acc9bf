# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
import tempfile

import pytest

from dpcohort.deploy.flower import Federation, federate, write_kit
from dpcohort.deploy.flower import _trial as demo
from dpcohort.deploy.flower._trial import write_client_data
from dpcohort.deploy.flower.client_app import LocalGuards
from dpcohort.errors import InputError
from dpcohort.runs import verify_run


def test_the_demos_federation_runs_in_one_process(tmp_path):
    settings, records = demo.demo_settings(rounds=1)
    kit = write_kit(tmp_path / "kit", **settings)
    write_client_data(kit, records)
    federation = Federation.load(kit / "server/federation.toml")
    with LocalGuards(kit / "clients") as guards:
        run = federate(federation, guards.transport(federation), out=tmp_path / "run", poll=0.0)
    assert verify_run(tmp_path / "run").holds
    assert run.test_accuracy > 0.3


def test_a_part_that_fails_ends_all_and_keeps_the_logs(tmp_path, monkeypatch):
    started = []

    def fail(federation, say):
        federation.processes.start("one", [sys.executable, "-c", "import time; time.sleep(600)"])
        started.append(federation.processes)
        raise InputError.because("port taken")

    monkeypatch.setattr(demo, "start_all", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said = []
    with pytest.raises(InputError, match="port taken"):
        demo.run_demo(tmp_path / "run", say=said.append)
    assert not started[0].is_running("one")
    (kept,) = tmp_path.glob("dpcohort-*")
    assert said[-1] == f"kit and logs are kept in {kept}"
    assert (kept / "kit").is_dir()
