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


def test_parts_are_started_with_the_options_of_the_units(trial, tmp_path):
    trial.start_superlink()
    trial.start_node("lab")
    trial.start_run(tmp_path / "run")
    units = {
        "superlink": "dpcohort-superlink.service",
        "node-1": "dpcohort-node.service",
        "run": "dpcohort-run.service",
    }
    for name, file in units.items():
        text = kit_text(file, host="127.0.0.1", gate=9443, superlink=8000, client="lab", run="")
        unit = shlex.split(text.split("ExecStart=")[1].split("\n#")[0].replace("\\\n", " "))
        wanted = {word for word in unit if word.startswith("--")}
        assert _options(trial.processes.commands[name]) - {"--out"} == wanted, name


def test_a_failed_run_gives_the_last_words(trial, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.log").write_text("started\nError: the plan was changed\n")
    with pytest.raises(DpcohortError, match=r"the run failed.\nstarted\nError: the plan was ch"):
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
