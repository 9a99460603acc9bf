# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import torch

from dpcohort.lab.schemes.local_randomiser import report_length
from dpcohort.lab.schemes.reports import private_reports, sampled_records


def test_a_sample_has_its_size_without_repeats_and_is_fresh_each_round(federation):
    first, second = (sampled_records(federation, t, 40) for t in (0, 1))
    assert np.unique(first).size == 40
    assert not np.array_equal(first, second)
    assert np.array_equal(first, sampled_records(federation, 0, 40))


def test_each_record_reports_with_its_own_epsilon(federation):
    weak = np.full(federation.total_size, 0.1)
    weak[: federation.total_size // 2] = 3.0
    rows = sampled_records(federation, 0, 30)
    reports = private_reports(federation, 0, federation.initial(), 30, weak)
    wanted = [
        report_length(clip=1.0, local_epsilon=float(weak[row]), dimension=federation.dimension)
        for row in rows
    ]
    assert torch.allclose(reports.norm(dim=1), torch.tensor(wanted), rtol=1e-4)
