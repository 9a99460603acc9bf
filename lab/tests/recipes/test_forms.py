# SPDX-License-Identifier: Apache-2.0
"""Recipes spread out: every combination, in the order in which changes are made."""

from __future__ import annotations

import pytest

from dpcohort.errors import FileFormatError
from dpcohort_lab.recipes import load_recipe
from dpcohort_lab.recipes.recipe import cells_in_form


def test_reduced_forms(recipe):
    quick = recipe.in_form("quick")
    assert [cell.label for cell in quick.cells] == ["unbiased, s = 0", "privacy-aware, s = 0"]
    assert quick.seeds == 1
    smallest = load_recipe("cifar10").in_form("smallest")
    assert {cell.config.data.name for cell in smallest.cells} == {"digits"}
    assert {cell.config.training.dimension for cell in smallest.cells} == {650}
    assert quick.sha256 != recipe.sha256
    assert recipe.in_form("full", seeds=7).seeds == 7


def test_steps_build_on_each_other(recipe_path, recipe_text):
    steps = (
        '[[recipe.mechanisms]]\nname = "more"\nafter = "unbiased"\nset = ["training.clip=2.0"]\n'
    )
    recipe_path.write_text(recipe_text.replace("[[recipe.axes]]", f"{steps}\n[[recipe.axes]]"))
    (cell,) = load_recipe(recipe_path).cells_of({"mechanism": "more", "s": 0})
    assert (cell.config.rule, cell.config.training.clip) == ("unbiased", 2.0)


def test_changes_are_made_in_the_order_of_the_file(recipe_path, recipe_text):
    """Mechanism, then axes, then every [[recipe.where]] that fits, then the caller's."""
    where = "".join(
        f'[[recipe.where]]\nwhen = {when}\nset = ["training.clip={clip}"]\n'
        for when, clip in (("{ s = 0 }", 2.0), ('{ mechanism = "unbiased", s = 0 }', 3.0))
    )
    rule = "selection.rule=unbiased"
    text = recipe_text.replace(f'"{rule}"', f'"{rule}", "data.similarity=30"')
    recipe_path.write_text(text.replace("[population]", f"{where}[population]"))
    recipe = load_recipe(recipe_path)
    clips = [(cell.config.data.similarity, cell.config.training.clip) for cell in recipe.cells]
    assert clips == [(100, 1.0), (0, 3.0), (100, 1.0), (0, 2.0)]
    assert {c.config.training.clip for c in cells_in_form(recipe, ["training.clip=9"])} == {9.0}


def test_a_reduced_form_changes_what_a_mechanism_leaves_open(recipe_path, recipe_text):
    """The form's changes come first and are the weakest, but the smallest is small for sure."""
    quick = "axes = { s = [100, 0] }\nset = ['training.clip=5', 'training.rounds=2']"
    where = "[[recipe.where]]\nwhen = { s = 100 }\nset = ['training.rounds=9']\n"
    text = recipe_text.replace('rule=unbiased"]', 'rule=unbiased", "training.clip=2"]')
    text = text.replace("axes = { s = [0] }", quick)
    recipe_path.write_text(text.replace("[population]", f"{where}[population]"))
    recipe = load_recipe(recipe_path)

    def clips_and_rounds(form):
        settings = [cell.config.training for cell in recipe.in_form(form).cells]
        return [(training.clip, training.rounds) for training in settings]

    assert clips_and_rounds("full") == [(2.0, 9), (2.0, 3), (1.0, 9), (1.0, 3)]
    assert clips_and_rounds("quick") == [(2.0, 9), (2.0, 2), (5.0, 9), (5.0, 2)]
    assert clips_and_rounds("smallest") == [(2.0, 2), (5.0, 2)]


def test_a_mechanism_may_have_some_cells_only(recipe_path, recipe_text):
    extra = '[[recipe.mechanisms]]\nname = "few"\nonly = { s = 0 }\n\n[[recipe.axes]]'
    recipe_path.write_text(recipe_text.replace("[[recipe.axes]]", extra))
    assert [cell.axes for cell in load_recipe(recipe_path).cells_of({"mechanism": "few"})] == [
        {"s": 0}
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('key = "data.similarity"', 'key = "data.similarty"', "data.similarty"),
        ("values = [100, 0]", "values = [100, 0, 300]", "similarity"),
        ("axes = { s = [0] }", "axes = { s = [3] }", "recipe.quick"),
        ("axes = { s = [0] }", "axes = { t = [0] }", "recipe.quick names an axis or mechanism"),
        ("axes = { s = [0] }", 'mechanisms = ["x"]', "recipe.quick names an axis or mechanism"),
        ('set = ["selection.rule=unbiased"]', 'set = ["selection.rule=unbiazed"]', "unbiazed"),
        ('set = ["selection.rule=unbiased"]', 'set = ["selection"]', "a key and a value"),
    ],
)
def test_a_cell_that_cannot_be_built_is_refused_when_the_recipe_is_read(refused, old, new, words):
    error = refused(old, new)
    assert isinstance(error, FileFormatError)
    assert words in str(error)
    assert "small.toml" in str(error)
