# SPDX-License-Identifier: Apache-2.0
"""A model by its name, or by a function of the user's, with the weights that a seed gives."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dpcohort._validate import choice, nearest, whole_number
from dpcohort.errors import DpcohortError, InputError
from dpcohort.limits import MOST_CLASSES, MOST_INPUT_VALUES
from dpcohort.models.features import FEATURE_OPTIONS
from dpcohort.models.networks import cifar_cnn, logistic, mlp, mnist_cnn, mnist_cnn_large
from dpcohort.models.trainable import check_trainable, seeded
from dpcohort.plugins import is_named_function, named_function

__all__ = ["MODEL_NAMES", "build_model"]

_LARGEST_SEED = 2**63 - 1


def build_model(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A model with the weights that the seed gives, known to be trainable record by record.

    Torch's global random state is neither used nor changed.

    Args:
        name: one of `MODEL_NAMES`, or ``module:function`` for a function that returns an
            ``nn.Module``; it is given ``input_shape`` and ``classes`` where it has such arguments,
            and the options.
        input_shape: shape of one record, as in ``Dataset.input_shape``.
        classes: number of classes, the length of the output.
        seed: of the initial weights.
        options: ``activation`` (``relu`` or ``tanh``) for all but ``logistic``; ``hidden``, a list
            of widths, for ``mlp``; ``features`` (``none``, ``oriented`` or ``scattering``) and
            their settings for ``logistic`` and ``mlp``; ``bias`` for ``logistic``; ``start``
            (``random`` or ``oriented``) for ``mnist-cnn``.
        input_dtype: of the records as the model sees them; ``torch.int64`` for token ids.

    Raises:
        InputError: if the name, an option or the shape does not fit, or a layer mixes records.

    Example:
        >>> from dpcohort.models import parameter_count
        >>> parameter_count(build_model("mnist-cnn", input_shape=(1, 28, 28), classes=10, seed=0))
        26010
    """
    shape = tuple(whole_number("input_shape", length, at_least=1) for length in input_shape)
    whole_number("numbers of a record", math.prod(shape), at_most=MOST_INPUT_VALUES)
    whole_number("classes", classes, at_least=2, at_most=MOST_CLASSES)
    whole_number("seed", seed, at_least=0, at_most=_LARGEST_SEED)
    if not is_named_function(name):
        choice("model", name, (*MODEL_NAMES, "module:function"))
    build = _build_own if is_named_function(name) else _build_known
    with seeded(seed):
        model = build(name, shape, classes, dict(options or {}))
    check_trainable(model, input_shape=shape, classes=classes, input_dtype=input_dtype)
    return model


def _build_known(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]
) -> nn.Module:
    builder, known = _BUILDERS[name]
    for option in options:
        if option not in known:
            hint = nearest(option, known)
            raise InputError.because(
                f"The model {name!r} has no option {option!r}; it has "
                f"{', '.join(known) or 'none'}.{f' Did you mean {hint!r}?' if hint else ''}"
            )
    return builder(shape, classes, **options)


def _build_own(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]
) -> nn.Module:
    function = named_function("model", name)
    offered = {"input_shape": shape, "classes": classes}
    try:
        accepted = inspect.signature(function).parameters
        takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
        arguments = {key: value for key, value in offered.items() if takes_all or key in accepted}
        model = function(**{**arguments, **options})
    except DpcohortError:
        raise
    except Exception as error:  # the user's function may fail in any way
        raise InputError.because(
            f"The model function {name} failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        given = type(model).__name__
        raise InputError(f"result of {name}", given=given, allowed="a torch.nn.Module")
    return model


_BUILDERS: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "logistic": (logistic, ("features", *FEATURE_OPTIONS, "bias")),
    "mlp": (mlp, ("hidden", "activation", "features", *FEATURE_OPTIONS)),
    "mnist-cnn": (mnist_cnn, ("activation", "start")),
    "mnist-cnn-large": (mnist_cnn_large, ("activation",)),
    "cifar-cnn": (cifar_cnn, ("activation",)),
}

#: What can be asked for by name.
MODEL_NAMES = tuple(_BUILDERS)
