# SPDX-License-Identifier: Apache-2.0
"""Max-pooling of 2 x 2 windows, and the ReLU behind it, as operations on whole images.

The larger of each two neighbours in a line, then the larger of each two lines: two passes that a
processor does many numbers at a time, where the general pooling of torch looks at one window after
the other and writes down where its largest entry was. On the way back the gradient goes to the line
whose maximum is the window's and within it to the entry that equals the line's; the other gets what
is left, which is nothing. Of equal entries the first in reading order is taken, as torch does, so
every bit of the result is torch's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpcohort.engine.clipping.scratch import Scratch

__all__ = ["PairPooling"]


class PairPooling:
    """Pools the images in one piece of memory, as often as they change.

    Args:
        image: [rows, height, width, channels]; an odd last line or column is in no window.
        relu: whether to take the ReLU.
        scratch: memory for what lies between.

    Example:
        >>> image = torch.tensor([-1.0, 7.0, 2.0, 7.0]).view(1, 2, 2, 1)
        >>> pooling = PairPooling(image, relu=True, scratch=Scratch())
        >>> pooling.pool(torch.empty(1, 1, 1, 1)).item()
        7.0
        >>> pooling.hand_back(torch.full((1, 1, 1, 1), 3.0)).flatten().tolist()
        [0.0, 3.0, 0.0, 0.0]
    """

    def __init__(self, image: Tensor, *, relu: bool, scratch: Scratch) -> None:
        rows, height, width, channels = image.shape
        half, narrow = height // 2, width // 2
        self._image, self._relu = image, relu
        whole = image[:, : 2 * half, : 2 * narrow]
        pairs = whole.view(rows, 2 * half, narrow, 2, channels)
        self._left, self._right = pairs[:, :, :, 0], pairs[:, :, :, 1]
        self._of_lines = scratch.piece("of lines", (rows, 2 * half, narrow, channels), image)
        self._by_lines = scratch.piece("by lines", (rows, 2 * half, narrow, channels), image)
        shape = (rows, half, 2, narrow, channels)
        lines, by_lines = self._of_lines.view(shape), self._by_lines.view(shape)
        self._upper, self._lower = lines[:, :, 0], lines[:, :, 1]
        self._to_upper, self._to_lower = by_lines[:, :, 0], by_lines[:, :, 1]
        self._largest = scratch.piece("largest", (rows, half, narrow, channels), image)
        self._passed = scratch.piece("passed", (rows, half, narrow, channels), image)
        odd = [image[:, 2 * half :], image[:, :, 2 * narrow :]]
        self._odd = [rest for rest in odd if rest.numel()]

    def pool(self, out: Tensor) -> Tensor:
        """The largest entry of each window, or 0 if that is larger and the ReLU is wanted.

        Args:
            out: [rows, height / 2, width / 2, channels] to write to.
        """
        torch.maximum(self._left, self._right, out=self._of_lines)
        torch.maximum(self._upper, self._lower, out=out)
        return out.clamp_min_(0) if self._relu else out

    def hand_back(self, gradient: Tensor) -> Tensor:
        """Turn the images into the gradient by them, in their place.

        Args:
            gradient: by what comes out, [rows, height / 2, width / 2, channels].

        Returns:
            The images' memory.
        """
        torch.maximum(self._left, self._right, out=self._of_lines)
        torch.maximum(self._upper, self._lower, out=self._largest)
        passed = self._passed.copy_(gradient)
        if self._relu:
            torch.ops.aten.threshold_backward.grad_input(
                passed, self._largest, 0, grad_input=passed
            )
        # Comparisons give 1 and 0 as numbers here; truth values would take several times as long.
        torch.eq(self._upper, self._largest, out=self._to_upper)
        torch.sub(passed, self._to_upper.mul_(passed), out=self._to_lower)
        self._left.eq_(self._of_lines).mul_(self._by_lines)
        torch.sub(self._by_lines, self._left, out=self._right)
        for rest in self._odd:
            rest.zero_()
        return self._image
