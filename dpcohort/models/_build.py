# SPDX-License-Identifier: Apache-2.0
"""A model by its name, or by a function of the user's, with the weights that a seed gives.

The networks are the paper's CNN in two readings, a CIFAR-10 CNN, an MLP and softmax regression:
plain sequences of torch's own layers, so that an engine knows every one of them; in front of the
last two there may be fixed features of an installed package, which have no parameters. Initial
weights may be a formula instead of random (``start_oriented``): what strict budgets leave no room
to learn. A start looks at no record and costs no privacy; every weight is trained from there.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpcohort._validate import choice, whole_number
from dpcohort.errors import InputError
from dpcohort.limits import MOST_CLASSES, MOST_INPUT_VALUES, MOST_PARAMETERS
from dpcohort.models._features import build_features, feature_options, refuse_unknown
from dpcohort.models._moments import SecondMoments, with_second_moments
from dpcohort.models._trainable import check_trainable, seeded
from dpcohort.models._weights import freeze, load_weights, read_weights
from dpcohort.plugins import is_named_function, named_plugin, telling

_LARGEST_SEED = 2**63 - 1


def build_model(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
    input_dtype: torch.dtype = torch.float32,
    weights: str | Path | None = None,
    frozen: Sequence[str] = (),
) -> nn.Module:
    """A model with the weights that the seed gives, known to be trainable record by record.

    Torch's global random state is neither used nor changed.

    Args:
        name: one of `MODEL_NAMES`, or ``module:function`` for a function that returns an
            ``nn.Module`` and is marked ``@dpcohort.plugin("model")``, or a class of such
            modules; it is given ``input_shape`` and ``classes`` (or ``outputs``, the same number)
            where it has such arguments, and the options.
        input_shape: shape of one record, as in ``Dataset.input_shape``.
        classes: number of classes, or of what else is predicted: the length of the output.
        seed: of the initial weights.
        options: ``activation`` (``relu`` or ``tanh``) for all but ``logistic``; ``hidden``, a list
            of widths, for ``mlp``; ``features`` (``none``, or as `build_features` has them) and
            their settings for ``logistic`` and ``mlp``; ``bias`` and ``second_moments`` (κ of
            `SecondMoments`) for ``logistic``; ``start`` (``random`` or ``oriented``) for
            ``mnist-cnn``.
        input_dtype: of the records as the model sees them; ``torch.int64`` for token ids.
        weights: a safetensors file to start from, of the whole model or of a part of it.
        frozen: names of parameters, or of parts of the model, that are not trained.

    Raises:
        DataMissingError: there is no such file of weights.
        FileFormatError: its names or shapes are not the model's.
        InputError: if the name, an option or the shape does not fit, or a layer mixes records.

    Example:
        >>> from dpcohort.models import parameter_count
        >>> parameter_count(build_model("mnist-cnn", input_shape=(1, 28, 28), classes=10, seed=0))
        26010
    """
    shape = tuple(whole_number("input_shape", length, at_least=1) for length in input_shape)
    whole_number("numbers of a record", math.prod(shape), at_most=MOST_INPUT_VALUES)
    whole_number("classes", classes, at_least=1, at_most=MOST_CLASSES)
    whole_number("seed", seed, at_least=0, at_most=_LARGEST_SEED)
    if not is_named_function(name):
        choice("model", name, (*MODEL_NAMES, "module:function"))
    given = dict(options or {})
    with seeded(seed):
        if is_named_function(name):
            model = _build_own(name, shape, classes, given)
        else:
            builder, known = _BUILDERS[name]
            if "features" in known:
                known = (*known, *feature_options(given.get("features", "none")))
            refuse_unknown(f"The model {name!r} has no", "it has", given, known)
            model = builder(shape, classes, **given)
    if weights is not None:
        load_weights(model, weights)
    if frozen:
        freeze(model, frozen, known=None if weights is None else list(read_weights(weights)))
    outputs = classes + isinstance(model, SecondMoments)
    check_trainable(model, input_shape=shape, classes=outputs, input_dtype=input_dtype)
    return model


def _build_own(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]
) -> nn.Module:
    function = named_plugin("model", name)
    offered = {"input_shape": shape, "classes": classes, "outputs": classes}
    with telling(f"The model function {name} failed"):
        accepted = inspect.signature(function).parameters
        takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
        arguments = {key: value for key, value in offered.items() if takes_all or key in accepted}
        model = function(**{**arguments, **options})
    if not isinstance(model, nn.Module):
        given = type(model).__name__
        raise InputError(f"result of {name}", given=given, allowed="a torch.nn.Module")
    return model


_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def logistic(
    shape: tuple[int, ...],
    classes: int,
    *,
    features: str = "none",
    bias: bool = True,
    second_moments: float = 0.0,
    **feature_options: Any,
) -> nn.Module:
    """Softmax regression, of the record or of its features; convex, so it starts at zero.

    With ``second_moments`` the server takes Newton steps (`SecondMoments`).

    Features of norm 1 and a constant 1 share the norm of a record's gradient, which is clipped:
    without a bias the same noise leaves 1.4 times as much of the features. Classes about equally
    frequent need none.

    Example:
        >>> sum(p.numel() for p in logistic((1, 8, 8), 10).parameters())
        650
    """
    first, inputs = _first(shape, features, feature_options)
    linear = _linear(inputs, classes, bias=_flag("bias", bias))
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    model = nn.Sequential(first, linear)
    return with_second_moments(model, second_moments) if second_moments else model


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
    return nn.Sequential(first, *_dense(widths, classes, activation))


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
    convolutions = [
        *_pooled(nn.Conv2d(_channels(shape), 16, 8, stride=2, padding=3), activation, stride=1),
        *_pooled(nn.Conv2d(16, 32, 4, stride=2), activation, stride=1),
    ]
    choice("start", start, ("random", "oriented"))
    network = _convolutional("mnist-cnn", convolutions, shape, [32], classes, activation)
    if start == "oriented":
        start_oriented(network)
    return network


def mnist_cnn_large(shape: tuple[int, ...], classes: int, *, activation: str = "relu") -> nn.Module:
    """The other reading of the paper's network: 3x3 convolutions, 512 and 32 hidden units.

    Example:
        >>> sum(p.numel() for p in mnist_cnn_large((1, 28, 28), 10).parameters())
        824874
    """
    convolutions = [
        *_pooled(nn.Conv2d(_channels(shape), 16, 3, padding=1), activation),
        *_pooled(nn.Conv2d(16, 32, 3, padding=1), activation),
    ]
    return _convolutional("mnist-cnn-large", convolutions, shape, [512, 32], classes, activation)


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
    return _convolutional("cifar-cnn", layers, shape, [128], classes, activation)


def _pooled(layer: nn.Module, activation: str, *, stride: int = 2) -> list[nn.Module]:
    return [layer, _activation(activation), nn.MaxPool2d(2, stride)]


def _convolutional(
    name: str,
    convolutions: list[nn.Module],
    shape: tuple[int, ...],
    hidden: list[int],
    classes: int,
    activation: str,
) -> nn.Module:
    """Convolutions, and linear layers on all that comes out of them."""
    features = nn.Sequential(*convolutions, nn.Flatten())
    widths = [_width(name, features, shape), *hidden]
    return nn.Sequential(*features, *_dense(widths, classes, activation))


def _dense(widths: Sequence[int], classes: int, activation: str) -> list[nn.Module]:
    """Linear layers from width to width with an activation after each, and one to the classes."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [_linear(inputs, outputs), _activation(activation)]
    return [*layers, _linear(widths[-1], classes)]


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


def _flag(field: str, value: object) -> bool:
    """The value if it is true or false; in a file a text would count as true."""
    if not isinstance(value, bool):
        raise InputError(field, given=value, allowed="true or false")
    return value


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


_BUILDERS: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "logistic": (logistic, ("features", "bias", "second_moments")),
    "mlp": (mlp, ("hidden", "activation", "features")),
    "mnist-cnn": (mnist_cnn, ("activation", "start")),
    "mnist-cnn-large": (mnist_cnn_large, ("activation",)),
    "cifar-cnn": (cifar_cnn, ("activation",)),
}

#: What can be asked for by name.
MODEL_NAMES = tuple(_BUILDERS)
