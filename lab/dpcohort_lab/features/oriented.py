# SPDX-License-Identifier: Apache-2.0
"""Oriented features: how much of each direction and scale is in each part of an image.

**Upright.** Handwriting leans, and people lean differently. The covariance of the places where an
image is dark says by how much; a shear takes it off. It is computed from the image alone
(deskewing, as in LeCun et al., "Gradient-based learning applied to document recognition", 1998), so
it costs no privacy.

**Whitening.** Softmax regression under noise learns along the directions in which features vary
most; what tells classes apart often lies elsewhere. With m and Σ the mean and covariance of the
features of images drawn by a formula (``synthetic``) and s the mean of Σ's diagonal, a feature
vector x becomes

    A^T (x - m),    A A^T = (Σ + floor s I)^-1,

and is given norm 1 again. Which root A is does not matter to a linear model that starts at zero and
gets the same noise in every direction; the one of Cholesky is the quickest. Moments of the clients'
own records would have to be paid for; these are free.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from dpcohort.errors import InputError
from dpcohort_lab.checks import choice, number, whole_number
from dpcohort_lab.features.cache import kept
from dpcohort_lab.features.fixed import ImageFeatures, in_threads, unit_blocks
from dpcohort_lab.features.synthetic import SYNTHETIC_NAMES, synthetic_images

#: Energy below this is rounding, in units of the normalised image.
_LEAST_ENERGY = 1e-3
#: Synthetic images behind a whitening.
_SYNTHETIC_IMAGES = 8_000
#: The last whitenings made, by the features' settings.
_MOMENTS: dict[str, tuple[Tensor, Tensor]] = {}
_KEPT_MOMENTS = 4
#: Images computed together: what belongs to them stays in a core's cache; a GPU has more room.
_AT_A_TIME, _AT_A_TIME_ON_GPU = 8, 64
#: Luminance, red against green, and both against blue: orthonormal rows.
_OPPONENTS = (
    (3**-0.5, 3**-0.5, 3**-0.5),
    (2**-0.5, -(2**-0.5), 0.0),
    (6**-0.5, 6**-0.5, -2 * 6**-0.5),
)


class OrientedFeatures(ImageFeatures):
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
        self.mirror, self.upright = flag("mirror", mirror), flag("upright", upright)
        self.whitening = choice("whitening", whitening, ("none", *SYNTHETIC_NAMES))
        self.whitening_floor = number("whitening_floor", whitening_floor, above=0)
        channels = self.input_shape[0]
        if colours == "opponent" and channels != 3:
            given = f"an image of {channels} channels"
            raise InputError("colours", given=given, allowed="red, green and blue for opponents")
        turns, pairs = self.orientations, self.scales * (self.scales - 1) // 2
        maps = channels * (1 + self.scales * turns)
        if self.order == 2:
            maps += (1 if colours == "opponent" else channels) * pairs * turns**2
        self.width = maps * self.cells**2
        self.register_buffer("_opponents", torch.tensor(_OPPONENTS), persistent=False)
        if self.whitening != "none":
            mean, root = self._moments()
            self.register_buffer("_mean", mean, persistent=False)
            self.register_buffer("_root", root, persistent=False)

    def extra_repr(self) -> str:
        """The settings, which together with the class say everything about the features."""
        words = f"{super().extra_repr()}, centring={self.centring!r}"
        for name in _TOLD:
            value = getattr(self, name)
            if value != inspect.signature(OrientedFeatures).parameters[name].default:
                words += f", {name}={value!r}"
        if self.whitening != "none":
            words += f", whitening_floor={self.whitening_floor!r}"
        return words

    def forward(self, images: Tensor) -> Tensor:
        """[records, width] features of [records, channels, height, width] images."""
        found = self.plain(images)
        if self.whitening == "none":
            return found
        return F.normalize(_times_upper(found - self._mean, self._root), eps=_LEAST_ENERGY)

    def plain(self, images: Tensor) -> Tensor:
        """The features before they are whitened."""
        if self.upright:
            images = upright(images)
        if self.colours == "opponent":
            images = torch.einsum("ij,njhw->nihw", self._opponents, images)
        few = _AT_A_TIME if images.device.type == "cpu" else _AT_A_TIME_ON_GPU
        found = [self._of(part) for part in torch.split(images, few)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """What the features are whitened with; made once for the same settings."""
        settings = self.extra_repr()
        if settings not in _MOMENTS:
            channels, height, width = self.input_shape
            shape = (channels, height, width)

            def both() -> NDArray[np.float32]:
                images = synthetic_images(self.whitening, _SYNTHETIC_IMAGES, shape)
                mean, root = whitening(self.plain, images, floor=self.whitening_floor)
                return torch.cat([mean[None], root]).numpy()

            while len(_MOMENTS) >= _KEPT_MOMENTS:
                _MOMENTS.pop(next(iter(_MOMENTS)))
            found = kept((settings, _SYNTHETIC_IMAGES), (1 + self.width, self.width), both)
            mean, root = torch.from_numpy(found).split([1, self.width])  # type: ignore[no-untyped-call]
            _MOMENTS[settings] = (mean[0], root)
        return _MOMENTS[settings]

    def _of(self, images: Tensor) -> Tensor:
        both = torch.cat([images, images.flip(3)]) if self.mirror else images
        padded = self._pad(both)
        blocks, second = [self._average(padded, 0)], []
        for scale, moduli in enumerate(self._first_order(padded, len(images))):
            blocks.append(self._block(self._average(moduli, scale), local=True))
            if self.order == 2 and scale + 1 < self.scales:
                seen = moduli[:, :1] if self.colours == "opponent" else moduli
                second += [self._block(found) for found in self._second_order(seen, scale)]
        found = unit_blocks([*blocks, *second])
        if not self.mirror:
            return found
        return F.normalize(found[: len(images)] + found[len(images) :], eps=_LEAST_ENERGY)

    def _first_order(self, padded: Tensor, images: int) -> Iterator[Tensor]:
        """The moduli of each scale, of the images and, where asked for, of their mirror images.

        At the finest scale, where every pixel is there, a mirror image's are the image's own, seen
        in a mirror: the place l of the orientations becomes -l.
        """
        even = self._padded[1] == self.input_shape[2] + 2 * self._margin
        if not (self.mirror and even):
            yield from self._moduli(padded, 0, range(self.scales))
            return
        (own,) = self._moduli(padded[:images], 0, [0])
        turned = (-torch.arange(self.orientations, device=own.device)) % self.orientations
        yield torch.cat([own, own[:, :, turned].flip(-1)])
        yield from self._moduli(padded, 0, range(1, self.scales))

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


#: Settings that are told only where they are not the usual ones.
_TOLD = ("order", "power", "contrast", "colours", "mirror", "upright", "whitening")


def flag(field: str, value: object) -> bool:
    """A truth value, if it is one.

    Example:
        >>> flag("mirror", False)
        False
    """
    if not isinstance(value, bool):
        raise InputError(field, given=value, allowed="true or false")
    return value


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


@torch.no_grad()
def whitening(
    features: Callable[[Tensor], Tensor], images: Tensor, *, floor: float
) -> tuple[Tensor, Tensor]:
    """The mean m and the root A for features of such images.

    Args:
        features: from [records, ...] to [records, width].
        images: the synthetic ones.
        floor: added to every variance, in units of the mean variance; above 0. Little whitens all
            directions alike, much leaves them as they are.

    Returns:
        m [width] and A [width, width], which is upper triangular.

    Example:
        >>> images = torch.tensor([[1.0, 9.0], [1.0, -9.0], [-1.0, 9.0], [-1.0, -9.0]])
        >>> mean, root = whitening(lambda images: images, images, floor=1e-9)
        >>> [round(float(value), 3) for value in root.diagonal()]
        [1.0, 0.111]
    """
    found = torch.cat(in_threads(features, torch.split(images, 250)))
    width = found.shape[1]
    mean = found.mean(0, dtype=torch.float64)
    covariance = torch.empty(width, width, dtype=torch.float64)

    def fill(tile: tuple[slice, slice]) -> None:
        rows, columns = (found[:, part].double() - mean[part] for part in tile)
        covariance[tile] = rows.T @ columns / len(images)
        covariance[tile[::-1]] = covariance[tile].T.clone()

    parts = [slice(start, start + _TILE) for start in range(0, width, _TILE)]
    in_threads(fill, [(one, other) for i, one in enumerate(parts) for other in parts[i:]])

    def inverse_root(covariance: Tensor) -> Tensor:
        one = torch.eye(width, dtype=mean.dtype)
        root = torch.linalg.cholesky(covariance + floor * covariance.diagonal().mean() * one)
        inverse: Tensor = torch.linalg.solve_triangular(root, one, upper=False)
        return inverse.T.float()

    (root,) = in_threads(inverse_root, [covariance])
    return mean.float(), root.contiguous()


#: Columns of a matrix computed at a time.
_TILE = 512


def _times_upper(rows: Tensor, matrix: Tensor) -> Tensor:
    """The product with an upper triangular matrix, without most of its zeros.

    Example:
        >>> _times_upper(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
        tensor([[1., 5.]])
    """
    ends = [*range(_TILE, len(matrix), _TILE), len(matrix)]
    parts = zip([0, *ends], ends, strict=False)
    return torch.cat([rows[:, :end] @ matrix[:end, start:end] for start, end in parts], 1)
