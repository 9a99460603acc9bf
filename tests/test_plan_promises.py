# SPDX-License-Identifier: Apache-2.0
"""What every plan promises: one hash over all of it, and budgets that are certified and spent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort import Population, Training, certify_epsilon, make_plan
from dpcohort.accounting import Contract
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.adaptive._rules import RecentPowerOfChoice
from dpcohort.errors import InputError, VerificationError
from dpcohort.plan import Plan

KINDS = ["planned", "adaptive"]
SMALL = Training(rounds=3, cohort_size=2, batch_size=20, dimension=5)
PEOPLE = {  # the public client is first, so that positions among those held are others
    "ids": ["gift", "a", "b", "c", "d", "e", "f"],
    "sizes": [100, 40, 60, 50, 40, 60, 50],
    "epsilon": [np.nan, 0.5, 2.0, 1.0, 0.5, 2.0, 1.0],
    "delta": [np.nan] + [1e-5] * 6,
    "public": [True] + [False] * 6,
}


def people(**changes):
    return Population.from_arrays(**{**PEOPLE, **changes})


@pytest.fixture(scope="module")
def plans():
    clients = people()
    return {
        "planned": make_plan(clients, SMALL, selection="unbiased", seed=2),
        "adaptive": make_adaptive_plan(clients, SMALL, rule_settings={"d": 3}, seed=2),
    }


@pytest.fixture
def plan(plans, request):
    return plans[request.param]


def both(test):
    return pytest.mark.parametrize("plan", KINDS, indirect=True)(test)


def shifted(column, k=0):
    """The column with one value changed, as little as can be."""
    changed = column.copy()
    flat = changed.reshape(-1)
    flat[k] = ~flat[k] if flat.dtype == np.bool_ else np.nextafter(flat[k], np.inf)
    return changed


def with_second(column, value):
    """The clients, the second of whom has another value."""
    given = PEOPLE.get(column, [0] * 7)
    return people(**{column: [given[0], value, *given[2:]]})


def with_part(plan, name, **changes):
    """The plan with another participation, noise or certificate."""
    return replace(plan, **{name: replace(getattr(plan, name), **changes)})


@both
@pytest.mark.parametrize(
    ("column", "value"),
    [("ids", "A"), ("sizes", 41), ("epsilon", 0.25), ("delta", 1e-6), ("batch_sizes", 10)],
)
def test_the_hash_covers_every_column_of_the_clients(plan, column, value):
    other = replace(plan, population=with_second(column, value))
    assert other.sha256 != plan.sha256
    assert other != plan


@both
@pytest.mark.parametrize(
    ("field", "value"),
    [("training", replace(SMALL, clip=2.0)), ("contract", Contract.of("paper")), ("seed", 3)],
    ids=["training", "contract", "seed"],
)
def test_the_hash_covers_every_setting(plan, field, value):
    assert replace(plan, **{field: value}).sha256 != plan.sha256


def test_the_hash_covers_what_only_a_plan_with_cohorts_has(plans):
    plan = plans["planned"]
    chosen, drawn = plan.selection, plan.schedule
    selections = [
        replace(chosen, rule="uniform"),
        replace(chosen, settings={"eta": 1}),
        replace(chosen, probabilities=shifted(chosen.probabilities)),
        *(replace(chosen, **{name: -1.0}) for name in ("eta", "objective", "lower_bound", "gap")),
    ]
    others = [
        *(with_part(plan, "participation", selection=selection) for selection in selections),
        *(
            with_part(plan, "participation", schedule=replace(drawn, **change))
            for change in ({"cohorts": drawn.cohorts[::-1].copy()}, {"draws": "independent"})
        ),
        with_part(plan, "participation", noise_model="paper"),
    ]
    assert len({plan.sha256, *(other.sha256 for other in others)}) == 1 + len(others)


def test_the_hash_covers_what_only_an_adaptive_plan_has(plans):
    plan = plans["adaptive"]
    others = [
        with_part(plan, "participation", counts=plan.counts + 1),
        with_part(plan, "participation", rule=RecentPowerOfChoice(d=3)),
        with_part(plan, "participation", settings={"d": 4, "shrink": False}),
        *(
            with_part(plan, "participation", reports=replace(plan.reports, **change))
            for change in (
                {"caps": plan.reports.caps + 1},
                {"multipliers": shifted(plan.reports.multipliers, 1)},
                {"terms": replace(plan.reports.terms, loss_bound=4.0)},
                {"terms": replace(plan.reports.terms, share=0.2)},
                {"terms": replace(plan.reports.terms, mini_batch=True)},
                {"terms": replace(plan.reports.terms, statistic="squared-loss")},
            )
        ),
    ]
    assert len({plan.sha256, *(other.sha256 for other in others)}) == 1 + len(others)


def test_plans_are_equal_by_hash_and_never_across_kinds(plans):
    planned, adaptive = plans["planned"], plans["adaptive"]
    again = replace(planned)
    assert again is not planned
    assert again == planned
    assert hash(again) == hash(planned)
    assert planned != adaptive
    assert planned != planned.sha256


@both
def test_only_a_plan_that_was_just_made_is_not_certified_again(plan, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(type(plan), "verify", lambda self, method: asked.append(method))
    plan.verify_unless_made_here()
    assert asked == []
    plan.save(tmp_path / "plan.json")
    for other in (replace(plan), type(plan).load(tmp_path / "plan.json")):
        other.verify_unless_made_here()
    assert asked == ["pld", "pld"]


BROKEN = {
    "kept": [0.5, 2.0, 1.0, 0.5, 2.0, 1.0],
    "one": [0.5, np.nextafter(2.0, 3.0), 1.0, 0.5, 2.0, 1.0],
    "nan": [0.5, 2.0, 1.0, np.nan, 2.0, 1.0],
    "five": [9.0] * 5 + [1.0],
    "six": [9.0] * 6,
}


@both
@pytest.mark.parametrize(
    ("certified", "named"),
    [("one", "1 _: b"), ("nan", "1 _: d"), ("five", "5 _: a, b, c, d, e"),
     ("six", "6 _: a, b, c, d, e, ...")],
)  # fmt: skip
def test_broken_promises_are_named(plan, monkeypatch, certified, named):
    """Certificates as given, for a plan that draws everybody."""
    if not plan.participation.deciding:
        cohorts = np.array([[1, 2], [3, 4], [5, 6]])
        plan = replace(
            plan,
            participation=replace(
                plan.participation, schedule=replace(plan.schedule, cohorts=cohorts)
            ),
            noise=replace(plan.noise, multipliers=np.r_[0.0, np.ones(6)]),
        )
    spent = {name: np.array(values) for name, values in BROKEN.items()}
    monkeypatch.setattr(Plan, "spent_epsilon", lambda self, *_, clients, method: spent[method])
    plan = with_part(plan, "certificate", epsilon=plan.population.epsilon.copy())
    plan.verify("kept")
    with pytest.raises(VerificationError) as caught:
        plan.verify(certified)
    words = named.replace("_", "clients would spend more than promised")
    assert str(caught.value) == f"{words}. Do not train with this plan; make it again."


@both
@pytest.mark.parametrize("method", ["pld", "auto"])
def test_a_plan_that_says_less_than_it_spends_is_found_out(plan, tmp_path, method):
    said = plan.certified_epsilon.copy()
    said[4] *= 0.999
    replace(plan, certificate=replace(plan.certificate, epsilon=said)).save(tmp_path / "plan.json")
    lying = Plan.load(tmp_path / "plan.json")
    with pytest.raises(VerificationError, match="1 clients would spend more than the plan says: d"):
        lying.verify(method)
    with pytest.raises(VerificationError, match="than the plan says: d epsilon"):
        lying.verify_unless_made_here()
    with_part(plan, "certificate", epsilon=1.001 * plan.certified_epsilon).verify(method)


# spending


def test_spending_is_what_the_accountant_says(plans):
    plan = plans["planned"]
    k = int(np.flatnonzero(plan.drawn & ~plan.population.public)[0])
    wanted = certify_epsilon(
        noise_multiplier=float(plan.noise_multipliers[k]),
        delta=1e-5,
        sampling_rate=float(plan.sampling_rates[k]),
        steps=3,
        method="pld",
    )
    draws = np.zeros(len(plan.population), dtype=np.int64)
    draws[k] = 3
    found = plan.spent_epsilon(draws, clients=np.array([k]), method="pld")
    assert found[0] == wanted


def test_every_local_step_of_a_draw_is_spent():
    clients = Population.from_arrays(sizes=[90], epsilon=[2.0], delta=1e-5)
    training = Training(rounds=2, cohort_size=1, batch_size=9, local_steps=3)
    plan = make_plan(clients, training, seed=0)
    wanted = certify_epsilon(
        noise_multiplier=float(plan.noise_multipliers[0]),
        delta=1e-5,
        sampling_rate=0.1,
        steps=6,
        method="pld",
    )
    assert plan.spent_epsilon(np.array([2]), method="pld")[0] == wanted


def test_a_draw_without_planned_noise_is_refused():
    plan = make_plan(people(), replace(SMALL, rounds=1, cohort_size=1), seed=2)
    with pytest.raises(InputError, match="never draws"):
        plan.spent_epsilon(np.where(plan.drawn, 0, 1))


def test_a_client_that_only_reports_is_held_to_its_promise_too(plans):
    """Only a forged plan caps draws at 0; its reports must be certified, and have noise."""
    plan = plans["adaptive"]
    caps = plan.counts.copy()
    caps[3] = 0
    noise = plan.reports.multipliers.copy()
    noise[3] /= 50
    reports = replace(plan.reports, multipliers=noise)
    weak = with_part(plan, "participation", counts=caps, reports=reports)
    with pytest.raises(VerificationError, match="1 clients would spend more than promised"):
        weak.verify(method="pld")
    silent = noise.copy()
    silent[3] = 0.0
    with pytest.raises(InputError, match="'c' reports without noise"):
        with_part(weak, "participation", reports=replace(reports, multipliers=silent))
