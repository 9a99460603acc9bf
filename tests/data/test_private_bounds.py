# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpcohort import Population
from dpcohort.accounting import Contract
from dpcohort.accounting._charges import charge_of, charged_to, write_charge
from dpcohort.config import load_config
from dpcohort.data import _private_bounds as private_bounds
from dpcohort.data._private_bounds import discrete_laplace, estimate_bounds
from dpcohort.errors import InputError
from dpcohort.runs import configured_job, configured_population
from dpcohort.runs._config_clients import configured_charges, promised_population

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


def test_a_cell_without_a_number_is_told_to_simulations_alone():
    wrong = {"bmi": [*RECORDS["bmi"][:3], "tall", *RECORDS["bmi"][4:]]}
    ranges = {"bmi": RANGES["bmi"]}
    with pytest.raises(InputError, match="the column bmi of record 4 is not a number"):
        estimate_bounds(wrong, OWNERS, PEOPLE, ranges, share=0.25, contract=Contract(), seed=0)
    estimate_bounds(wrong, OWNERS, PEOPLE, ranges, share=0.25, contract=Contract(), seed=None)


@pytest.mark.parametrize(("neighbours", "sensitivity"), [("zero-out", 1), ("replace-one", 2)])
def test_all_counts_of_a_client_together_cost_what_it_pays(monkeypatch, neighbours, sensitivity):
    scales = []
    monkeypatch.setattr(private_bounds, "discrete_laplace", lambda s, rng: scales.append(s) or 0)
    charge, _ = estimate_bounds(
        RECORDS, OWNERS, PEOPLE, RANGES, share=0.25, seed=0,
        contract=Contract.of("tight", {"zero-out": "poisson", "replace-one": "fixed"}[neighbours]),
    )  # fmt: skip
    assert len(scales) == 2 * 2 * private_bounds.CELLS  # two columns, two clients with a budget
    # A record is in one cell of each column: the sum of sensitivity / scale over columns.
    for client, at in (("a", 0), ("b", private_bounds.CELLS)):
        paid = charge.spent[client][0]
        assert Fraction(2 * sensitivity) / scales[at] <= Fraction(paid)
        assert paid == 0.25 * float(PEOPLE.epsilon[PEOPLE.index_of(client)])
    assert charge.public == ("free",)


def test_bounds_hold_most_records_and_less_than_the_range():
    _, found = estimate_bounds(
        RECORDS, OWNERS, PEOPLE, RANGES, share=0.25, contract=Contract(), seed=0
    )
    for column, (low, high) in found["bounds"].items():
        inside = np.mean([low <= value <= high for value in RECORDS[column]])
        assert inside > 0.95
        assert high - low < 120


def test_few_records_far_below_the_noise_leave_the_whole_range():
    few = {"bmi": [27.0, 28.0]}
    _, found = estimate_bounds(
        few, ["a", "a"], PEOPLE, {"bmi": (0.0, 320.0)}, share=0.01, contract=Contract(), seed=3
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
        estimate_bounds(RECORDS, OWNERS, PEOPLE, ranges, share=0.25, contract=Contract(), seed=0)


def test_nothing_is_drawn_before_what_it_costs_is_written_down(monkeypatch):
    monkeypatch.setattr(private_bounds, "discrete_laplace", lambda *_: pytest.fail("drawn before"))
    said = []

    def stop(charge):
        said.append(charge.spent)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        estimate_bounds(
            RECORDS, OWNERS, PEOPLE, RANGES, share=0.25, contract=Contract(), seed=0,
            before_spending=stop,
        )  # fmt: skip
    assert said == [{"a": (1.0, 0.0), "b": (0.25, 0.0)}]


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
        ' estimated_bounds = "b.json" }\nrun = { device = "cpu", simulate = 0 }\n'
    )
    estimated(tmp_path, seed=0)
    return load_config(tmp_path / "my.toml")


def estimated(folder: Path, **given):
    charge, found = estimate_bounds(
        RECORDS, OWNERS, PEOPLE, {"age": (0, 320)}, share=0.25, contract=Contract(), **given
    )
    write_charge(folder / "b.json", charge, **found)
    return charge


def changed(config, **changes):
    path = config.folder / "b.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return config


def test_an_estimate_is_taken_from_the_budgets_before_planning(config):
    assert configured_population(config).epsilon[:2].tolist() == [3.0, 0.75]
    assert configured_job(config).plan.population.epsilon[:2].tolist() == [3.0, 0.75]


def test_a_private_run_takes_no_bounds_whose_noise_is_known(config):
    with pytest.raises(InputError, match="its noise came from a seed, so no budget covers it"):
        configured_job(config.with_overrides(["run.simulate="]))
    estimated(config.folder, seed=None)
    assert configured_job(config.with_overrides(["run.simulate="])).private


@pytest.mark.parametrize(
    "changes",
    [{"charge": {}}, {"charge": 7}, {"format": "other"}, {"result": {"bounds": {"age": [1, 2]}}}],
)
def test_an_estimate_that_is_not_what_was_paid_for_is_refused(config, changes):
    with pytest.raises(InputError, match="not a charge as dpcohort writes it"):
        configured_population(changed(config, **changes))


def test_an_estimate_that_stopped_before_its_bounds_is_paid_for_all_the_same(config):
    charge = estimated(config.folder, seed=0)
    write_charge(config.folder / "b.json", charge)
    with pytest.raises(InputError, match=f"{charge.id} = "):
        configured_job(config)
    named = config.folder / "my.toml"
    text = named.read_text().replace('estimated_bounds = "b.json"', "bounds = { age = [0, 90] }")
    named.write_text(f'{text}charges = {{ {charge.id} = "b.json" }}\n')
    assert configured_job(load_config(named)).plan.population.epsilon[:2].tolist() == [3.0, 0.75]


def test_no_bounds_are_read_from_what_is_no_estimate(config):
    tuning = {"what": "tuning", "private": True, "contract": Contract()}
    for result, words in (({"bounds": {"age": [0, 9]}}, "a charge of tuning"), ({}, "tuning")):
        charge = charge_of(PEOPLE, (), lambda *left: (0.1, 0.0), **tuning)
        write_charge(config.folder / "b.json", charge, **result)
        with pytest.raises(InputError, match=words):
            configured_job(config)
    write_charge(config.folder / "b.json", replace(charge, what="estimate"), bounds={"age": "x1"})
    with pytest.raises(InputError, match="not an estimate of dpcohort data bounds"):
        configured_job(config)


def test_a_client_that_did_not_pay_is_refused_and_a_promise_may_grow(config):
    text = config.clients.read_text()
    config.clients.write_text(text.replace("a,4,", "a,5,"))
    assert configured_population(config).epsilon[0] == 4.0  # it paid 1 and not a quarter
    config.clients.write_text(text.replace("a,4,", "a2,4,"))
    table = config.folder / "t.csv"
    table.write_text(table.read_text().replace(",a,", ",a2,"))
    with pytest.raises(InputError, match="'a2' is not among the clients of which the charge"):
        configured_population(config)


@pytest.mark.parametrize("tuned_first", [True, False])
def test_an_estimate_and_tuning_are_added_in_the_order_that_they_prove(config, tuned_first):
    def half(epsilon, delta):
        return 0.5 * epsilon, 0.5 * delta

    given = {"what": "tuning", "private": False, "contract": Contract()}
    known = () if tuned_first else configured_charges(config)
    tuning = charge_of(promised_population(config), known, half, **given)
    write_charge(config.folder / "c.json", tuning)
    both = config.with_overrides([f'charges.{tuning.id}="c.json"'])
    if tuned_first:  # each was paid from the whole budget, and the estimate knew of nothing
        with pytest.raises(InputError, match="without knowing of the other"):
            configured_population(both)
        estimated(config.folder, seed=0, known=[tuning])
    left, charges = configured_population(both), configured_charges(both)
    assert left.epsilon[:2].tolist() == [1.5, 0.375]
    assert left.delta[:2].tolist() == [5e-6, 5e-6]
    assert charged_to(charges, "a") == (2.5, 5e-6)
    both.folder.joinpath("c.json").write_text((config.folder / "b.json").read_text())
    with pytest.raises(InputError, match=r"it is the charge .* and \[charges\] says"):
        configured_population(both)
