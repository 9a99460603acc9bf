# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tomllib

import pytest

from dpcohort.config import EXAMPLES, commented_config
from dpcohort.config._settings import rewritten
from dpcohort.errors import InputError

CHANGES = [
    "training.rounds=7",
    "training.sampling_rate=1.0",
    "optimiser.learning_rate=0.5",
    "tuning.source=none",
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_only_the_changed_lines_differ_and_every_comment_stays(example):
    text = commented_config(example)
    changed = rewritten(text, CHANGES)
    values = tomllib.loads(changed)
    assert (values["training"]["rounds"], values["training"]["sampling_rate"]) == (7, 1.0)
    assert values["optimiser"]["learning_rate"] == 0.5
    assert "batch_size" not in values["training"]
    before, after = text.splitlines(), changed.splitlines()
    lost = [line for line in before if line not in after]
    assert len(lost) <= 4
    for line in lost:  # what was said in a changed line is still said
        comment = line.partition("#")[2].strip()
        assert comment in changed
    old = tomllib.loads(text)
    for table in ("population", "privacy", "schedule", "aggregation"):
        assert values[table] == old[table]


def test_a_changed_line_says_what_it_was_and_why():
    text = rewritten(
        "[training]\nrounds = 40\n", ["training.rounds=100"], notes={"training.rounds": "tuned"}
    )
    assert text == "[training]\nrounds = 100  # tuned; was 40\n"


def test_what_is_the_same_already_and_what_need_not_be_told():
    text = "[training]\nrounds = 40  # ours\nclip = 1.0\n"
    assert rewritten(text, ["training.rounds=40"]) == text
    quiet = rewritten(text, ["training.clip=0.5"], tell_old=False)
    assert quiet == "[training]\nrounds = 40  # ours\nclip = 0.5\n"


def test_dotted_keys_and_values_over_several_lines_are_left_whole():
    text = 'training.rounds = 3\n[grid]\nselection = { rule = [\n  "unbiased",\n] }\n'
    changed = tomllib.loads(rewritten(text, ["training.clip=0.5", "grid.training=[1]"]))
    assert changed["training"] == {"rounds": 3, "clip": 0.5}
    assert changed["grid"] == {"selection": {"rule": ["unbiased"]}, "training": [1]}


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("training = { rounds = 3 }\n", ["training.rounds=4"]),
        ("[training]\nnames = [\n  'a',\n]\n", ["training.names=[1]", "training.rounds=4"]),
        ('[training]\nname = "a \\" b"\n', ["training.name=c"]),
    ],
)
def test_what_cannot_be_changed_by_itself_is_refused_with_the_way_out(text, changes):
    with pytest.raises(InputError, match=r"\[training\] as tables of their own"):
        rewritten(text, changes)
