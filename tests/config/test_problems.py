# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.config import error_of, key_lines, words_of

KEYS = {
    "": ["population", "training"],
    "population": ["count", "public"],
    "population.public": ["size"],
    "training": ["rounds", "clip"],
}


def test_lines_of_tables_and_keys():
    lines = key_lines(
        "# [not.a.table]\n"
        "[training]   # a comment\n"
        "rounds = 3\n"
        '"clip" = 1\n'
        "[[population.public]]\n"
        "size = 1\n"
        "[[ population . public ]]\n"
        "size = 2\n"
        "[population.epsilon]\n"
        "low = 0\n"
    )
    assert lines == {
        ("training",): 2,
        ("training", "rounds"): 3,
        ("training", "clip"): 4,
        ("population", "public", 0): 5,
        ("population", "public", 0, "size"): 6,
        ("population", "public", 1): 7,
        ("population", "public", 1, "size"): 8,
        ("population", "epsilon"): 9,
        ("population", "epsilon", "low"): 10,
    }


def test_dotted_keys_have_lines_too():
    assert key_lines("training.rounds = 3") == {("training", "rounds"): 1}


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (("training", "rouns"), "training.rouns is not a known key. Did you mean 'rounds'?"),
        (("trainig",), "trainig is not a known key. Did you mean 'training'?"),
        (("rounds",), "rounds is not a known key. It belongs under [training]."),
        (
            ("training", "count"),
            "training.count is not a known key. It belongs under [population].",
        ),
        (("training", "zzz"), "training.zzz is not a known key. Known here: rounds, clip."),
        (("population", "public", 1, "zzz"), "population.public[1].zzz is not a known key."),
    ],
)
def test_an_unknown_key_is_answered_with_a_better_one(where: tuple[str | int, ...], words: str):
    found = words_of({"type": "extra_forbidden", "loc": where, "input": 1}, KEYS)
    assert found[1].startswith(words)
    assert found[0] == where


def test_many_problems_are_listed_by_line_and_cut():
    problems = [(("training", f"k{row}"), f"problem {row}.") for row in range(8)]
    lines = {("training", f"k{row}"): 20 - row for row in range(8)}
    message = str(error_of("a.toml", problems, lines))
    assert message.splitlines() == [
        "a.toml: 8 problems",
        *(f"  line {line}: problem {20 - line}." for line in (13, 14, 15, 16, 17)),
        "  and 3 more",
    ]


def test_the_nearest_table_stands_in_for_a_key_that_is_not_there():
    error = error_of("a.toml", [(("training", "x"), "odd.")], {("training",): 4})
    assert error.line == 4
    assert error_of("a.toml", [(("other",), "odd.")], {}).line is None
