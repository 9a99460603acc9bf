# SPDX-License-Identifier: Apache-2.0
"""The owner's terms: one file, every key checked."""

from __future__ import annotations

import pwd

import numpy as np
import pytest

from dpcohort import Contract, Population, Training, make_plan
from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import GuardTerms, ModelTerms
from dpcohort.deploy.guard._start import check_terms
from dpcohort.deploy.guard._terms import (
    commented_terms,
    layout_sha256,
    pool_from_plan,
    terms_from_plan,
)
from dpcohort.deploy.ledger import RunTerms
from dpcohort.errors import BudgetExceededError, FileFormatError, InputError

FILE = commented_terms()


def read(folder, text):
    path = folder / "terms.toml"
    path.write_text(text)
    return GuardTerms.from_toml(path)


def test_the_template_is_read_back(folder):
    terms = read(folder, FILE)
    assert (terms.dataset, terms.across_runs, terms.same_user) == ("ward-7", "summed", False)
    assert terms.allowed_users == (pwd.getpwnam("nobody").pw_uid,)
    assert terms.model == ModelTerms(name="logistic", input_shape=(64,), classes=10)
    assert terms.runs[0].batch_size == 60


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("clip = 1.0", "clipp = 1.0", "clip"),
        ("clip = 1.0", "", "clip"),
        ("clip = 1.0", "clip = nan", "clip"),
        ("clip = 1.0", 'clip = "1"', "clip"),
        ("epsilon = 2.0", "epsilon = -2.0", "epsilon"),
        ("epsilon = 2.0", "epsilon = inf", "epsilon"),
        ("\ndelta = 1e-05", "\ndelta = 1.5", "delta"),
        ("batch_size = 60", "batch_size = 0", "batch_size"),
        ("batch_size = 60", "batch_size = 6.5", "batch_size"),
        ("local_steps = 1", "local_steps = true", "local_steps"),
        ("draws = 20", "draws = 0", "draws"),
        ('sampler = "poisson"', 'sampler = "shuffle"', "sampler"),
        ("lifetime_epsilon = 4.0", "lifetime_epsilon = 0", "epsilon"),
        ('across_runs = "summed"', 'across_runs = "free"', "across_runs"),
        ('dataset = "ward-7"', 'dataset = ""', "dataset"),
        ('dataset = "ward-7"', "", "dataset"),
        ('["nobody"]', '["no-such-user-4711"]', "no-such-user"),
        ('["nobody"]', "[-1]", "allowed_users"),
        ('["nobody"]', '"nobody"', "allowed_users"),
        ("same_user = false", "same_user = 0", "same_user"),
        ("same_user = false", 'closed_runs = "spring"', "closed_runs"),
        ("answer_seconds = 1.0", "answer_seconds = -1", "answer_seconds"),
        ('# socket_group = "..."', 'socket_group = "no-such-group"', "socket_group"),
        ("[model]", "[models]", "model"),
        ("classes = 10", "classes = 1", "classes"),
        ("input_shape = [64]", "input_shape = 64", "input_shape"),
        ("options = {}", "options = { a = nan }", "options"),
        ("scale = 1.0", "scale = 0.0", "scale"),
        ("std = [1.0]", 'std = ["a"]', "normalisation"),
        ("[[runs]]", "[runs]", r"a list of tables, each under its own line \[\[runs\]\]"),
        ('# plan = "..."', 'plan = "abc"', "plan"),
        ("[[runs]]", "[[runs", "terms.toml"),
    ],
)
def test_what_is_wrong_is_named(folder, old, new, said):
    assert old in FILE
    with pytest.raises(InputError, match=said):
        read(folder, FILE.replace(old, new, 1))


PEOPLE = Population.from_arrays(
    ids=["a", "b", "c", "gift"], sizes=[600] * 4, epsilon=[1.0, 4.0, 8.0, np.nan],
    delta=[1e-5] * 3 + [np.nan], public=[False] * 3 + [True],
)  # fmt: skip
KEYS = {name: f"{i:064x}" for i, name in enumerate(PEOPLE.ids)}
MODEL = ModelTerms(name="logistic", input_shape=(64,), classes=10)


def _plan(**trust):
    training = Training(rounds=8, cohort_size=3, batch_size=60)
    return make_plan(PEOPLE, training, selection="uniform", seed=0, accountant=Contract(**trust))


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        ({}, "noise is not distributed in this plan"),
        ({"trust": "distributed", "colluding": 2}, "counts on nobody but itself"),
        ({"trust": "distributed"}, "'gift' is public and has no guard"),
    ],
)
def test_plans_whose_members_cannot_count_on_each_other_are_refused(trust, words):
    with pytest.raises(InputError, match=words):
        pool_from_plan(_plan(**trust), KEYS)


def test_terms_of_a_plan_are_for_a_client_with_a_budget():
    plan = _plan()
    with pytest.raises(InputError, match="client = 'z'"):
        terms_from_plan(plan, "z", run="spring", model=MODEL)
    with pytest.raises(InputError, match="'gift' has no budget or is never drawn"):
        terms_from_plan(plan, "gift", run="spring", model=MODEL)


def test_the_rate_is_the_batch_over_the_records(terms):
    accepted = terms.runs[0].run_terms(40)
    assert accepted.sampling_rate == 10 / 40
    with pytest.raises(InputError, match="9 records"):
        terms.runs[0].run_terms(9)


def test_noise_left_out_is_the_least_that_keeps_the_promise(terms):
    run = replace(terms.runs[0], least_noise_multiplier=None)
    accepted = run.run_terms(40)
    assert accepted.certified_epsilon() <= run.epsilon
    less = replace(run, least_noise_multiplier=accepted.least_noise_multiplier * 0.999)
    with pytest.raises(BudgetExceededError):
        less.run_terms(40)


def test_more_records_than_said_do_not_help_the_server(terms):
    with pytest.raises(BudgetExceededError):
        replace(terms.runs[0], least_noise_multiplier=0.3).run_terms(40)


def test_fingerprints_tell_models_and_layouts_apart():
    model = ModelTerms(name="mlp", input_shape=(5,), classes=3, options={"hidden": [4]})
    others = [
        replace(model, name="logistic"),
        replace(model, input_shape=(6,)),
        replace(model, classes=4),
        replace(model, options={"hidden": [5]}),
    ]
    assert len({model.sha256(), *(other.sha256() for other in others)}) == 5
    assert ModelTerms(name="mlp", input_shape=[5], classes=3, options={"hidden": [4]}) == model
    assert layout_sha256([("a", (2,)), ("b", (2,))]) != layout_sha256([("b", (2,)), ("a", (2,))])


def test_a_key_or_table_that_is_missing_is_called_so():
    full = {"dataset": "d", "lifetime_epsilon": 1.0, "lifetime_delta": 1e-5}
    model = {"model": {"name": "logistic"}}
    for values, said in (({}, "'dataset'"), ({**full, **model}, "input_shape")):
        with pytest.raises(InputError, match=f"the key .*{said}.* is missing"):
            GuardTerms(**values)


@pytest.mark.parametrize("text", ["a = " + "[" * 2000, "a." * 300 + "a = 1", "a = " + "9" * 5000])
def test_a_file_that_cannot_be_worked_through_is_one_message(tmp_path, text):
    (tmp_path / "terms.toml").write_text(text)
    for read in (GuardTerms.from_toml, RunTerms.from_toml):
        with pytest.raises(FileFormatError, match=r"terms\.toml: "):
            read(tmp_path / "terms.toml")


def test_a_record_is_not_larger_than_a_machine():
    with pytest.raises(InputError, match="numbers of a record = 1000000000000"):
        ModelTerms(name="logistic", input_shape=(10**6, 10**6), classes=2)
    with pytest.raises(InputError, match="numbers of a record = a number of thousands of digits"):
        ModelTerms(name="logistic", input_shape=(10**4000, 10**4000), classes=2)


def test_an_evaluation_with_too_little_noise_is_refused(with_run):
    said = {"epsilon": 0.5, "delta": 1e-6, "least_noise_multiplier": 8.1}
    runs = check_terms(with_run(evaluation=said), 40)
    assert runs["spring (evaluation)"].certified_epsilon() < 0.5
    quiet = with_run(evaluation={**said, "least_noise_multiplier": 7.0})
    with pytest.raises(BudgetExceededError, match=r"above the 0\.5 they state"):
        check_terms(quiet, 40)
