# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from dpcohort.clients import PUBLIC, Budget, Client, Population
from dpcohort.errors import FileFormatError, InputError
from dpcohort.training import Training


@pytest.fixture
def population() -> Population:
    return Population.from_clients(
        [
            Client("north", 600, Budget(0.5, 1e-5)),
            Client("south", 300, Budget(4, 1e-6), batch_size=30),
            Client("open", 100, PUBLIC),
        ]
    )


@pytest.mark.parametrize("field", ["sizes", "epsilon", "delta", "batch_sizes", "public"])
def test_nothing_can_be_written_to(population: Population, field: str):
    with pytest.raises(ValueError, match="read-only"):
        getattr(population, field)[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(population, field, np.zeros(3))


def test_clients_come_back_as_they_went_in(population: Population):
    assert list(population) == [
        Client("north", 600, Budget(0.5, 1e-5)),
        Client("south", 300, Budget(4, 1e-6), batch_size=30),
        Client("open", 100, PUBLIC),
    ]
    assert Population.from_clients(population) == population
    assert population["open"].is_public
    assert population[-1] == population[2] == population["open"]
    assert population[np.int64(1)].id == "south"


def test_very_large_populations_do_not_overflow():
    population = Population.from_arrays(sizes=np.full(10_000, 10**15), epsilon=1, delta=1e-20)
    assert population.total_size == 10**19
    np.testing.assert_allclose(population.unbiased, 1e-4, rtol=1e-15)


@pytest.mark.parametrize("key", [3, -4, 1.5, None, slice(2)])
def test_a_position_that_is_not_there(population: Population, key: object):
    with pytest.raises(InputError, match=r"client = .* an id, or a position from 0 to 2"):
        population[key]


def test_an_unknown_id_is_answered_with_the_nearest(population: Population):
    with pytest.raises(InputError, match=r"client = 'nroth'.*3 clients\. Did you mean 'north'\?"):
        population.index_of("nroth")
    with pytest.raises(InputError, match=r"client = \['north'\]"):
        population.index_of(["north"])


def test_what_if_one_budget_were_another(population: Population):
    changed = population.with_budget("north", Budget(2.0, 1e-7))
    assert changed["north"].budget == Budget(2.0, 1e-7)
    assert changed["south"] == population["south"]
    assert population["north"].budget == Budget(0.5, 1e-5)
    assert population.with_budget("north", PUBLIC).public.tolist() == [True, False, True]
    assert population.with_budget("open", Budget(1, 1e-5)).public.sum() == 0


def test_what_if_is_checked_like_anything_else(population: Population):
    with pytest.raises(InputError, match=r"delta of client 'north' = 0\.5"):
        population.with_budget("north", Budget(1, 0.5))
    with pytest.raises(InputError, match=r"budget = 1\.0 .* a Budget, or PUBLIC"):
        population.with_budget("north", 1.0)
    with pytest.raises(InputError, match="Did you mean 'south'"):
        population.with_budget("soth", PUBLIC)


def test_batches(population: Population):
    training = Training(batch_size=60)
    np.testing.assert_array_equal(population.batches(training), [60, 30, 60])
    with pytest.raises(InputError, match="'open' has 100 records"):
        population.batches(Training(batch_size=101))


def test_a_large_delta_is_counted_when_allowed():
    columns = {"sizes": [10, 1000, 10], "epsilon": 1.0, "delta": 0.01}
    with pytest.raises(InputError, match="whole record"):
        Population.from_arrays(**columns)
    population = Population.from_arrays(**columns, allow_large_delta=True)
    assert population.large_delta == 1
    assert population.with_budget("client-0", Budget(1, 0.5)).large_delta == 2
    assert Population.from_arrays(**(columns | {"delta": 1e-5})).large_delta == 0


def test_a_file_and_back(population: Population, tmp_path: Path):
    path = tmp_path / "clients.csv"
    population.to_csv(path)
    assert Population.from_csv(path) == population
    assert path.read_text() == (
        "id,size,epsilon,delta,batch_size,public\n"
        "north,600,0.5,1e-05,,false\n"
        "south,300,4.0,1e-06,30,false\n"
        "open,100,,,,true\n"
    )


def test_a_bad_file_changes_nothing_and_says_where(tmp_path: Path):
    path = tmp_path / "clients.csv"
    path.write_text("id,size,epsilon,delta\na,10,1,0.2\n")
    with pytest.raises(FileFormatError, match=r"clients\.csv, line 2: delta = '0\.2'"):
        Population.from_csv(path)
    assert Population.from_csv(path, allow_large_delta=True).large_delta == 1


def test_equality_looks_at_the_clients(population: Population):
    assert population == Population.from_clients(list(population))
    assert population != population.with_budget("north", Budget(1, 1e-5))
    assert population != "population"
    assert repr(population) == "Population(3 clients, 1000 records, 1 public)"
    assert copy.deepcopy(population) == pickle.loads(pickle.dumps(population)) == population


EPSILON = "epsilon = .* a finite number above 0 and at most 700"
DELTA = "delta = .* above 0 and below 1"


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        *((Budget, (x, 1e-5), EPSILON) for x in (0, -1, math.nan, "1", None, True, 700.5)),
        *((Budget, (x, 1e-5), "mark the client public") for x in (math.inf, 1e308, 10**400)),
        *((Budget, (1.0, x), DELTA) for x in (0, 1, -1e-5, math.nan, "x", math.inf)),
        (Client, ("", 5, PUBLIC), "id = ''"),
        (Client, (7, 5, PUBLIC), "id = 7"),
        (Client, ("a", 0, PUBLIC), "size = 0"),
        (Client, ("a", 2.5, PUBLIC), "size = 2.5"),
        (Client, ("a", 10**18, PUBLIC), "size = 1000000000000000000"),
        (Client, ("a", 5, 1.0), "budget = 1.0 .* a Budget, or PUBLIC"),
        (Client, ("a", 5, math.inf), "budget = inf .* a Budget, or PUBLIC"),
        (Client, ("a", 5, PUBLIC, 0), "batch_size = 0"),
        (Population.from_clients, (["a"],), "clients = 'a' .* Client objects only"),
        (Population.from_clients, ([],), "at least one client"),
    ],
)
def test_a_budget_client_or_population_that_cannot_be(make, arguments, message: str):
    with pytest.raises(InputError, match=message):
        make(*arguments)


def test_public_is_one_of_a_kind():
    assert copy.deepcopy(PUBLIC) is pickle.loads(pickle.dumps(PUBLIC)) is PUBLIC
    assert repr(PUBLIC) == "PUBLIC"
    assert not isinstance(PUBLIC, Budget)


def test_the_example_list_is_a_population():
    path = Path(__file__).parents[2] / "examples" / "clients" / "hospitals.csv"
    population = Population.from_csv(path)
    assert (len(population), int(population.public.sum()), population.large_delta) == (12, 1, 0)
    assert (population.batches(Training()) <= population.sizes).all()


IDS = ("large", "small", "tiny")
SIZES = np.array([1000, 96, 3])


def batches(training: Training, own: tuple[int, int, int] = (0, 0, 0)) -> list[int]:
    clients = Population.from_arrays(ids=IDS, sizes=SIZES, epsilon=1.0, delta=1e-5, batch_sizes=own)
    made = clients.batches(training)
    assert made.dtype == np.int64
    return made.tolist()


def test_without_a_word_a_client_uses_a_tenth_and_at_least_one_record():
    assert batches(Training()) == [100, 10, 1]


def test_a_rate_is_rounded_to_records():
    assert batches(Training(sampling_rate=0.5)) == [500, 48, 2]
    assert batches(Training(sampling_rate=1.0)) == [1000, 96, 3]
    assert batches(Training(sampling_rate=1e-9)) == [1, 1, 1]


def test_an_oversized_batch_names_client_size_batch_and_ways_out():
    with pytest.raises(InputError) as caught:
        batches(Training(batch_size=128))
    message = str(caught.value)
    for part in (
        "batch_size = 128",
        "'small' has 96 records",
        "(1 other client too)",
        "Lower the batch size",
        "batch_size column",
        'oversized_batch = "whole"',
    ):
        assert part in message


def test_whole_lets_small_clients_use_all_they_have():
    training = Training(batch_size=10**30, oversized_batch="whole")
    assert batches(training, own=(7, 0, 0)) == [7, 96, 3]
