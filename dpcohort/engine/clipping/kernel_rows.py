# SPDX-License-Identifier: Apache-2.0
"""Gradients of a convolution for every example, one row of the kernel at a time, on a CPU.

The columns of all kernel rows hold the same numbers: what row i of the kernel sees at output line y
is what row 0 sees at line y + i. So only *strips* are copied, patches one line high, for every line
of the padded image; kernel row i then has its columns in them, shifted by i lines, without another
copy. That is a third of the memory for a kernel three high. It needs output lines that follow one
another, that is a vertical stride of 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpcohort.engine.clipping.scratch import Scratch

__all__ = ["KernelRows", "has_kernel_rows"]

Pair = tuple[int, int]

#: Strips are formed for so many bytes at a time, to stay in the cache.
_STRIP_BYTES = 3 << 20
#: Narrower strips make products too thin to be fast.
_LEAST_WIDTH = 32


def has_kernel_rows(channels: int, kernel: Pair, stride: Pair) -> bool:
    """Whether this way fits a convolution and is faster than columns of whole patches.

    Example:
        >>> has_kernel_rows(16, (3, 3), (1, 1)), has_kernel_rows(16, (4, 4), (2, 2))
        (True, False)
    """
    return stride[0] == 1 and kernel[0] > 1 and kernel[1] * channels >= _LEAST_WIDTH


class KernelRows:
    """Forms the gradients of a number of images that stays the same.

    Memory and views of it are made once, so that a pass consists of little but products.

    Args:
        like: images of the right shape, [rows, height, width, channels].
        outputs: number of output channels.
        kernel: height and width, as the rest.
        stride: the first must be 1.
        padding: zeros on each side.
        dilation: distance of neighbours in a patch.
        scratch: memory that others may write over between two calls.

    Example:
        >>> image = torch.arange(4.0).view(1, 2, 2, 1)
        >>> rows = KernelRows(image, outputs=1, kernel=(1, 1), stride=(1, 2), padding=(0, 0),
        ...                   dilation=(1, 1), scratch=Scratch())
        >>> rows.form(image, torch.ones(1, 2, 1)).flatten().tolist()
        [2.0]
    """

    def __init__(
        self, like: Tensor, *, outputs: int, kernel: Pair, stride: Pair, padding: Pair,
        dilation: Pair, scratch: Scratch,
    ) -> None:  # fmt: skip
        rows, height, width, channels = like.shape
        height, width = height + 2 * padding[0], width + 2 * padding[1]
        across = (width - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
        positions = (height - dilation[0] * (kernel[0] - 1)) * across
        breadth = kernel[1] * channels
        each = height * across * breadth * like.element_size()
        count = max(1, -(-rows * each // _STRIP_BYTES))
        self._step = step = -(-rows // count)
        padded = like.new_zeros(step, height, width, channels)  # its own: the edge stays zero
        self._inner = padded[:, padding[0] : height - padding[0], padding[1] : width - padding[1]]
        self._patches = padded.as_strided(
            (step, height, across, kernel[1], channels),
            (
                height * width * channels,
                width * channels,
                stride[1] * channels,
                dilation[1] * channels,
                1,
            ),
        )
        strips = scratch.piece("strips", (step, height * across, breadth), like)
        self._strips = strips.view(self._patches.shape)
        starts = [row * dilation[0] * across for row in range(kernel[0])]
        self._columns = [strips[:, start : start + positions] for start in starts]
        self._shape = (kernel[0], rows, outputs, breadth)

    def form(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """Gradient of the weight for every example.

        Args:
            inputs: [rows, height, width, channels].
            gradient: by the outputs, [rows, positions, outputs].

        Returns:
            [kernel height, rows, outputs, kernel width x channels].
        """
        formed = gradient.new_empty(self._shape)
        parts = (inputs, gradient.transpose(1, 2), formed.transpose(0, 1))
        for images, g, part in zip(*(torch.split(x, self._step) for x in parts), strict=True):
            few = len(images)
            whole = few == self._step
            (self._inner if whole else self._inner[:few]).copy_(images)
            self._strips.copy_(self._patches)
            for columns, place in zip(self._columns, part.unbind(1), strict=True):
                torch.bmm(g, columns if whole else columns[:few], out=place)
        return formed
