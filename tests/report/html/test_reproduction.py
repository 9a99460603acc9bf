# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from dpcohort.errors import InputError
from dpcohort.report.html._sources import read_reproduction

RESULT = {
    "format": "dpcohort reproduction",
    "schema": 1,
    "recipe": "mnist",
    "title": "Accuracy on <MNIST>",
    "warning": "",
    "note": "the search is not charged",
    "command": "dpcohort reproduce mnist --seeds 2",
    "seeds": 2,
    "promises_hold": True,
    "findings": [{"text": "a above b", "holds": True, "detail": "+3 points"}],
    "cells": [
        {
            "mechanism": "privacy-aware",
            "axes": {"s": 100},
            "paper": 68.7,
            "mean": 70.0,
            "half_width": 1.5,
            "difference": 1.3,
            "verdict": "within 2",
            "accuracy": [69.0, 71.0],
            "curve": [[1, 20.0], [2, 70.0]],
            "promises_hold": True,
        },
        {"mechanism": "unbiased", "mean": None, "curve": "no", "promises_hold": True},
    ],
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "mnist.json"
    path.write_text(json.dumps(RESULT))
    return path


def test_cells_beside_the_paper(path):
    found = read_reproduction(path)
    first, second = found.cells
    assert tuple(first[key] for key in ("name", "low", "high", "seeds")) == (
        "privacy-aware, s 100",
        68.5,
        71.5,
        2,
    )
    assert second["mean"] is None
    assert second["curve"] == ()
    assert found.promises_hold
    assert not found.problems
    assert found.findings == (("a above b", True, "+3 points"),)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "dpcohort plan"}'], ids=str)
def test_what_is_no_result_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(InputError, match="no result"):
        read_reproduction(path)
