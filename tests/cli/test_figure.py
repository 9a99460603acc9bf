# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest


def test_the_papers_figure_from_one_command(terminal, tmp_path):
    found = terminal.json("figure", "selection", "-o", tmp_path / "s.png")
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    panels = {title: np.array(p) for title, p in found["panels"].items()}
    assert len(panels) == 3
    assert all(p.size == 100 for p in panels.values())
    unbiased = panels.pop("unbiased")
    distances = [np.abs(p - unbiased).sum() for p in panels.values()]
    # The larger eta deviates more, as in the paper, and both deviate.
    assert 0 < distances[0] < distances[1]


def test_the_same_panels_for_ones_own_clients(terminal, config, tmp_path):
    terminal("figure", "selection", config, "--eta", "1,auto", "-o", tmp_path / "s.pdf")
    assert (tmp_path / "s.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["selektion"], "selection"), (["selection", "--eta", "x"], "auto"),
     (["selection", "-o", "a.gif"], ".png")],
)  # fmt: skip
def test_bad_figures(terminal, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    terminal("figure", *arguments, code=2)
    assert words in terminal.errors
    assert list(tmp_path.iterdir()) == []
