# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine.clipping.pooled_lines import PooledLines
from dpcohort.engine.clipping.scratch import Scratch


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
def test_outputs_and_gradients_are_those_of_torch(
    stride: tuple[int, int], padding: tuple[int, int], has_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(0)

    def made_up(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lines: PooledLines | None = None
    for _ in range(2):  # the second time with other numbers in the same memory
        images, weight, bias = made_up(5, 2, 8, 9), made_up(4, 2, 3, 2), made_up(4)
        if lines is None:
            lines = PooledLines(
                images, outputs=4, has_bias=has_bias, kernel=(3, 2), stride=stride,
                padding=padding, dilation=(1, 1), relu=True, scratch=Scratch(),
            )  # fmt: skip
        weights = weight.expand(5, -1, -1, -1, -1).clone().requires_grad_()
        biases = bias.expand(5, -1).clone().requires_grad_()
        convolved = torch.cat([
            F.conv2d(
                images[i : i + 1], weights[i], biases[i] if has_bias else None, stride=stride,
                padding=padding,
            )
            for i in range(5)
        ])  # fmt: skip
        expected = F.max_pool2d(convolved, 2).relu()
        gradient = made_up(*expected.shape)
        expected.backward(gradient)
        lines.fill(images, weight, bias if has_bias else None)
        pooled = lines.pool(torch.empty_like(expected.permute(0, 2, 3, 1).contiguous()))
        torch.testing.assert_close(pooled.permute(0, 3, 1, 2), expected.detach())
        formed = gradient.new_empty(5, 12 + has_bias, 4)
        lines.fill(images, weight, bias if has_bias else None)
        lines.hand_back(gradient.permute(0, 2, 3, 1), formed)
        torch.testing.assert_close(
            formed[:, :12].transpose(1, 2).reshape(weights.shape), weights.grad
        )
        if has_bias:
            torch.testing.assert_close(formed[:, 12], biases.grad)
