# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.deploy.flower._federation import check_agreements, disagreements
from dpcohort.deploy.flower._record import FederatedJob
from dpcohort.deploy.guard import Hello
from dpcohort.errors import InputError


def _found(small, fakes, *, resume=False, terms=None, **says):
    guard = fakes["lab"]
    guard.says.update(says)
    if terms is not None:
        guard.says["accepted"] = {**guard.says["accepted"], **terms}
    job = FederatedJob.of(small.federation)
    return disagreements(job, "lab", Hello(**guard.says), resume=resume)


def test_terms_that_cover_the_plan_are_agreed(small, fakes):
    assert _found(small, fakes) == []
    generous = {"draws": 99, "rounds": 99, "clip": 9.0, "least_noise_multiplier": 0.1}
    assert _found(small, fakes, terms=generous, plan=None) == []


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ({"records": 399}, "399 records, the plan is for 400: other data"),
        ({"persons": {"rows_per_person": 5}}, "a person is the unit of its terms, and a record"),
        ({"model": "other"}, "allows another model than logistic"),
        ({"layout": "theirs"}, "other parameters"),
        ({"dimension": 7}, "other parameters"),
        ({"accepted": None}, "has not accepted the run 'spring'"),
        ({"plan": "0" * 64}, "accepted the plan 0000000000000000"),
        ({"protocol": 99}, "speaks protocol 99"),
        ({"counted": 2}, "2 draws of a run of this name are counted"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_of_another_kind_is_said(small, fakes, says, words):
    (found,) = _found(small, fakes, **says)
    assert words in found


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("draws", 1, "its terms allow draws 1, the plan needs"),
        ("rounds", 2, "its terms allow rounds 2, the plan needs 3"),
        ("clip", 0.5, "its terms allow clip 0.5, the plan needs 1.0"),
        ("clip", None, "its terms allow clip None"),
        ("least_noise_multiplier", 50.0, "its terms ask for noise multiplier 50.0, the plan has"),
        ("sampling_rate", 0.3, "sampling_rate is 0.3 in its terms and 0.15 in the plan"),
        ("batch_size", 61, "batch_size is 61"),
        ("local_steps", 1, "local_steps is 1"),
        ("sampler", "fixed", "sampler is 'fixed'"),
        ("neighbours", "replace-one", "neighbours is 'replace-one'"),
    ],
)
def test_terms_weaker_than_the_plan_are_named(small, fakes, key, value, words):
    (found,) = _found(small, fakes, terms={key: value})
    assert words in found


def test_a_run_that_goes_on_may_have_counted_draws(small, fakes):
    assert _found(small, fakes, counted=2, resume=True) == []


def test_all_clients_are_named_at_once():
    check_agreements({"lab": [], "ward 7": []})
    with pytest.raises(InputError, match=r"nothing spent.\n  lab: a\n  lab: b\n  ward 7: c"):
        check_agreements({"ward 7": ["c"], "lab": ["a", "b"]})
    with pytest.raises(InputError, match=r"\.\.\. and 8 more"):
        check_agreements({str(place): ["x"] for place in range(20)})


def test_words_of_a_client_stay_in_their_line(small, fakes):
    words = "\x1b[2Jall promises hold\nerror: none"
    found = _found(small, fakes, plan=f"\x1b[2J\n{words}", terms={"draws": [words] * 10_000})
    with pytest.raises(InputError) as caught:
        check_agreements({"lab": found, f"ward\n{words}": [words]})
    told = str(caught.value).splitlines()
    assert len(told) == 2 + len(found)
    assert all(line.isprintable() and len(line) < 700 for line in told)
