# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.audit import Claim, Finding
from dpcohort.errors import InputError


def test_sensitivity_is_the_samplers() -> None:
    assert Claim(sampler="poisson").sensitivity == 1.0
    assert Claim(sampler="fixed").sensitivity == 2.0


@pytest.mark.parametrize(
    "options",
    [{"sampler": "shuffle"}, {"sampler": "fixed", "clip": 0.0},
     {"sampler": "fixed", "noise_multiplier": -1.0}],
)  # fmt: skip
def test_bad_claims_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Claim(**options)  # type: ignore[arg-type]


def test_findings_read_as_a_line() -> None:
    finding = Finding(test="A", passed=False, detail="too quiet", false_alarm_rate=1e-7)
    assert str(finding) == "FAILED A: too quiet"
