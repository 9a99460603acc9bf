# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import certify_epsilon, gaussian_delta
from dpcohort.errors import InputError
from dpcohort_lab.schemes.profile import composed_epsilon_of, lower_hull


@pytest.mark.parametrize(("mu", "uses"), [(0.1, 1), (0.3, 20), (1.0, 5)])
def test_gaussians_compose_to_the_closed_form_and_never_below(mu, uses):
    exact = certify_epsilon(
        method="pld", delta=1e-5, noise_multiplier=1 / mu, sampling_rate=1.0, steps=float(uses)
    )
    found = composed_epsilon_of(
        lambda eps: gaussian_delta(epsilon=eps, mu=mu),
        largest=mu * (mu / 2 + 9),
        uses=uses,
        delta=1e-5,
    )
    assert exact * (1 - 1e-9) <= found <= exact * 1.005


def test_a_bound_that_is_not_convex_is_replaced_by_its_hull():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    y = np.array([0.9, 0.8, 0.2, 0.1])
    hull = lower_hull(x, y)
    assert (hull <= y + 1e-15).all()
    assert (np.diff(hull, 2) >= -1e-12).all()
    assert hull[[0, 2, 3]].tolist() == y[[0, 2, 3]].tolist()


def test_no_use_spends_nothing_and_tiny_deltas_are_refused():
    assert composed_epsilon_of(lambda eps: 0 * eps, largest=1.0, uses=0, delta=1e-5) == 0
    with pytest.raises(InputError, match="rounding noise"):
        composed_epsilon_of(lambda eps: 0 * eps, largest=1.0, uses=10, delta=1e-9)
