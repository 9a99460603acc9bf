# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math

from dpcohort.cli.output import print_error, print_json, sparkline


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
