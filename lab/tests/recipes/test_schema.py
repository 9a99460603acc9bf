# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from pydantic import ValidationError

from dpcohort.config import known_keys
from dpcohort_lab.recipes.recipe import AxisSection, RecipeSection


def test_every_table_is_known_by_name():
    keys = known_keys(RecipeSection, "recipe")
    for name in ("mechanisms", "axes", "where", "numbers", "claims", "quick", "search"):
        assert name in keys["recipe"]
        assert keys[f"recipe.{name}"]


def test_types_are_not_changed_silently():
    with pytest.raises(ValidationError):
        RecipeSection.model_validate({"title": 3, "of": "x", "figure": "bars"})
    with pytest.raises(ValidationError):
        AxisSection.model_validate({"name": "s", "key": "a.b", "values": [[1]]})
