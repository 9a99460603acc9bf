# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import math

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dpcohort.cli import _terminal as screens
from dpcohort.cli import print_json, read_config, sparkline
from dpcohort.cli._terminal import print_error, print_progress, print_text
from dpcohort.errors import InputError


def test_progress_is_one_line_that_goes_away(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(screens, "_errors", Console(file=screen, force_terminal=True))
    print_progress("certifying", 200, 1000)
    assert screen.getvalue().endswith("certifying 200 of 1,000")
    print_progress("certifying", 1000, 1000)
    assert screen.getvalue().endswith("\x1b[2K")


def test_progress_is_silent_for_short_work_and_in_a_pipe(monkeypatch, capsys):
    print_progress("certifying", 200, 1000)
    assert capsys.readouterr().err == ""
    screen = io.StringIO()
    monkeypatch.setattr(screens, "_errors", Console(file=screen, force_terminal=True))
    print_progress("certifying", 2, 10)
    assert screen.getvalue() == ""


def test_what_json_cannot_say_becomes_null(capsys):
    print_json({"a": math.nan, "b": [math.inf, 1.5], "c": {"d": (None, "ü")}})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"a": None, "b": [None, 1.5], "c": {"d": [None, "ü"]}}
    assert "ü" in shown


def test_errors_are_never_marked_up(capsys):
    print_error("[red]id[/red] is bad")
    assert capsys.readouterr().err == "error: [red]id[/red] is bad\n"


def test_sparkline_spans_its_values():
    assert sparkline([1, 1]) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([0, math.nan, 7]) == "▁ █"


HOSTILE = "\x1b[2J\x1b[32mall promises hold\x9b31m\u202e\u200b[bold]"


def test_words_of_others_cannot_steer_the_terminal(capsys):
    shown = r"\x1b[2J\x1b[32mall promises hold\x9b31m\u202e\u200b[bold]"
    print_error(HOSTILE)
    assert capsys.readouterr().err == f"error: {shown}\n"
    print_text(HOSTILE + "\r")
    assert capsys.readouterr().out == f"{shown}\\r\n"
    print_json({"id": HOSTILE})
    told = capsys.readouterr().out
    assert json.loads(told) == {"id": HOSTILE}
    assert told.isascii()
    assert told.replace("\n", "").isprintable()


def test_tables_and_live_views_show_text_as_text():
    file = io.StringIO()
    screen = type(screens.console)(file=file, force_terminal=True, markup=False, width=120)
    table = Table("client")
    table.add_row(Text(HOSTILE))
    table.add_row(f"[bold]{HOSTILE}")
    screen.print(table)
    with Live(Text(HOSTILE), console=screen, auto_refresh=False):
        pass
    shown = file.getvalue()
    assert shown.count(r"\x1b[2J\x1b[32m") >= 3
    assert r"[bold]\x1b[2J" in shown
    for sequence in ("\x9b", "\u202e", "\u200b", "\x1b[2J", "\x1b[32m"):
        assert sequence not in shown


def test_two_lists_of_clients_are_one_too_many(clients):
    with pytest.raises(InputError, match="two lists"):
        read_config(clients, clients)
