# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json

import pytest

from dpcohort.errors import InputError
from dpcohort.round_record import RoundRecord, TestResult

#: Everything a line may say. A client's loss, norm or gradient must never be among it.
PUBLIC = {"round", "clients", "noise_stds", "seconds", "test", "test_average", "lost"}


def test_a_record_survives_json():
    result = TestResult(accuracy=0.5, loss=1.5, class_accuracy=(0.5, 0.25), class_counts=(2, 4))
    record = RoundRecord(round=3, clients=(1, 1), noise_stds=(0.1, 0.2), seconds=0.5, test=result)
    stored = json.loads(json.dumps(record.to_dict()))
    assert "test_average" not in stored
    assert "lost" not in stored
    assert RoundRecord.from_dict(stored) == record


def test_only_public_things_can_be_written():
    assert {field.name for field in dataclasses.fields(RoundRecord)} == PUBLIC


@pytest.mark.parametrize("values", [{}, {"round": "x"}, {"round": 1, "clients": 3}])
def test_other_lines_are_refused(values):
    with pytest.raises(InputError, match="record of a round"):
        RoundRecord.from_dict(values)
