# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import pytest
import torch

from dpcohort.errors import InputError
from dpcohort.models.morlet import morlet_bank


def gain(bank):
    """Energy of all convolutions of a real image, over the image's, at each frequency."""
    power = bank.double().square().sum((0, 1))
    return (power + power.flip((0, 1)).roll((1, 1), (0, 1))) / 2


@pytest.mark.parametrize(("scales", "orientations"), [(1, 1), (2, 8), (3, 8), (3, 5)])
def test_the_bank_never_adds_energy_and_no_mean_passes(scales, orientations):
    bank = morlet_bank(40, 32, scales=scales, orientations=orientations)
    assert bank.shape == (scales, orientations, 40, 32)
    assert float(gain(bank).max()) == pytest.approx(1, abs=1e-6)
    assert float(bank[:, :, 0, 0].abs().max()) < 1e-7


def test_the_bank_hears_every_direction_between_its_scales():
    """Frequencies of half a turn a pixel down to an eighth: none is passed over."""
    heard = gain(morlet_bank(64, 64, scales=3, orientations=8))
    frequency = torch.fft.fftfreq(64) * 2 * math.pi
    radius = (frequency[:, None] ** 2 + frequency**2).sqrt()
    between = heard[(radius > 0.25 * math.pi) & (radius < 0.85 * math.pi)]
    assert float(between.min()) > 0.25


def test_energy_of_a_convolved_image_is_what_the_gain_says():
    image = torch.randn(40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bank = morlet_bank(40, 40, scales=2, orientations=8).double()
    energy = torch.fft.ifft2(torch.fft.fft2(image) * bank).abs().square().sum()
    assert float(energy) < float(image.square().sum())
    expected = (torch.fft.fft2(image).abs().square() * gain(bank)).mean()
    assert float(energy) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("scale", [0, 1, 2])
def test_a_wave_is_heard_best_by_the_filter_of_its_scale_and_direction(scale):
    bank = morlet_bank(64, 64, scales=3, orientations=4)
    columns = torch.arange(64) * (0.75 * math.pi / 2**scale)
    wave = torch.cos(columns).expand(64, 64)  # changes along the columns: angle 0
    answers = torch.fft.ifft2(torch.fft.fft2(wave) * bank).abs().mean((2, 3))
    assert divmod(int(answers.argmax()), 4) == (scale, 0)
    turned = torch.fft.ifft2(torch.fft.fft2(wave.T) * bank).abs().mean((2, 3))
    assert divmod(int(turned.argmax()), 4) == (scale, 2)


def test_a_wavelet_is_the_printed_formula():
    """Against the plane wave under a Gaussian, written down pixel by pixel."""
    size, sigma, frequency, slant = 64, 0.8 * 4, 0.75 * math.pi / 4, 0.5
    x = (torch.arange(size, dtype=torch.float64) + size // 2) % size - size // 2
    window = torch.exp(-(x**2 + (slant * x[:, None]) ** 2) / (2 * sigma**2))
    wave = window * torch.exp(1j * frequency * x)
    morlet = torch.fft.fft2(wave - window * (wave.sum() / window.sum()))
    found = morlet_bank(size, size, scales=3, orientations=8)[2, 0].double()
    assert float(morlet.imag.abs().max()) < 1e-6 * float(morlet.abs().max())
    scaled = morlet.real * (found.max() / morlet.real.max())
    assert torch.allclose(found, scaled, rtol=0, atol=1e-5)


@pytest.mark.parametrize("field", ["scales", "orientations"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2"])
def test_bad_settings_are_refused(field, value):
    settings = {"scales": 2, "orientations": 8, field: value}
    with pytest.raises(InputError, match=f"{field} = "):
        morlet_bank(16, 16, **settings)
