# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

from dpcohort_lab.recipes.execution import measure
from dpcohort_lab.recipes.judgement import judge, write_result


def test_what_is_written_can_be_read(recipe, tmp_path):
    small = recipe.in_form("smallest")
    result = judge(small, measure(small, device="cpu"))
    path, found = write_result(result, tmp_path / "deep", {"cores": 2})
    assert json.loads(path.read_text()) == found
    assert path.name == "small.smallest.json"
    assert "SMALLEST" in found["warning"]
    assert "NOT PRIVATE" in found["note"]
    assert found["command"] == "dpcohort reproduce small.toml --smallest --seeds 1"
    assert [c["mean"] for c in found["cells"]] == [round(c.accuracy.mean, 3) for c in result.cells]
    assert path.stat().st_size < 20_000
