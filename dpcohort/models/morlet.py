# SPDX-License-Identifier: Apache-2.0
"""Morlet wavelets: oriented band-pass filters at several scales, given in the Fourier domain.

A Morlet wavelet is a plane wave under a Gaussian window, minus the little of the window that makes
its mean zero (Bruna and Mallat, "Invariant scattering convolution networks", 2013). Everything is
a formula: no record of any data set has part in it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpcohort._validate import whole_number

__all__ = ["morlet_bank"]

#: Width of the window and frequency of the wave at the finest scale, in pixels and radians a pixel.
_WINDOW, _FREQUENCY = 0.8, 0.75 * math.pi
#: Frequencies above the grid's come back as lower ones; so many times around are added up.
_TURNS = 2


def morlet_bank(height: int, width: int, *, scales: int, orientations: int) -> Tensor:
    """The Fourier transforms of all wavelets; they are real.

    Scale j has waves of length 2^j times the finest and orientation l is turned by l * 180 /
    orientations degrees. The bank is scaled such that convolving a real image with all of it never
    gives more energy than the image has, whatever the image.

    Args:
        height: of the image, in pixels.
        width: of the image, in pixels.
        scales: how many, each twice as coarse as the one before.
        orientations: how many, evenly over half a turn.

    Returns:
        [scales, orientations, height, width], frequencies as ``torch.fft.fft2`` has them.

    Example:
        >>> bank = morlet_bank(16, 16, scales=2, orientations=4)
        >>> bank.shape, float(bank[:, :, 0, 0].abs().max()) < 1e-6
        (torch.Size([2, 4, 16, 16]), True)
    """
    for field, value in (("height", height), ("width", width), ("scales", scales)):
        whole_number(field, value, at_least=1)
    whole_number("orientations", orientations, at_least=1)
    slant = min(1.0, 4.0 / orientations)
    bank = torch.stack(
        [
            torch.stack(
                [
                    _morlet(height, width, 2.0**scale, math.pi * turn / orientations, slant)
                    for turn in range(orientations)
                ]
            )
            for scale in range(scales)
        ]
    )
    return (bank / _energy_gain(bank).max().sqrt()).float()


def _energy_gain(bank: Tensor) -> Tensor:
    """By how much the whole bank multiplies a real image's energy, frequency by frequency."""
    power = bank.square().sum((0, 1))
    # A real image has as much at a frequency as at its opposite, where the wavelets have little.
    opposite = power.flip((0, 1)).roll((1, 1), (0, 1))
    return (power + opposite) / 2


def _morlet(height: int, width: int, scale: float, angle: float, slant: float) -> Tensor:
    wave = _gabor(height, width, scale, angle, slant, _FREQUENCY / scale)
    window = _gabor(height, width, scale, angle, slant, 0.0)
    return wave - window * (wave[0, 0] / window[0, 0])


def _gabor(
    height: int, width: int, scale: float, angle: float, slant: float, frequency: float
) -> Tensor:
    """A Gaussian around the wave's frequency, broad along the wave and narrow across it."""
    rows = 2 * math.pi * torch.fft.fftfreq(height, dtype=torch.float64)
    columns = 2 * math.pi * torch.fft.fftfreq(width, dtype=torch.float64)
    turns = 2 * math.pi * torch.arange(-_TURNS, _TURNS + 1, dtype=torch.float64)
    y = (rows[:, None] + turns)[:, None, :, None]
    x = (columns[:, None] + turns)[None, :, None, :]
    along = math.cos(angle) * x + math.sin(angle) * y - frequency
    across = math.cos(angle) * y - math.sin(angle) * x
    spread = (_WINDOW * scale) ** 2 / 2
    return torch.exp(-spread * (along.square() + (across / slant).square())).sum((2, 3))
