# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.errors import FileFormatError, InputError
from dpcohort.recipes import load_recipe, recipe_names

WANTED = [
    "ablation",
    "batch-size",
    "beyond-cifar10",
    "beyond-cifar10-open",
    "beyond-fashion-mnist",
    "beyond-fashion-mnist-open",
    "beyond-mnist",
    "beyond-mnist-open",
    "budget-distribution",
    "cifar10",
    "cifar10-std",
    "fashion-mnist",
    "importance-compensation",
    "mnist",
    "public-clients",
    "selection-probability",
]


def test_every_table_and_figure_has_its_recipe():
    assert set(WANTED) <= set(recipe_names())


@pytest.mark.parametrize("name", WANTED)
def test_recipes_that_come_with_the_package_are_whole(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.seeds == 5
    assert len({cell.slug for cell in recipe.cells}) == len(recipe.cells)
    if recipe.header.figure != "selection":
        assert len({cell.sha256 for cell in recipe.cells}) == len(recipe.cells)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("mnist", (68.71, 65.12, 68.50, 67.63)),
        ("fashion-mnist", (53.53, 55.26, 54.80, 48.94)),
    ],
)
def test_the_papers_numbers_stand_beside_the_cells(name, numbers):
    recipe = load_recipe(name)
    for s, number in zip((100, 70, 30, 0), numbers, strict=True):
        (cell,) = recipe.cells_of({"mechanism": "privacy-aware", "s": s})
        assert cell.paper == number
        assert cell.config.data.similarity == s
    assert all(c.paper is not None for c in recipe.cells if c.adaptive != "biased-private")


def test_cells_are_all_combinations(recipe):
    assert [cell.label for cell in recipe.cells] == [
        "unbiased, s = 100",
        "unbiased, s = 0",
        "privacy-aware, s = 100",
        "privacy-aware, s = 0",
    ]
    assert recipe.cells[0].config.rule == "unbiased"
    assert recipe.cells[3].config.data.similarity == 0
    assert recipe.cells[2].goal == 5.0


def test_a_seed_draws_other_clients_and_cohorts(recipe):
    first, second = (recipe.cells[0].seeded(shift) for shift in (0, 1))
    assert first.population(1442) != second.population(1442)
    assert (first.seed, second.seed) == (0, 1)
    assert second.run.seed == 1


def test_where_it_runs_does_not_change_a_cell_but_its_settings_do(recipe):
    cell = recipe.cells[0]
    same = recipe.in_form("full", changes=["data.dir=here", "run.device=auto"]).cells[0]
    other = recipe.in_form("full", changes=["training.clip=2.0"]).cells[0]
    assert cell.sha256 == same.sha256 != other.sha256


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


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rounds = 3", "rounds = -3", "training.rounds = -3"),
        ("rounds = 3", "rouns = 3", "training.rouns is not a known key"),
        ('key = "data.similarity"', 'key = "data.similarty"', "data.similarty"),
        ("values = [100, 0]", "values = [100, 100]", "different values"),
        ("values = [100, 0]", "values = [100, 0, 300]", "similarity"),
        ("paper = 40.0", "paper = 140.0", "recipe.numbers = 140"),
        ('"unbiased", s = 100', '"unbiased", s = 50', "fits no cell"),
        ('judged = "privacy-aware"', 'judged = "nobody"', "recipe.judged"),
        ('figure = "bars"', 'figure = "pie"', "recipe.figure"),
        ("axes = { s = [0] }", "axes = { s = [3] }", "recipe.quick"),
        ("seeds = 2", 'seeds = "two"', "recipe.seeds"),
        ("tolerance = 5.0", "tolerence = 5.0", "recipe.tolerence is not a known key"),
        ('set = ["selection.rule=unbiased"]', 'set = ["selection.rule=unbiazed"]', "unbiazed"),
        ('name = "privacy-aware"', 'name = "privacy-aware"\nafter = "none"', "no mechanism"),
        ("[recipe]", "[recipes]", "recipe.title is missing"),
        ("rounds = 3", "rounds = ", "not valid TOML"),
        ("rounds = 3", "rounds = 3\n[training]", "not valid TOML"),
    ],
)
def test_nonsense_is_refused_with_file_and_field(recipe_path, recipe_text, old, new, words):
    recipe_path.write_text(recipe_text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_recipe(recipe_path)
    assert words in str(caught.value)
    if "recipe.numbers" not in words:
        assert isinstance(caught.value, FileFormatError)
        assert "small.toml" in str(caught.value)


def test_the_line_of_a_problem_is_that_of_the_whole_file(recipe_path, recipe_text):
    text = recipe_text.replace("rounds = 3", "rounds = -3")
    recipe_path.write_text(text)
    line = 1 + text.splitlines().index("rounds = -3")
    with pytest.raises(FileFormatError, match=f"line {line}"):
        load_recipe(recipe_path)


def test_a_name_that_does_not_exist_gets_the_nearest():
    with pytest.raises(InputError, match="fashion-mnist"):
        load_recipe("fashon-mnist")
    with pytest.raises(FileFormatError, match="no such file"):
        load_recipe("nowhere.toml")
