# SPDX-License-Identifier: Apache-2.0
"""Commands under ``torchrun``: two processes give the run of one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dpcohort.cli import main
from dpcohort.config import commented_config

LIMIT = 300  # seconds after which a process hangs, on the busiest machine
#: A loss that kills the second rank once four rounds are written down.
DEADLY = """
import os, signal
from pathlib import Path
from torch.nn.functional import cross_entropy
from dpcohort import plugin

def lines(name):
    path = Path("runs/two") / name
    return path.read_text().count("\\n") if path.exists() else 0

@plugin("loss")
def loss(outputs, targets):
    if os.environ.get("RANK") == "1" and lines("ledger.jsonl"):
        done = lines("rounds.jsonl")
        assert lines("ledger.jsonl") - 1 > done, "computed before it was counted"
        if done >= 4:
            os.kill(os.getpid(), signal.SIGKILL)
    return cross_entropy(outputs, targets, reduction="none")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("digits.toml").write_text(commented_config("digits"))
    return tmp_path


def train(out: str, *more: str) -> list[str]:
    changes = ["training.rounds=6", "training.cohort_size=5", "run.evaluate_every=3", *more]
    words = ["train", "digits.toml", "--out", f"runs/{out}", "--device", "cpu"]
    return words + [word for change in changes for word in ("--set", change)]


def environment(**more: str) -> dict[str, str]:
    import dpcohort

    root = Path(dpcohort.__file__).parents[1]
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **more}


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*start, "-m", "dpcohort", *words],
        env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip


def two_processes(*words: str) -> tuple[int, str]:
    """What ``torchrun`` starts, without it: the first exit code that is none, and what was said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "dpcohort", *words],
            env=environment(**place, RANK=str(rank), LOCAL_RANK=str(rank)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = "".join(rank.communicate(timeout=LIMIT)[1] for rank in ranks)
    return next((rank.returncode for rank in ranks if rank.returncode), 0), said


def files_of(out: str) -> dict[str, bytes]:
    """All files of a run; without times, and what says on how many threads it ran."""
    found = {}
    for path in sorted(Path("runs", out).rglob("*")):
        if path.is_file() and path.name != "environment.json":
            content = path.read_bytes()
            if path.suffix in (".jsonl", ".json"):
                lines = content.splitlines() if path.suffix == ".jsonl" else [content]
                content = json.dumps([_timeless(json.loads(line)) for line in lines]).encode()
            found[str(path.relative_to(Path("runs", out)))] = content
    return found


def _timeless(entry: dict[str, object]) -> dict[str, object]:
    """Without times, and hashes of files that have them."""
    return {k: v for k, v in entry.items() if k not in ("seconds", "sha256", "seal")}


def test_a_private_run_of_two_ranks_verifies(terminal):
    """Distributed, so that what is added over the ranks is released once."""
    more = ["privacy.trust=distributed", "privacy.colluding=1"]
    two = torchrun(*train("two", *more), "--set", "data.public=false")
    assert two.returncode == 0, two.stderr
    assert "6 rounds checked" in terminal("verify", "runs/two")
    ledger = Path("runs/two/ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in ledger[1:]] == list(range(6))


def test_a_rank_that_dies_ends_the_other_and_any_number_goes_on(terminal):
    Path("deadly.py").write_text(DEADLY)
    more = ["task.loss=deadly:loss", "run.merged_noise=true", "training.rounds=12"]
    code, said = two_processes(*train("two", *more))
    assert code != 0
    assert said.count("error: another rank has ended") == 1
    assert "with --resume" in said
    done = len(Path("runs/two/rounds.jsonl").read_text().splitlines())
    counted = len(Path("runs/two/ledger.jsonl").read_text().splitlines()) - 1
    assert 4 <= done < counted < 12  # the round that was lost is counted
    assert not Path("runs/two/model.safetensors").exists()
    terminal(*train("two", *more), "--resume")
    terminal(*train("one", *more))
    assert files_of("two") == files_of("one")


def test_one_rank_is_no_rank(monkeypatch, capsys):
    """What a launcher of a single process sets does not make it wait for others."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "x"}.items():
        monkeypatch.setenv(name, value)
    assert main(["--version"]) == 0
    monkeypatch.setenv("MASTER_PORT", "1")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dpcohort ")
