# SPDX-License-Identifier: Apache-2.0
"""The networks: the paper's CNN in two readings, a CIFAR-10 CNN, an MLP, softmax regression.

Plain sequences of torch's own layers, so that an engine knows every one of them; in front of the
last two there may be fixed features, which have no parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dpcohort._validate import choice, whole_number
from dpcohort.errors import InputError
from dpcohort.limits import MOST_PARAMETERS
from dpcohort.models.features import build_features
from dpcohort.models.starts import start_oriented

__all__ = ["cifar_cnn", "logistic", "mlp", "mnist_cnn", "mnist_cnn_large"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def logistic(
    shape: tuple[int, ...],
    classes: int,
    *,
    features: str = "none",
    bias: bool = True,
    **feature_options: Any,
) -> nn.Module:
    """Softmax regression, of the record or of its features; convex, so it starts at zero.

    Features of norm 1 and a constant 1 share the norm of a record's gradient, which is clipped:
    without a bias the same noise leaves 1.4 times as much of the features. Classes about equally
    frequent need none.

    Example:
        >>> sum(p.numel() for p in logistic((1, 8, 8), 10).parameters())
        650
        >>> sum(p.numel() for p in logistic((1, 28, 28), 10, features="oriented").parameters())
        8340
    """
    first, inputs = _first(shape, features, feature_options)
    if not isinstance(bias, bool):
        raise InputError("bias", given=bias, allowed="true or false")
    linear = _linear(inputs, classes, bias=bias)
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(first, linear)


def mlp(
    shape: tuple[int, ...],
    classes: int,
    *,
    hidden: Sequence[int] = (128,),
    activation: str = "relu",
    features: str = "none",
    **feature_options: Any,
) -> nn.Module:
    """Linear layers of the given widths with an activation after each, and one to the classes.

    They see the record, or its features.

    Example:
        >>> mlp((4,), 3, hidden=[5])[1]
        Linear(in_features=4, out_features=5, bias=True)
    """
    if not isinstance(hidden, list | tuple):
        raise InputError("hidden", given=hidden, allowed="a list of layer widths")
    first, seen = _first(shape, features, feature_options)
    widths = [seen, *(whole_number("hidden", width, at_least=1) for width in hidden)]
    layers: list[nn.Module] = [first]
    for inputs, outputs in pairwise(widths):
        layers += [_linear(inputs, outputs), _activation(activation)]
    return nn.Sequential(*layers, _linear(widths[-1], classes))


def mnist_cnn(
    shape: tuple[int, ...], classes: int, *, activation: str = "relu", start: str = "random"
) -> nn.Module:
    """Two convolutions and two linear layers, 26,010 parameters on 28x28 images.

    ``start = "oriented"`` is the same network with other initial weights, all of them trained:
    Gabor filters in the first layer, orthogonal weights between, zeros in the last.

    Example:
        >>> sum(p.numel() for p in mnist_cnn((1, 28, 28), 10).parameters())
        26010
    """
    features = nn.Sequential(
        nn.Conv2d(_channels(shape), 16, 8, stride=2, padding=3),
        _activation(activation),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        _activation(activation),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
    )
    choice("start", start, ("random", "oriented"))
    width = _width("mnist-cnn", features, shape)
    network = nn.Sequential(
        *features, _linear(width, 32), _activation(activation), _linear(32, classes)
    )
    if start == "oriented":
        start_oriented(network)
    return network


def mnist_cnn_large(shape: tuple[int, ...], classes: int, *, activation: str = "relu") -> nn.Module:
    """The other reading of the paper's network: 3x3 convolutions, 512 and 32 hidden units.

    Example:
        >>> sum(p.numel() for p in mnist_cnn_large((1, 28, 28), 10).parameters())
        824874
    """
    features = nn.Sequential(
        nn.Conv2d(_channels(shape), 16, 3, padding=1),
        _activation(activation),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        _activation(activation),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return nn.Sequential(
        *features,
        _linear(_width("mnist-cnn-large", features, shape), 512),
        _activation(activation),
        _linear(512, 32),
        _activation(activation),
        _linear(32, classes),
    )


def cifar_cnn(shape: tuple[int, ...], classes: int, *, activation: str = "tanh") -> nn.Module:
    """The CIFAR-10 network of Tramèr and Boneh (2021), 550,570 parameters on 3x32x32 images.

    Example:
        >>> sum(p.numel() for p in cifar_cnn((3, 32, 32), 10).parameters())
        550570
    """
    layers: list[nn.Module] = []
    channels = _channels(shape)
    for width in (32, 64, 128):
        for inputs in (channels, width):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), _activation(activation)]
        layers.append(nn.MaxPool2d(2))
        channels = width
    features = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(
        *features,
        _linear(_width("cifar-cnn", features, shape), 128),
        _activation(activation),
        _linear(128, classes),
    )


def _first(
    shape: tuple[int, ...], features: str, options: Mapping[str, Any]
) -> tuple[nn.Module, int]:
    """What turns a record into a vector, and the vector's length."""
    fixed = build_features(features, shape, **options)
    return (nn.Flatten(), math.prod(shape)) if fixed is None else (fixed, fixed.width)


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer; its size is looked at before torch makes room for it."""
    if inputs * outputs > MOST_PARAMETERS:
        raise InputError(
            "parameters of a layer",
            given=inputs * outputs,
            allowed=f"at most {MOST_PARAMETERS}",
            next_step=f"It would lead from {inputs} numbers to {outputs}.",
        )
    return nn.Linear(inputs, outputs, bias=bias)


def _activation(name: str) -> nn.Module:
    return _ACTIVATIONS[choice("activation", name, _ACTIVATIONS)]()


def _channels(shape: tuple[int, ...]) -> int:
    if len(shape) != 3:
        raise InputError(
            "input_shape",
            given=shape,
            allowed="(channels, height, width) for a convolutional network",
            next_step="Use 'logistic' or 'mlp' for other records.",
        )
    return shape[0]


def _width(name: str, features: nn.Module, shape: tuple[int, ...]) -> int:
    """How many features come out of the convolutions for records of this shape."""
    try:
        with torch.no_grad():
            return int(features(torch.zeros(1, *shape)).shape[1])
    except RuntimeError:
        raise InputError(
            "input_shape",
            given=shape,
            allowed=f"an image large enough for the convolutions of {name!r}",
            next_step="Use 'logistic' or 'mlp' for small images.",
        ) from None
