# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpcohort import Population
from dpcohort.accounting.segments import charged_to
from dpcohort.config import load_config
from dpcohort.data import private_bounds
from dpcohort.data.private_bounds import PRIVATE, discrete_laplace, estimate_bounds
from dpcohort.errors import InputError
from dpcohort.runs import configured_job
from dpcohort.runs.configured import configured_charges, configured_population

PEOPLE = Population.from_arrays(
    ids=["a", "b", "free"], sizes=[400, 400, 100], epsilon=[4.0, 1.0, np.nan],
    delta=[1e-5, 1e-5, np.nan], public=[False, False, True],
)  # fmt: skip
OWNERS = ["a"] * 400 + ["b"] * 400 + ["free"] * 100
RECORDS = {
    "bmi": np.random.default_rng(0).normal(27, 4, 900).tolist(),
    "age": np.random.default_rng(1).uniform(30, 60, 900).tolist(),
}
RANGES = {"bmi": (0.0, 320.0), "age": (0.0, 320.0)}


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(7, 3), Fraction(1, 2)])
def test_noise_has_exactly_the_law_it_is_paid_for(scale):
    rng = random.Random(5)
    drawn = np.array([discrete_laplace(scale, rng) for _ in range(20_000)])
    top = 4 if scale >= 1 else 1
    q = np.exp(-1 / float(scale))
    law = (1 - q) / (1 + q) * q ** np.abs(np.arange(-top, top + 1))
    law = np.append(law, 1 - law.sum())
    seen = np.array([np.sum(drawn == y) for y in range(-top, top + 1)])
    seen = np.append(seen, 20_000 - seen.sum())
    assert stats.chisquare(seen, 20_000 * law).pvalue > 1e-3


@pytest.mark.parametrize(("neighbours", "sensitivity"), [("zero-out", 1), ("replace-one", 2)])
def test_all_counts_of_a_client_together_cost_what_it_pays(monkeypatch, neighbours, sensitivity):
    scales = []
    monkeypatch.setattr(private_bounds, "discrete_laplace", lambda s, rng: scales.append(s) or 0)
    found = estimate_bounds(
        RECORDS, OWNERS, PEOPLE, RANGES, share=0.25, neighbours=neighbours, seed=0
    )
    assert len(scales) == 2 * 2 * private_bounds.CELLS  # two columns, two clients with a budget
    # A record is in one cell of each column: the sum of sensitivity / scale over columns.
    for client, at in (("a", 0), ("b", private_bounds.CELLS)):
        paid = found["clients"][client]["charged_epsilon"]
        assert Fraction(2 * sensitivity) / scales[at] <= Fraction(paid)
        assert paid == 0.25 * float(PEOPLE.epsilon[PEOPLE.index_of(client)])
    assert "free" not in found["clients"]


def test_bounds_hold_most_records_and_less_than_the_range():
    found = estimate_bounds(
        RECORDS, OWNERS, PEOPLE, RANGES, share=0.25, neighbours="zero-out", seed=0
    )
    for column, (low, high) in found["bounds"].items():
        inside = np.mean([low <= value <= high for value in RECORDS[column]])
        assert inside > 0.95
        assert high - low < 120


def test_few_records_far_below_the_noise_leave_the_whole_range():
    few = {"bmi": [27.0, 28.0]}
    found = estimate_bounds(
        few, ["a", "a"], PEOPLE, {"bmi": (0.0, 320.0)}, share=0.01, neighbours="zero-out", seed=3
    )
    assert found["bounds"] == {"bmi": [0.0, 320.0]}


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({}, "no column is named"),
        ({"weight": (0, 1)}, "column = 'weight' .* one of bmi, age"),
        ({"bmi": (3, 3)}, "range of bmi .* a smaller and a larger number"),
    ],
)
def test_columns_and_ranges_that_cannot_be_estimated_are_refused(ranges, words):
    with pytest.raises(InputError, match=words):
        estimate_bounds(RECORDS, OWNERS, PEOPLE, ranges, share=0.25, neighbours="zero-out", seed=0)


def test_what_is_left_is_never_rounded_up():
    for promised in np.random.default_rng(3).uniform(0.1, 5, 200):
        charged = float(0.1 * promised)
        left = private_bounds.left(float(promised), charged)
        assert Fraction(left) + Fraction(charged) <= Fraction(float(promised))


@pytest.fixture
def config(tmp_path: Path):
    rows = [
        f"{age},{owner},{'no' if age < 45 else 'yes'}"
        for age, owner in zip(RECORDS["age"], OWNERS, strict=True)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["age,ward,sick", *rows]))
    (tmp_path / "clients.csv").write_text(
        "id,epsilon,delta,public\na,4,1e-5,\nb,1,1e-5,\nfree,,,true\n"
    )
    (tmp_path / "my.toml").write_text(
        'population = { clients = "clients.csv" }\ntraining = { rounds = 2, cohort_size = 2 }\n'
        'data = { name = "t.csv", label = "sick", labels = ["no", "yes"], client = "ward",'
        ' estimated_bounds = "b.json" }\nrun = { device = "cpu" }\n'
    )
    found = estimate_bounds(
        RECORDS, OWNERS, PEOPLE, {"age": (0, 320)}, share=0.25, neighbours="zero-out", seed=0
    )
    (tmp_path / "b.json").write_text(json.dumps(found))
    return load_config(tmp_path / "my.toml")


def changed(config, **changes):
    path = config.folder / "b.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return config


def test_an_estimate_is_taken_from_the_budgets_before_planning(config):
    assert configured_population(config).epsilon[:2].tolist() == [3.0, 0.75]
    assert configured_job(config).plan.population.epsilon[:2].tolist() == [3.0, 0.75]


def test_a_private_run_takes_no_bounds_whose_noise_is_known(config):
    with pytest.raises(InputError, match="came from a seed, so no budget covers it"):
        configured_job(config, private_entropy=True)
    assert configured_job(changed(config, stamp=PRIVATE), private_entropy=True).private


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"neighbours": "replace-one"}, "for replace-one neighbours, and the training is for"),
        ({"clients": {}}, "promised nothing when the bounds were estimated"),
        ({"format": "other"}, "not a whole estimate"),
        ({"clients": {"a": {"promised_epsilon": 4.0, "charged_epsilon": 0}}}, "charged_epsilon"),
        ({"clients": 7}, "not a whole estimate"),
        ({"bounds": {"age": ["x", 1]}}, "not a whole estimate"),
    ],
)
def test_an_estimate_that_was_not_paid_for_by_these_clients_is_refused(config, changes, words):
    with pytest.raises(InputError, match=words):
        configured_population(changed(config, **changes))


def test_another_budget_than_the_one_that_paid_is_refused(config):
    text = config.clients.read_text()
    config.clients.write_text(text.replace("a,4,", "a,5,"))
    with pytest.raises(InputError, match="'a' promises epsilon 5, and promised epsilon 4"):
        configured_population(config)


@pytest.mark.parametrize("tuned_first", [True, False])
def test_an_estimate_and_tuning_are_taken_off_in_the_order_they_came(config, tuned_first):
    tuned = config.with_overrides(["tuning.source=charged", "tuning.share=0.5"])
    if tuned_first:  # the estimate saw what tuning had left: 2 and 0.5, and took a quarter
        clients = {"a": (2.0, 0.5), "b": (0.5, 0.125)}
        changed(
            config,
            clients={
                name: {"promised_epsilon": promised, "charged_epsilon": paid}
                for name, (promised, paid) in clients.items()
            },
        )
    left = configured_population(tuned)
    assert left.epsilon[:2].tolist() == [1.5, 0.375]
    assert left.delta[:2].tolist() == [5e-6, 5e-6]
    promised, charges = configured_charges(tuned)
    assert promised == {"a": (4.0, 1e-5), "b": (1.0, 1e-5)}
    for k, name in enumerate(promised):
        spent = charged_to(charges, name)
        assert spent[0] + left.epsilon[k] == promised[name][0]
        assert spent[1] + left.delta[k] == promised[name][1]
    assert charged_to(charges, "a", "estimate") == ((0.5, 0.0) if tuned_first else (1.0, 0.0))
