# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import math

from rich.console import Console

from dpcohort.cli import output
from dpcohort.cli.output import print_error, print_json, print_progress, sparkline


def test_progress_is_one_line_that_goes_away(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(output, "_errors", Console(file=screen, force_terminal=True))
    print_progress("certifying", 200, 1000)
    assert screen.getvalue().endswith("certifying 200 of 1,000")
    print_progress("certifying", 1000, 1000)
    assert screen.getvalue().endswith("\x1b[2K")


def test_progress_is_silent_for_short_work_and_in_a_pipe(monkeypatch, capsys):
    print_progress("certifying", 200, 1000)
    assert capsys.readouterr().err == ""
    screen = io.StringIO()
    monkeypatch.setattr(output, "_errors", Console(file=screen, force_terminal=True))
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
