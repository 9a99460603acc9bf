# SPDX-License-Identifier: Apache-2.0
"""The keys of [selection] for rules that choose during the training."""

from __future__ import annotations

import pytest

from dpcohort.config import commented_config, known_keys, loads_config
from dpcohort.config._schema import ConfigFile, flat_grid
from dpcohort.errors import FileFormatError, InputError
from dpcohort.plugins import kind_of_rule


def test_keys_are_listed_for_every_section():
    keys = known_keys(ConfigFile)
    assert keys[""] == list(ConfigFile.model_fields)
    assert set(keys) - {"", "population.public"} == set(keys[""]) - {"grid", "charges"}
    assert keys["population.public"] == ["size", "count"]


@pytest.fixture
def config():
    return loads_config(commented_config("digits"))


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
        ("data.name=t.csv", "label is missing: the column"),
        ("data.label=sick", "data.label is for a table, and 'digits' is none"),
        ("data.estimated_bounds=spent.json", "estimated_bounds needs client"),
        ("task.bounds=[1.0]", "task.bounds .* two numbers"),
        ("tuning.source=charged", "tuning.charge is missing"),
        ("model.options=3", "model.options"),
        ("optimiser.beta=2.0", "beta"),
        ("optimiser.step=inverse-time", "learning_rate"),
        ("optimiser.learning_rate=0", "above 0"),
        ("optimiser.learning_rate=fast", "learning_rate"),
        ("optimiser.server_momentum=1.0", "server_momentum"),
        ("optimiser.server_settings={lr=0.1}", "goes with server"),
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["task.loss=squared", "task.delta=1.0"], 'task.delta goes with loss = "huber"'),
        (
            ["tuning.source=public", "tuning.charge=ab"],
            'tuning.charge goes with source = "charged"',
        ),
        (
            ["privacy.trust=distributed", "schedule.draws=independent"],
            "Independent draws put a client",
        ),
        (
            ["privacy.trust=distributed", "training.local_steps=2"],
            "training.local_steps = 2 .*distributed",
        ),
        (["privacy.trust=distributed", "aggregation.rule=trimmed-mean"], "needs single updates"),
        (["privacy.trust=distributed", "selection.rule=rpow-d"], "selection.rule: .*rpow-d"),
    ],
)
def test_what_does_not_go_together_is_named(config, changes, words):
    with pytest.raises(FileFormatError, match=words):
        config.with_overrides(changes)


def test_a_similarity_goes_with_the_papers_partition(config):
    changes = ["data.partition=dirichlet", "data.alpha=0.3"]
    with pytest.raises(FileFormatError, match=r"similarity.*--set data\.similarity= does"):
        config.with_overrides(changes)
    assert config.with_overrides([*changes, "data.similarity="]).data.alpha == 0.3


def test_grids_may_be_written_both_ways():
    tables = {"training": {"clip": [1, 2]}, "privacy.accountant": ["paper", "tight"]}
    assert flat_grid(tables) == {"training.clip": (1, 2), "privacy.accountant": ("paper", "tight")}
    with pytest.raises(InputError, match="list of values"):
        flat_grid({"population": {"epsilon": [{"distribution": "fixed"}]}})


def test_a_grid_of_more_combinations_than_can_be_tried_is_refused():
    lists = {f"key{number}": list(range(50)) for number in range(9)}
    with pytest.raises(InputError, match="1,953,125,000,000,000 combinations; at most 100,000"):
        flat_grid({"training": lists})


CLIENTS = "population = { count = 9, size = 50, epsilon = 1.0 }\n[selection]\n"


def test_settings_are_the_rules_own_or_about_reports():
    config = loads_config(
        CLIENTS + 'rule = "rpow-d"\nd = 5\nreports = "raw"\nparticipation_cap = 7\n'
    )
    assert config.is_adaptive
    assert config.rule_settings == {"d": 5}
    assert config.report_settings == {"reports": "raw", "participation_cap": 7}
    assert not loads_config(CLIENTS).is_adaptive
    assert loads_config(CLIENTS).report_settings == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('rule = "rpow-d"\nreport_share = 1.0', "line 4.*report_share = 1.0"),
        ('rule = "rpow-d"\nreport_share = 0', "report_share"),
        ('rule = "rpow-d"\nparticipation_cap = 0', "participation_cap = 0"),
        ('rule = "rpow-d"\nreport_cap = "many"', "report_cap = 'many'"),
        ('rule = "rpow-d"\nreports = "noisy"', "one of private, raw"),
        ('rule = "rpow-d"\nloss_bound = -1.0', "loss_bound"),
        ('rule = "rpow-d"\nd = 0', "d = 0"),
        ('rule = "rpow-d"\nreport_shares = 0.1', "Did you mean 'report_share'"),
        ('rule = "rpow-dd"', "Did you mean 'rpow-d'"),
        ('rule = "clustered"\nreport_share = 0.1', "asks for no reports"),
        ('rule = "ucb-cs"\ngamma = 2.0', "gamma = 2.0"),
        ('rule = "unbiased"\nreport_share = 0.1', "not a setting of the rule unbiased"),
    ],
)
def test_mistakes_are_told_with_their_place(text, words):
    with pytest.raises(FileFormatError, match=words):
        loads_config(CLIENTS + text)


def test_kinds_of_rules():
    assert kind_of_rule("threshold") == "selection"
    assert kind_of_rule("clustered") == "adaptive"
    assert kind_of_rule("dpcohort.adaptive._rules:RecentPowerOfChoice") == "adaptive"
    assert kind_of_rule("dpcohort.selection._rules:Uniform") == "selection"
    with pytest.raises(InputError, match="rule = "):
        kind_of_rule("none of these")
