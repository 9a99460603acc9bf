# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import torch

from dpcohort_lab.schemes.randomiser import private_reports, report_length, sampled_records


def test_a_sample_has_its_size_without_repeats_and_is_fresh_each_round(simulation):
    first, second = (sampled_records(simulation, t, 40) for t in (0, 1))
    assert np.unique(first).size == 40
    assert not np.array_equal(first, second)
    assert np.array_equal(first, sampled_records(simulation, 0, 40))


def test_each_record_reports_with_its_own_epsilon(simulation):
    weak = np.full(simulation.total_size, 0.1)
    weak[: simulation.total_size // 2] = 3.0
    rows = sampled_records(simulation, 0, 30)
    reports = private_reports(simulation, 0, simulation.initial(), 30, weak)
    wanted = [
        report_length(clip=1.0, local_epsilon=float(weak[row]), dimension=simulation.dimension)
        for row in rows
    ]
    assert torch.allclose(reports.norm(dim=1), torch.tensor(wanted), rtol=1e-4)
