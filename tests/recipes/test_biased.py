# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.recipes import load_recipe
from dpcohort.recipes.biased import biased_plan
from dpcohort.recipes.execution import measure, prepare

BIASED = """[[recipe.mechanisms]]
name = "biased, raw losses (NOT PRIVATE)"
adaptive = "biased-raw"

[[recipe.mechanisms]]
name = "biased, private losses"
adaptive = "biased-private"

[[recipe.axes]]"""


@pytest.fixture
def biased(recipe_path, recipe_text):
    recipe_path.write_text(recipe_text.replace("[[recipe.axes]]", BIASED, 1))
    return load_recipe(recipe_path)


def test_both_forms_train_within_the_budgets(biased):
    store = measure(biased.in_form("quick"), device="cpu")
    forms = {cell.adaptive for cell in biased.cells}
    assert forms == {None, "biased-raw", "biased-private"}
    assert len(store.known) == 4
    assert all(found.promises_hold for found in store.known.values())
    assert all(len(found.curve) == 3 for found in store.known.values())


def test_raw_losses_carry_no_noise_and_honest_ones_are_charged(biased):
    job = prepare([(biased.cells[0], 0)], device="cpu")[0].job
    raw, honest = (biased_plan(job, form) for form in ("biased-raw", "biased-private"))
    assert raw.has_raw_reports
    assert not honest.has_raw_reports
    assert (raw.report_stds == 0).all()
    assert (honest.report_stds > 0).all()
    # What the reports take is missing in the training steps.
    assert (honest.noise_multipliers >= raw.noise_multipliers).all()
    assert (honest.certified_epsilon <= job.plan.population.epsilon).all()
