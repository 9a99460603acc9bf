# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

import pytest
import torch

from dpcohort.errors import InputError
from dpcohort.runs import train
from dpcohort.training import Training
from dpcohort_lab.features import OrientedFeatures, ScatteringFeatures
from dpcohort_lab.features.fixed import (
    band_moduli,
    cell_averages,
    folded,
    folding_weights,
    morlet_bank,
)

KINDS = [OrientedFeatures, ScatteringFeatures]
BOTH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def images(count, *shape, seed=0):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


@BOTH
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 19, 30)])
def test_every_image_has_a_vector_of_the_stated_width_and_of_norm_1(kind, shape):
    features = kind(shape, cells=4)
    found = features(images(3, *shape))
    assert found.shape == (3, features.width)
    assert torch.allclose(found.norm(dim=1), torch.ones(3), atol=1e-5)


@BOTH
def test_an_image_is_treated_alone(kind):
    features, some = kind((1, 16, 16), cells=4).double(), images(5, 1, 16, 16).double()
    together = features(some)
    alone = torch.cat([features(image[None]) for image in some])
    assert torch.allclose(together, alone, rtol=0, atol=1e-12)


@BOTH
def test_brightness_and_contrast_change_nothing(kind):
    features, some = kind((1, 28, 28)), images(4, 1, 28, 28)
    assert torch.allclose(features(some), features(3 * some - 0.5), atol=1e-5)


@BOTH
@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        ((784,), {}, r"\(channels, height, width\).*features = \"none\""),
        ((1, 4, 28), {"cells": 2}, "scales = 2.*below 4"),
        ((1, 28, 28), {"scales": 0}, "scales = 0"),
        ((1, 28, 28), {"orientations": 0}, "orientations = 0"),
        ((1, 28, 28), {"cells": 29}, "cells = 29"),
        ((1, 28, 28), {"cells": 0}, "cells = 0"),
        ((1, 28, 28), {"scales": "2"}, "scales = '2'"),
    ],
)
def test_what_does_not_fit_is_refused(kind, shape, changes, message):
    with pytest.raises(InputError, match=message):
        kind(shape, **changes)


def plan_for(sizes, dimension):
    from dpcohort import Population, make_plan

    clients = Population.from_arrays(sizes=sizes, epsilon=[2.0, 4.0, 8.0], delta=1e-5)
    settings = Training(rounds=3, cohort_size=2, batch_size=6, clip=0.3, dimension=dimension)
    return make_plan(clients, settings, seed=0)


def test_a_plan_for_the_wrong_dimension_is_refused_with_the_number_that_is_trained():
    plan = plan_for([400, 500, 500], 4242)
    options = {"features": "oriented", "cells": 2}
    with pytest.raises(InputError, match="4,242 parameters but logistic trains 690"):
        train(plan, "logistic", "digits", device="cpu", model_options=options)


def test_even_averages_are_average_pooling():
    line = images(1, 28)[0]
    padded = torch.cat([torch.full((4,), 9.0), line, torch.full((4,), 9.0)])
    weights = cell_averages(28, 7, margin=4, padded=36, step=1, deviation=None)
    assert torch.allclose(weights @ padded, line.view(7, 4).mean(1), atol=1e-6)


@pytest.mark.parametrize("step", [1, 2, 4])
def test_folding_is_taking_every_nth_pixel(step):
    image = images(2, 8, 12)
    found = torch.fft.ifft2(folded(torch.fft.fft2(image), step)).real
    assert torch.allclose(found, image[:, ::step, ::step], atol=1e-6)
    whole = band_moduli(torch.fft.fft2(image), folding_weights(torch.ones(8, 12), 1))
    assert torch.allclose(whole, image, atol=1e-6)


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


def centred_images(count, size=32, inside=12, seed=0):
    """Noise in the middle, zero around it, so that the border has no part in anything."""
    start = (size - inside) // 2
    noise = torch.randn(count, 1, inside, inside, generator=torch.Generator().manual_seed(seed))
    edge = size - inside - start
    return torch.nn.functional.pad(noise, (start, edge, start, edge)).double()


def flat(blocks):
    return torch.cat([block.flatten(1) for block in blocks], 1)


@pytest.mark.parametrize("scales", [2, 3])
def test_no_two_images_are_further_apart_than_their_pixels(scales):
    """The transform is nonexpansive (Bruna and Mallat, section 2.5), here on the coarse grid."""
    features = ScatteringFeatures((1, 32, 32), scales=scales).double()
    some, others = centred_images(6), centred_images(6, seed=1)
    apart = (flat(features.coefficients(some)) - flat(features.coefficients(others))).norm(dim=1)
    assert (apart * 2**scales <= 1.05 * (some - others).flatten(1).norm(dim=1)).all()
    assert (apart > 0).all()


def test_coefficients_are_the_printed_ones():
    """All of the second order, without subsampling in between, against the definition."""
    features = ScatteringFeatures((1, 32, 32), scales=3, orientations=2, cells=4).double()
    image = centred_images(1)
    padded = features._pad(image)
    bank = morlet_bank(*features._padded, scales=3, orientations=2).double()
    found = features.coefficients(image)
    place = 4
    for j in range(3):
        for k in range(j + 1, 3):
            for first in range(2):
                for second in range(2):
                    wave = torch.fft.ifft2(torch.fft.fft2(padded) * bank[j, first]).abs()
                    twice = torch.fft.ifft2(torch.fft.fft2(wave) * bank[k, second]).abs()
                    wanted = features._average(twice, 0)[0, 0]
                    got = found[place][0, 0, first, second]
                    assert float((got - wanted).norm() / wanted.norm()) < 0.05
            place += 1
