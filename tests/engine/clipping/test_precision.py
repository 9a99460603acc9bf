# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from dpcohort.engine.clipping.precision import full_precision_products


@pytest.mark.parametrize("setting", [False, True])
def test_products_are_full_and_the_setting_comes_back(setting: bool) -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = setting
    try:
        with full_precision_products(torch.device("cuda")):
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32 == setting
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
