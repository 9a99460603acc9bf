# SPDX-License-Identifier: Apache-2.0
"""Oriented features: how much of each direction and scale is in each part of an image."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from dpcohort._validate import choice, number, whole_number
from dpcohort.errors import InputError
from dpcohort.models.fixed_features import FixedFeatures, band_moduli, unit_blocks
from dpcohort.models.synthetic import SYNTHETIC_NAMES, synthetic_images
from dpcohort.models.upright import upright
from dpcohort.models.whitening import whitening

__all__ = ["OrientedFeatures"]

#: Energy below this is rounding, in units of the normalised image.
_LEAST_ENERGY = 1e-3
#: Synthetic images behind a whitening.
_SYNTHETIC_IMAGES = 8_000
#: Luminance, red against green, and both against blue: orthonormal rows.
_OPPONENTS = (
    (3**-0.5, 3**-0.5, 3**-0.5),
    (2**-0.5, -(2**-0.5), 0.0),
    (6**-0.5, 6**-0.5, -2 * 6**-0.5),
)


class OrientedFeatures(FixedFeatures):
    """Moduli of oriented band-pass filters and the image itself, averaged over cells.

    One block for the averaged image and one for each scale; each block is centred and all have the
    same norm (``unit_blocks``), so every image's features have norm 1. Centring by ``cell`` also
    takes the mean over the orientations off in each cell: what is left says which way the strokes
    run there, not how many there are. It suits line drawings; texture wants ``block``.

    Everything else is off by default. All of it is computed from the record alone, or from no
    record at all.

    Args:
        input_shape: (channels, height, width) of an image.
        scales: of the filters, each twice as coarse as the one before.
        orientations: of the filters, evenly over half a turn.
        cells: the averages are taken over cells x cells parts of the image.
        centring: ``block`` or ``cell``.
        order: 2 adds a block for each pair of scales: the moduli of the coarser filters on the
            moduli of the finer ones, as in the scattering transform.
        power: of each average, at most 1; 0.5 makes strong and weak edges more alike.
        contrast: c > 0 divides each cell's averages by the root energy of the cells around it plus
            c times that of the whole image (as HOG does; Dalal and Triggs, 2005); 0 does not.
        colours: ``opponent`` turns red, green, blue into luminance and two colour differences; the
            second order is then that of the luminance alone. ``channels`` takes them as they are.
        mirror: features of the image plus those of its mirror image.
        upright: slant taken off and size made standard first (``upright``), for line drawings.
        whitening: ``none``, or the synthetic images with whose moments the features are whitened,
            ``leaves`` or ``silhouettes``.
        whitening_floor: added to every variance, in units of the mean variance.

    Example:
        >>> features = OrientedFeatures((1, 28, 28))
        >>> features.width, sum(p.numel() for p in features.parameters())
        (833, 0)
        >>> round(float(features(torch.eye(28)[None, None]).norm()), 5)
        1.0
        >>> OrientedFeatures((3, 32, 32), scales=3, cells=4, order=2, colours="opponent").width
        4272
    """

    _opponents: Tensor
    _mean: Tensor
    _root: Tensor

    def __init__(
        self,
        input_shape: Sequence[int],
        *,
        scales: int = 2,
        orientations: int = 8,
        cells: int = 7,
        centring: str = "block",
        order: int = 1,
        power: float = 1.0,
        contrast: float = 0.0,
        colours: str = "channels",
        mirror: bool = False,
        upright: bool = False,
        whitening: str = "none",
        whitening_floor: float = 3.0,
    ) -> None:
        super().__init__(input_shape, scales=scales, orientations=orientations, cells=cells)
        self.centring = choice("centring", centring, ("block", "cell"))
        self.order = whole_number("order", order, at_least=1, at_most=2)
        self.power = number("power", power, above=0, at_most=1)
        self.contrast = number("contrast", contrast, at_least=0)
        self.colours = choice("colours", colours, ("channels", "opponent"))
        self.mirror, self.upright = _flag("mirror", mirror), _flag("upright", upright)
        self.whitening = choice("whitening", whitening, ("none", *SYNTHETIC_NAMES))
        self.whitening_floor = number("whitening_floor", whitening_floor, above=0)
        channels = self.input_shape[0]
        if colours == "opponent" and channels != 3:
            given = f"an image of {channels} channels"
            raise InputError("colours", given=given, allowed="red, green and blue for opponents")
        self._add_averages(deviation=None)
        turns, pairs = self.orientations, self.scales * (self.scales - 1) // 2
        maps = channels * (1 + self.scales * turns)
        if self.order == 2:
            maps += (1 if colours == "opponent" else channels) * pairs * turns**2
        self.width = maps * self.cells**2
        self.register_buffer("_opponents", torch.tensor(_OPPONENTS), persistent=False)
        if self.whitening != "none":
            mean, root = _moments(_Settings(self))
            self.register_buffer("_mean", mean, persistent=False)
            self.register_buffer("_root", root, persistent=False)

    def extra_repr(self) -> str:
        """The settings, which together with the class say everything about the features."""
        words = f"{super().extra_repr()}, centring={self.centring!r}"
        for name, usual in _USUAL.items():
            value = getattr(self, name)
            if value != usual:
                words += f", {name}={value!r}"
        if self.whitening != "none":
            words += f", whitening_floor={self.whitening_floor!r}"
        return words

    def forward(self, images: Tensor) -> Tensor:
        """[records, width] features of [records, channels, height, width] images."""
        found = self.plain(images)
        if self.whitening == "none":
            return found
        return F.normalize((found - self._mean) @ self._root, eps=_LEAST_ENERGY)

    def plain(self, images: Tensor) -> Tensor:
        """The features before they are whitened."""
        if self.upright:
            images = upright(images)
        if self.colours == "opponent":
            images = torch.einsum("ij,njhw->nihw", self._opponents, images)
        found = self._of(images)
        if self.mirror:
            found = F.normalize(found + self._of(images.flip(3)), eps=_LEAST_ENERGY)
        return found

    def _of(self, images: Tensor) -> Tensor:
        padded = self._pad(images)
        spectrum = torch.fft.fft2(padded).unsqueeze(2)
        blocks, second = [self._average(padded, 0)], []
        for scale in range(self.scales):
            moduli = band_moduli(spectrum, self.bank[scale], 2**scale)
            blocks.append(self._block(self._average(moduli, scale), local=True))
            if self.order == 2 and scale + 1 < self.scales:
                seen = moduli[:, :1] if self.colours == "opponent" else moduli
                second += [self._block(found) for found in self._second_order(seen, scale)]
        return unit_blocks([*blocks, *second])

    def _block(self, found: Tensor, *, local: bool = False) -> Tensor:
        """Averages [records, channels, orientations ..., cells, cells] as they enter a block."""
        if self.power != 1.0:
            found = found.clamp(min=0) ** self.power
        if local and self.contrast > 0:
            found = found / self._energy_around(found)
        if self.centring == "cell":
            found = found - found.mean(tuple(range(2, found.dim() - 2)), keepdim=True)
        return found

    def _energy_around(self, found: Tensor) -> Tensor:
        """Root energy of the 3x3 cells around each, and a share of the image's."""
        energy = F.pad(found.square().sum((1, 2))[:, None], (1, 1, 1, 1), mode="replicate")
        around = F.avg_pool2d(energy, 3, 1).sqrt()
        whole = around.mean((1, 2, 3), keepdim=True)
        return (around + self.contrast * whole).clamp(min=_LEAST_ENERGY)[:, :, None]


#: Settings that are told only where they are not these.
_USUAL = {
    "order": 1,
    "power": 1.0,
    "contrast": 0.0,
    "colours": "channels",
    "mirror": False,
    "upright": False,
    "whitening": "none",
}


class _Settings:
    """Features as a key: equal where their settings are, so that a whitening is made once."""

    def __init__(self, features: OrientedFeatures) -> None:
        self.features = copy.copy(features)
        self._text = features.extra_repr()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Settings) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@functools.lru_cache(maxsize=4)
def _moments(settings: _Settings) -> tuple[Tensor, Tensor]:
    features = settings.features
    channels, height, width = features.input_shape
    images = synthetic_images(features.whitening, _SYNTHETIC_IMAGES, (channels, height, width))
    return whitening(features.plain, images, floor=features.whitening_floor)


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(field, given=value, allowed="true or false")
    return value
