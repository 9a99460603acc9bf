# SPDX-License-Identifier: Apache-2.0
"""A convolution of few channels, pooled, for a number of images that stays the same.

All memory, and every view of it, is made once: the operations of a pass are then only those that
compute something.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpcohort.engine.clipping.pair_pooling import PairPooling
from dpcohort.engine.clipping.scratch import Scratch

__all__ = ["PooledLines"]

Pair = tuple[int, int]


class PooledLines:
    """The columns of some images as lines, their outputs and how those are pooled.

    Args:
        like: images of the right shape, [rows, channels, height, width].
        outputs: number of output channels.
        has_bias: whether there is a bias; it is one more weight, for a line of ones.
        kernel: height and width, as the rest.
        stride: of the convolution.
        padding: zeros on each side.
        dilation: distance of neighbours in a patch.
        relu: whether the ReLU is taken after pooling.
        scratch: memory that others may write over between ``fill`` and the next.

    Example:
        >>> image, weight = torch.ones(1, 1, 2, 2), torch.full((1, 1, 1, 1), 3.0)
        >>> one = (1, 1)
        >>> lines = PooledLines(image, outputs=1, has_bias=True, kernel=one, stride=one,
        ...                     padding=(0, 0), dilation=one, relu=True, scratch=Scratch())
        >>> lines.fill(image, weight, torch.ones(1))
        >>> lines.pool(torch.empty(1, 1, 1, 1)).item()
        4.0
    """

    def __init__(
        self, like: Tensor, *, outputs: int, has_bias: bool, kernel: Pair, stride: Pair,
        padding: Pair, dilation: Pair, relu: bool, scratch: Scratch,
    ) -> None:  # fmt: skip
        rows, channels = like.shape[:2]
        height, width = (like.shape[2 + i] + 2 * padding[i] for i in (0, 1))
        down = (height - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
        across = (width - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
        padded = like.new_zeros(rows, channels, height, width)  # its own: the edge stays zero
        self._inner = padded[
            :, :, padding[0] : height - padding[0], padding[1] : width - padding[1]
        ]
        area = height * width
        self._patches = padded.as_strided(
            (rows, channels, *kernel, down, across),
            (
                channels * area,
                area,
                dilation[0] * width,
                dilation[1],
                stride[0] * width,
                stride[1],
            ),
        )
        fan_in, positions = channels * kernel[0] * kernel[1], down * across
        self._lines = scratch.piece("lines", (rows, fan_in + has_bias, positions), like)
        self._ones = self._lines[:, fan_in:]
        self._upright = self._lines.transpose(1, 2)
        self._written = self._lines[:, :fan_in].view(self._patches.shape)
        self._matrix = like.new_empty(outputs, fan_in + has_bias)
        self._weight, self._bias = self._matrix[:, :fan_in], self._matrix[:, fan_in:]
        self._matrices = self._matrix.t().expand(rows, -1, -1)
        self._outputs = scratch.piece("outputs", (rows, positions, outputs), like)
        image = self._outputs.view(rows, down, across, outputs)
        self._pooling = PairPooling(image, relu=relu, scratch=scratch)

    def fill(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Compute the outputs of other images, or with other weights."""
        self._inner.copy_(inputs)
        self._written.copy_(self._patches)
        self._weight.copy_(weight.flatten(1))
        if bias is not None:
            self._ones.fill_(1)
            self._bias.copy_(bias[:, None])
        torch.bmm(self._upright, self._matrices, out=self._outputs)

    def pool(self, out: Tensor) -> Tensor:
        """Write what comes out of pooling to ``out``, [rows, height, width, channels]."""
        return self._pooling.pool(out)

    def hand_back(self, gradient: Tensor, formed: Tensor) -> Tensor:
        """From the gradient by what came out to that by the weights, for every image.

        Args:
            gradient: [rows, height, width, channels].
            formed: [rows, entries of a patch and one for the bias, channels] to write to.

        Returns:
            The gradient by the outputs before pooling, [rows, height, width, channels].
        """
        by_outputs = self._pooling.hand_back(gradient)
        torch.bmm(self._lines, self._outputs, out=formed)
        return by_outputs
