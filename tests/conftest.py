# SPDX-License-Identifier: Apache-2.0
"""What tests of several rooms need."""

from __future__ import annotations

import pytest


@pytest.fixture
def cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU: there is no CUDA here")
    return "cuda"
