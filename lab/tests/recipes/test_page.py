# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import random
import re
from contextlib import suppress

import pytest

from dpcohort.errors import DpcohortError, InputError
from dpcohort_lab.recipes.page import read_reproduction

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


def test_a_broken_file_is_one_error_of_ours(path):
    chance, honest = random.Random(0), path.read_bytes()
    words = (b"9" * 400, b"1e400", b"NaN", b"null", b"{}", b"[" * 5000, b'"\\ud800"', b"")
    for _ in range(60):
        content, at = bytearray(honest), chance.randrange(len(honest))
        content[at : at + chance.randrange(30)] = chance.choice(words)
        path.write_bytes(content)
        with suppress(DpcohortError):
            read_reproduction(path)


def test_its_report_shows_cells_and_statements_as_text(terminal, path):
    path.write_text(path.read_text().replace('"unbiased"', '"<b>unbiased</b>"'))
    page = path.with_name("page.html")
    found = terminal.json("report", path, "-o", page)
    assert found["kind"] == "reproduction"
    assert "2 cells measured, 1 of 1 statements hold; every promise certified" in found["headline"]
    text = page.read_text()
    assert '<a href="#reproduction">Cells</a>' in text
    assert "<b>unbiased" not in text
    assert 'id="chart-cells"' in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, flags=re.DOTALL).group(1))
    assert [cell["mean"] for cell in data["sections"]["reproduction"]] == [70.0, None]
