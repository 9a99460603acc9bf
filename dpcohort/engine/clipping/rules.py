# SPDX-License-Identifier: Apache-2.0
"""Which models cannot be trained privately at all, and what to put in their place."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from dpcohort.errors import InputError

__all__ = ["refuse_unfit_layers"]


def refuse_unfit_layers(model: nn.Module) -> None:
    """Raise if a layer mixes examples or draws random numbers of its own.

    Example:
        >>> refuse_unfit_layers(nn.Sequential(nn.BatchNorm1d(3)))
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: the layer '0' (BatchNorm1d) mixes the examples of a batch, ...
    """
    for name, layer in model.named_modules():
        label = f"the layer {name or type(layer).__name__!r} ({type(layer).__name__})"
        if isinstance(layer, _InstanceNorm) and not layer.track_running_stats:
            continue
        if isinstance(layer, _BatchNorm | _InstanceNorm) and (
            layer.training or not layer.track_running_stats
        ):
            raise InputError.because(
                f"{label} mixes the examples of a batch, so no record has a gradient of its own "
                "to clip. Use nn.GroupNorm instead, or freeze it with .eval()."
            )
        if isinstance(layer, _DropoutNd) and layer.training and layer.p > 0:
            raise InputError.because(
                f"{label} draws random numbers that belong to no stream of this training, so a "
                "run could not be repeated. Set p = 0 or put it in .eval()."
            )
