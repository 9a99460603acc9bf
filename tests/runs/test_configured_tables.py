# SPDX-License-Identifier: Apache-2.0
"""Runs of a configuration whose data are a table of one's own."""

from __future__ import annotations

import pytest

from dpcohort.errors import InputError
from dpcohort.runs import configured_data, configured_job
from dpcohort.runs.configured import configured_plan, configured_population


@pytest.fixture
def config(table_config):
    return table_config


def test_a_table_makes_clients_sizes_and_dimension(config):
    job = configured_job(config)
    assert job.plan.population.ids == ("b", "a")
    assert job.plan.population.sizes.tolist() == [45, 45]
    assert job.plan.training.dimension == 2 * (4 + 1)
    data = configured_data(config)
    for k, name in enumerate(("b", "a")):
        assert set(data.clients[job.partition.client(k)]) == {name}


def test_a_stated_dimension_is_checked(config):
    assert configured_job(config.with_overrides(["training.dimension=10"])).plan
    with pytest.raises(InputError, match=r"training.dimension = 9.*must be 10, the trained"):
        configured_plan(config.with_overrides(["training.dimension=9"]))


@pytest.mark.parametrize("sizes", [(45, 45), (60, 60)])
def test_stated_sizes_may_count_test_records_or_not(config, sizes):
    text = "id,size,epsilon,delta\n" + "b,{},1,1e-3\na,{},2,1e-3\n".format(*sizes)
    config.clients.write_text(text)
    assert configured_population(config).sizes.tolist() == [45, 45]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.labels=", "my.toml: data.labels is missing"),
        ("data.bounds.age=[]", "data.bounds.age is not filled in"),
        ("data.bounds=", "t.csv: nothing says what the columns age can hold"),
        ("data.label=", "data.label is missing"),
        ("data.name=digits", "is for a table, and 'digits' is none"),
        ("data.public_share=0.1", "Mark a client as public"),
        ("data.client=region", "column = 'region'"),
        ("data.test_share=0.001", "one test record"),
    ],
)
def test_a_table_in_a_configuration_that_cannot_be_used(config, change, words):
    with pytest.raises(InputError, match=words):
        configured_population(config.with_overrides([change]))


def test_a_stated_partition_is_kept(config):
    (config.folder / "clients.csv").write_text("id,size,epsilon,delta\nx,50,1,1e-3\ny,40,2,1e-3\n")
    job = configured_job(config.with_overrides(["data.partition=paper"]))
    assert job.plan.population.ids == ("x", "y")
