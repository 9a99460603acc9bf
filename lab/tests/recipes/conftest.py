# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

RECIPE = """
[recipe]
title = "A small table"
of = "Table 0"
figure = "bars"
judged = "privacy-aware"
tolerance = 5.0
seeds = 2
numbers = [
  { when = { mechanism = "privacy-aware", s = 100 }, paper = 40.0, goal = 5.0 },
  { when = { mechanism = "unbiased", s = 100 }, paper = 99.0 },
]

[[recipe.mechanisms]]
name = "unbiased"
set = ["selection.rule=unbiased"]

[[recipe.mechanisms]]
name = "privacy-aware"

[[recipe.axes]]
name = "s"
key = "data.similarity"
values = [100, 0]

[recipe.quick]
seeds = 1
axes = { s = [0] }

[recipe.search]
when = { mechanism = "privacy-aware", s = 100 }
seeds = 1

[recipe.search.grid]
"optimiser.learning_rate" = [0.01, 1.0]

[population]
count = 8
epsilon = { distribution = "uniform", low = 0.5, high = 6 }
seed = 3

[training]
rounds = 3
cohort_size = 3
batch_size = 30
clip = 1.0
dimension = 650

[selection]
eta = 5.0

[data]
name = "digits"
similarity = 100.0

[model]
name = "logistic"

[optimiser]
learning_rate = 1.0
average_decay = 0.5

[run]
evaluate_every = 1
device = "cpu"
"""


@pytest.fixture
def recipe_text() -> str:
    return RECIPE


@pytest.fixture
def recipe_path(tmp_path, recipe_text):
    path = tmp_path / "small.toml"
    path.write_text(recipe_text)
    return path


@pytest.fixture
def recipe(recipe_path):
    from dpcohort_lab.recipes import load_recipe

    return load_recipe(recipe_path)


BIASED = """[[recipe.mechanisms]]
name = "biased, raw losses (NOT PRIVATE)"
adaptive = "biased-raw"

[[recipe.mechanisms]]
name = "biased, private losses"
adaptive = "biased-private"

[[recipe.axes]]"""


@pytest.fixture
def biased(recipe_path, recipe_text):
    """The same recipe with both forms of the paper's biased baseline, in its quick form."""
    from dpcohort_lab.recipes import load_recipe

    recipe_path.write_text(recipe_text.replace("[[recipe.axes]]", BIASED, 1))
    return load_recipe(recipe_path).in_form("quick")


@pytest.fixture
def refused(recipe_path, recipe_text):
    """The error that reading gives when passages of the recipe are changed."""
    from dpcohort.errors import InputError
    from dpcohort_lab.recipes import load_recipe

    def error_with(old: str, new: str, *more: tuple[str, str]) -> InputError:
        text = recipe_text
        for before, after in ((old, new), *more):
            assert before in text
            text = text.replace(before, after, 1)
        recipe_path.write_text(text)
        with pytest.raises(InputError) as caught:
            load_recipe(recipe_path)
        return caught.value

    return error_with
