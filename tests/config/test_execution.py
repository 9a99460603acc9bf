# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.config import commented_config, loads_config
from dpcohort.config.execution import flat_grid
from dpcohort.errors import FileFormatError, InputError


@pytest.fixture
def config():
    return loads_config(commented_config("digits"))


def test_what_is_not_said_has_a_default():
    config = loads_config("population = { count = 3, total_size = 900, epsilon = 1.0 }")
    assert config.data is None
    assert config.model.name == "logistic"
    assert config.run.device == "auto"
    assert config.run.merged_noise is False
    assert config.grid == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.similarity=101", "data.similarity"),
        ("data.public_share=1", "public_share"),
        ("data.seed=-1", "data.seed"),
        ("data.alpha=0.3", 'goes with partition = "dirichlet"'),
        ("data.partition=dirichlet", "alpha is missing"),
        ("data.partition=column", "column is missing"),
        ("data.partition=column", "column"),
        ("data.partition=sorted", "dirichlet"),
        ("data.nmae=digits", "name"),
        ("model.options=3", "model.options"),
        ("optimiser.beta=2.0", "beta"),
        ("optimiser.step=inverse-time", "learning_rate"),
        ("optimiser.learning_rate=0", "above 0"),
        ("optimiser.learning_rate=fast", "learning_rate"),
        ("optimiser.server_momentum=1.0", "server_momentum"),
        ("optimiser.average_decay=1.5", "average_decay"),
        ("optimiser.server_learning_rate=-1", "server_learning_rate"),
        ("optimiser.server_learning_rate=1e39", r"at most 1e\+30"),
        ("optimiser.learning_rate=1e39", r"at most 1e\+30"),
        ("run.seed=-1", "run.seed"),
        ("run.engine=turbo", "batched"),
        ("run.evaluate_every=0", "evaluate_every"),
        ("run.checkpoint_every=0.5", "checkpoint_every"),
        ("run.merged_noise=1", "true or false"),
        ("grid.selection={ rule = 3 }", "list of values"),
        ("grid.selection={ rule = [] }", "list of values"),
        ("grid.rule=[1]", "must name a setting"),
        ("grid.run={ seed = [1, 2] }", "must name a setting"),
    ],
)
def test_bad_values_are_named(config, change, words):
    with pytest.raises(FileFormatError, match=words):
        config.with_overrides([change])


def test_steps_need_their_own_settings(config):
    changes = ["optimiser.learning_rate=", "optimiser.step=inverse-root"]
    with pytest.raises(FileFormatError, match="gradient_bound is missing"):
        config.with_overrides(changes)
    good = config.with_overrides([*changes, "optimiser.gradient_bound=2.0"])
    assert good.optimiser.gradient_bound == 2.0


def test_a_similarity_goes_with_the_papers_partition(config):
    changes = ["data.partition=dirichlet", "data.alpha=0.3"]
    with pytest.raises(FileFormatError, match=r"similarity.*--set data\.similarity= does"):
        config.with_overrides(changes)
    assert config.with_overrides([*changes, "data.similarity="]).data.alpha == 0.3


def test_grids_may_be_written_both_ways():
    tables = {"training": {"clip": [1, 2]}, "privacy.accountant": ["paper", "tight"]}
    assert flat_grid(tables) == {
        "training.clip": (1, 2),
        "privacy.accountant": ("paper", "tight"),
    }
    with pytest.raises(InputError, match="list of values"):
        flat_grid({"population": {"epsilon": [{"distribution": "fixed"}]}})


def test_a_grid_of_more_combinations_than_can_be_tried_is_refused():
    lists = {f"key{number}": list(range(50)) for number in range(9)}
    with pytest.raises(InputError, match="1,953,125,000,000,000 combinations; at most 100,000"):
        flat_grid({"training": lists})
