# SPDX-License-Identifier: Apache-2.0
"""A convolution whose outputs are seen only through 2 x 2 max-pooling and a ReLU, on a CPU.

The outputs before pooling are the largest thing a small network computes, and a processor's cache
does not hold those of a whole batch. They are therefore made and pooled a few examples at a time,
in memory that stays in the cache. On the way back the same few examples are taken up again: their
outputs are made anew where that is cheap (few input channels), else they were kept; pooling hands
the gradient back into them, and the gradients by weights and inputs are taken at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine.clipping.convolution import BankedConvolution, output_size
from dpcohort.engine.clipping.kernel_rows import has_kernel_rows
from dpcohort.engine.clipping.outer import row_norms
from dpcohort.engine.clipping.pair_pooling import PairPooling
from dpcohort.engine.clipping.pooled_lines import PooledLines
from dpcohort.engine.layout import FlatLayout

__all__ = ["PooledConvolution", "take_pooling"]

#: Outputs of so many bytes are made at a time.
_PART_BYTES = 4 << 20
#: Parts have a multiple of so many rows where they can: few sizes, whose memory is kept.
_PART_MULTIPLE = 16
#: Sizes of parts whose memory is kept.
_KEPT_SIZES = 4


@dataclass(frozen=True)
class _Part:
    """A few examples that meet the same weights."""

    rows: slice
    group: int

    @property
    def size(self) -> int:
        return int(self.rows.stop - self.rows.start)


class PooledConvolution(BankedConvolution):
    """A convolution, max-pooling and, if wanted, a ReLU, as one layer.

    Args:
        layer: the convolution.
        prefix: its name.
        layout: where its parameters lie.
        relu: whether there is a ReLU.
    """

    def __init__(self, layer: nn.Module, prefix: str, layout: FlatLayout, *, relu: bool) -> None:
        super().__init__(layer, prefix, layout)
        self._relu = relu
        self._piece = f"gradients of {prefix}"
        self._poolings: list[PairPooling] = []
        self._by_lines: dict[tuple[object, ...], PooledLines] = {}

    @classmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Convolutions of images with few channels, or whose gradients go by kernel rows."""
        if type(layer) is not nn.Conv2d or not BankedConvolution.supports(layer):
            return False
        kernel, stride = (layer.kernel_size[0], layer.kernel_size[1]), layer.stride
        channels = layer.in_channels
        return cls.few(channels) or has_kernel_rows(channels, kernel, (stride[0], stride[1]))

    def compute(self, inputs: Tensor) -> Tensor:
        """Outputs after pooling."""
        self._inputs = inputs = inputs.contiguous(memory_format=torch.channels_last)
        self._poolings = []
        height, width = self._output_size()
        shape = (inputs.shape[0], height // 2, width // 2, self.spans["weight"].shape[0])
        pooled = inputs.new_empty(shape)
        for part in self._parts():
            if self._has_lines:
                self._lines_of(part).pool(pooled[part.rows])
            else:
                pooling = self._convolved(part)
                pooling.pool(pooled[part.rows])
                self._poolings.append(pooling)
        return pooled.permute(0, 3, 1, 2)

    def both_gradients(self, gradient: Tensor, *, wanted: bool) -> tuple[Tensor, Tensor | None]:
        """Squared norms and, if wanted, the gradient by the inputs."""
        gradient = gradient.permute(0, 2, 3, 1)
        inputs = self._saved_inputs()
        by_inputs = torch.empty_like(inputs) if wanted else None
        formed = self._place(gradient) if self._has_lines else None
        by_outputs = []
        for number, part in enumerate(self._parts()):
            rows = part.rows
            if formed is not None:
                image = self._lines_of(part).hand_back(gradient[rows], formed[rows])
            else:
                image = self._poolings[number].hand_back(gradient[rows])
                by_outputs.append(image)
            if by_inputs is not None:
                by_inputs[rows] = self._transposed(
                    image.permute(0, 3, 1, 2), inputs[rows], self._weight()[part.group]
                )
        if formed is not None:
            self._formed = formed
            return row_norms(formed).square(), by_inputs
        whole = by_outputs[0] if len(by_outputs) == 1 else torch.cat(by_outputs)
        return self.observe(whole.permute(0, 3, 1, 2)), by_inputs

    def _output_size(self) -> tuple[int, int]:
        inputs = self._saved_inputs()
        return output_size(inputs, self._kernel, self._stride, self._padding, self._dilation)

    def _parts(self) -> list[_Part]:
        """All rows in their order, a few at a time, and never those of two groups."""
        bank, size = self.current, self._output_size()
        per_group = bank.rows // bank.groups
        each = self.spans["weight"].shape[0] * size[0] * size[1] * bank.weights.element_size()
        count = max(1, -(-per_group * each // _PART_BYTES))
        step = -(-per_group // (count * _PART_MULTIPLE)) * _PART_MULTIPLE
        return [
            _Part(slice(start, min(start + step, (group + 1) * per_group)), group)
            for group in range(bank.groups)
            for start in range(group * per_group, (group + 1) * per_group, step)
        ]

    def _convolved(self, part: _Part) -> PairPooling:
        """The convolution of a part, ready to be pooled."""
        bias = self.weights("bias")
        outputs = F.conv2d(
            self._saved_inputs()[part.rows],
            self._weight()[part.group],
            None if bias is None else bias[part.group],
            stride=self._stride,
            padding=self._padding,
            dilation=self._dilation,
        )
        image = outputs.permute(0, 2, 3, 1).contiguous()
        return PairPooling(image, relu=self._relu, scratch=self.current.scratch)

    def _lines_of(self, part: _Part) -> PooledLines:
        """The outputs of a part with few channels."""
        inputs, bias = self._saved_inputs()[part.rows], self.weights("bias")
        key = (tuple(inputs.shape), inputs.dtype)
        lines = self._by_lines.get(key)
        if lines is None:
            if len(self._by_lines) >= _KEPT_SIZES:
                self._by_lines.clear()
            lines = PooledLines(
                inputs, outputs=self.spans["weight"].shape[0], has_bias=bias is not None,
                kernel=self._kernel, stride=self._stride, padding=self._padding,
                dilation=self._dilation, relu=self._relu, scratch=self.current.scratch,
            )  # fmt: skip
            self._by_lines[key] = lines
        lines.fill(inputs, self._weight()[part.group], None if bias is None else bias[part.group])
        return lines

    def _place(self, like: Tensor) -> Tensor:
        """Memory for the gradients of every example, laid out as lines."""
        fan_in = self.spans["weight"].size // self.spans["weight"].shape[0]
        shape = (like.shape[0], fan_in + ("bias" in self.spans), like.shape[3])
        return self.current.scratch.piece(self._piece, shape, like)

    def _drop(self) -> None:
        super()._drop()
        self._poolings = []


def take_pooling(model: nn.Module) -> dict[str, bool]:
    """Take max-pooling, and a ReLU behind it, out of a model where a convolution can do them.

    Args:
        model: changed in place: what is taken leaves an identity.

    Returns:
        The names of those convolutions, and whether they do a ReLU too.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2))
        >>> take_pooling(model)
        {'0': True}
        >>> [type(layer).__name__ for layer in model]
        ['Conv2d', 'Identity', 'Identity', 'MaxPool2d']
    """
    taken: dict[str, bool] = {}
    for name, part in list(model.named_modules()):
        if type(part) is not nn.Sequential:
            continue
        names = list(part._modules)
        for i in range(len(part) - 1):
            if not PooledConvolution.supports(part[i]) or not _is_pairwise(part[i + 1]):
                continue
            relu = i + 2 < len(part) and type(part[i + 2]) is nn.ReLU
            taken[f"{name}.{names[i]}" if name else names[i]] = relu
            part[i + 1] = nn.Identity()
            if relu:
                part[i + 2] = nn.Identity()
    return taken


def _is_pairwise(layer: nn.Module) -> bool:
    """Whether this is max-pooling of 2 x 2 windows side by side and nothing else."""
    return (
        type(layer) is nn.MaxPool2d
        and layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not layer.return_indices
        and not layer.ceil_mode
    )
