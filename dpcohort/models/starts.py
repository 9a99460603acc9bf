# SPDX-License-Identifier: Apache-2.0
"""Initial weights that are a formula: what strict budgets leave no room to learn.

A start looks at no record and costs no privacy; every weight is trained from there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["gabor_filters", "start_oriented"]

#: Wavelength of the filters in pixels, and standard deviation of their window.
_WAVELENGTH, _WINDOW = 6.0, 2.2


@torch.no_grad()
def start_oriented(network: nn.Module) -> None:
    """Set a network's weights: Gabor filters first, orthogonal between, zero in the last layer.

    The first convolution answers to edges of all directions from the start. The orthogonal weights
    have a gain of √2, which keeps the size of what passes a ReLU. With a last layer of zeros the
    first steps train it alone, as softmax regression on what the others make of an image, and no
    class is preferred. All biases are zero. The global random state gives the orthogonal weights;
    ``build_model`` seeds it.

    Args:
        network: begins with a convolution of an even number of filters; changed in place.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten(), nn.Linear(4, 3))
        >>> start_oriented(network)
        >>> [round(float(layer.weight.detach().norm()), 5) for layer in (network[0], network[2])]
        [2.0, 0.0]
    """
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, math.sqrt(2))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    first, last = layers[0], layers[-1]
    if isinstance(first, nn.Conv2d):
        count, channels, height, _ = first.weight.shape
        filters = gabor_filters(count, height)[:, None] / math.sqrt(channels)
        first.weight.copy_(filters.expand_as(first.weight))
    nn.init.zeros_(last.weight)


def gabor_filters(count: int, size: int) -> Tensor:
    """Waves under a Gaussian window, each of mean zero and norm 1.

    Directions are spread evenly over half a turn; each has an even and an odd filter (cosine and
    sine).

    Args:
        count: number of filters, even.
        size: of each, in pixels.

    Returns:
        [count, size, size].

    Example:
        >>> filters = gabor_filters(16, 8)
        >>> filters.shape, float(filters.sum((1, 2)).abs().max()) < 1e-5
        (torch.Size([16, 8, 8]), True)
    """
    axis = torch.arange(size) - (size - 1) / 2
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    window = torch.exp(-(x.square() + y.square()) / (2 * _WINDOW**2))
    filters = []
    for place in range(count):
        angle = math.pi * (place // 2) / (count / 2)
        wave = 2 * math.pi * (math.cos(angle) * x + math.sin(angle) * y) / _WAVELENGTH
        found = window * torch.cos(wave + math.pi / 2 * (place % 2))
        found = found - window * (found.sum() / window.sum())
        filters.append(found / found.norm())
    return torch.stack(filters)
