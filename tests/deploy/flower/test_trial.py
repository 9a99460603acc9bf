# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shlex
import stat
import sys

import numpy as np
import pytest

from dpcohort.deploy.flower._kit import client_folder, kit_text
from dpcohort.deploy.flower._trial import Processes, Trial
from dpcohort.errors import DpcohortError, InputError


class _Noted(Processes):
    """Notes what would be started."""

    def __init__(self, logs):
        super().__init__(logs)
        self.commands: dict[str, list[str]] = {}
        self.environments: dict[str, dict[str, str]] = {}

    def start(self, name, command, *, env=None):
        self.commands[name], self.environments[name] = list(command), dict(env or {})

    def await_port(self, name, port, *, seconds):
        pass

    def wait(self, name, *, seconds):
        return 0


@pytest.fixture
def trial(small, tmp_path):
    return Trial(
        kit=small.kit,
        processes=_Noted(tmp_path / "logs"),
        sockets={"ward 7": tmp_path / "0.sock", "lab": tmp_path / "1.sock"},
        superlink_port=8000,
    )


def _options(command):
    return {word for word in command if word.startswith("--")}


def test_parts_are_started_with_the_options_of_the_units(trial):
    trial.start_superlink()
    trial.start_node("lab")
    units = {"superlink": "dpcohort-superlink.service", "node-1": "dpcohort-node.service"}
    for name, file in units.items():
        text = kit_text(file, host="127.0.0.1", gate=9443, superlink=8000, client="lab")
        unit = shlex.split(text.split("ExecStart=")[1].split("\n#")[0].replace("\\\n", " "))
        wanted = {word for word in unit if word.startswith("--")}
        assert _options(trial.processes.commands[name]) == wanted, name


def test_a_run_is_begun_and_gone_on_with(trial, tmp_path):
    trial.start_run(tmp_path / "run")
    assert trial.processes.commands["run"][-1] == f'out="{tmp_path / "run"}" resume=false'
    trial.start_run(tmp_path / "run", resume=True)
    assert trial.processes.commands["run"][-1].endswith("resume=true")


def test_all_keys_are_registered_by_the_operator(trial):
    trial.register()
    for place, client in enumerate(trial.clients):
        command = trial.processes.commands[f"register-{place}"]
        assert str(client_folder(trial.kit, client) / "node.pub") in command
        assert command[-2:] == ["--name", client]
    trial.processes.wait = lambda name, *, seconds: 1
    with pytest.raises(DpcohortError, match="ward 7 could not be registered"):
        trial.register()


def test_a_failed_run_gives_the_servers_own_error(trial, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.log").write_text(
        "noise\nerror: terms\n  lab: no\nERROR: it raised\nTraceback\n"
    )
    with pytest.raises(DpcohortError, match=r"the run failed.\nerror: terms\n  lab: no$"):
        trial.await_run(tmp_path / "run", seconds=1)


def test_a_finished_run_is_noticed(trial, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    trial.await_run(tmp_path / "run", seconds=1)


def test_records_are_readable_by_their_owner_alone(small):
    for client in small.federation.clients:
        path = client_folder(small.kit, client) / "data.npz"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with np.load(path) as found:
            assert len(found["inputs"]) == len(found["labels"])


def test_a_missing_program_names_the_extra(trial, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"flower-superlink is not there.*dpcohort\[flower\]"):
        trial.start_superlink()
