# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort_lab.recipes import load_recipe
from dpcohort_lab.recipes.judgement import judge_panels, selection_panels


def test_the_panels_show_what_the_paper_says():
    recipe = load_recipe("selection-probability")
    population, panels = selection_panels(recipe)
    assert len(panels) == 3
    for p in panels.values():
        assert p.sum() == pytest.approx(1)
        assert (p > 0).all()  # Proposition 2
    result = judge_panels(recipe, population, panels)
    assert [f["holds"] for f in result.findings] == [True, True, True]
    assert len(result.extra["panels"]) == 3
