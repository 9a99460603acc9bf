# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients of any model, by ``torch.func``: the slow way that always works.

``vmap(grad)`` does all examples at once; models that vmap cannot map (GRU and RNN layers) are
taken one example after the other. Models that cannot be trained privately at all are refused, with
what to put in their place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from dpcohort.engine.layout import FlatLayout
from dpcohort.errors import InputError

__all__ = ["Loss", "PerExampleGradients", "can_be_mapped", "refuse_unfit_layers"]

#: Losses [n] of outputs [n, ...] against targets [n, ...], one number an example.
Loss = Callable[[Tensor, Tensor], Tensor]


class PerExampleGradients:
    """Gradients of single examples as the rows of a matrix.

    Args:
        model: any module that treats the examples of a batch separately.
        loss: one number for each example.
        vectorised: use ``vmap``; otherwise a loop over examples.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> gradients = PerExampleGradients(model, lambda outputs, targets: outputs[:, 0])
        >>> weights = torch.zeros(2)
        >>> gradients(weights, torch.tensor([[1.0, 2.0]]), torch.zeros(1)).tolist()
        [[1.0, 2.0]]
    """

    def __init__(self, model: nn.Module, loss: Loss, *, vectorised: bool = True) -> None:
        self.layout = FlatLayout(model)
        self.vectorised = vectorised
        self._model = model
        self._loss = loss

    def __call__(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """[examples, D] raw gradients at one weight vector. SENSITIVE: clip before any use."""
        if self.vectorised:
            mapped = vmap(grad(self.raw_loss), in_dims=(None, 0, 0))
            raw: Tensor = mapped(weights, inputs, targets)
            return raw
        rows = []
        for x, y in zip(inputs, targets, strict=True):
            point = weights.detach().requires_grad_()
            with torch.enable_grad():
                (row,) = torch.autograd.grad(self.raw_loss(point, x, y), point)
            rows.append(row)
        return torch.stack(rows) if rows else weights.new_zeros(0, self.layout.dimension)

    def raw_loss(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The loss of one example. SENSITIVE."""
        parameters = self.layout.unflatten(weights)
        outputs = functional_call(self._model, parameters, (x[None],))
        return self._loss(outputs, y[None]).sum()


def can_be_mapped(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> bool:
    """Whether ``vmap`` can map this model; recurrent layers, for one, it cannot.

    Example:
        >>> can_be_mapped(nn.Linear(2, 1), lambda o, t: o[:, 0], torch.ones(2, 2), torch.ones(2))
        True
    """
    gradients = PerExampleGradients(model, loss)
    try:
        gradients(gradients.layout.flatten(model), inputs, targets)
    except (RuntimeError, NotImplementedError):
        return False
    return True


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
