# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpcohort.errors import InputError
from dpcohort.report.figures.budgets import budgets_figure


def test_a_point_a_client_under_the_line(runs):
    receipts = runs[0].receipts()
    (kept,) = budgets_figure(receipts).axes[0].collections
    points = np.asarray(kept.get_offsets())
    wanted = [(r.promised_epsilon, r.certified_epsilon) for r in receipts if not r.public]
    assert np.allclose(points, wanted)
    assert np.all(points[:, 1] <= points[:, 0])


def test_a_broken_promise_stands_out(runs):
    receipts = runs[0].receipts()
    broken = [
        replace(r, certified_epsilon=2 * r.promised_epsilon) if i == 0 else r
        for i, r in enumerate(receipts)
    ]
    axis = budgets_figure(broken).axes[0]
    assert [c.get_label() for c in axis.collections] == ["kept", "BROKEN"]


def test_public_clients_have_no_budget(runs):
    with pytest.raises(InputError, match="no receipt has a budget"):
        budgets_figure([r for r in runs[0].receipts() if r.public])
