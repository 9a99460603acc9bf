# SPDX-License-Identifier: Apache-2.0
"""Images drawn by a formula: what images are like in general, without looking at any.

``leaves`` is the dead-leaves model of natural scenes (Lee, Mumford and Huang, "Occlusion models
for natural images", 2001): shapes of all sizes that hide one another. ``silhouettes`` are single
objects in front of a dark ground, most of them symmetric, with plain, striped or shaded surfaces.
Features can be centred and whitened with the moments of such images; no record has part in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from dpcohort_lab.checks import choice
from dpcohort_lab.features.fixed import in_threads

_LEAVES = 60
_SMALLEST, _LARGEST = 1.5, 24.0
_PARTS = 4


def synthetic_images(
    name: str, count: int, shape: tuple[int, int, int], *, seed: int = 0
) -> Tensor:
    """Images of the given kind, the same for the same seed; values from 0 to 1.

    Args:
        name: one of `SYNTHETIC_NAMES`.
        count: how many.
        shape: (channels, height, width); silhouettes have the same value in all channels.
        seed: of the drawing.

    Example:
        >>> synthetic_images("leaves", 2, (3, 16, 16)).shape
        torch.Size([2, 3, 16, 16])
    """
    draw = _KINDS[choice("whitening", name, _KINDS)]
    return draw(torch.Generator().manual_seed(seed), count, shape)


def _uniform(dice: torch.Generator, count: int, *shape: int) -> Tensor:
    """Uniform numbers of the stream, one or an image for each drawing."""
    return torch.rand(count, *(shape or (1, 1)), generator=dice)


def _normal(dice: torch.Generator, count: int, *shape: int) -> Tensor:
    return torch.randn(count, *(shape or (1, 1)), generator=dice)


def _leaves(dice: torch.Generator, count: int, shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = shape
    sides = torch.arange(float(height)), torch.arange(float(width))
    y, x = torch.meshgrid(*sides, indexing="ij")
    grounds = _uniform(dice, count, channels, 1, 1)
    thrown = [_leaf(dice, count, shape) for _ in range(_LEAVES)]

    def paint(part: slice) -> Tensor:
        images = grounds[part].expand(-1, *shape)
        for leaf in thrown:
            radius, middle_y, middle_x, angle, thin, is_box, colour = (v[part] for v in leaf)
            down, across = y - middle_y, x - middle_x
            # From the middle of an ellipse or a rectangle, turned and thinned.
            along = across * angle.cos() + down * angle.sin()
            beside = (down * angle.cos() - across * angle.sin()) / thin
            box = torch.maximum(along.abs(), beside.abs())
            distance = torch.where(is_box, box, along.hypot(beside))
            cover = torch.sigmoid(2 * (radius - distance))[:, None]
            images = images * (1 - cover) + colour * cover
        return images

    return torch.cat(in_threads(paint, [slice(i, i + 50) for i in range(0, count, 50)]))


def _leaf(dice: torch.Generator, count: int, shape: tuple[int, int, int]) -> tuple[Tensor, ...]:
    """Radius, middle, direction, thinness, kind and colour of a leaf of each image."""
    channels, height, width = shape
    # Radii with density r^-2 between the smallest and the largest.
    share = _SMALLEST / _LARGEST
    radius = _SMALLEST / (_uniform(dice, count) * (1 - share) + share)
    middle_y = _uniform(dice, count) * (height + 8) - 4
    middle_x = _uniform(dice, count) * (width + 8) - 4
    angle = math.pi * _uniform(dice, count)
    thin = 0.4 + (1 - 0.4) * _uniform(dice, count)
    is_box = _uniform(dice, count) < 0.5
    colour = _uniform(dice, count, 1, 1, 1)
    if channels > 1:
        colour = (colour + 0.35 * _normal(dice, count, channels, 1, 1)).clamp(0, 1)
    return radius, middle_y, middle_x, angle, thin, is_box, colour


def _silhouettes(dice: torch.Generator, count: int, shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = shape
    sides = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    y, x = torch.meshgrid(*sides, indexing="ij")
    inside, shade = _object(dice, count, x, y, pixels=min(height, width))
    surface = _surface(dice, count, x, y, shade)
    images = (surface.clamp(0, 1) * torch.sigmoid(2 * inside))[:, None]
    return _filling_the_frame(images).expand(count, channels, height, width)


def _object(
    dice: torch.Generator, count: int, x: Tensor, y: Tensor, *, pixels: int
) -> tuple[Tensor, Tensor]:
    """How deep inside the object a place is, in pixels, and the shade of the part it is in."""
    mirrored = _uniform(dice, count) < 0.75
    parts = 1 + (_PARTS * _uniform(dice, count)).floor()
    inside = torch.full((count, *x.shape), -9.0)
    shade = torch.zeros(count, *x.shape)
    for part in range(_PARTS):
        is_body = part == 0
        depth = _part(dice, count, x, y, mirrored, is_body=is_body) * pixels / 2
        depth = depth.where(parts > part, torch.tensor(-9.0))
        is_cut = (_uniform(dice, count) < 0.15) & (not is_body)
        inside = torch.where(is_cut, torch.minimum(inside, -depth), torch.maximum(inside, depth))
        own = 0.25 + 0.75 * _uniform(dice, count)
        shade = torch.where((depth > 0) & ~is_cut, own, shade)
    return inside, shade


def _part(
    dice: torch.Generator, count: int, x: Tensor, y: Tensor, mirrored: Tensor, *, is_body: bool
) -> Tensor:
    """How deep inside one part a place is: an ellipse or a box, tapered; limbs come in pairs."""
    middle_x, middle_y = 1.4 * _uniform(dice, count) - 0.7, 1.4 * _uniform(dice, count) - 0.7
    wide, tall = (0.12 + 0.7 * _uniform(dice, count) ** 1.5 for _ in range(2))
    angle = 1.2 * (_uniform(dice, count) - 0.5)
    if is_body:
        middle_x, middle_y, angle = 0.1 * middle_x, 0.3 * middle_y, 0 * angle
        wide, tall = wide + 0.2, tall + 0.25
    else:
        x = torch.where(mirrored, x.abs(), x)
        middle_x = torch.where(mirrored, middle_x.abs(), middle_x)
    along = (x - middle_x) * angle.cos() + (y - middle_y) * angle.sin()
    beside = (y - middle_y) * angle.cos() - (x - middle_x) * angle.sin()
    taper = 0.8 * (_uniform(dice, count) - 0.5)
    along = along / (1 + taper * beside.clamp(-1, 1)) / wide
    beside = beside / tall
    is_box = _uniform(dice, count) < 0.5
    distance = torch.where(is_box, torch.maximum(along.abs(), beside.abs()), along.hypot(beside))
    return (1 - distance) * torch.minimum(wide, tall)


def _surface(dice: torch.Generator, count: int, x: Tensor, y: Tensor, shade: Tensor) -> Tensor:
    """Plain or in parts, with stripes, a gradient, folds and grain."""
    is_plain = _uniform(dice, count) < 0.6
    colour = torch.where(is_plain, 0.3 + 0.7 * _uniform(dice, count), shade)
    waves = math.pi * (1 + 6 * _uniform(dice, count))
    phase = 2 * math.pi * _uniform(dice, count)
    stripes = torch.where(_uniform(dice, count) < 0.5, x, y) * waves + phase
    colour = colour + 0.35 * _uniform(dice, count) ** 2 * stripes.cos()
    colour = colour + 0.15 * _normal(dice, count) * y
    coarse = _normal(dice, count, 1, 7, 7)
    folds = F.interpolate(coarse, size=tuple(x.shape), mode="bilinear")[:, 0]
    return colour + 0.1 * folds + 0.04 * _normal(dice, count, *x.shape)


def _filling_the_frame(images: Tensor) -> Tensor:
    """Moved and scaled such that the object's longer side is the image's."""
    seen = images[:, 0] > 0.15
    (top, bottom), (left, right) = _extent(seen.any(2)), _extent(seen.any(1))
    scale = torch.maximum(bottom - top, right - left).clamp(min=0.4) / 2
    none = torch.zeros_like(scale)
    rows = torch.stack([scale, none, (left + right) / 2], 1)
    columns = torch.stack([none, scale, (top + bottom) / 2], 1)
    places = F.affine_grid(torch.stack([rows, columns], 1), list(images.shape), align_corners=True)
    return F.grid_sample(images, places, align_corners=True)


def _extent(seen: Tensor) -> tuple[Tensor, Tensor]:
    """First and last place seen in each row, on an axis from -1 to 1; -1 and 1 if there is none."""
    axis = torch.linspace(-1, 1, seen.shape[1])
    some = seen.any(1)
    first = torch.where(seen, axis, axis.new_tensor(2.0)).amin(1)
    last = torch.where(seen, axis, axis.new_tensor(-2.0)).amax(1)
    return first.where(some, axis[0]), last.where(some, axis[-1])


_KINDS: dict[str, Callable[[torch.Generator, int, tuple[int, int, int]], Tensor]] = {
    "leaves": _leaves,
    "silhouettes": _silhouettes,
}

#: What can be asked for by name.
SYNTHETIC_NAMES = tuple(_KINDS)
