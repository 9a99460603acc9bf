# SPDX-License-Identifier: Apache-2.0
"""Runs of a configuration whose data are a table of one's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort import make_plan
from dpcohort.accounting import Contract, Segment
from dpcohort.accounting._charges import write_charge
from dpcohort.config import commented_config, loads_config
from dpcohort.data import dataset_from_arrays, read_table
from dpcohort.data._private_bounds import estimate_bounds
from dpcohort.errors import FileFormatError, InputError
from dpcohort.runs import (
    configured_data,
    configured_job,
    configured_population,
    configured_training,
    make_receipts,
)
from dpcohort.runs._config_clients import listed_clients, promised_population
from dpcohort.runs._config_data import seen_columns
from dpcohort.runs._configured import configured_plan
from dpcohort.runs._partitions import partition_labels
from dpcohort.tasks import Task


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
        ("data.labels=no", "data.labels = 'no'.*list"),
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


def test_what_was_paid_for_bounds_is_taken_off_and_told_in_receipts(config, tmp_path):
    table = read_table(tmp_path / "t.csv")
    people, owners = promised_population(config), table["ward"]
    charge, found = estimate_bounds(
        table, owners, people, {"age": (0, 640)}, share=0.25, contract=Contract(), seed=0
    )
    write_charge(tmp_path / "b.json", charge, **found)
    paid = config.with_overrides(["data.estimated_bounds=b.json", "data.bounds="])
    assert configured_population(paid).epsilon.tolist() == [0.75, 1.5]
    assert seen_columns(paid).bounds["age"] == found["bounds"]["age"]
    job = configured_job(paid)
    made = make_receipts(job.plan, job.plan.counts, settings=job.settings())
    receipts = {one.client: one for one in made}
    assert receipts["a"].charged["promised_epsilon"] == 2.0
    (paid_for,) = receipts["a"].charged["paid"]
    assert paid_for == {"what": "estimate", "id": charge.id, "epsilon": 0.5, "delta": 0.0}
    assert receipts["a"].promised_epsilon == 1.5
    for change, words in (
        ("privacy.neighbours=replace-one", "was paid for zero-out neighbours"),
        ("data.partition=paper", "paid for by the clients of the table"),
    ):
        with pytest.raises(InputError, match=words):
            configured_population(paid.with_overrides([change]))
    with pytest.raises(InputError, match="its noise came from a seed"):
        configured_job(paid.with_overrides(["run.simulate="]))


def test_a_plan_that_promises_what_was_spent_is_refused(config, tuned):
    whole = configured_plan(config)
    paid = config.with_overrides(tuned(config, 0.5))
    with pytest.raises(InputError, match=r"names the charge tuning .* the plan does not know"):
        configured_job(paid, plan=whole)
    with pytest.raises(InputError, match="nothing that rests on it can be private"):
        configured_job(paid.with_overrides(["run.simulate="]))


def test_a_change_of_settings_cannot_forget_what_was_paid(config, tuned):
    changes = tuned(config, 0.5)
    paid = config.with_overrides(changes)
    for drop in (["charges="], ["charges=", "tuning="], [changes[0].partition("=")[0] + "="],
                 [changes[0].partition("=")[0] + "=other.json"]):  # fmt: skip
        with pytest.raises(InputError, match="would forget what was paid by the clients"):
            paid.with_overrides(drop)
    with pytest.raises(FileFormatError, match=r"tuning.charge is not under \[charges\]"):
        config.with_overrides(changes[1:])
    kept = paid.with_overrides(["tuning="])
    assert configured_population(kept).epsilon.tolist() == [0.5, 1.0]
    estimate = config.with_overrides(["data.estimated_bounds=b.json"])
    with pytest.raises(InputError, match=r"as b\.json says; that stays spent"):
        estimate.with_overrides(["data.estimated_bounds="])
    assert estimate.with_overrides(["charges.e=b.json", "data.estimated_bounds="]).charges


def test_clients_that_are_drawn_are_as_many_as_the_table_has(config):
    drawn = ["population.clients=", "population.count=3", "population.epsilon=1.0"]
    large = "population.allow_large_delta=true"
    with pytest.raises(InputError, match=r"population.count = 3 .* the 2 clients that t has"):
        configured_population(config.with_overrides([*drawn, large]))
    two = configured_population(config.with_overrides([*drawn, large, "population.count=2"]))
    assert (two.ids, two.sizes.tolist()) == (("a", "b"), [45, 45])


def test_a_list_of_who_goes_on_takes_its_sizes_from_the_table(config, tmp_path):
    (tmp_path / "left.csv").write_text("id,epsilon,delta\na,3,1e-3\n")
    found = listed_clients(config, tmp_path / "left.csv", allow_large_delta=False)
    assert (found.ids, found.sizes.tolist(), found.epsilon.tolist()) == (("a",), [45], [3.0])
    bare = loads_config("population = { count = 2, size = 50, epsilon = 1.0 }")
    (tmp_path / "left.csv").write_text("id,size,epsilon,delta\na,80,3,1e-3\n")
    assert len(listed_clients(bare, tmp_path / "left.csv", allow_large_delta=False)) == 1


def test_partitions_of_what_is_no_class_go_by_its_tenths_or_its_sets():
    rng = np.random.default_rng(0)
    inputs = {"train_inputs": rng.random((40, 3)), "test_inputs": rng.random((4, 3))}
    numbers = dataset_from_arrays(
        "x", **inputs, train_labels=np.linspace(-1, 1, 40), test_labels=np.zeros(4),
        task=Task(kind="regression", outputs=1, bounds=(0.0, 9.0)),
    )  # fmt: skip
    assert np.bincount(partition_labels(numbers)).tolist() == [4] * 10
    sets = dataset_from_arrays(
        "x", **inputs, train_labels=rng.integers(0, 2, (40, 2)), test_labels=np.ones((4, 2)),
        task=Task(kind="multi-label", outputs=2, names=("a", "b")),
    )  # fmt: skip
    found = partition_labels(sets)
    alike = (sets.train_labels[:, None] == sets.train_labels[None]).all(2)
    assert np.array_equal(found[:, None] == found[None], alike)


def test_a_broken_table_is_told_with_its_line_and_stated_features_need_no_look(config, tmp_path):
    (tmp_path / "t.csv").write_text("age,smoker,ward,sick\n1,no,a\n")
    with pytest.raises(FileFormatError, match=r"t\.csv, line 2: the row has 3 cells"):
        configured_data(config)
    stated = config.with_overrides(['data.features=["age"]'])
    assert seen_columns(stated).features == ("age",)


def test_data_that_do_not_say_whose_they_are_have_no_clients_of_their_own():
    digits = loads_config(commented_config("digits"))
    changed = digits.with_overrides(["data.partition=client", "data.similarity="])
    with pytest.raises(InputError, match="needs data that say whose each record is"):
        configured_population(changed)


def test_what_was_spent_on_tuning_must_be_counted_by_the_run_that_is_gone_on_from(config, tuned):
    training, people = configured_training(config), configured_population(config)
    first = Segment(plan="a" * 64, ledger="b" * 64, rounds=3, source="seed", spent={})
    plan = make_plan(people, training, before=[first], seed=0)
    with pytest.raises(InputError, match=r"the plan does not know what it took.* replan RUN"):
        configured_job(config.with_overrides(tuned(config, 0.5)), plan=plan)


def test_a_plan_with_a_client_that_the_table_does_not_know_is_refused(config):
    stranger = replace(configured_population(config), ids=("b", "z"))
    plan = make_plan(stranger, configured_training(config), seed=0)
    with pytest.raises(InputError, match="the plan has the client 'z', and no training record"):
        configured_job(config, plan=plan)


def test_a_list_of_public_clients_that_cannot_be_read_is_told_when_it_is_needed(config):
    config.clients.write_text("id,epsilon\nb,1\n")
    assert configured_data(config).remarks == ()  # nobody is known to be public
    with pytest.raises(FileFormatError, match="delta"):
        configured_population(config)


def test_a_list_that_is_not_that_of_the_table_is_refused(config):
    config.clients.write_text("id,size,epsilon,delta\nb,45,1,1e-3\na,9,2,1e-3\n")
    with pytest.raises(InputError, match="'a' has size 9, but t has 45 training records"):
        configured_population(config)
    config.clients.write_text("id,size,epsilon,delta\nb,45,1,1e-3\na,45,2,1e-3\nc,9,1,1e-3\n")
    with pytest.raises(InputError, match="'c' has no training record in t"):
        configured_population(config)
    config.clients.write_text("id,epsilon,delta\nb,1,1e-3\n")
    with pytest.raises(InputError, match="1 of the 2 clients in it are not in"):
        configured_population(config)


def test_a_plan_of_what_is_left_is_trained(config, tuned):
    paid = config.with_overrides(tuned(config, 0.5))
    plan = configured_plan(paid)
    job = configured_job(paid, plan=plan)
    assert job.plan.population.epsilon.tolist() == [0.5, 1.0]
    people = replace(configured_population(config), epsilon=np.array([0.25, 0.25]))
    assert configured_plan(paid, population=people).population == people
    first = Segment(plan="a" * 64, ledger="b" * 64, rounds=3, source="seed", spent={})
    later = make_plan(
        promised_population(config), configured_training(config), before=[first], seed=0,
        charges=plan.past.paid.charges,
    )  # fmt: skip
    assert configured_job(paid, plan=later).plan is later  # the run before has counted it
