# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer.main

from dpcohort import __version__
from dpcohort.cli import COMMANDS, app, home_of, main


def test_version(terminal):
    assert terminal("--version") == f"dpcohort {__version__}\n"


def test_the_list_says_what_the_commands_say(terminal):
    assert typer.main.get_command(app()).list_commands(None)[: len(COMMANDS)] == list(COMMANDS)
    for name, summary in COMMANDS.items():
        loaded = typer.main.get_command(app(name)).commands[name]
        assert loaded.name == name
        assert loaded.help.splitlines()[0] == summary
        assert " ".join(summary.split()[:5]) in terminal("--help")


def test_a_shell_completes_options_of_a_command():
    line = {"_DPCOHORT_COMPLETE": "complete_bash", "COMP_WORDS": "dpcohort train --re"}
    done = subprocess.run(
        [sys.executable, "-m", "dpcohort"],
        env={**os.environ, **line, "COMP_CWORD": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--resume" in done.stdout, done.stderr


#: What a command must not load: libraries by their first name, and modules of this package.
TRAINING = {"torch", "flwr", "sklearn", "matplotlib", "dp_accounting", "jinja2", "plotly"}
UNUSED = {
    "--version": TRAINING | {"numpy", "scipy", "pydantic"},
    "--help": TRAINING | {"numpy", "scipy", "pydantic"},
    "plan --clients clients.csv": TRAINING,
    "explain a --clients clients.csv": TRAINING,
    "verify none": TRAINING,
    "receipt none a": TRAINING,
    "ledger --help": TRAINING | {"dpcohort.runs._training"},
}


@pytest.mark.parametrize("words", UNUSED)
def test_a_command_loads_what_it_needs_and_no_more(words, tmp_path):
    (tmp_path / "clients.csv").write_text("id,size,epsilon,delta\na,600,1,1e-5\nb,500,4,1e-5\n")
    code = (
        "import sys\nfrom dpcohort.cli import main\nmain(sys.argv[1:])\n"
        "print('LOADED', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert not loaded & UNUSED[words]
    modules = {name.removeprefix("dpcohort.cli._") for name in loaded} & set(map(home_of, COMMANDS))
    assert modules == {home_of(words.split()[0])} & set(map(home_of, COMMANDS))


def test_an_unknown_command_is_code_2(terminal):
    terminal("plann", code=2)
    assert "Did you mean 'plan'" in terminal.errors


RUN_COMMANDS = {
    "verify": ["verify", "RUN"],
    "verify-json": ["verify", "RUN", "--json"],
    "report": ["report", "RUN"],
    "receipt": ["receipt", "RUN", "client"],
    "explain": ["explain", "client", "RUN"],
    "watch": ["watch", "RUN"],
    "watch-once": ["watch", "RUN", "--once"],
    "compare": ["compare", "RUN", "RUN"],
}


@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_a_run_that_is_not_there_is_code_3_in_every_command(
    terminal, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for place in ("missing", "runs/missing", "runs/v1.2"):
        words = [place if word == "RUN" else word for word in RUN_COMMANDS[command]]
        assert terminal(*words, code=3) == ""
        assert f"there is no run at {place}" in terminal.errors
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_that_cannot_show_a_letter_is_no_error(config):
    done = subprocess.run(
        [sys.executable, "-m", "dpcohort", "plan", str(config)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "promises certified" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="a closed pipe is different elsewhere")
def test_a_reader_that_goes_away_is_no_error(config):
    command = f'"{sys.executable}" -m dpcohort plan "{config}" --json | head -n 1'
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.startswith("{")


@pytest.mark.parametrize(
    ("words", "told", "next_step"),
    [
        (["train", "c.toml", "--out", "r"], "dpcohort.cli._train.load_config", "--resume goes on"),
        (["doctor"], "dpcohort.cli._setting_up.console.print", "stopped."),
    ],
    ids=["train", "doctor"],
)
def test_an_interrupt_is_told_with_what_to_do_next(monkeypatch, capsys, words, told, next_step):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(told, interrupt)
    assert main(words) == 130
    assert next_step in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("Unable to allocate 8.00 TiB\x1b[2J"), r"Unable to allocate 8.00 TiB\x1b[2J"),
        (MemoryError(), "this needs more memory than there is. Look at"),
        (RecursionError(), "nested too deeply"),
        (RuntimeError("CUDA out of memory. Tried to allocate 8 GiB"), "CUDA out of memory."),
    ],
)
def test_room_that_ran_out_is_a_message_and_code_2(monkeypatch, capsys, error, words):
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("dpcohort.cli.app", fail)
    assert main([]) == 2
    assert words in capsys.readouterr().err


def test_a_mistake_of_ours_is_still_seen(monkeypatch):
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("dpcohort.cli.app", fail)
    with pytest.raises(RuntimeError, match="a mistake"):
        main([])


def test_a_name_cannot_write_lines_of_its_own(terminal, tmp_path):
    name = "ward\nall promises hold\u200b[bold]\r"
    rows = f'id,size,epsilon,delta\n"{name}x",600,1,1e-5\nother,500,2,1e-5\n'
    (tmp_path / "clients.csv").write_text(rows, newline="")
    terminal("plan", tmp_path / "clients.csv", "--out", tmp_path / "plan.json")
    shown = terminal("plan", tmp_path / "plan.json")
    shown += terminal("explain", f"{name}x", tmp_path / "plan.json")
    assert r"ward\nall promises hold\u200b[bold]\rx" in shown
    assert "\u200b" not in shown
    assert not [line for line in shown.splitlines() if line.strip().startswith("all promises")]
