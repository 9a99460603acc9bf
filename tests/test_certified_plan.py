# SPDX-License-Identifier: Apache-2.0
"""What both kinds of plan share: one hash over everything, and promises certified once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Contract
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.certified_plan import CertifiedPlan
from dpcohort.errors import VerificationError

KINDS = ["planned", "adaptive"]
TRAINING = Training(rounds=3, cohort_size=2, batch_size=20, dimension=5)
PEOPLE = {  # the public client is first, so that positions among those held are others
    "ids": ["gift", "a", "b", "c", "d", "e", "f"],
    "sizes": [100, 40, 60, 50, 40, 60, 50],
    "epsilon": [np.nan, 0.5, 2.0, 1.0, 0.5, 2.0, 1.0],
    "delta": [np.nan] + [1e-5] * 6,
    "public": [True] + [False] * 6,
}


def population(**changes):
    return Population.from_arrays(**{**PEOPLE, **changes})


@pytest.fixture(scope="module")
def plans():
    clients = population()
    return {
        "planned": make_plan(clients, TRAINING, selection="unbiased", seed=2),
        "adaptive": make_adaptive_plan(clients, TRAINING, rule_settings={"d": 3}, seed=2),
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
    return population(**{column: [given[0], value, *given[2:]]})


@both
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("ids", "A"),
        ("sizes", 41),
        ("epsilon", 0.25),
        ("delta", 1e-6),
        ("batch_sizes", 10),
    ],
)
def test_the_hash_covers_every_column_of_the_clients(plan, column, value):
    other = replace(plan, population=with_second(column, value))
    assert other.sha256 != plan.sha256
    assert other != plan


@both
def test_the_hash_covers_every_column_of_the_noise(plan):
    columns = [name for name in vars(plan.noise) if not name.startswith("_")]
    assert {"noise_multiplier", "certified_epsilon", "lifted"} <= set(columns)
    held = int(np.flatnonzero(plan.drawn & ~plan.population.public)[0])
    for name in columns:
        noise = replace(plan.noise, **{name: shifted(getattr(plan.noise, name), held)})
        assert replace(plan, noise=noise).sha256 != plan.sha256, name


@both
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("training", replace(TRAINING, clip=2.0)),
        ("contract", Contract.of("paper")),
        ("seed", 3),
    ],
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
        *(replace(plan, selection=selection) for selection in selections),
        replace(plan, schedule=replace(drawn, cohorts=drawn.cohorts[::-1].copy())),
        replace(plan, schedule=replace(drawn, draws="independent")),
        replace(plan, noise_model="paper"),
    ]
    assert len({plan.sha256, *(other.sha256 for other in others)}) == 1 + len(others)


def test_the_hash_covers_what_only_an_adaptive_plan_has(plans):
    plan = plans["adaptive"]
    others = [
        replace(plan, caps=replace(plan.caps, draws=plan.schedule.counts + 1)),
        replace(plan, caps=replace(plan.caps, reports=plan.report_caps + 1)),
        replace(plan, rule=replace(plan.rule, d=4)),
        replace(plan, terms=replace(plan.terms, loss_bound=4.0)),
        replace(plan, terms=replace(plan.terms, share=0.2)),
        replace(plan, terms=replace(plan.terms, mini_batch=True)),
    ]
    assert len({plan.sha256, *(other.sha256 for other in others)}) == 1 + len(others)


def test_plans_are_equal_by_hash_and_never_across_kinds(plans):
    planned, adaptive = plans["planned"], plans["adaptive"]
    again = replace(planned)
    assert again is not planned
    assert again == planned
    assert hash(again) == hash(planned)
    forged = replace(adaptive)
    forged.__dict__["sha256"] = planned.sha256
    assert planned != forged
    assert forged != planned
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


class Promising(CertifiedPlan):
    """A plan whose certificates are given."""

    def plain_settings(self):
        return {}

    def hashed_columns(self):
        return ()

    def verify(self, method="pld"):
        held = ~self.population.public
        self._refuse_broken(held, np.array(CERTIFIED[method]), promised="promised here")


CERTIFIED = {
    "kept": [0.5, 2.0, 1.0, 0.5, 2.0, 1.0],
    "one": [0.5, np.nextafter(2.0, 3.0), 1.0, 0.5, 2.0, 1.0],
    "nan": [0.5, 2.0, 1.0, np.nan, 2.0, 1.0],
    "five": [9.0] * 5 + [1.0],
    "six": [9.0] * 6,
}


@pytest.mark.parametrize(
    ("method", "named"),
    [
        ("one", "1 clients would spend more than promised here: b."),
        ("nan", "1 clients would spend more than promised here: d."),
        ("five", "5 clients would spend more than promised here: a, b, c, d, e."),
        ("six", "6 clients would spend more than promised here: a, b, c, d, e, ...."),
    ],
)
def test_broken_promises_are_named(method, named):
    plan = Promising(population=population(), training=TRAINING, contract=Contract.of("tight"))
    plan.verify("kept")
    with pytest.raises(VerificationError) as caught:
        plan.verify(method)
    assert str(caught.value) == f"{named} Do not train with this plan; make it again."


@pytest.mark.parametrize(
    ("kind", "promised"), [("planned", "promised"), ("adaptive", "promised at their caps")]
)
def test_each_kind_says_which_promise(plans, kind, promised):
    plan = plans[kind]
    weak = replace(plan.noise, noise_multiplier=plan.noise_multipliers / 2)
    with pytest.raises(VerificationError, match=f"would spend more than {promised}: "):
        replace(plan, noise=weak).verify(method="pld")
