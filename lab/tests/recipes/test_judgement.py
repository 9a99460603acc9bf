# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort_lab.recipes import load_recipe
from dpcohort_lab.recipes.execution import Measurement
from dpcohort_lab.recipes.judgement import judge


def stored(recipe, accuracies):
    rest = {"clients_drawn": 1, "clients_lifted": 0, "seconds": 1.0, "device": "cpu", "plan": ""}
    return {
        cell.slug: {
            seed: Measurement(
                seed=seed, accuracy=found, last=found, curve=((1, found),), promises_hold=True,
                **rest,
            )
            for seed, found in enumerate(values)
        }
        for cell, values in zip(recipe.cells, accuracies, strict=True)
    }  # fmt: skip


def test_verdicts_and_comparisons(recipe):
    found = judge(recipe, stored(recipe, [(20, 21), (20, 21), (42, 44), (19, 23)]))
    unbiased, _, aware, _ = found.cells
    assert unbiased.verdict == "below the paper"
    assert aware.verdict == "within 5, goal 5 reached"
    assert aware.difference == pytest.approx(3.0)
    better, unclear = found.findings
    assert better["holds"] is True
    assert "+22.5 points" in better["detail"]
    assert unclear["holds"] is False
    assert found.seconds == 8.0
    assert found.cells[2].to_dict()["mean"] == 43.0


def test_a_reduced_form_gives_no_verdict(recipe):
    quick = recipe.in_form("smallest")
    found = judge(quick, stored(quick, [(20,), (60,)]))
    assert {cell.verdict for cell in found.cells} <= {"", "reduced"}
    assert found.findings[0]["holds"] is None


CLAIMS = """
[[recipe.claims]]
text = "low"
when = { mechanism = "unbiased" }
below = 23.0

[[recipe.claims]]
text = "gain"
when = { mechanism = "privacy-aware", s = 100 }
gain = 10.0
over = "unbiased"
within = 2.0

[[recipe.claims]]
text = "rises"
when = { mechanism = "privacy-aware" }
rises_along = "s"

[[recipe.axes]]"""


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ([(20, 22), (20, 22), (30, 32), (25, 27)], [True, True, True]),
        ([(24, 26), (20, 22), (30, 32), (35, 37)], [False, False, False]),
    ],
)
def test_claims(recipe_path, recipe_text, values, holds):
    recipe_path.write_text(recipe_text.replace("[[recipe.axes]]", CLAIMS, 1))
    recipe = load_recipe(recipe_path)
    found = judge(recipe, stored(recipe, values)).findings
    assert [f["holds"] for f in found if f["text"] in ("low", "gain", "rises")] == holds


def test_a_promise_that_does_not_hold_shows(recipe):
    store = stored(recipe, [(20, 21)] * 4)
    assert judge(recipe, store).promises_hold
    object.__setattr__(store[recipe.cells[0].slug][1], "promises_hold", False)
    assert not judge(recipe, store).promises_hold


def test_seeds_that_no_two_share_and_one_seed_alone_decide_nothing(recipe):
    held = stored(recipe, [(20, 21), (20, 21), (42, 44), (19, 23)])
    for position, cell in enumerate(recipe.cells):  # the unbiased ones come first
        seed = position // 2
        held[cell.slug] = {seed: held[cell.slug][seed]}
    apart = judge(recipe, held).findings[0]
    assert (apart["holds"], apart["detail"]) == (None, "no seed in common")
    once = judge(recipe, stored(recipe, [(20,), (20,), (42,), (19,)])).findings[0]
    assert (once["holds"], once["detail"]) == (None, "+22.0 points with one seed")
