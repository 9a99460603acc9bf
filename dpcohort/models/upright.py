# SPDX-License-Identifier: Apache-2.0
"""Line drawings set upright, each by its own moments: no slant, centred, of standard size.

Handwriting leans, and people lean differently. The covariance of the places where an image is dark
says by how much; a shear takes it off. It is computed from the image alone (deskewing, as in LeCun
et al., "Gradient-based learning applied to document recognition", 1998), so it costs no privacy.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

__all__ = ["upright"]

#: Standard deviations of the strokes' places, in half image widths, that drawings are brought to.
_WIDE, _TALL = 0.3, 0.35
#: How far a drawing may be stretched along each axis, before the root.
_WIDE_RANGE, _TALL_RANGE = (0.6, 1.3), (0.7, 1.3)


def upright(images: Tensor) -> Tensor:
    """The images with their slant taken off, centred, and half way to a standard size.

    With m the brightness above the image's darkest pixel as a mass, the image is moved such that
    the centre of mass is the middle, sheared by cov(x, y) / var(y), and scaled along each axis by
    the root of its standard deviation over the standard one. The places beyond the border have the
    darkest pixel's value. All channels move together.

    Args:
        images: [records, channels, height, width]; strokes brighter than the ground.

    Returns:
        Images of the same shape; one without contrast stays as it is.

    Example:
        >>> slanted = torch.zeros(1, 1, 9, 9)
        >>> for row in range(9):
        ...     slanted[0, 0, row, row] = 1.0
        >>> upright(slanted)[0, 0].sum(0).argmax().item()
        4
    """
    darkest = images.amin((1, 2, 3), keepdim=True)
    mass = (images - darkest).sum(1)
    total = mass.sum((1, 2)).clamp(min=1e-6)
    height, width = images.shape[2:]
    y = torch.linspace(-1, 1, height, dtype=images.dtype, device=images.device)[None, :, None]
    x = torch.linspace(-1, 1, width, dtype=images.dtype, device=images.device)[None, None]

    def mean(values: Tensor) -> Tensor:
        return (mass * values).sum((1, 2)) / total

    middle_y, middle_x = mean(y), mean(x)
    down, across = y - middle_y[:, None, None], x - middle_x[:, None, None]
    tall, both, wide = mean(down.square()), mean(down * across), mean(across.square())
    shear = (both / tall.clamp(min=1e-4)).clamp(-1, 1)
    spread = (wide - shear * both).clamp(min=1e-5).sqrt()
    scale_x = (spread / _WIDE).clamp(*_WIDE_RANGE).sqrt()
    scale_y = (tall.clamp(min=1e-5).sqrt() / _TALL).clamp(*_TALL_RANGE).sqrt()
    rows = torch.stack([scale_x, shear * scale_y, middle_x], 1)
    columns = torch.stack([torch.zeros_like(shear), scale_y, middle_y], 1)
    places = F.affine_grid(torch.stack([rows, columns], 1), list(images.shape), align_corners=True)
    moved = F.grid_sample(images - darkest, places, align_corners=True, padding_mode="zeros")
    return moved + darkest
