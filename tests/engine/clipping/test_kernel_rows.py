# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine.clipping import kernel_rows
from dpcohort.engine.clipping.kernel_rows import KernelRows, has_kernel_rows
from dpcohort.engine.clipping.scratch import Scratch


@pytest.mark.parametrize("at_a_time", [1 << 30, 4000], ids=["at once", "in parts"])
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
@pytest.mark.parametrize("stride", [(1, 1), (1, 2)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1)])
def test_gradients_are_those_of_columns(
    padding: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], at_a_time: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(kernel_rows, "_STRIP_BYTES", at_a_time)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(7, 3, 6, 8, generator=generator, dtype=torch.float64)
    unfolded = F.unfold(images, (3, 2), dilation=dilation, padding=padding, stride=stride)
    gradient = torch.randn(7, unfolded.shape[2], 4, generator=generator, dtype=torch.float64)
    expected = torch.einsum("npo,nfp->nof", gradient, unfolded).view(7, 4, 3, 3, 2)
    inputs = images.permute(0, 2, 3, 1)
    rows = KernelRows(
        inputs, outputs=4, kernel=(3, 2), stride=stride, padding=padding, dilation=dilation,
        scratch=Scratch(),
    )  # fmt: skip
    for _ in range(2):  # memory is used again
        formed = rows.form(inputs, gradient).view(3, 7, 4, 2, 3)
        torch.testing.assert_close(formed.permute(1, 2, 4, 0, 3), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "fits"),
    [
        (16, (3, 3), (1, 1), True),
        (16, (3, 3), (1, 2), True),
        (16, (3, 3), (2, 1), False),
        (16, (1, 3), (1, 1), False),
        (4, (3, 3), (1, 1), False),
    ],
)
def test_which_convolutions_go_by_kernel_rows(
    channels: int, kernel: tuple[int, int], stride: tuple[int, int], fits: bool
) -> None:
    assert has_kernel_rows(channels, kernel, stride) is fits
