# SPDX-License-Identifier: Apache-2.0
"""Layers without parameters put in a cheaper order that gives the very same numbers.

ReLU never changes which of several numbers is largest, so pooling first and then taking the ReLU of
the few survivors equals the printed order, gradients included: where two numbers tie, both are
zero and so is their gradient, or they are equal and the same one is taken. (For tanh this fails:
it rounds different numbers to equal ones.)
"""

from __future__ import annotations

from torch import nn

__all__ = ["pool_before_relu"]


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
