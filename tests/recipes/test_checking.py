# SPDX-License-Identifier: Apache-2.0
"""What must go together in the table [recipe], found before anything is trained."""

from __future__ import annotations

import pytest

from dpcohort.errors import FileFormatError, InputError

CLAIM = "[[recipe.claims]]\ntext = 'x'\n"
WHERE = "[[recipe.where]]\nset = []\n"
SEARCH = "[recipe.search.grid]\n" + '"optimiser.learning_rate" = [0.01, 1.0]\n'
PLACE = "[population]"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("values = [100, 0]", "values = [100, 100]", "different values"),
        ("values = [100, 0]", "values = []", "at least one"),
        ('judged = "privacy-aware"', 'judged = "nobody"', "recipe.judged"),
        (
            'judged = "privacy-aware"',
            'across = "nobody"',
            "'nobody' is not one of s",
        ),
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
        ("seeds = 2", "seeds = 0", "recipe.seeds = 0"),
        ("[recipe.quick]\nseeds = 1", "[recipe.quick]\nseeds = 0", "recipe.quick.seeds = 0"),
    ],
)
def test_numbers_out_of_range_are_refused(refused, old, new, words):
    error = refused(old, new)
    assert isinstance(error, InputError)
    assert words in str(error)


def test_panels_of_probabilities_need_an_eta_that_can_be(refused):
    eta = f"[recipe.selection]\neta = [-1.0]\n{PLACE}"
    error = refused('figure = "bars"', 'figure = "selection"', (PLACE, eta))
    assert "recipe.selection.eta = -1.0" in str(error)


def test_steps_of_a_recipe_that_trains_nothing_are_checked_too(refused):
    eta = f"[recipe.selection]\neta = [1.0]\n{PLACE}"
    step = ('name = "privacy-aware"', 'name = "privacy-aware"\nafter = "none"')
    error = refused('figure = "bars"', 'figure = "selection"', (PLACE, eta), step)
    assert "after = 'none' is no mechanism" in str(error)


def test_a_recipe_that_trains_needs_a_mechanism(refused):
    rows = '[[recipe.mechanisms]]\nname = "privacy-aware"\n'
    first = '[[recipe.mechanisms]]\nname = "unbiased"\nset = ["selection.rule=unbiased"]\n'
    assert "recipe.mechanisms is missing" in str(refused(rows, "", (first, "")))
