# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle

import pytest

from dpcohort.errors import (
    BudgetExceededError,
    DataMissingError,
    DivergedError,
    DpcohortError,
    FileFormatError,
    InputError,
    VerificationError,
    WaitingError,
)


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (DpcohortError, 1),
        (InputError, 2),
        (DivergedError, 2),
        (WaitingError, 2),
        (FileFormatError, 2),
        (DataMissingError, 3),
        (BudgetExceededError, 4),
        (VerificationError, 1),
    ],
)
def test_every_kind_has_its_exit_code_and_one_base(kind: type[DpcohortError], exit_code: int):
    assert kind.exit_code == exit_code
    assert issubclass(kind, DpcohortError)


def test_an_input_error_says_field_value_allowed_and_next_step():
    error = InputError("delta", given=2, allowed="below 1", next_step="Lower it.")
    assert str(error) == "delta = 2 is not allowed: it must be below 1. Lower it."
    assert error.field == "delta"
    assert isinstance(error, ValueError)


def test_a_long_value_is_cut_and_its_length_told():
    message = str(InputError("id", given="x" * 1_000_000, allowed="short"))
    assert len(message) < 200
    assert "1000002 characters" in message


def test_a_file_error_says_where():
    error = FileFormatError("a.csv", "bad", line=7)
    assert (str(error), error.path, error.line) == ("a.csv, line 7: bad", "a.csv", 7)
    assert str(FileFormatError("a.csv", "bad")) == "a.csv: bad"


@pytest.mark.parametrize(
    "error",
    [
        BudgetExceededError("spent"),
        InputError("delta", given=2, allowed="below 1"),
        DivergedError.because("left all numbers"),
        FileFormatError("a.csv", "bad", line=7),
    ],
)
def test_errors_go_from_process_to_process(error: DpcohortError):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
