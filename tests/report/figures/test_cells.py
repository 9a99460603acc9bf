# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from dpcohort.errors import InputError
from dpcohort.report.figures.cells import cells_figure
from dpcohort.report.html.reproduction import read_reproduction

CELLS = [
    {"mechanism": "a $x", "axes": {"s": 100}, "paper": 60.0, "mean": 70.0, "half_width": 1.5},
    {"mechanism": "b", "axes": {"s": 100}, "mean": 50.0},
    {"mechanism": "not measured", "axes": {}},
]


def result(tmp_path, cells):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"format": "dpcohort reproduction", "schema": 1, "cells": cells}))
    return read_reproduction(path)


def test_cells_beside_the_papers(tmp_path):
    axis = cells_figure(result(tmp_path, CELLS)).axes[0]
    interval, ours, paper = axis.lines
    assert list(interval.get_xdata()) == [68.5, 71.5]
    assert list(ours.get_xdata()) == [70.0, 50.0]
    assert list(paper.get_xdata()) == [60.0]
    # Names are text, whatever they contain.
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a $x, s 100", "b, s 100"]


def test_nothing_measured_is_nothing_to_draw(tmp_path):
    with pytest.raises(InputError, match="no cell"):
        cells_figure(result(tmp_path, CELLS[2:]))
