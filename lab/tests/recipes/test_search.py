# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpcohort.data import load_dataset
from dpcohort.errors import InputError
from dpcohort_lab.recipes import load_recipe, recipe_names
from dpcohort_lab.recipes import search as module
from dpcohort_lab.recipes.search import (
    held_out,
    recipe_search,
    run_search,
    search_grid,
    searched_cells,
    section_settings,
    write_search,
)

RESULTS = Path(__file__).resolve().parents[3] / "results"


def test_every_setting_is_tried_on_held_out_records_and_the_best_is_chosen(recipe, tmp_path):
    cells = recipe.cells_of(recipe.header.search.when)
    result = run_search(
        "small", cells, section_settings(recipe_search(recipe)), seeds=2, share=0.1, device="cpu"
    )
    assert [t.settings for t in result.tried] == [
        ("optimiser.learning_rate=0.01",),
        ("optimiser.learning_rate=1.0",),
    ]
    assert all(len(t.scores) == 2 for t in result.tried)
    assert result.chosen == max(result.tried, key=lambda t: t.mean)
    path = tmp_path / "search.json"
    write_search(result, path)
    values = json.loads(path.read_text())
    assert values["chosen"] == list(result.chosen.settings)
    assert "never the test set" in values["note"]
    # 144 of 1,442 records are held out: accuracies are whole numbers of them.
    assert all((a * 144 / 100) % 1 == pytest.approx(0, abs=1e-3) or
               (a * 144 / 100) % 1 == pytest.approx(1, abs=1e-3)
               for t in result.tried for a in t.scores)  # fmt: skip


def test_the_test_set_is_never_looked_at(recipe, monkeypatch):
    whole = load_dataset("digits")
    seen = []

    def split(data, share):
        found = held_out(data, share)
        seen.append(found)
        return found

    monkeypatch.setattr(module, "held_out", split)
    cells = recipe.cells_of(recipe.header.search.when)
    run_search(
        "small", cells, section_settings(recipe_search(recipe)), seeds=1, share=0.1, device="cpu"
    )
    tests = {bytes(row) for row in whole.test_inputs} - {bytes(row) for row in whole.train_inputs}
    assert seen
    for data in seen:
        assert not tests & {bytes(row) for row in data.test_inputs}
        assert not tests & {bytes(row) for row in data.train_inputs}


def test_a_recipe_without_a_search_says_so(recipe):
    with pytest.raises(InputError, match=r"recipe\.search"):
        recipe_search(load_recipe("importance-compensation"))


@pytest.mark.parametrize(
    ("at", "words"),
    [({"t": "100"}, "--at = 't' .* an axis: s, mechanism"), ({"s": "7"}, "--at s = '7'")],
)
def test_an_axis_or_value_that_a_recipe_does_not_have_is_refused(recipe, at, words):
    with pytest.raises(InputError, match=words):
        searched_cells(recipe, recipe_search(recipe), at)


def test_a_grid_is_every_combination():
    assert len(search_grid({"a.b": [1, 2], "c.d": [1, 2, 3]})) == 6


def test_the_search_for_baselines_is_a_table_of_its_own(recipe):
    with pytest.raises(InputError, match=r"recipe\.baseline_search"):
        recipe_search(recipe, baseline=True)
    own = recipe_search(load_recipe("beyond-mnist"), baseline=True)
    assert own.when["mechanism"] == "unbiased"
    cells = recipe.cells_of(recipe.header.search.when)
    settings = section_settings(recipe_search(recipe))[:1]
    found = run_search(
        "small", cells, settings, seeds=1, share=0.1, device="cpu", options=["--baseline"]
    )
    assert found.to_dict()["command"] == "dpcohort search small --baseline"


RECORDED = [
    (name, baseline)
    for name in recipe_names()
    for baseline in (False, True)
    if (RESULTS / f"search-{name}{'-baseline' if baseline else ''}.json").exists()
]


@pytest.mark.parametrize(("name", "baseline"), RECORDED)
def test_recipes_hold_what_their_recorded_search_chose(name, baseline):
    path = RESULTS / f"search-{name}{'-baseline' if baseline else ''}.json"
    recipe = load_recipe(name)
    if not baseline and recipe.header.search_result is None:  # a question, not a choice
        assert not (RESULTS / f"{name}.json").exists()
        return
    if not baseline:
        assert recipe.header.search_result == path.name
    found = json.loads(path.read_text())
    section = recipe_search(recipe, baseline=baseline)
    assert found["tried"]
    best = max(found["tried"], key=lambda t: t["mean"])
    assert found["chosen"] == best["set"]
    for cell in recipe.cells_of(section.when):
        assert cell.config.with_overrides(found["chosen"]).values == cell.config.values


@pytest.mark.parametrize("place", [32, 64, 128, 256])
def test_batch_sizes_have_the_step_their_own_search_chose(place):
    recipe = load_recipe("batch-size")
    found = json.loads((RESULTS / f"search-batch-size-B-{place}.json").read_text())
    assert found["command"] == f"dpcohort search batch-size --at B={place}"
    assert found["chosen"] == max(found["tried"], key=lambda t: t["mean"])["set"]
    cells = recipe.cells_of({"mechanism": "privacy-aware", "B": place})
    assert [cell.label for cell in cells] == found["cells"]
    assert cells[0].config.with_overrides(found["chosen"]).values == cells[0].config.values


def test_a_setting_that_diverges_is_written_down_and_not_chosen(recipe):
    cells = recipe.cells_of(recipe.header.search.when)
    wild = ("optimiser.learning_rate=1e30", "optimiser.server_learning_rate=1e30")
    settings = [wild, ("optimiser.learning_rate=0.01",)]
    result = run_search("small", cells, settings, seeds=2, share=0.1, device="cpu")
    assert result.tried[0].scores == (None, None)
    assert all(found is not None for found in result.tried[1].scores)
    assert result.chosen == result.tried[1]
    assert result.to_dict()["tried"][0] == {
        "set": list(wild), "mean": 0.0, "accuracy": [None, None]
    }  # fmt: skip
    with pytest.raises(InputError, match=r"every setting of small.*optimiser\.learning_rate"):
        run_search("small", cells, [wild], seeds=1, share=0.1, device="cpu")
