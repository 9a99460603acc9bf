# SPDX-License-Identifier: Apache-2.0
"""The scattering transform of second order: a convolutional network whose weights are a formula.

Bruna and Mallat, "Invariant scattering convolution networks" (2013). With ψ the Morlet wavelets of
scales j and orientations l, and φ a Gaussian average, its coefficients are

    order 0    x * φ
    order 1    |x * ψ(j, l)| * φ
    order 2    ||x * ψ(j, l)| * ψ(k, m)| * φ        for k > j, finer structure being gone by then.

A small shift of the image changes them little, and no image is further from another in them than
in its pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpcohort._validate import whole_number
from dpcohort.models.fixed_features import FixedFeatures, band_moduli, unit_blocks

__all__ = ["ScatteringFeatures"]

#: Standard deviation of the average, in units of the coarsest scale 2^scales.
_AVERAGE = 0.4


class ScatteringFeatures(FixedFeatures):
    """Scattering coefficients up to second order, in centred blocks of equal norm.

    Args:
        input_shape: (channels, height, width) of an image.
        scales: J; the Gaussian average φ has a standard deviation of 0.4 * 2^J pixels.
        orientations: L.
        cells: the averages are taken at cells x cells places; None takes one every 2^J pixels.

    Example:
        >>> features = ScatteringFeatures((1, 28, 28))
        >>> features.width, sum(p.numel() for p in features.parameters())
        (3969, 0)
        >>> round(float(features(torch.eye(28)[None, None]).norm()), 5)
        1.0
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        *,
        scales: int = 2,
        orientations: int = 8,
        cells: int | None = None,
    ) -> None:
        if cells is None:
            whole_number("scales", scales, at_least=1, at_most=30)
            cells = max(1, min(input_shape[1:], default=1) // 2**scales)
        super().__init__(input_shape, scales=scales, orientations=orientations, cells=cells)
        self._add_averages(deviation=_AVERAGE * 2**self.scales)
        pairs = self.scales * (self.scales - 1) // 2
        turns = self.orientations
        self.width = (
            self.input_shape[0] * (1 + self.scales * turns + pairs * turns**2) * self.cells**2
        )

    def forward(self, images: Tensor) -> Tensor:
        """[records, width] features of [records, channels, height, width] images."""
        return unit_blocks(self.coefficients(images))

    def coefficients(self, images: Tensor) -> list[Tensor]:
        """The coefficients as they are: order 0, order 1 by scale, order 2 by pair of scales.

        Each is [records, channels, (orientations, (orientations,)) cells, cells].
        """
        padded = self._pad(images)
        spectrum = torch.fft.fft2(padded).unsqueeze(2)
        first, second = [], []
        for scale in range(self.scales):
            moduli = band_moduli(spectrum, self.bank[scale], 2**scale)
            first.append(self._average(moduli, scale))
            if scale + 1 < self.scales:
                second += self._second_order(moduli, scale)
        return [self._average(padded, 0), *first, *second]
