# SPDX-License-Identifier: Apache-2.0
"""Recipes and their cells: hashes, seeds, names, and which cells a ``when`` is about."""

from __future__ import annotations

import pytest

from dpcohort_lab.recipes import load_recipe


def test_a_seed_draws_other_clients_and_cohorts(recipe):
    first, second = (recipe.cells[0].seeded(shift) for shift in (0, 1))
    assert first.population(1442) != second.population(1442)
    assert (first.seed, second.seed) == (0, 1)
    assert second.run.seed == 1


def test_the_biased_baseline_is_a_rule_whose_dice_have_the_seed_of_the_run(biased):
    form = biased.in_form("quick", changes=["schedule.seed=7", "run.seed=5"])
    planned, raw, private = (form.cells[i].seeded(1) for i in (0, 2, 3))
    assert (planned.seed, raw.seed, private.seed) == (8, 6, 6)
    assert {raw.rule, private.rule} == {"power-of-choice"}
    assert (raw.guard, private.guard) == ("lift", "lift")
    shares = [found.report_settings for found in (raw, private)]
    assert shares == [{"report_share": 0.1, "reports": kind} for kind in ("raw", "private")]


def test_where_it_runs_does_not_change_a_cell_but_its_settings_do(recipe):
    cell = recipe.cells[0]
    same = recipe.in_form("full", changes=["data.dir=here", "run.device=auto"]).cells[0]
    other = recipe.in_form("full", changes=["training.clip=2.0"]).cells[0]
    assert cell.sha256 == same.sha256 != other.sha256


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("mnist", (68.71, 65.12, 68.50, 67.63)), ("fashion-mnist", (53.53, 55.26, 54.80, 48.94))],
)
def test_the_papers_numbers_stand_beside_the_cells(name, numbers):
    recipe = load_recipe(name)
    for s, number in zip((100, 70, 30, 0), numbers, strict=True):
        (cell,) = recipe.cells_of({"mechanism": "privacy-aware", "s": s})
        assert cell.paper == number
        assert cell.config.data.similarity == s
    assert all(c.paper is not None for c in recipe.cells if c.adaptive != "biased-private")


def test_a_form_is_part_of_the_hash_and_the_number_of_seeds_is_not(recipe_path, recipe_text):
    recipe_path.write_text(recipe_text.replace("axes = { s = [0] }", ""))
    recipe = load_recipe(recipe_path)
    quick = recipe.in_form("quick")
    assert [cell.sha256 for cell in quick.cells] == [cell.sha256 for cell in recipe.cells]
    assert quick.sha256 != recipe.sha256
    assert recipe.in_form("full", seeds=7).sha256 == recipe.sha256


def test_a_figure_of_probabilities_has_one_form():
    recipe = load_recipe("selection-probability")
    assert recipe.in_form("smallest") is recipe
