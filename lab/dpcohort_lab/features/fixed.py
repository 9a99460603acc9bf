# SPDX-License-Identifier: Apache-2.0
"""Fixed features of images: what they share, their wavelets, and the scattering transform.

A fixed feature is a formula of one record: it has no parameters, it is the same whatever the data
are, and it treats every record alone. So it costs no privacy, and clipping the gradients of what
is trained on top of it protects the record as if the image itself went in.

**Morlet wavelets** are oriented band-pass filters at several scales, given in the Fourier domain: a
plane wave under a Gaussian window, minus the little of the window that makes its mean zero (Bruna
and Mallat, "Invariant scattering convolution networks", 2013).

**The scattering transform** of second order (the same paper) is a convolutional network whose
weights are a formula. With ψ the Morlet wavelets of scales j and orientations l, and φ a Gaussian
average, its coefficients are

    order 0    x * φ
    order 1    |x * ψ(j, l)| * φ
    order 2    ||x * ψ(j, l)| * ψ(k, m)| * φ        for k > j, finer structure being gone by then.

A small shift of the image changes them little, and no image is further from another in them than
in its pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from dpcohort.errors import InputError
from dpcohort.models import FixedFeatures
from dpcohort_lab.checks import whole_number
from dpcohort_lab.features.cache import kept

Part = TypeVar("Part")
Result = TypeVar("Result")

#: A block of less contrast than this is not blown up to norm 1: it may be rounding alone.
_LEAST_CONTRAST = 1e-3


class ImageFeatures(FixedFeatures):
    """A map from an image to a vector of norm 1, without parameters.

    Args:
        input_shape: (channels, height, width) of an image.
        scales: of the wavelets, each twice as coarse as the one before.
        orientations: of the wavelets, evenly over half a turn.
        cells: the image is averaged over cells x cells places.

    Attributes:
        width: the number of features.
    """

    #: Of the Gaussian windows of the averages, in units of 2^scales pixels; None averages each
    #: cell's pixels evenly.
    _deviation: float | None = None

    def __init__(
        self, input_shape: Sequence[int], *, scales: int, orientations: int, cells: int
    ) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise InputError(
                "input_shape",
                given=tuple(input_shape),
                allowed="(channels, height, width) for features of images",
                next_step='Use features = "none" for other records.',
            )
        self.input_shape = tuple(int(length) for length in input_shape)
        self.scales = whole_number("scales", scales, at_least=1, at_most=30)
        self.orientations = whole_number("orientations", orientations, at_least=1, at_most=1000)
        sides = self.input_shape[1:]
        shorter = min(sides)
        self.cells = whole_number("cells", cells, at_least=1, at_most=shorter)
        self._margin: int = 2**self.scales
        if self._margin >= shorter:
            raise InputError(
                "scales",
                given=scales,
                allowed=f"small enough that 2^scales is below {shorter}, the image's shorter side",
            )
        # Constants: not among the parameters, and not in a model's file either.
        # With a margin on both sides, and even down to the coarsest scale.
        self._padded = [(-(-length // self._margin) + 2) * self._margin for length in sides]
        bank = morlet_bank(*self._padded, scales=self.scales, orientations=self.orientations)
        for at in range(self.scales):
            for scale in range(at, self.scales):
                # The wavelet on the coarser grid: sampled as often less as its samples weigh more.
                weights = folding_weights(folded(bank[scale], 2**at) * 4**at, 2 ** (scale - at))
                self.register_buffer(f"_wavelets_{at}_{scale}", weights, persistent=False)
            # Averages over cells, as two matrices that act on rows and columns.
            for name, length, padded in zip(("rows", "columns"), sides, self._padded, strict=True):
                weights = cell_averages(
                    length,
                    self.cells,
                    margin=self._margin,
                    padded=padded,
                    step=2**at,
                    deviation=self._deviation and self._deviation * self._margin,
                )
                self.register_buffer(f"_{name}_{at}", weights, persistent=False)

    def kept(
        self,
        parts: tuple[Any, ...],
        shape: tuple[int, ...],
        compute: Callable[[], NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        """The features of published records, from disk where they were computed before."""
        return kept((*parts, repr(self)), shape, compute)

    def extra_repr(self) -> str:
        """The settings, which together with the class say everything about the features."""
        return (
            f"{self.input_shape}, scales={self.scales}, orientations={self.orientations}, "
            f"cells={self.cells}, width={self.width}"
        )

    def _pad(self, images: Tensor) -> Tensor:
        """Mirrored beyond the border, so that the border is no edge."""
        (height, width), (tall, wide) = self.input_shape[1:], self._padded
        below, right = tall - height - self._margin, wide - width - self._margin
        return F.pad(images, (self._margin, right, self._margin, below), mode="reflect")

    def _average(self, maps: Tensor, scale: int) -> Tensor:
        """[..., padded / 2^scale, padded / 2^scale] averaged over the cells."""
        rows: Tensor = getattr(self, f"_rows_{scale}")
        columns: Tensor = getattr(self, f"_columns_{scale}")
        return rows @ maps @ columns.T

    def _moduli(self, maps: Tensor, at: int, scales: Sequence[int]) -> Iterator[Tensor]:
        """How strongly the wavelets of each scale answer to maps at every 2^at-th pixel."""
        spectrum = torch.fft.fft2(maps).unsqueeze(-3)
        for scale in scales:
            yield band_moduli(spectrum, getattr(self, f"_wavelets_{at}_{scale}"))

    def _second_order(self, moduli: Tensor, scale: int) -> list[Tensor]:
        """One block for each coarser scale; the moduli are there at every 2^scale-th pixel."""
        coarser = range(scale + 1, self.scales)
        answers = self._moduli(moduli, scale, coarser)
        return [self._average(found, at) for found, at in zip(answers, coarser, strict=True)]


def in_threads(work: Callable[[Part], Result], parts: Iterable[Part]) -> list[Result]:
    """The results of all parts, in their order.

    As many parts at a time as torch has threads, and each computed by one thread: the bits do not
    depend on how many there are.

    Example:
        >>> in_threads(lambda part: float(part.sum()), torch.arange(4.0).split(2))
        [1.0, 5.0]
    """
    workers = torch.get_num_threads()
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(torch.no_grad()(work), parts))


def folding_weights(filters: Tensor, step: int) -> Tensor:
    """Real filters [..., height, width] as `band_moduli` applies them while it folds.

    Returns:
        [..., step, height / step, step, width / step, 2]: the rows and columns that fall on one
        another, and the weight of a number's real and imaginary part.

    Example:
        >>> folding_weights(torch.ones(8, 4, 4), 2).shape
        torch.Size([8, 2, 2, 2, 2, 2])
    """
    *around, height, width = filters.shape
    pairs = (filters / step**2).unsqueeze(-1).expand(*filters.shape, 2)
    return pairs.reshape(*around, step, height // step, step, width // step, 2)


def band_moduli(spectrum: Tensor, weights: Tensor) -> Tensor:
    """How strongly each filter answers at every step-th pixel, whatever the phase.

    Rows are filtered as they are added to those they fall on; moduli are roots of sums of squares.
    On a CPU that is several times quicker than the same in complex numbers: the filters are real.

    Args:
        spectrum: [..., height, width], Fourier transform of an image.
        weights: of real filters that broadcast against it, from `folding_weights`.

    Returns:
        Modulus of the convolution, [..., height / step, width / step].

    Example:
        >>> image = torch.tensor([[1.0, -1.0], [1.0, -1.0]])
        >>> band_moduli(torch.fft.fft2(image), folding_weights(torch.ones(2, 2), 1))
        tensor([[1., 1.],
                [1., 1.]])
    """
    step, rows, _, columns, _ = weights.shape[-5:]
    lines = weights.flatten(-3)
    parts = torch.view_as_real(spectrum)
    parts = parts.reshape(*spectrum.shape[:-2], step, rows, 2 * step * columns)
    total = parts[..., 0, :, :] * lines[..., 0, :, :]
    for fold in range(1, step):
        total = torch.addcmul(total, parts[..., fold, :, :], lines[..., fold, :, :])
    split = total.view(*total.shape[:-1], step, columns, 2)
    total = split[..., 0, :, :]
    for fold in range(1, step):
        total = total + split[..., fold, :, :]
    answers = torch.view_as_real(torch.fft.ifft2(torch.view_as_complex(total)))
    squares = answers * answers
    return (squares[..., 0] + squares[..., 1]).sqrt_()


def folded(spectrum: Tensor, step: int) -> Tensor:
    """The Fourier transform of every step-th pixel, from that of all pixels.

    Example:
        >>> line = torch.tensor([[3.0, 1.0, 4.0, 1.0], [5.0, 9.0, 2.0, 6.0]])
        >>> torch.fft.ifft2(folded(torch.fft.fft2(line), 2)).real
        tensor([[3., 4.]])
    """
    if step == 1:
        return spectrum
    *around, height, width = spectrum.shape
    return spectrum.reshape(*around, step, height // step, step, width // step).mean((-4, -2))


def cell_averages(
    length: int, cells: int, *, margin: int, padded: int, step: int, deviation: float | None
) -> Tensor:
    """Weights that average a line of pixels around the centres of its cells.

    Args:
        length: of the line, without its margins.
        cells: how many places the average is taken at, evenly over the length.
        margin: where in the padded line the line begins.
        padded: length of the padded line.
        step: every step-th pixel of the padded line is there, from its first on.
        deviation: standard deviation of a Gaussian window in pixels; None averages each cell's
            pixels evenly, by as much of a pixel as lies in the cell.

    Returns:
        [cells, padded / step]; each row sums to 1.

    Example:
        >>> cell_averages(4, 2, margin=1, padded=6, step=1, deviation=None)
        tensor([[0.0000, 0.5000, 0.5000, 0.0000, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.0000, 0.5000, 0.5000, 0.0000]])
    """
    size = length / cells
    pixels = torch.arange(0, padded, step, dtype=torch.float64)
    centres = margin - 0.5 + size * (torch.arange(cells, dtype=torch.float64) + 0.5)
    distance = pixels - centres[:, None]
    if deviation is None:
        upper = (distance + step / 2).clamp(max=size / 2)
        lower = (distance - step / 2).clamp(min=-size / 2)
        weights = (upper - lower).clamp(min=0)
    else:
        weights = torch.exp(-(distance / deviation).square() / 2)
    return (weights / weights.sum(1, keepdim=True)).float()


def unit_blocks(blocks: Sequence[Tensor]) -> Tensor:
    """Blocks of features side by side, each centred and of the same norm, all together of norm 1.

    The mean over a block's features and their norm are those of the record alone. A block without
    contrast stays near zero, and the norm below 1.

    Args:
        blocks: [records, ...] each.

    Returns:
        [records, features].

    Example:
        >>> unit_blocks([torch.tensor([[1.0, 3.0]]), torch.tensor([[5.0, 5.0, 5.0]])])
        tensor([[-0.5000,  0.5000,  0.0000,  0.0000,  0.0000]])
    """
    parts = []
    for block in blocks:
        flat = block.flatten(1)
        centred = flat - flat.mean(1, keepdim=True)
        norm = torch.linalg.vector_norm(centred, dim=1, keepdim=True)
        parts.append(centred / norm.clamp(min=_LEAST_CONTRAST))
    return torch.cat(parts, 1) / math.sqrt(len(parts))


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
    slant = min(1.0, 4.0 / orientations)
    wavelets = []
    for scale in (2.0**j for j in range(scales)):
        for turn in range(orientations):
            form = (height, width, scale, math.pi * turn / orientations, slant)
            wave, window = _gabor(*form, _FREQUENCY / scale), _gabor(*form, 0.0)
            wavelets.append(wave - window * (wave[0, 0] / window[0, 0]))
    bank = torch.stack(wavelets).view(scales, orientations, height, width)
    power = bank.square().sum((0, 1))
    # A real image has as much at a frequency as at its opposite, where the wavelets have little.
    gain = (power + power.flip((0, 1)).roll((1, 1), (0, 1))) / 2
    return (bank / gain.max().sqrt()).float()


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


class ScatteringFeatures(ImageFeatures):
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

    _deviation = 0.4

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
        first, second = [], []
        for scale, moduli in enumerate(self._moduli(padded, 0, range(self.scales))):
            first.append(self._average(moduli, scale))
            if scale + 1 < self.scales:
                second += self._second_order(moduli, scale)
        return [self._average(padded, 0), *first, *second]
