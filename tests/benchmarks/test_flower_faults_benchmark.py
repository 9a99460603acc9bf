# SPDX-License-Identifier: Apache-2.0
"""The judge of ``benchmarks/flower_faults.py``: on a run without faults, and on a wrong one."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from dpcohort.deploy.flower.client_app import LocalGuards
from dpcohort.deploy.flower.federation import Federation
from dpcohort.deploy.flower.kit import client_folder, write_kit
from dpcohort.deploy.flower.rounds import federate
from dpcohort.deploy.flower.trial import Processes, Trial, write_client_data
from dpcohort.errors import DpcohortError

PATH = Path(__file__).parents[2] / "benchmarks" / "flower_faults.py"


@pytest.fixture(scope="module")
def faults():
    spec = importlib.util.spec_from_file_location("flower_faults", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_judge_counts_what_the_ledgers_say(faults, tmp_path):
    settings, records = faults.slow_settings(rounds=1, local_steps=1)
    kit = write_kit(tmp_path / "kit", **settings)
    write_client_data(kit, records)
    federation = Federation.load(kit / "server/federation.toml")
    out = tmp_path / "run"
    with LocalGuards(kit / "clients") as guards:
        federate(federation, guards.transport(federation), out=out, poll=0.0)
    trial = Trial(
        kit=kit,
        processes=Processes(tmp_path),
        sockets=dict.fromkeys(federation.drawn, tmp_path / "guard.sock"),
        superlink_port=1,
    )
    found = faults.outcome(trial, settings, out)
    assert found["planned"] == found["counted"]
    assert sum(found["planned"].values()) == settings["plan"].training.cohort_size
    assert sum(found["lost"].values()) == found["resent"] == 0
    assert found["verifies"]
    more, _ = faults.slow_settings(rounds=2, local_steps=1)
    with pytest.raises(DpcohortError, match="planned"):
        faults.outcome(trial, more, out)


def test_processes_are_found_by_their_ancestors(faults):
    assert faults._ancestors(os.getpid())[0] == os.getppid()


def test_a_supernode_reaches_the_superlink_and_its_own_guard_only(faults, tmp_path, monkeypatch):
    monkeypatch.setattr(faults, "program", lambda name: name)
    started: dict[str, tuple[list[str], dict[str, str]]] = {}

    class Noted(Processes):
        def start(self, name, command, *, env=None):
            started[name] = list(command), dict(env or {})

    place = tmp_path / "1.sock"
    trial = Trial(
        kit=tmp_path,
        processes=Noted(tmp_path),
        sockets={"ward 7": tmp_path / "0.sock", "lab": place},
        superlink_port=8000,
    )
    client_folder(tmp_path, "lab").mkdir(parents=True)
    faults.start_supernode(trial, "lab")
    command, environment = started["node-1"]
    assert command[command.index("--superlink") + 1] == "127.0.0.1:8000"
    assert command[-1] == f'guard="{place}"'
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_HOME"] != str(tmp_path / "server/flwr")
