# SPDX-License-Identifier: Apache-2.0
"""Estimators with scikit-learn's interface: its own checks, and what they refuse."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from dpcohort.errors import InputError
from dpcohort.estimators import DPFederatedClassifier, DPFederatedRegressor


@pytest.fixture(scope="module")
def hospitals():
    rng = np.random.default_rng(1)
    inputs = rng.uniform([0, 50], [110, 220], size=(600, 2))
    score = (inputs[:, 0] / 110 + (inputs[:, 1] - 50) / 170) / 2
    return inputs, score, np.repeat(["north", "south", "west"], 200)


PUBLIC = {"bounds": [(0, 110), (50, 220)]}
BUDGETS = {"north": 1.0, "south": 4.0, "west": 8.0}


@pytest.mark.parametrize(
    "model",
    [
        DPFederatedClassifier(classes="from-data", bounds="from-data", rounds=15, simulate=0),
        pytest.param(
            DPFederatedRegressor(
                target_bounds="from-data",
                bounds="from-data",
                epsilon=200.0,
                rounds=15,
                learning_rate=1.0,
                simulate=0,
            )
        ),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scikit_learns_own_checks_pass(model):
    found = check_estimator(model, on_skip=None)
    assert {one["status"] for one in found} == {"passed", "skipped"}
    # Array libraries other than numpy are off unless an environment variable says so; one check
    # needs pandas.
    allowed = {"check_array_api_input"}
    if find_spec("pandas") is None:
        kind = type(model).__name__.removeprefix("DPFederated").lower()
        allowed.add(f"check_{kind}_data_not_an_array")
    assert {one["check_name"] for one in found if one["status"] == "skipped"} == allowed


def test_each_group_has_its_own_budget_and_receipt(hospitals):
    inputs, score, groups = hospitals
    labels = np.where(score > 0.5, "sick", "well")
    model = DPFederatedClassifier(classes=["sick", "well"], simulate=0, **PUBLIC)
    model.fit(inputs, labels, groups=groups, epsilon=BUDGETS)
    assert model.score(inputs, labels) > 0.85
    assert model.predict_proba(inputs).sum(1) == pytest.approx(1)
    people = model.run_.plan.population
    assert dict(zip(people.ids, people.epsilon, strict=True)) == BUDGETS
    assert all(receipt.holds for receipt in model.run_.receipts())
    again = clone(model).fit(inputs, labels, groups=groups, epsilon=BUDGETS)
    assert (again.predict(inputs) == model.predict(inputs)).all()


def test_a_number_is_predicted_in_its_own_units(hospitals):
    inputs, score, groups = hospitals
    days = 30 * score
    model = DPFederatedRegressor(target_bounds=(0, 30), **PUBLIC)
    model.fit(inputs, days, groups=groups, epsilon=8.0)
    assert model.score(inputs, days) > 0.5


def test_what_is_cut_off_is_told_by_nothing_but_the_bounds(hospitals):
    inputs, score, groups = hospitals
    labels = (score > 0.5).astype(int)
    model = DPFederatedClassifier(classes=[0, 1], **PUBLIC, rounds=3, simulate=0)
    wild = inputs.copy()
    wild[0] = [1e6, 1e6]
    edge = inputs.copy()
    edge[0] = [110, 220]
    first = model.fit(wild, labels, groups=groups).predict_proba(inputs)
    assert (clone(model).fit(edge, labels, groups=groups).predict_proba(inputs) == first).all()


@pytest.mark.parametrize("wrong", [{"inputs": np.nan}, {"labels": 7.0}, {"labels": np.nan}])
@pytest.mark.parametrize("kind", [DPFederatedClassifier, DPFederatedRegressor])
def test_a_private_fit_tells_of_no_record_that_cannot_be_used(hospitals, kind, wrong):
    inputs, score, groups = hospitals
    public = {"classes": [0, 1]} if kind is DPFederatedClassifier else {"target_bounds": (0, 1)}
    model = kind(**public, **PUBLIC, rounds=2)
    rows, labels = inputs.copy(), (score > 0.5).astype(float)
    rows[3] = wrong.get("inputs", rows[3])
    labels[3] = wrong.get("labels", labels[3])
    model.fit(rows, labels, groups=groups, epsilon=8.0)
    if kind is DPFederatedClassifier or wrong != {"labels": 7.0}:  # a number is cut off
        with pytest.raises(ValueError, match=r"NaN|not among"):
            clone(model).set_params(simulate=0).fit(rows, labels, groups=groups, epsilon=8.0)


@pytest.mark.parametrize(
    ("settings", "more", "words"),
    [
        ({"classes": None}, {}, "classes are missing"),
        ({"bounds": None}, {}, "bounds are missing"),
        ({"bounds": (1, 0)}, {}, "the lower one first"),
        ({"bounds": [(0, 1)] * 3}, {}, "shape of bounds"),
        ({"bounds": "wide"}, {}, "numbers"),
        ({"bounds": "from-data"}, {}, "for simulations"),
        ({"classes": "from-data"}, {}, "for simulations"),
        ({"classes": [0, 2], "simulate": 0}, {}, "not among the public ones"),
        ({"classes": [1]}, {}, "at least two"),
        ({}, {"epsilon": {"north": 1.0}}, "no value for the group 'south' and 1 more"),
        ({}, {"epsilon": -1.0}, "epsilon"),
        ({}, {"groups": ["north"]}, "shape of groups"),
    ],
)
def test_refusals_say_what_and_why(hospitals, settings, more, words):
    inputs, score, groups = hospitals
    model = DPFederatedClassifier(**{"classes": [0, 1], **PUBLIC, **settings})
    with pytest.raises(InputError, match=words):
        model.fit(inputs, (score > 0.5).astype(int), **{"groups": groups, **more})


def test_a_regressor_needs_bounds_of_what_it_predicts(hospitals):
    inputs, score, _ = hospitals
    with pytest.raises(InputError, match="public bounds"):
        DPFederatedRegressor(**PUBLIC).fit(inputs, score)
    with pytest.raises(InputError, match="for simulations"):
        DPFederatedRegressor(target_bounds="from-data", **PUBLIC).fit(inputs, score)


def test_persons_of_an_estimator_are_protected_with_all_their_records():
    rng = np.random.default_rng(0)
    X, who = rng.uniform(0, 10, (400, 3)), np.repeat(np.arange(100), 4)  # noqa: N806
    y, ward = np.where(X[:, 0] > X[:, 1], "up", "down"), np.where(who < 50, "a", "b")
    model = DPFederatedClassifier(
        classes=["down", "up"], bounds=(0, 10), epsilon=8.0, rounds=4, rows_per_person=3
    )
    model.fit(X, y, groups=ward, persons=who)
    plan = model.run_.plan
    assert (plan.contract.unit.name, plan.population.sizes.tolist()) == ("person", [50, 50])
    with pytest.raises(InputError, match="shape of persons"):
        model.fit(X, y, groups=ward, persons=who[:-1])
    with pytest.raises(InputError, match="different in every row"):
        model.fit(X, y, persons=np.arange(400))


@pytest.fixture(scope="module")
def people():
    """A table as people have it, whether they are sick, and whose rows are whose."""
    pandas = pytest.importorskip("pandas")
    rng, rows = np.random.default_rng(0), 600
    days = pandas.to_timedelta(rng.integers(0, 900, rows), "D")
    frame = pandas.DataFrame(
        {
            "age": rng.integers(0, 100, rows).astype(float),
            "sex": pandas.Categorical(rng.choice(["m", "f"], rows)),
            "smoker": rng.random(rows) < 0.3,
            "seen": pandas.Timestamp("2020-01-01") + days,
        }
    )
    sick = frame.age + 20 * frame.smoker > 60
    frame.loc[3, "age"] = np.nan
    frame.loc[4, "sex"] = np.nan
    frame.loc[5, "seen"] = pandas.NaT
    return frame, sick, rng.choice(["x", "y"], rows)


FRAME = {
    "bounds": {"age": (0, 110), "seen": ("2020-01-01", "2023-01-01")},
    "categories": {"sex": ["m", "f"], "smoker": [False, True]},
    "missing": {"age": "indicator"},
    "epsilon": 20.0,
    "rounds": 20,
}


@pytest.mark.parametrize(
    ("kind", "classes"),
    [
        ("str", ["no", "yes"]),
        ("object", ["no", "yes"]),
        ("category", ["no", "yes"]),
        ("bool", [False, True]),
        ("boolean", [False, True]),
        ("float64", [0, 1]),
        ("Int64", [0.0, 1.0]),
    ],
)
def test_labels_of_any_type_and_frames_as_people_have_them(people, kind, classes):
    frame, sick, wards = people
    labels = sick.map({False: "no", True: "yes"}) if "no" in classes else sick
    labels = labels.astype(kind)
    model = make_pipeline("passthrough", DPFederatedClassifier(classes=classes, **FRAME))
    model.fit(frame, labels, dpfederatedclassifier__groups=wards)
    assert model.score(frame, labels) > 0.9
    assert set(model.predict(frame).tolist()) == set(classes)


def test_a_frame_of_other_columns_is_refused_by_name(people):
    frame, sick, _ = people
    model = DPFederatedClassifier(classes=[False, True], **FRAME)
    with pytest.raises(InputError, match="'smoker'"):
        model.fit(frame[["age", "sex", "seen"]], sick)
    with pytest.raises(InputError, match="a DataFrame: bounds are by column"):
        model.fit(frame.to_numpy(), sick)
    model.fit(frame.assign(age=frame.age.astype(object)), sick)
    with pytest.raises(InputError, match="column = 'age'"):
        model.predict(frame.drop(columns="age"))
