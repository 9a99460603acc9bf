# SPDX-License-Identifier: Apache-2.0
"""The file under both kinds of ledger: one plan's, one process's, and on disk before it counts."""

from __future__ import annotations

import json

import pytest

from dpcohort.errors import DataMissingError, InputError, VerificationError
from dpcohort.runs.adaptive_ledger import AdaptiveLedger, adaptive_header
from dpcohort.runs.append_log import read_log
from dpcohort.runs.ledger import Ledger, ledger_header
from dpcohort.runs.ledger_file import LedgerFile, first_line, read_ledger_file

from .conftest import adaptive_plan, small_plan

FIRST = {"format": "a ledger", "plan": "0123456789abcdef0123"}
KINDS = [(Ledger, small_plan), (AdaptiveLedger, adaptive_plan)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def refuse(entry):
    raise VerificationError(f"no {entry['round']}.")


def test_lines_are_on_disk_when_they_are_appended_and_come_back_in_order(path):
    file = LedgerFile(path, FIRST, refuse)
    for round in (0, 1):
        file.append({"round": round})
        assert read_log(path) == [FIRST, *({"round": r} for r in range(round + 1))]
    file.close()
    file.close()
    found: list[dict] = []
    read_ledger_file(path, FIRST, found.append)
    LedgerFile(path, FIRST, found.append).close()
    assert found == [{"round": 0}, {"round": 1}] * 2
    assert len(read_log(path)) == 3  # the first line is written once


def test_without_a_path_nothing_is_kept():
    file = LedgerFile(None, FIRST, refuse)
    file.append({"round": 0})
    file.close()


def test_a_refused_line_is_named_with_what_to_do(path):
    path.write_text(json.dumps(FIRST) + '\n{"round": 7}\n')
    words = f"{path}, line 2: no 7. See: dpcohort verify"
    for opening in (LedgerFile, read_ledger_file):
        with pytest.raises(VerificationError) as caught:
            opening(path, FIRST, refuse)
        assert str(caught.value) == words


def test_the_file_of_another_plan_is_named(path):
    LedgerFile(path, FIRST, refuse).close()
    other = {**FIRST, "plan": "fedcba98765432100123"}
    for opening in (LedgerFile, read_ledger_file):
        with pytest.raises(VerificationError) as caught:
            opening(path, other, refuse)
        assert str(caught.value) == (
            f"{path} is the ledger of another plan (0123456789abcdef... instead of "
            "fedcba9876543210...). Resume with the plan of the run."
        )


@pytest.mark.parametrize("key", ["format", "local_steps", "sampler", "neighbours"])
def test_the_whole_first_line_is_compared(path, key):
    plan = small_plan()
    first = first_line(plan, format="a ledger")
    LedgerFile(path, {**first, key: "another"}, refuse).close()
    with pytest.raises(VerificationError, match="another plan"):
        LedgerFile(path, first, refuse)


def test_reading_needs_a_file_with_a_first_line(path):
    with pytest.raises(DataMissingError, match="cannot be read"):
        read_ledger_file(path, FIRST, refuse)
    path.write_text('{"format": "cut sho')
    with pytest.raises(VerificationError, match="no first line"):
        read_ledger_file(path, FIRST, refuse)


@pytest.mark.parametrize(("kind", "make"), KINDS, ids=["planned", "adaptive"])
def test_a_ledger_is_open_in_one_process_only_and_refusing_lets_go_of_it(path, kind, make):
    plan, other = make(), make(seed=4)
    ledger = kind(plan, path)
    with pytest.raises(InputError, match="another process"):
        kind(plan, path)
    ledger.close()
    with pytest.raises(VerificationError, match="another plan"):
        kind(other, path)
    kind(plan, path).close()  # the refused opening left no lock behind


@pytest.mark.parametrize(("kind", "make"), KINDS, ids=["planned", "adaptive"])
def test_a_line_cut_short_by_a_crash_was_not_counted(path, kind, make):
    plan = make()
    kind(plan, path).close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round": 0, "coh')
    ledger = kind(plan, path)
    ledger.close()
    assert ledger.rounds == set()
    assert path.read_bytes() == whole


def test_the_two_kinds_are_told_apart_by_their_first_line():
    planned, adaptive = ledger_header(small_plan()), adaptive_header(adaptive_plan())
    assert planned["format"] != adaptive["format"]
    assert {*adaptive} - {*planned} == {"reports"}
    assert adaptive_header(adaptive_plan("clustered"))["reports"] == "none"
    raw = adaptive_header(adaptive_plan("power-of-choice", reports="raw", rule_settings={"d": 5}))
    assert raw["reports"] == "raw"
