# SPDX-License-Identifier: Apache-2.0
"""``nn.Conv1d`` and ``nn.Conv2d`` with a stack of weights, images lying channels-last.

A convolution is a linear map of patches: with the patches of an image as rows (its *columns*, by
the usual misnomer), the gradient of one example is sum_t g_t a_t^T over output positions t. The
columns are copied from strided views; that is several times faster than ``F.unfold``. With few
input channels they are laid out the other way round, [patch entry, position], which copies whole
lines of the image at a time, and a line of ones is added to them: the bias is then one more weight.

On a GPU no columns are laid out: ``kernels`` reads patches where they are, for a whole stack of
models in one launch. Layers of many channels are left to cuDNN there, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine.clipping import _kernels as kernels
from dpcohort.engine.clipping._layers import (
    Part,
    StackedLayer,
    add_outer_sums,
    gram_is_cheaper,
    outer_sum_norms,
    row_norms,
)
from dpcohort.engine.clipping._per_example import FlatLayout

Pair = kernels.Pair
Geometry = kernels.Geometry

#: Columns are formed for so many bytes at a time: on a CPU they then stay in its cache.
_COLUMN_BYTES = {"cpu": 2 << 20, "cuda": 1 << 30}
#: With so few input channels a convolution is faster as a product with its columns.
_FEW_CHANNELS = 4
#: Of input and output channels: with so few of them cuDNN leaves a GPU idle.
_FEW_PAIRS = 512


class StackedConvolution(StackedLayer):
    """A convolution over one or two dimensions, with stride, zero padding and dilation."""

    def __init__(self, layer: nn.Module, prefix: str, layout: FlatLayout) -> None:
        super().__init__(layer, prefix, layout)
        convolution = cast(nn.Conv2d, layer)
        self._is_1d = isinstance(layer, nn.Conv1d)
        self._kernel = _pair(convolution.kernel_size)
        stride, dilation = _pair(convolution.stride), _pair(convolution.dilation)
        self._geometry = (self._kernel, stride, _padding(convolution), dilation)
        self._around = (self._geometry[2], self._geometry[2])
        self._has_few_channels = convolution.in_channels <= _FEW_CHANNELS
        #: Whether what comes next adds a bias that is left to it: cuDNN needs one more kernel.
        self.may_leave_bias = False
        #: Whether it takes the tanh of its inputs, and of which layer's outputs they are.
        self.takes_tanh = False
        self.before: StackedConvolution | None = None

    @classmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Plain convolutions in one group with the same zero padding on both sides."""
        return (
            type(layer) in (nn.Conv1d, nn.Conv2d)
            and isinstance(layer, nn.Conv1d | nn.Conv2d)
            and layer.groups == 1
            and layer.padding_mode == "zeros"
            and all(p.requires_grad for p in layer.parameters())
            and all(side >= 0 for side in _padding(layer))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """The convolution; one dimension is two with a height of one."""
        if inputs.dim() != (3 if self._is_1d else 4):
            raise NotImplementedError(f"a convolution got shape {tuple(inputs.shape)}")
        if self._is_1d:
            return self._attach(inputs[:, :, None]).squeeze(2)
        return self._attach(inputs)

    def compute(self, inputs: Tensor) -> Tensor:
        """Convolve each group's rows with its weights."""
        weight, bias = self.stacked_weight, self.stacked_bias
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        if self.takes_tanh:
            inputs = self._tanh(inputs)
        self.kept["inputs"] = inputs
        if self._has_kernels(inputs, weight):
            size = output_size(inputs, self._geometry)
            out = inputs.new_empty(len(inputs), *size, weight.shape[1])
            kernels.convolve(out, self._padded(), weight, bias, self._geometry)
            return out.permute(0, 3, 1, 2)
        if self._has_lines(inputs):
            return self._compute_by_lines(inputs, weight, bias)
        if self.may_leave_bias and bias is not None and len(bias) == 1 and _reads_patches(inputs):
            self.kept["left bias"], bias = bias[0], None
        _, stride, padding, dilation = self._geometry
        if "padded" in self.kept:
            inputs, padding = self.kept["padded"].permute(0, 3, 1, 2), (0, 0)
        parts = [
            F.conv2d(rows, w, None if bias is None else bias[group], stride, padding, dilation)
            for group, (rows, w) in enumerate(zip(inputs.chunk(len(weight)), weight, strict=True))
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _tanh(self, inputs: Tensor) -> Tensor:
        """The tanh of images; by kernels with the zeros around it, and the bias left before it."""
        if not _reads_patches(inputs):
            return inputs.tanh()
        bias = None if self.before is None else self.before.kept.get("left bias")
        (top, left), (height, width) = self._geometry[2], inputs.shape[2:]
        image = inputs.permute(0, 2, 3, 1)
        self.kept["padded"] = kernels.padded(image, *self._around, tanh=True, bias=bias)
        inside = self.kept["padded"][:, top : top + height, left : left + width]
        return inside.permute(0, 3, 1, 2)

    def _padded(self) -> Tensor:
        """The inputs with the zeros around them, channels last."""
        if "padded" not in self.kept:
            image = self.kept["inputs"].permute(0, 2, 3, 1)
            self.kept["padded"] = kernels.padded(image, *self._around)
        return self.kept["padded"]

    def _compute_by_lines(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        groups, outputs = weight.shape[:2]
        matrix = weight.reshape(groups, outputs, -1)
        if bias is not None:
            matrix = torch.cat([matrix, bias[:, :, None]], dim=2)
        if groups == 1:
            return self._multiply_lines(inputs, matrix)
        lines, (height, width) = patches(
            inputs, self._geometry, by_line=True, ones=bias is not None
        )
        self.kept["lines"] = lines
        by_group = self.by_group(lines).transpose(2, 3)
        product = torch.matmul(by_group, matrix.transpose(1, 2)[:, None])
        return product.view(inputs.shape[0], height, width, outputs).permute(0, 3, 1, 2)

    def _has_lines(self, inputs: Tensor) -> bool:
        return self._has_few_channels and not inputs.is_cuda

    def _has_kernels(self, inputs: Tensor, weight: Tensor) -> bool:
        """Whether kernels do both ways: in a stack, or where cuDNN has too few channels to fill.

        Where rows are to be treated alike they always do, unless cuDNN was found to do so as well.
        """
        small = len(weight) > 1 or weight[0, :, :, 0, 0].numel() <= _FEW_PAIRS
        chosen = small or (self.apart and self.own_convolutions)
        return _reads_patches(inputs) and chosen and self._geometry[3] == (1, 1)

    def _multiply_lines(self, inputs: Tensor, matrix: Tensor) -> Tensor:
        """The same for one group, a few images at a time: their lines are in the cache yet."""
        rows, (height, width) = len(inputs), output_size(inputs, self._geometry)
        _, outputs, fan_in = matrix.shape
        lines = inputs.new_empty(rows, fan_in, height * width)
        product = inputs.new_empty(rows, height * width, outputs)
        by_row = matrix.transpose(1, 2).expand(rows, -1, -1)
        for part in parts_in_cache(lines):
            write_lines(lines[part], inputs[part], self._geometry)
            torch.bmm(lines[part].transpose(1, 2), by_row[part], out=product[part])
        self.kept["lines"] = lines
        return product.view(rows, height, width, outputs).permute(0, 3, 1, 2)

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """The transposed convolution, group by group, and back through the tanh before it."""
        found = self._transposed(gradient)
        if self.takes_tanh and _reads_patches(found):
            kernels.times_tanh_slope(
                found.permute(0, 2, 3, 1), self.kept["padded"], self._geometry[2]
            )
        elif self.takes_tanh:
            found = torch.ops.aten.tanh_backward(found, self.kept["inputs"])
        return found

    def _transposed(self, gradient: Tensor) -> Tensor:
        weight, (_, stride, padding, dilation) = self.stacked_weight, self._geometry
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        if self._has_kernels(self.kept["inputs"], weight):
            out = torch.empty_like(self.kept["inputs"], memory_format=torch.channels_last)
            kernels.convolve_gradient(
                out.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1), weight, self._geometry
            )
            return out
        like = self.kept["inputs"]
        if self.takes_tanh:  # only the shape matters; what lies inside zeros would be copied out
            like = torch.empty_like(like, memory_format=torch.channels_last)
        groups = zip(gradient.chunk(len(weight)), like.chunk(len(weight)), weight, strict=True)
        parts = [
            torch.ops.aten.convolution_backward(
                g, x, w, None, stride, padding, dilation, False, [0, 0], 1, [True, False, False]
            )[0]
            for g, x, w in groups
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def observe(self, gradient: Tensor) -> Tensor:
        """Form the gradient of every example, or use the Gram way where that is cheaper."""
        norms = self._observe_rows(gradient)
        if self.each == 1:
            return norms
        if "columns" in self.kept:
            columns, g = self.kept.pop("columns"), self.kept.pop("g")
            self.kept["formed"] = torch.bmm(g.transpose(1, 2), columns)
        names = [name for name in ("formed", "bias") if name in self.kept]
        for name in names:
            self.kept[name] = self.joined(self.kept[name])
        return torch.stack([row_norms(self.kept[name]).square() for name in names]).sum(0)

    def _observe_rows(self, gradient: Tensor) -> Tensor:
        inputs = self.kept["inputs"]
        rows, outputs = gradient.shape[:2]
        g = gradient.permute(0, 2, 3, 1).reshape(rows, -1, outputs)
        if self._has_lines(inputs):
            self.kept["formed"] = torch.bmm(self.kept["lines"], g)
            if self.apart:
                return g.new_empty(0)
            return row_norms(self.kept["formed"]).square()
        positions, fan_in = g.shape[1], inputs.shape[1] * self._kernel[0] * self._kernel[1]
        if not self.apart and (positions == 1 or gram_is_cheaper(positions, fan_in, outputs)):
            columns, _ = patches(inputs, self._geometry)
            norms, _ = outer_sum_norms(columns, g)
            self.kept |= {"columns": columns, "g": g}
        elif _reads_patches(inputs):
            self.kept["formed"] = g.new_empty(rows, outputs, fan_in)
            if "bias" in self.places:
                self.kept["bias"] = g.new_empty(rows, outputs)
            return kernels.form_gradients(
                self.kept["formed"], self.kept.get("bias"), self._padded(),
                gradient.permute(0, 2, 3, 1).contiguous(), self._geometry,
            )  # fmt: skip
        else:
            self.kept["formed"] = self._form(inputs, g, fan_in)
            norms = row_norms(self.kept["formed"]).square()
        if "bias" in self.places:
            self.kept["bias"] = g.sum(1)
            norms = norms + self.kept["bias"].square().sum(1)
        return norms

    def _form(self, inputs: Tensor, gradient: Tensor, fan_in: int) -> Tensor:
        rows, positions, outputs = gradient.shape
        transposed = gradient.transpose(1, 2)
        formed = gradient.new_empty(rows, outputs, fan_in)
        for part in parts_in_cache(gradient, positions * fan_in):
            columns, _ = patches(inputs[part], self._geometry)
            torch.bmm(transposed[part], columns, out=formed[part])
        return formed

    def add_clipped_sum(self, factors: Tensor, total: Tensor) -> None:
        """Weight and bias, brought from the order of the patches to that of the parameters."""
        target = self.part("weight", total)
        draws, outputs, channels = target.shape[:3]
        fan_in = channels * self._kernel[0] * self._kernel[1]
        if "formed" in self.kept:
            product = torch.bmm(factors[:, None], self.kept["formed"].view(*factors.shape, -1))
        elif "columns" in self.kept:
            zeros = total.new_zeros(draws, outputs, fan_in)
            product = add_outer_sums(zeros, self.kept["columns"], self.kept["g"], None, factors)
        else:
            return
        weight, bias = self._in_order(product)
        target.add_(weight.reshape(target.shape))
        if bias is not None:
            self.part("bias", total).add_(bias)
        elif "bias" in self.kept:
            self._add_formed("bias", factors, total)

    def own_gradients(self) -> list[Part]:
        """They were formed, in the order of the patches."""
        bias = [(self.kept["bias"],)] if "bias" in self.kept else []
        return [(self.kept["formed"].flatten(1),), *bias]

    def place(self, sums: Sequence[Tensor], total: Tensor) -> None:
        """Weight and bias, in the order of the parameters."""
        ahead = total.shape[:-1]
        weight, bias = self._in_order(sums[0].reshape(-1, sums[0].shape[-1]))
        total[..., self.places["weight"][0]] = weight.reshape(*ahead, -1)
        if "bias" in self.places:
            total[..., self.places["bias"][0]] = (
                sums[1] if bias is None else bias.reshape(*ahead, -1)
            )

    def _in_order(self, formed: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weights from the order of patches to that of parameters; their bias, if it is in there.

        [rows, outputs, channels, height, width] and [rows, outputs].
        """
        outputs, channels = self.places["weight"][1][:2]
        if not self._has_lines(formed):
            patched = formed.reshape(len(formed), outputs, *self._kernel, channels)
            return patched.permute(0, 1, 4, 2, 3), None
        lines = formed.reshape(len(formed), -1, outputs).transpose(1, 2)
        fan_in = channels * self._kernel[0] * self._kernel[1]
        weight = lines[:, :, :fan_in].reshape(*lines.shape[:2], channels, *self._kernel)
        return weight, lines[:, :, fan_in] if "bias" in self.places else None

    @property
    def stacked_weight(self) -> Tensor:
        """The stack's part [groups, outputs, inputs, height, width] for the weight."""
        weight = super().stacked_weight
        return weight[:, :, :, None] if self._is_1d else weight


def patches(
    inputs: Tensor, geometry: Geometry, *, by_line: bool = False, ones: bool = False
) -> tuple[Tensor, Pair]:
    """The patches a convolution looks at, [rows, positions, height x width x channels].

    Args:
        inputs: images [rows, channels, height, width].
        geometry: of the convolution.
        by_line: lay them out as [rows, channels x height x width, positions] instead.
        ones: then with a line of ones below them.

    Returns:
        The patches and the height and width of the output.

    Example:
        >>> image, geometry = torch.arange(9.0).view(1, 1, 3, 3), ((2, 2), (1, 1), (0, 0), (1, 1))
        >>> patches(image, geometry)[0][0, 0].tolist()
        [0.0, 1.0, 3.0, 4.0]
        >>> patches(image, geometry, by_line=True, ones=True)[0][0, :, 0].tolist()
        [0.0, 1.0, 3.0, 4.0, 1.0]
    """
    kernel, stride, padding, dilation = geometry
    size, (rows, channels) = output_size(inputs, geometry), inputs.shape[:2]
    positions, fan_in = size[0] * size[1], channels * kernel[0] * kernel[1]
    shape = (rows, fan_in + ones, positions) if by_line else (rows, positions, fan_in)
    if by_line:
        lines = inputs.new_empty(shape)
        write_lines(lines, inputs, geometry)
        return lines, size
    if padding != (0, 0):
        inputs = F.pad(inputs, (padding[1], padding[1], padding[0], padding[0]))
    image = inputs.contiguous(memory_format=torch.channels_last)
    per_row, per_channel, per_line, per_pixel = image.stride()
    place = (stride[0] * per_line, stride[1] * per_pixel)
    entry = (dilation[0] * per_line, dilation[1] * per_pixel)
    strides = (per_row, *place, *entry, per_channel)
    return image.as_strided((rows, *size, *kernel, channels), strides).reshape(shape), size


def write_lines(lines: Tensor, inputs: Tensor, geometry: Geometry) -> None:
    """Write patches as lines [rows, channels x height x width, positions]; one more gets ones.

    Example:
        >>> lines, image = torch.empty(1, 2, 3), torch.arange(6.0).view(1, 1, 1, 6)
        >>> write_lines(lines, image, ((1, 2), (1, 2), (0, 0), (1, 1)))
        >>> lines.tolist()
        [[[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]]
    """
    kernel, (down, across), padding, (apart_down, apart_across) = geometry
    size, (rows, channels) = output_size(inputs, geometry), inputs.shape[:2]
    fan_in = channels * kernel[0] * kernel[1]
    # Pixels that a stride leaves between others get a place of their own first, where a kernel
    # meets them in turns: what is copied then are whole lines again.
    turns = across if apart_across == 1 and kernel[1] % across == 0 else 1
    more = -(inputs.shape[3] + 2 * padding[1]) % turns
    if padding != (0, 0) or more > 0:
        inputs = F.pad(inputs, (padding[1], padding[1] + more, padding[0], padding[0]))
    image = inputs.contiguous()
    image = image.view(*image.shape[:3], -1, turns).transpose(3, 4).contiguous()
    per_row, per_channel, per_line, per_turn, per_pixel = image.stride()
    entry = (apart_down * per_line, apart_across * per_pixel, per_turn)
    place = (down * per_line, across // turns * per_pixel)
    view = image.as_strided(
        (rows, channels, kernel[0], kernel[1] // turns, turns, *size),
        (per_row, per_channel, *entry, *place),
    )
    lines[:, :fan_in].view(view.shape).copy_(view)
    if lines.shape[1] > fan_in:
        lines[:, fan_in].fill_(1.0)


def parts_in_cache(rows: Tensor, numbers: int | None = None) -> Iterator[slice]:
    """Rows of equally large parts whose columns stay in a CPU's cache.

    Args:
        rows: [rows, ...].
        numbers: so many in the columns of a row; None if the rows are the columns.

    Example:
        >>> list(parts_in_cache(torch.empty(3, 1 << 18)))
        [slice(0, 2, None), slice(2, 4, None)]
    """
    numbers = rows[0].numel() if numbers is None else numbers
    budget = _COLUMN_BYTES.get(rows.device.type, 1 << 30)
    most = max(1, budget // max(1, numbers * rows.element_size()))
    step = -(-len(rows) // -(-len(rows) // most))
    return (slice(start, start + step) for start in range(0, len(rows), step))


def _reads_patches(inputs: Tensor) -> bool:
    """Whether kernels can read the patches of these images where they are."""
    known = inputs.is_cuda and inputs.dtype == torch.float32
    return known and kernels.AVAILABLE and inputs.numel() > 0


def output_size(inputs: Tensor, geometry: Geometry) -> Pair:
    """Height and width of what a convolution makes of images [rows, channels, height, width].

    Example:
        >>> output_size(torch.zeros(1, 1, 5, 6), ((3, 3), (1, 2), (1, 0), (1, 1)))
        (5, 2)
    """
    kernel, stride, padding, dilation = geometry
    down, across = (
        (inputs.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in (0, 1)
    )
    return down, across


def _pair(value: tuple[int, ...]) -> Pair:
    return (1, value[0]) if len(value) == 1 else (value[0], value[1])


def _padding(layer: nn.Conv1d | nn.Conv2d) -> Pair:
    """Padding on each side; (-1, -1) if the two sides of a dimension differ."""
    if isinstance(layer.padding, str):
        if layer.padding == "valid":
            return (0, 0)
        spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        if any(span % 2 for span in spans):
            return (-1, -1)
        sides = tuple(span // 2 for span in spans)
    else:
        sides = tuple(int(side) for side in layer.padding)
    return (0, sides[0]) if len(sides) == 1 else (sides[0], sides[1])
