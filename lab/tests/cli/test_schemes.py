# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.config import commented_config
from dpcohort_lab.schemes.named import SCHEMES

SHORT = [
    "--set", "training.rounds=3", "--set", "training.cohort_size=3", "--set", "population.count=5",
]  # fmt: skip


@pytest.fixture
def digits_config(tmp_path):
    path = tmp_path / "digits.toml"
    path.write_text(commented_config("digits"))
    return path


def test_the_list_states_the_unit_of_every_scheme(terminal):
    shown = terminal("schemes")
    assert all(name in shown for name in SCHEMES)
    assert shown.count("\n  unit ") == len(SCHEMES)
    assert "must not be compared as equals" in " ".join(shown.split())
    cards = terminal.json("schemes", "--schemes", "udp,ldp")
    assert [card["unit"] for card in cards] == ["record", "local record"]


def test_one_table_of_schemes_on_the_same_data(terminal, digits_config):
    chosen = ["--schemes", "udp,ldp", "--mode", "both", "--seeds", 2]
    shown = terminal("schemes", digits_config, *chosen, "--receipt", "client-2", *SHORT)
    words = " ".join(shown.split())
    assert "udp (formula)" in words
    assert "NOT PRIVATE" in words
    assert "±" in words
    assert "client-2 (udp, honest)" in words
    assert "must not be compared as equals" in words


def test_a_config_without_data_and_an_unknown_client_are_told(terminal, config, digits_config):
    terminal("schemes", config, code=2)
    assert "[data]" in terminal.errors
    terminal("schemes", digits_config, "--schemes", "udp", "--receipt", "client-99", *SHORT, code=2)
    assert "client" in terminal.errors
