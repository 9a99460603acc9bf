# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpcohort.clients import Population
from dpcohort.clients._distributions import (
    PAPER_BUDGETS,
    Distribution,
    choices,
    fixed,
    gaussian_mixture,
    uniform,
)
from dpcohort.config import loads_config
from dpcohort.config._schema import (
    PopulationSection,
    check_population,
    distribution_from,
    draw_population,
)
from dpcohort.errors import InputError

PAPER = {"count": 100, "total_size": 60_000, "epsilon": "uniform-0-1"}


def checked(**keys: object) -> PopulationSection:
    section = PopulationSection.model_validate(keys)
    check_population(section, has_data=False)
    return section


def drawn(**keys: object) -> Population:
    return draw_population(checked(**keys))


def test_the_seed_decides_and_streams_are_apart():
    assert drawn(**PAPER, seed=3) == drawn(**PAPER, seed=3)
    assert drawn(**PAPER, seed=3) != drawn(**PAPER, seed=4)
    other = drawn(**(PAPER | {"epsilon": "mixture-2-8"}))
    np.testing.assert_array_equal(other.sizes, drawn(**PAPER).sizes)


def test_without_stated_sizes_the_records_of_the_data_are_shared_out():
    section = PopulationSection.model_validate(
        {"count": 5, "epsilon": 1.0, "public": [{"size": 100}]}
    )
    population = draw_population(section, 1_000, has_data=True)
    assert (population.total_size, int(population.sizes[-1])) == (1_000, 100)
    with pytest.raises(InputError, match="total_size is missing; without the data"):
        draw_population(section, has_data=True)
    with pytest.raises(InputError, match="one record a client; the data leaves 4 for 5"):
        draw_population(section, 104, has_data=True)


def test_public_clients_come_on_top():
    public = [{"count": 2, "size": 500}, {"size": 70}]
    population = drawn(**PAPER, public=public)
    assert population.ids[-3:] == ("public-0", "public-1", "public-2")
    assert population.sizes[-3:].tolist() == [500, 500, 70]
    assert int(population.public.sum()) == 3
    assert population.total_size == 61_070


def test_a_list_starts_from_the_folder_of_the_file():
    listed = loads_config('population.clients = "folder/clients.csv"')
    assert listed.clients == Path("folder/clients.csv")
    assert loads_config('population.clients = "/else/where.csv"').clients == Path("/else/where.csv")
    assert loads_config("population = { count = 3, size = 50, epsilon = 1 }").clients is None


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"epsilon": 1}, "count is missing"),
        ({"count": 3, "size": 5}, "epsilon is missing"),
        ({"count": 3, "epsilon": 1}, "total_size is missing"),
        ({"clients": "a.csv", "count": 3}, "clients and count are both given; keep one"),
        ({"clients": "a.csv", "seed": 3}, "clients and seed are both given; keep one"),
        (PAPER | {"count": 0}, "count = 0"),
        (PAPER | {"count": 10**9}, "count = 1000000000"),
        (PAPER | {"public": [{"size": 1, "count": 6_000_000}] * 2}, "count with public clients ="),
        (PAPER | {"total_size": 0}, "total_size = 0"),
        (PAPER | {"epsilon": 0}, "epsilon = 0 .* above 0"),
        (PAPER | {"epsilon": float("inf")}, "epsilon = inf .* mark the client public"),
        (PAPER | {"epsilon": True}, "epsilon = True"),
        (PAPER | {"epsilon": [1, 2]}, r"epsilon = \[1, 2\]"),
        (PAPER | {"epsilon": "uniform-0-2"}, "epsilon = 'uniform-0-2'.*mean 'uniform-0-1'"),
        (PAPER | {"epsilon": {"low": 0}}, "epsilon.distribution is missing; .* uniform"),
        (PAPER | {"size": "papper"}, "size = 'papper'.*mean 'paper'"),
        (PAPER | {"size": {"distribution": "fixed"}}, "size.value is missing; fixed needs it"),
        (PAPER | {"delta": 0.0}, "delta = 0.0"),
        (PAPER | {"seed": -1}, "seed = -1"),
        (PAPER | {"public": [{"size": 5}, {"size": 0}]}, r"public\[1\]\.size = 0"),
        (PAPER | {"public": [{"size": 5, "count": 0}]}, r"public\[0\]\.count = 0"),
    ],
)
def test_what_cannot_be_a_population(keys: dict[str, object], words: str):
    with pytest.raises(InputError, match=words):
        checked(**keys)


def test_clients_too_small_for_their_delta_are_refused_when_drawn():
    section = checked(count=2, size=50, epsilon=1, delta=0.1)
    with pytest.raises(InputError, match=r"delta of client 'client-0' = 0\.1"):
        draw_population(section)
    allowed = drawn(count=2, size=50, epsilon=1, delta=0.1, allow_large_delta=True)
    assert allowed.large_delta == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (2, fixed(2.0)),
        ("mixture-2-8-std", PAPER_BUDGETS["mixture-2-8-std"]),
        (
            {"distribution": "uniform", "low": 0, "high": 1, "minimum": 0.1},
            uniform(0, 1, minimum=0.1),
        ),
        ({"distribution": "fixed", "value": 3}, fixed(3)),
        ({"distribution": "choices", "values": [1, 2]}, choices([1, 2])),
        (
            {
                "distribution": "gaussian-mixture",
                "components": [{"weight": 1, "mean": 2, "std": 0.5}, [1, 3, 0.5]],
            },
            gaussian_mixture([(1, 2, 0.5), (1, 3, 0.5)]),
        ),
    ],
)
def test_a_distribution_is_a_number_a_name_or_a_table(given: object, expected: Distribution):
    found = distribution_from("epsilon", given)
    drawn = [one(100, np.random.default_rng(5)) for one in (found, expected)]
    np.testing.assert_array_equal(*drawn)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"distribution": "normal"}, "epsilon.distribution = 'normal'"),
        ({"distribution": "unifrom"}, "Did you mean 'uniform'"),
        ({"distribution": 3}, "epsilon.distribution = 3"),
        (
            {"distribution": "fixed", "val": 3},
            "epsilon.val is not a setting of fixed.*mean 'value'",
        ),
        (
            {"distribution": "fixed", "zz": 3},
            r"epsilon\.zz is not a setting of fixed\. Known: value",
        ),
        ({"distribution": "uniform", "low": 0}, "epsilon.high is missing; uniform needs it"),
        ({"distribution": "fixed", "value": -3}, r"epsilon\.value = -3 .* above 0"),
        ({"distribution": "choices", "values": 3}, r"epsilon\.values = 3"),
        (
            {"distribution": "gaussian-mixture", "components": [[1, -9, 1]]},
            "epsilon cannot be used: only",
        ),
    ],
)
def test_a_table_that_is_no_distribution(table: dict[str, object], words: str):
    with pytest.raises(InputError, match=words) as caught:
        distribution_from("epsilon", table)
    assert str(caught.value).startswith(caught.value.field)
    assert caught.value.field.startswith("epsilon")


def test_public_clients_have_the_sizes_that_budgets_would_have():
    described = {"count": 5, "total_size": 1000, "seed": 3}
    held = draw_population(PopulationSection(**described, epsilon="uniform-0-1"))
    public = draw_population(PopulationSection(**described, epsilon="public"))
    assert public.public.all()
    assert not held.public.any()
    assert public.sizes.tolist() == held.sizes.tolist()
    with pytest.raises(InputError, match="public"):
        check_population(PopulationSection(**described, epsilon="pubic"), has_data=False)
