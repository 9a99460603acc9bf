# SPDX-License-Identifier: Apache-2.0
"""The certificate: both methods agree, each where it is sound."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from dpcohort.accounting import certify_delta, certify_epsilon
from dpcohort.errors import InputError

TUPLES = [
    (8.12, 0.2133, 100, 1e-5),
    (0.9, 0.05, 30, 1e-6),
    (25.0, 0.5, 1000, 1e-5),
    (1.2, 0.3, 1, 1e-3),
    (2.0, 1.0, 50, 1e-5),
]


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("z", "r", "steps", "delta"), TUPLES)
def test_two_independent_methods_agree(neighbours, z, r, steps, delta):
    case = {"noise_multiplier": z, "sampling_rate": r, "steps": steps, "neighbours": neighbours}
    ours = certify_epsilon(delta=delta, method="pld", **case)
    library = certify_epsilon(delta=delta, method="dp-accounting", **case)
    assert ours == pytest.approx(library, rel=5e-4)
    assert certify_epsilon(delta=delta, **case) == library
    assert certify_delta(epsilon=ours, method="pld", **case) == pytest.approx(
        certify_delta(epsilon=ours, method="dp-accounting", **case), rel=0.02
    )


def test_the_printed_example_of_fixed_batches():
    """z = 8.12, r = 128/600, 100 steps: between the attained 2.218 and the bound 2.317."""
    epsilon = certify_epsilon(
        noise_multiplier=8.12, delta=1e-5, sampling_rate=128 / 600, steps=100, sampler="fixed"
    )
    assert epsilon == pytest.approx(2.317, abs=0.003)


def test_auto_is_ours_for_fixed_batches_and_for_tiny_delta():
    fixed = {"noise_multiplier": 3.0, "sampling_rate": 0.1, "steps": 40, "sampler": "fixed"}
    assert certify_epsilon(delta=1e-5, **fixed) == certify_epsilon(
        method="pld", delta=1e-5, **fixed
    )
    assert certify_delta(epsilon=2.0, **fixed) == certify_delta(method="pld", epsilon=2.0, **fixed)
    poisson = {"noise_multiplier": 3.0, "sampling_rate": 0.1, "steps": 40}
    assert certify_epsilon(delta=1e-11, **poisson) == certify_epsilon(
        method="pld", delta=1e-11, **poisson
    )
    assert certify_delta(epsilon=9.0, **poisson) == certify_delta(
        method="pld", epsilon=9.0, **poisson
    )


@pytest.mark.parametrize("method", ["auto", "pld", "dp-accounting"])
def test_the_ends_of_the_scale(method):
    case = {"sampling_rate": 0.2, "method": method}
    assert certify_epsilon(noise_multiplier=0.0, delta=1e-5, steps=1, **case) == math.inf
    assert certify_epsilon(noise_multiplier=1.0, delta=1e-5, steps=0, **case) == 0
    assert certify_delta(noise_multiplier=0.0, epsilon=1.0, steps=1, **case) == 1
    assert certify_delta(noise_multiplier=1.0, epsilon=1.0, steps=0, **case) == 0
    assert certify_delta(noise_multiplier=1.0, epsilon=math.inf, steps=5, **case) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "rdp"}, "one of auto, pld, dp-accounting"),
        ({"method": "dp-accounting", "sampler": "fixed"}, "'auto' or 'pld'"),
        ({"delta": 2.0}, "delta"),
        ({"sampler": "fixed", "neighbours": "zero-out"}, "replace-one"),
    ],
)
def test_bad_input_is_refused(change, message):
    good = {"noise_multiplier": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "steps": 3}
    with pytest.raises(InputError, match=message):
        certify_epsilon(**{**good, **change})


def test_dp_accounting_is_only_imported_when_asked():
    code = (
        "import sys; from dpcohort.accounting._events import certify_epsilon as c; "
        "c(noise_multiplier=1.0, delta=1e-5, sampling_rate=0.1, steps=3, method='pld'); "
        "sys.exit('dp_accounting' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
