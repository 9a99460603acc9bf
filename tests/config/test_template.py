# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcohort.config import (
    EXAMPLES,
    Config,
    commented_config,
    known_keys,
    load_config,
    table_config,
)
from dpcohort.config._schema import ConfigFile
from dpcohort.errors import InputError


def loaded(tmp_path: Path, example: str) -> Config:
    path = tmp_path / f"{example}.toml"
    path.write_text(commented_config(example))
    return load_config(path)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_loads(tmp_path: Path, example: str):
    config = loaded(tmp_path, example)
    assert config.rule == "privacy-aware"
    assert config.training.rounds == 100
    assert config.training.cohort_size == 10


def sections(text: str) -> dict[str, set[str]]:
    """The keys of each table, those that are commented out included."""
    found: dict[str, set[str]] = {}
    table = ""
    for line in text.splitlines():
        if header := re.match(r"(?:# )?\[\[?([a-z.]+)\]\]?", line):
            table = header[1]
        elif key := re.match(r"(?:# )?([a-z_]+) = ", line):
            found.setdefault(table, set()).add(key[1])
    return found


TABLE: dict[str, Any] = {
    "table": "t.csv", "label": "sick", "client": "ward", "clients": "c.csv", "labels": [],
    "kind": "classification", "features": ["age"], "bounds": {"age": []},
    "categories": {"smoker": []},
}  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_key_is_in_every_example(example: str):
    text = commented_config(example)
    written = sections(text)
    # Some keys of [population] are explained in a sentence or are tables of their own.
    written["population"] |= set(re.findall(r"(clients) = \"", text))
    written["population"] |= {name.split(".")[1] for name in written if "population." in name}
    if example == "heart-disease":  # the data say who its clients are
        written["population"] |= {"size", "total_size", "public"}
    # Those of [data] depend on the data: of a name or an array, and of a table.
    for other in (sections(commented_config("digits")), sections(table_config(**TABLE))):
        written["data"] |= other["data"] | {name.removeprefix("data.") for name in other}
    for section, keys in known_keys(ConfigFile).items():
        if section and (section != "population.public" or example != "heart-disease"):
            assert set(keys) <= written[section], section


@pytest.mark.parametrize("example", EXAMPLES)
def test_lines_fit_a_terminal(example: str):
    assert max(map(len, commented_config(example).splitlines())) <= 100


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_is_commented_out_works_too(tmp_path: Path, example: str):
    config, text = loaded(tmp_path, example), commented_config(example)
    for settings in (
        ["selection.bias_cap=0.5", "selection.floor=0.1", "selection.cap=0.1"],
        ["selection.rule=threshold", "selection.threshold=0.5"],
        ["selection.rule=epsilon-proportional", "selection.public_epsilon=10"],
        ["privacy.sampler=poisson", "privacy.neighbours=zero-out"],
        ["training.batch_size=128"],
        ["training.sampling_rate=0.1"],
    ):
        for setting in settings:
            key, value = setting.split(".")[1].split("=", 1)[0], setting.split("=", 1)[1]
            assert re.search(rf"{key} = \"?{re.escape(value)}|\"{value}\"", text), setting
        config.with_overrides(settings)


def test_the_hospitals(tmp_path: Path):
    config = loaded(tmp_path, "hospitals")
    population = config.population()
    assert len(population) == 61
    assert int(population.public.sum()) == 1
    private = population.epsilon[~population.public]
    assert private.min() < 1 < 3 < private.max()
    assert population.large_delta == 0
    assert (population.batches(config.training) >= 1).all()
    assert commented_config() == commented_config("hospitals")


def test_the_papers_mnist(tmp_path: Path):
    config = loaded(tmp_path, "paper-mnist")
    population = config.population()
    assert (len(population), population.total_size) == (100, 60_000)
    assert ((population.epsilon > 0) & (population.epsilon < 1)).all()
    assert (population.delta == 1e-5).all()
    np.testing.assert_array_equal(population.batches(config.training), 128)


def test_the_papers_figure(tmp_path: Path):
    config = loaded(tmp_path, "paper-figure")
    population = config.population()
    assert population == loaded(tmp_path, "paper-mnist").population()
    batches = population.batches(config.training)
    rates = config.contract.sampler.rates(population.sizes, batches)
    np.testing.assert_allclose(rates, 0.1, atol=0.5 / population.sizes.min())
    assert (config.contract.accountant, config.noise_model) == ("paper", "paper")


def test_the_papers_cifar(tmp_path: Path):
    config = loaded(tmp_path, "paper-cifar10")
    population = config.population()
    assert (len(population), population.total_size) == (100, 50_000)
    assert 0.1 < np.mean(population.epsilon < 3) < 0.5
    np.testing.assert_array_equal(population.batches(config.training), 128)


def test_the_list(tmp_path: Path):
    config = loaded(tmp_path, "csv")
    (tmp_path / "clients.csv").write_text("id,size,epsilon,delta\na,500,1,1e-5\n")
    assert config.population().ids == ("a",)


def test_a_table_whose_numbers_are_predicted_says_where_its_bounds_are_from():
    given = {**TABLE, "kind": "regression", "target_bounds": [0, 30], "bounds": {"age": [18, 90]}}
    text = table_config(**given)
    assert "Of the table, which is public" in text
    values = tomllib.loads(text)
    assert values["task"] == {"kind": "regression", "bounds": [0, 30]}
    assert values["data"]["bounds"] == {"age": [18, 90]}
    unknown = table_config(**{**given, "target_bounds": [], "bounds": {"age": []}})
    assert "From what is known, not from the data" in unknown
    assert re.search(r"bounds = \[\] +# FILL IN: smallest and largest to be predicted", unknown)


def test_an_unknown_example_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"example = 'paper-mnits'.*Did you mean 'paper-mnist'"):
        commented_config("paper-mnits")
