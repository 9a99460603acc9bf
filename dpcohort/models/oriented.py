# SPDX-License-Identifier: Apache-2.0
"""Oriented features: how much of each direction and scale is in each part of an image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpcohort._validate import choice
from dpcohort.models.fixed_features import FixedFeatures, band_moduli, unit_blocks

__all__ = ["OrientedFeatures"]


class OrientedFeatures(FixedFeatures):
    """Moduli of oriented band-pass filters and the image itself, averaged over cells.

    One block for the averaged image and one for each scale; each block is centred and all have the
    same norm (``unit_blocks``), so every image's features have norm 1. Centring by ``cell`` also
    takes the mean over the orientations off in each cell: what is left says which way the strokes
    run there, not how many there are. It suits line drawings; texture wants ``block``.

    Args:
        input_shape: (channels, height, width) of an image.
        scales: of the filters, each twice as coarse as the one before.
        orientations: of the filters, evenly over half a turn.
        cells: the averages are taken over cells x cells parts of the image.
        centring: ``block`` or ``cell``.

    Example:
        >>> features = OrientedFeatures((1, 28, 28))
        >>> features.width, sum(p.numel() for p in features.parameters())
        (833, 0)
        >>> round(float(features(torch.eye(28)[None, None]).norm()), 5)
        1.0
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        *,
        scales: int = 2,
        orientations: int = 8,
        cells: int = 7,
        centring: str = "block",
    ) -> None:
        super().__init__(input_shape, scales=scales, orientations=orientations, cells=cells)
        self.centring = choice("centring", centring, ("block", "cell"))
        self._add_averages(deviation=None)
        maps = self.input_shape[0] * (1 + self.scales * self.orientations)
        self.width = maps * self.cells**2

    def extra_repr(self) -> str:
        """The settings, which together with the class say everything about the features."""
        return f"{super().extra_repr()}, centring={self.centring!r}"

    def forward(self, images: Tensor) -> Tensor:
        """[records, width] features of [records, channels, height, width] images."""
        padded = self._pad(images)
        spectrum = torch.fft.fft2(padded).unsqueeze(2)
        blocks = [self._average(padded, 0)]
        for scale in range(self.scales):
            moduli = band_moduli(spectrum, self.bank[scale], 2**scale)
            found = self._average(moduli, scale)
            if self.centring == "cell":
                found = found - found.mean(2, keepdim=True)
            blocks.append(found)
        return unit_blocks(blocks)
