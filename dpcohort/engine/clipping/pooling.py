# SPDX-License-Identifier: Apache-2.0
"""Max-pooling made cheaper without changing a number.

``MaxPool`` is ``nn.MaxPool2d`` with its own kernels on a GPU, several times faster for small
images. It gives the very numbers of torch: the same maxima, and among equals the same one is taken.
On a CPU it is torch's.

``pool_before_relu`` changes the order: ReLU never changes which of several numbers is largest, so
pooling first and then taking the ReLU of the few survivors equals the printed order, gradients
included: where two numbers tie, both are zero and so is their gradient, or they are equal and the
same one is taken. (For tanh this fails: it rounds different numbers to equal ones.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort.engine.clipping import kernels

__all__ = ["MaxPool", "exchange_pooling", "pool_before_relu"]

Pair = tuple[int, int]


class MaxPool(nn.Module):
    """Max-pooling of images.

    Args:
        layer: the torch layer whose place it takes.

    Example:
        >>> MaxPool(nn.MaxPool2d(2))(torch.arange(4.0).view(1, 1, 2, 2))
        tensor([[[[3.]]]])
    """

    def __init__(self, layer: nn.MaxPool2d) -> None:
        super().__init__()
        self._kernel = _pair(layer.kernel_size)
        self._stride = _pair(layer.stride)
        self._padding = _pair(layer.padding)

    @classmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Plain max-pooling, without dilation, indices or windows that hang over the edge."""
        return (
            type(layer) is nn.MaxPool2d
            and _pair(layer.dilation) == (1, 1)
            and not layer.return_indices
            and not layer.ceil_mode
            and _pair(layer.kernel_size)[0] * _pair(layer.kernel_size)[1] <= kernels.LARGEST_WINDOW
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """The largest entry of each window."""
        known = inputs.dtype in (torch.float32, torch.float64) and inputs.dim() == 4
        if inputs.is_cuda and kernels.AVAILABLE and known:
            pooled: Tensor = _Pool.apply(inputs, self._kernel, self._stride, self._padding)  # type: ignore[no-untyped-call]
            return pooled
        return F.max_pool2d(inputs, self._kernel, self._stride, self._padding)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
        image = inputs.permute(0, 2, 3, 1).contiguous()
        rows, height, width, channels = image.shape
        down = (height + 2 * padding[0] - kernel[0]) // stride[0] + 1
        across = (width + 2 * padding[1] - kernel[1]) // stride[1] + 1
        out = image.new_empty(rows, down, across, channels)
        places = torch.empty_like(out, dtype=torch.uint8)
        ctx.options = {"kernel": kernel, "stride": stride, "padding": padding}
        ctx.image_shape = image.shape
        ctx.save_for_backward(places)
        if out.numel() > 0:
            kernels.pool(out, places, image, **ctx.options)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (places,) = ctx.saved_tensors
        gradient = gradients[0].permute(0, 2, 3, 1).contiguous()
        out = gradient.new_empty(ctx.image_shape)
        if out.numel() > 0:
            kernels.pool_gradient(out, places, gradient, **ctx.options)
        return out.permute(0, 3, 1, 2), None, None, None


def exchange_pooling(model: nn.Module) -> None:
    """Put ``MaxPool`` in the place of every ``nn.MaxPool2d`` it supports.

    Example:
        >>> model = nn.Sequential(nn.MaxPool2d(2), nn.MaxPool2d(2, ceil_mode=True))
        >>> exchange_pooling(model)
        >>> [type(layer).__name__ for layer in model]
        ['MaxPool', 'MaxPool2d']
    """
    for part in model.modules():
        for name, layer in part.named_children():
            if isinstance(layer, nn.MaxPool2d) and MaxPool.supports(layer):
                setattr(part, name, MaxPool(layer))


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def pool_before_relu(model: nn.Module) -> None:
    """In every ``nn.Sequential``, turn ReLU then max-pooling into max-pooling then ReLU, in place.

    Example:
        >>> model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
        >>> pool_before_relu(model)
        >>> [type(layer).__name__ for layer in model]
        ['MaxPool2d', 'ReLU']
    """
    for part in model.modules():
        if type(part) is not nn.Sequential:
            continue
        for i in range(len(part) - 1):
            relu, pool = part[i], part[i + 1]
            pools = type(pool) in (nn.MaxPool1d, nn.MaxPool2d) and not pool.return_indices
            if type(relu) is nn.ReLU and pools:
                part[i], part[i + 1] = pool, relu
