# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Charge, Contract, Paid
from dpcohort.accounting._charges import (
    after_charges,
    charge_of,
    charged_to,
    in_order,
    read_charge,
    write_charge,
)
from dpcohort.errors import BudgetExceededError, FileFormatError, InputError
from dpcohort.plan import Past, Plan

TRAINING = Training(rounds=2, cohort_size=2, sampling_rate=1.0)


def people(*epsilon: float) -> Population:
    names = "abcdefgh"[: len(epsilon)]
    return Population.from_arrays(ids=list(names), sizes=[90] * len(epsilon), epsilon=epsilon,
                                  delta=1e-5)  # fmt: skip


def charge(*before: Charge, what: str = "tuning", whole: float = 1.0, **spent: float) -> Charge:
    """A charge of epsilons, by client, that knows of those before it."""
    return Charge(
        what=what,
        private=True,
        promised=dict.fromkeys(spent, (whole, 1e-5)),
        spent={name: (epsilon, 0.0) for name, epsilon in spent.items()},
        after=tuple(one.id for one in before),
    )


def test_charges_are_added_up_and_taken_off_without_rounding_in_anybodys_favour():
    everybody, paid = people(*[1.0] * 8), []
    rng = np.random.default_rng(5)
    for what in ("estimate", "tuning", "evaluation"):
        spent = {name: (rng.uniform(0, 0.3), rng.uniform(0, 3e-6)) for name in everybody.ids[:7]}
        promised = dict.fromkeys(spent, (1.0, 1e-5))
        after = tuple(one.id for one in paid)
        paid.append(Charge(what=what, private=True, promised=promised, spent=spent, after=after))
    found = after_charges(everybody, paid)
    for k, name in enumerate(everybody.ids[:7]):
        for place, (has, promised) in enumerate(((found.epsilon[k], 1.0), (found.delta[k], 1e-5))):
            exact = sum(Fraction(one.spent[name][place]) for one in paid)
            assert Fraction(charged_to(paid, name)[place]) >= exact
            assert Fraction(float(has)) + exact <= Fraction(promised)
            assert has == pytest.approx(promised - float(exact))
    assert (found.epsilon[7], found.delta[7]) == (1.0, 1e-5)


def test_a_promise_below_what_was_charged_is_refused_with_client_and_charges():
    first = charge(b=0.7)
    second = charge(first, what="estimate", b=0.29)
    with pytest.raises(BudgetExceededError, match=r"b: promised epsilon 1 .* tuning .*, estimate "):
        after_charges(people(1.0, 1.0), [first, second])
    delta = replace(first, promised={"b": (1.0, 1e-4)}, spent={"b": (0.2, 2e-5)})
    with pytest.raises(BudgetExceededError, match="b: promised epsilon 1 at delta 1e-05"):
        after_charges(people(1.0, 1.0), [delta])


def test_charges_that_do_not_know_of_each_other_are_refused():
    alone, other = charge(a=0.1), charge(what="estimate", a=0.1)
    later = charge(alone, what="estimate", a=0.1)
    for charges in ([alone, other], [other, alone], [alone, other, charge(alone, other, a=0.1)]):
        with pytest.raises(InputError, match="without knowing of the other"):
            in_order(charges)
        with pytest.raises(InputError, match="without knowing of the other"):
            make_plan(people(1.0, 1.0), TRAINING, charges=charges, seed=0)
    assert in_order([later, alone, later]) == (alone, later)
    with pytest.raises(InputError, match="which is not named here"):
        in_order([later])


def test_a_plan_keeps_its_charges_and_cannot_have_more_than_they_left(tmp_path):
    paid = charge(a=0.25)
    everybody = people(1.0, 2.0)
    plan = make_plan(everybody, TRAINING, charges=[paid], seed=0)
    assert plan.population.epsilon.tolist() == [0.75, 2.0]
    assert plan.past.paid.promised == {"a": (1.0, 1e-5), "b": (2.0, 1e-5)}
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").past == plan.past
    assert plan.sha256 != make_plan(plan.population, TRAINING, seed=0).sha256
    for more in (np.nextafter(0.75, 1.0), 1.0):
        larger = replace(plan.population, epsilon=np.array([more, 2.0]))
        with pytest.raises(BudgetExceededError, match=r"'a' promised epsilon 1 .* come to"):
            replace(plan, population=larger)
    with pytest.raises(InputError, match="what it promised in all and paid is not known"):
        replace(plan, past=Past(paid=Paid(promised={"a": (1.0, 1e-5)}, charges=(paid,))))


def test_who_was_looked_at_without_noise_gets_no_budget_afterwards():
    bare = replace(charge(a=0.1), public=("b",))
    with pytest.raises(BudgetExceededError, match="b: its records were looked at without noise"):
        after_charges(people(1.0, 1.0), [bare])


def test_another_meaning_of_neighbours_has_no_total():
    paid = replace(charge(a=0.1), neighbours="replace-one")
    with pytest.raises(InputError, match="was paid for replace-one neighbours"):
        make_plan(people(1.0, 1.0), TRAINING, charges=[paid], seed=0)
    with pytest.raises(InputError, match="was paid for replace-one neighbours"):
        charge_of(
            people(1.0), [paid], lambda epsilon, delta: (0.1, 0.0),
            what="tuning", private=True, contract=Contract(),
        )  # fmt: skip


def test_a_charge_is_paid_from_what_others_left_and_names_them():
    given = {"what": "estimate", "private": True, "contract": Contract()}

    def most(epsilon, delta):
        return 0.6 * epsilon, 0.6 * delta

    first = charge_of(people(1.0), (), most, **given)
    second = charge_of(people(1.0), [first], most, **given)
    assert first.spent == {"a": (0.6, 0.6e-5)}
    assert second.spent["a"] == (pytest.approx(0.24), pytest.approx(0.24e-5))
    assert (second.after, second.promised) == ((first.id,), {"a": (1.0, 1e-5)})
    assert charge_of(people(1.0), (), most, **given).id != first.id


@pytest.mark.parametrize("spent", [{"a": (1.5, 0.0)}, {"a": (0.1, 2e-5)}, {"a": (-0.1, 0.0)}, {}])
def test_a_charge_is_a_part_of_the_promise_of_each_who_pays(spent):
    with pytest.raises(InputError):
        replace(charge(a=0.1), spent=spent)


@pytest.mark.parametrize(
    "change",
    [
        {"what": "rent"},
        {"spent": {"a": [-0.5, 0.0]}},
        {"spent": {"a": [0.05, 0.0]}},
        {"spent": {}},
        {"spent": {"a": [1.5, 0.0]}},
        {"promised": {"a": [2.0, 1e-5]}},
        {"after": ["0" * 64]},
        {"private": False},
        {"public": ["b"]},
        {"nonce": "0"},
    ],
)
def test_a_charge_that_was_changed_is_refused(change, tmp_path):
    path, paid = tmp_path / "c.json", charge(a=0.1)
    write_charge(path, paid, bounds={"age": [0, 9]})
    assert read_charge(path) == (paid, {"bounds": {"age": [0, 9]}})
    with pytest.raises(InputError):
        Charge.from_dict({**paid.to_dict(), **change})
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "charge": {**said["charge"], **change}}))
    with pytest.raises(FileFormatError, match="not a charge as dpcohort writes it"):
        read_charge(path)


@pytest.mark.parametrize("change", [{"result": {"bounds": {"age": [0, 8]}}}, {"format": "x"}])
def test_a_file_whose_result_was_changed_is_refused(change, tmp_path):
    path = tmp_path / "c.json"
    write_charge(path, charge(a=0.1), bounds={"age": [0, 9]})
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FileFormatError, match="not a charge as dpcohort writes it"):
        read_charge(path)
