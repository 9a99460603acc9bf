# SPDX-License-Identifier: Apache-2.0
"""Recipes: one TOML file a table or figure of the paper, with the paper's numbers beside it.

::

    NAME.toml -> Recipe -> cells x seeds -> jobs, stacked -> cell files -> NAME.json, table, figure

A recipe is an ordinary configuration and a table [recipe] that says what is varied, what the paper
reports, and how the reduced forms differ. Reading one needs no torch.
"""

from dpcohort_lab.recipes.reading import load_recipe, recipe_names
from dpcohort_lab.recipes.recipe import Cell, Recipe

__all__ = ["Cell", "Recipe", "load_recipe", "recipe_names"]
