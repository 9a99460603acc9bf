# SPDX-License-Identifier: Apache-2.0
"""What must go together in the table [recipe], found before anything is trained."""

from __future__ import annotations

import re

import pytest

from dpcohort.errors import FileFormatError

CLAIM = "[[recipe.claims]]\ntext = 'x'\n"
WHERE = "[[recipe.where]]\nset = []\n"
SEARCH = "[recipe.search.grid]\n" + '"optimiser.learning_rate" = [0.01, 1.0]\n'
PLACE = "[population]"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("values = [100, 0]", "values = [100, 100]", "different values"),
        ("values = [100, 0]", "values = []", "at least one"),
        ("values = [100, 0]", f"values = {list(range(60_000))}", "recipe.axes x mechanisms = "),
        ("seeds = 2", "seeds = 1000000000", "recipe.seeds = 1000000000"),
        ('judged = "privacy-aware"', 'judged = "nobody"', "recipe.judged"),
        ('judged = "privacy-aware"', 'across = "nobody"', "'nobody' is not one of s"),
        ('name = "privacy-aware"', 'name = "privacy-aware"\nafter = "none"', "no mechanism"),
        ('name = "unbiased"', 'name = "unbiased"\nafter = "unbiased"', "comes after itself"),
        ('name = "privacy-aware"', 'name = "unbiased"', "different names"),
        ('name = "privacy-aware"', 'name = "mechanism"', "different names"),
        ('name = "s"', 'name = "mechanism"', "recipe.axes must have different names"),
        ('name = "s"', 'name = ""', "recipe.axes must have different names"),
        ('figure = "bars"', 'figure = "selection"', "recipe.selection needs eta"),
        ('"unbiased", s = 100', '"unbiased", s = 50', "recipe.numbers when"),
        (
            PLACE,
            f"{CLAIM}when = {{ s = 3 }}\n{PLACE}",
            "recipe.claims when = {'s': 3} fits no cell",
        ),
        (PLACE, f"{WHERE}when = {{ s = 3 }}\n{PLACE}", "recipe.where when = {'s': 3} fits no cell"),
        ('"privacy-aware", s = 100 }\nseeds', '"x", s = 100 }\nseeds', "recipe.search when"),
        (PLACE, f"{CLAIM}below = 3.0\nrises_along = 's'\n{PLACE}", "takes one of below"),
        (PLACE, f"{CLAIM}gain = 3.0\n{PLACE}", "gain (with over)"),
        (PLACE, f"{CLAIM}over = 'unbiased'\n{PLACE}", "gain (with over)"),
        (SEARCH, "", "recipe.search needs grid or candidates"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_file(refused, old, new, words):
    error = refused(old, new)
    assert isinstance(error, FileFormatError)
    assert words in str(error)
    assert "small.toml, line " in str(error)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("paper = 40.0", "paper = 140.0", "recipe.numbers = 140"),
        ("goal = 5.0", "goal = -5.0", "recipe.numbers = -5"),
        ("tolerance = 5.0", "tolerance = -5.0", "recipe.tolerance = -5"),
        ("seeds = 2", "seeds = 0", "recipe.seeds = 0"),
        ("[recipe.quick]\nseeds = 1", "[recipe.quick]\nseeds = 0", "recipe.quick.seeds = 0"),
    ],
)
def test_numbers_out_of_range_are_refused(refused, old, new, words):
    error = refused(old, new)
    assert isinstance(error, FileFormatError)
    assert words in str(error)
    assert error.line


@pytest.fixture
def grid_line(recipe_text):
    """Where the first key of the grid stands."""
    return recipe_text[: recipe_text.index('"optimiser.learning_rate"')].count("\n") + 1


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (
            '"optimiser.learning_rat" = [1.0]',
            "learning_rat = 1.0 cannot be tried: .*'learning_rate'",
        ),
        ('"optimiser.learning_rate" = [1.0, -2.0]', r"= -2.0 cannot be tried: .*learning_rate"),
        ('"optimiser.learning_rate" = [1.0, "x"]', r"= 'x' cannot be tried: .*learning_rate"),
        ('"optimiser.learning_rate" = []', "must have at least one value"),
        ('"learning_rate" = [1.0]', "learning_rate = 1.0 cannot be tried"),
        (
            '"training.cohort_size" = [0]\n"training.rounds" = [5]',
            "cohort_size = 0 cannot be tried",
        ),
    ],
)
@pytest.mark.parametrize("table", ["search", "baseline_search"])
def test_what_a_search_would_try_is_checked_when_the_recipe_is_read(
    refused, grid_line, table, grid, words
):
    tables = ("[recipe.search]", f"[recipe.{table}]"), (SEARCH, f"[recipe.{table}.grid]\n{grid}\n")
    error = refused(*tables[0], tables[1])
    assert isinstance(error, FileFormatError)
    assert error.line == grid_line
    assert re.search(
        rf"^\S*small.toml, line {error.line}: recipe.{table}.grid.*{words}", str(error)
    )


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        ('"training.rouns=5"', "Did you mean 'rounds'"),
        ('"training.rounds=0"', "training.rounds = 0 is not allowed"),
        ('"training.rounds"', "a key and a value"),
        ('"selection.rule=unbiased", "selection.eta=3"', "eta is not a setting of the rule"),
    ],
)
def test_candidates_of_a_search_are_checked_too(refused, grid_line, candidate, words):
    good = '["training.rounds=9"]'
    tables = f"candidates = [{good}, [{candidate}]]\n"
    error = refused(SEARCH, tables)
    assert isinstance(error, FileFormatError)
    assert error.line == grid_line - 1
    assert "recipe.search.candidates hold " in str(error)
    assert candidate.split('"')[1] in str(error)
    assert words in str(error)
