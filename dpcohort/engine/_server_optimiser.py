# SPDX-License-Identifier: Apache-2.0
"""Adaptive server optimisers (FedOpt): any ``torch.optim`` class on the flat parameter vector.

The combined update of a round stands for the gradient (Reddi et al., "Adaptive Federated
Optimization", ICLR 2021): FedAdam is ``adam``, FedAdagrad is ``adagrad``, FedYogi is ``yogi``. It
is post-processing of noisy updates and costs no privacy. The classes keep nothing between rounds
here: their state is taken from them after each step as tensors by name and given back before the
next, so that checkpoints, resumed and continued runs carry whatever a class keeps.

torch's Adam corrects the bias of its averages, which the paper's does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dpcohort._validate import choice, number
from dpcohort.errors import InputError
from dpcohort.plugins import full_name, is_named_function, named_plugin

#: Before the name of each tensor that a class keeps.
_PREFIX = "server."


class Yogi(torch.optim.Optimizer):
    """Yogi as FedYogi takes it: Reddi et al. 2021, Algorithm 2, without bias correction.

    ``m <- b1 m + (1 - b1) g``; ``v <- v - (1 - b2) g^2 sign(v - g^2)`` from ``v = tau^2``; the
    parameters move by ``-lr m / (sqrt(v) + tau)``.

    Args:
        params: what is optimised.
        lr: the server's learning rate.
        betas: b1 and b2.
        tau: degree of adaptivity; also the least scale of a step.

    Example:
        >>> x = torch.zeros(1)
        >>> x.grad = torch.ones(1)
        >>> _ = Yogi([x], lr=1.0, betas=(0.0, 0.0), tau=1.0).step()
        >>> x
        tensor([-0.5000])
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        tau: float = 1e-3,
    ) -> None:
        number("lr", lr, above=0)
        number("tau", tau, above=0)
        for beta in betas:
            number("betas", beta, at_least=0, below=1)
        super().__init__(params, {"lr": lr, "betas": betas, "tau": tau})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of all parameters that have a gradient."""
        for group in self.param_groups:
            (first, second), tau = group["betas"], group["tau"]
            for one in group["params"]:
                state, gradient = self.state[one], one.grad
                if not state:
                    state["exp_avg"] = torch.zeros_like(one)
                    state["exp_avg_sq"] = torch.full_like(one, tau**2)
                squared = gradient * gradient
                mean, scale = state["exp_avg"], state["exp_avg_sq"]
                mean.lerp_(gradient, 1 - first)
                scale.addcmul_(squared, torch.sign(scale - squared), value=second - 1)
                one.addcdiv_(mean, scale.sqrt().add_(tau), value=-group["lr"])


@cache
def _classes() -> dict[str, type[torch.optim.Optimizer]]:
    classes = [Yogi, *(thing for thing in vars(torch.optim).values() if isinstance(thing, type))]
    base = torch.optim.Optimizer
    return {c.__name__.lower(): c for c in classes if issubclass(c, base) and c is not base}


def server_class(server: str | type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The class of a server optimiser: of ``torch.optim``, ``yogi``, or a user-defined one.

    Args:
        server: the name of the class in lower case, ``module:Class``, or the class itself.

    Raises:
        InputError: there is none of that name (the nearest is suggested), or no consent to load it.

    Example:
        >>> server_class("adam").__name__
        'Adam'
    """
    if not isinstance(server, str):
        return server
    if is_named_function(server):
        kind: Any = named_plugin("optimiser", server, "optimiser.server")
        return kind  # type: ignore[no-any-return]
    return _classes()[choice("optimiser.server", server.lower(), _classes())]


def server_step(
    server: type[torch.optim.Optimizer],
    settings: Mapping[str, Any],
    parameters: Sequence[Tensor],
    updates: Sequence[Tensor],
    kept: Sequence[dict[str, Tensor]],
) -> None:
    """Move the parameters of trainings side by side, in place, with each one's own state.

    Args:
        server: the class.
        settings: as it takes them.
        parameters: of each training, [D].
        updates: combined updates of each, which stand for the gradient.
        kept: tensors that each carries from round to round; what the class keeps is put here.
    """
    stepper: Any = server(list(parameters), **settings)
    for vector, update, tensors in zip(parameters, updates, kept, strict=True):
        vector.grad = update
        own = {k.removeprefix(_PREFIX): t for k, t in tensors.items() if k.startswith(_PREFIX)}
        if own:
            stepper.state[vector] = own
    stepper.step()
    for vector, tensors in zip(parameters, kept, strict=True):
        vector.grad = None
        for name, tensor in stepper.state.get(vector, {}).items():
            if tensor is not None:
                tensors[_PREFIX + name] = tensor


def kept_names(
    server: str | type[torch.optim.Optimizer], settings: Mapping[str, Any]
) -> frozenset[str]:
    """Names of the tensors that a server optimiser keeps between rounds, from a step on two zeros.

    Raises:
        InputError: the class does not take these settings, cannot step on a flat vector, or keeps
            what no checkpoint holds.

    Example:
        >>> sorted(kept_names("adam", {"lr": 0.1}))
        ['server.exp_avg', 'server.exp_avg_sq', 'server.step']
    """
    found, tensors = server_class(server), dict[str, Tensor]()
    vector = torch.zeros(2)
    try:
        server_step(found, settings, [vector], [torch.ones(2)], [tensors])
    except InputError:
        raise
    except Exception as error:  # a class of torch or of the user refuses in its own way
        raise InputError.because(
            f"optimiser.server: {full_name(found)} with settings {dict(settings)} cannot step on a "
            f"vector of parameters: {type(error).__name__}: {error}. See the settings of the "
            "class; the step size is lr."
        ) from None
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise InputError.because(
                f"optimiser.server: {full_name(found)} keeps {name.removeprefix(_PREFIX)!r}, a "
                f"{type(tensor).__name__}, between steps, and a checkpoint holds tensors only. Let "
                "it be a tensor, as in the classes of torch.optim."
            )
    if not bool(torch.isfinite(vector).all()) or math.isclose(float(vector.abs().sum()), 0.0):
        raise InputError.because(
            f"optimiser.server: {full_name(found)} with settings {dict(settings)} does not move a "
            "model whose combined update is 1. Change its settings; the step size is lr."
        )
    return frozenset(tensors)
