# SPDX-License-Identifier: Apache-2.0
"""A model as one vector, gradients of single examples, and how they are clipped.

**One vector.** Engines keep a model as one vector of length D, and the weights of many draws as the
rows of one matrix; a layer sees its part of every row as a view (``FlatLayout``).

**Gradients** of any model by ``torch.func``: the slow way that always works. ``vmap(grad)`` does
all examples at once; models that vmap cannot map (GRU and RNN layers) are taken one example after
the other. Models that cannot be trained privately at all are refused, with what to put in their
place.

**Clipping** (Algorithm 1, line 15) is by the factor min(1, C (1 - 1e-5) / norm): in 32-bit
arithmetic the norm and the sum it scales round differently, and the slack keeps what a record
contributes at or below C nevertheless. A record whose gradient is not finite gets factor 0: it
contributes nothing. ``clip_rows`` is for gradients that are there, one a row. Whatever a row holds,
what comes of it has norm at most C: squares that a float does not hold are taken again in float64.

A record's clipped contribution is at most C because its norm and the sum it enters are computed
from the same numbers a (inputs of a layer) and g (gradients of its outputs), to within the slack.
TF32 keeps 10 bits of a factor: in the products that make norms and sums, one rounding in the norm
and another in the sum would differ by more than the slack, and a record could count for more than
C. Those products are therefore never TF32, whatever torch was told (``full_precision_products``).
The products that make a and g themselves are another matter: however they are rounded, a record's
a and g depend on that record and the weights alone, and what is clipped is the gradient they give.
So is a gradient that is formed for each record, where the norm is that of the very numbers that are
added. Convolutions forward and backward, and on a GPU the gradients they form, therefore keep
torch's own setting (``torch.backends.cudnn.allow_tf32``, true unless somebody changes it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from dpcohort.errors import InputError

#: Losses [n] of outputs [n, ...] against targets [n, ...], one number an example.
Loss = Callable[[Tensor, Tensor], Tensor]


#: Raw gradients [examples, D] at weights [D] of inputs and targets. SENSITIVE: clip before any use.
Gradients = Callable[[Tensor, Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example: cross-entropy of class scores."""
    return F.cross_entropy(outputs, targets, reduction="none")


def example_loss(model: nn.Module, loss: Loss) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function that gives the loss of one example at weights [D]. SENSITIVE."""
    layout = FlatLayout(model)

    def single(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(model, layout.unflatten(weights), (x[None],))
        return loss(outputs, y[None]).sum()

    return single


def per_example_gradients(model: nn.Module, loss: Loss, *, vectorised: bool = True) -> Gradients:
    """A function that gives the gradients of single examples as the rows of a matrix.

    Args:
        model: any module that treats the examples of a batch separately.
        loss: one number for each example.
        vectorised: use ``vmap``; otherwise a loop over examples.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> gradients = per_example_gradients(model, lambda outputs, targets: outputs[:, 0])
        >>> gradients(torch.zeros(2), torch.tensor([[1.0, 2.0]]), torch.zeros(1)).tolist()
        [[1.0, 2.0]]
    """
    layout, single = FlatLayout(model), example_loss(model, loss)

    def one_by_one(weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        rows = []
        for x, y in zip(inputs, targets, strict=True):
            point = weights.detach().requires_grad_()
            with torch.enable_grad():
                (row,) = torch.autograd.grad(single(point, x, y), point)
            rows.append(row)
        return torch.stack(rows) if rows else weights.new_zeros(0, layout.dimension)

    return vmap(grad(single), in_dims=(None, 0, 0)) if vectorised else one_by_one


def can_be_mapped(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> bool:
    """Whether ``vmap`` can map this model; recurrent layers, for one, it cannot.

    Example:
        >>> can_be_mapped(nn.Linear(2, 1), lambda o, t: o[:, 0], torch.ones(2, 2), torch.ones(2))
        True
    """
    try:
        per_example_gradients(model, loss)(FlatLayout(model).flatten(model), inputs, targets)
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


class FlatLayout:
    """Where each trained parameter of a model lies in its vector, as ``named_parameters`` has them.

    Attributes:
        places: slice of the vector and shape of each parameter, by name.
        dimension: length of the vector, D.

    Example:
        >>> layout = FlatLayout(nn.Linear(3, 2))
        >>> layout.dimension, layout.places["bias"]
        (8, (slice(6, 8, None), torch.Size([2])))
    """

    def __init__(self, model: nn.Module) -> None:
        self.places: dict[str, tuple[slice, torch.Size]] = {}
        self.dimension = 0
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                stop = self.dimension + parameter.numel()
                self.places[name] = (slice(self.dimension, stop), parameter.shape)
                self.dimension = stop
        if self.dimension == 0:
            raise InputError.because("the model has no parameter that can be trained.")

    def flatten(self, model: nn.Module) -> Tensor:
        """A copy of the model's trained parameters as one vector."""
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.places])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of one vector by parameter name, as ``torch.func.functional_call`` takes them."""
        return {name: vector[place].view(shape) for name, (place, shape) in self.places.items()}

    def assign(self, model: nn.Module, vector: Tensor) -> None:
        """Write a vector back into a model's parameters."""
        if vector.numel() != self.dimension:
            raise InputError(
                "parameters",
                given=f"{vector.numel()} numbers",
                allowed=f"{self.dimension} numbers, one for each trained parameter",
            )
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, values in self.unflatten(vector).items():
                parameters[name].copy_(values)


CLIP_SLACK = 1e-5


def clip_factors(squared_norms: Tensor, clip: Tensor | float) -> Tensor:
    """Factors in [0, 1] for gradients of these squared norms.

    Args:
        squared_norms: squared norm of each record's whole gradient, at least 32-bit.
        clip: C, one number or one for each record.

    Example:
        >>> clip_factors(torch.tensor([0.0, 0.25, 4.0, float("nan")]), 1.0).tolist()
        [1.0, 1.0, 0.49999..., 0.0]
    """
    factors = (clip * (1 - CLIP_SLACK) / squared_norms.sqrt()).clamp(max=1.0)
    return torch.where(torch.isfinite(squared_norms), factors, torch.zeros_like(factors))


def clip_rows(gradients: Tensor, clip: Tensor | float) -> tuple[Tensor, Tensor]:
    """Factors [rows], and the rows they go with; each product has norm at most C.

    Args:
        gradients: [rows, D], each the gradient of one record.
        clip: C.

    Returns:
        Factors and rows. A row whose squared norm is in doubt comes clipped already, with factor 1;
        one that is not finite comes as zeros, with factor 0.

    Example:
        >>> rows = torch.tensor([[3.0, 4.0], [3e30, 4e30], [float("inf"), 0.0]])
        >>> factors, rows = clip_rows(rows, 1.0)
        >>> [[round(x, 3) for x in row] for row in (factors[:, None] * rows).tolist()]
        [[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]
    """
    squares = gradients.square().sum(1)
    factors = clip_factors(squares, clip)
    limits = torch.finfo(squares.dtype)
    low, high = limits.tiny / limits.eps, limits.max * limits.eps
    doubtful = ~((squares >= low) & (squares <= high))
    if not bool(doubtful.any()):
        return factors, gradients
    rows = gradients[doubtful].double()
    # Scaled by its largest entry, no square of a row is too large or too small for float64.
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / torch.where(largest > 0, largest, 1.0)
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    sizes = torch.minimum(largest * norms, torch.as_tensor(clip).double() * (1 - CLIP_SLACK))
    rows = rows * (sizes / torch.where(norms > 0, norms, 1.0))
    finite = torch.isfinite(rows).all(1)
    rows = torch.where(finite[:, None], rows, 0.0).to(gradients.dtype)
    clipped = gradients.clone()
    clipped[doubtful] = rows
    factors[doubtful] = finite.to(factors.dtype)
    return factors, clipped


@contextmanager
def full_precision_products(device: torch.device) -> Iterator[None]:
    """Matrix products in all 24 bits of a float meanwhile.

    Example:
        >>> with full_precision_products(torch.device("cpu")):
        ...     torch.ones(1, 1) @ torch.ones(1, 1)
        tensor([[1.]])
    """
    if device.type != "cuda" or not torch.backends.cuda.matmul.allow_tf32:
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = True
