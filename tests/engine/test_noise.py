# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import torch

from dpcohort.engine.randomness import Streams, noise_std, standard_noise_


def test_noise_on_the_mean_is_z_c_over_b() -> None:
    stds = noise_std(np.array([0.0, 2.0]), 0.5, np.array([4, 8]))
    assert stds.tolist() == [0.0, 0.125]


def test_noise_is_written_in_place() -> None:
    matrix = torch.zeros(2, 5)
    standard_noise_(matrix[1], Streams.seeded(0), round=0, client=0, draw=0, step=0)
    assert torch.all(matrix[0] == 0)
    assert torch.all(matrix[1] != 0)
