# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.toml"


def test_the_recipe_is_compared_as_its_how_to_says(tmp_path, terminal):
    words = ("--smallest", "--out", tmp_path, "--device", "cpu")
    shown = terminal("reproduce", EXAMPLE, *words)
    # It has no numbers of a paper and names no search: nothing is said about either.
    assert "privacy-aware, s = 100" in shown
    assert "verdict" not in shown
    assert "searched on held-out" not in shown
    assert "NOT PRIVATE" in shown
    assert (tmp_path / "digits.smallest.json").exists()
