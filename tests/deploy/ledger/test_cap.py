# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.deploy.ledger.terms import LifetimeCap
from dpcohort.errors import InputError


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("epsilon", 0),
        ("epsilon", float("inf")),
        ("epsilon", "1"),
        ("delta", 0),
        ("delta", 1),
        ("neighbours", "other"),
        ("across_runs", "sum"),
        ("fingerprint", "abc"),
        ("fingerprint", "A" * 64),
    ],
)
def test_bad_values_are_refused(field, bad):
    with pytest.raises(InputError, match=field):
        LifetimeCap(**{"epsilon": 1.0, "delta": 1e-5, field: bad})


def test_round_trip():
    cap = LifetimeCap(epsilon=1, delta=1e-5, across_runs="summed", fingerprint="a" * 64)
    assert LifetimeCap.from_dict(cap.to_dict()) == cap
