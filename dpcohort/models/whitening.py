# SPDX-License-Identifier: Apache-2.0
"""Whitening of features with the moments that synthetic images have, not those of any record.

Softmax regression under noise learns along the directions in which features vary most; what tells
classes apart often lies elsewhere. With m and Σ the mean and covariance of the features of images
drawn by a formula (``synthetic``) and s the mean of Σ's diagonal, a feature vector x becomes

    A^T (x - m),    A A^T = (Σ + floor s I)^-1,

and is given norm 1 again. Which root A is does not matter to a linear model that starts at zero
and gets the same noise in every direction; the one of Cholesky is the quickest. Moments of the
clients' own records would have to be paid for; these are free.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpcohort.errors import InputError

__all__ = ["whitening"]

_AT_A_TIME = 250


@torch.no_grad()
def whitening(
    features: Callable[[Tensor], Tensor], images: Tensor, *, floor: float
) -> tuple[Tensor, Tensor]:
    """The mean m and the root A for features of such images.

    Args:
        features: from [records, ...] to [records, width].
        images: the synthetic ones.
        floor: added to every variance, in units of the mean variance; above 0. Little whitens all
            directions alike, much leaves them as they are.

    Returns:
        m [width] and A [width, width].

    Raises:
        InputError: there are fewer than two images.

    Example:
        >>> images = torch.tensor([[1.0, 9.0], [1.0, -9.0], [-1.0, 9.0], [-1.0, -9.0]])
        >>> mean, root = whitening(lambda images: images, images, floor=1e-9)
        >>> [round(float(value), 3) for value in root.diagonal()]
        [1.0, 0.111]
    """
    if len(images) < 2:
        raise InputError("images", given=len(images), allowed="at least two, to have a covariance")
    width = features(images[:1]).shape[1]
    first = torch.zeros(width, dtype=torch.float64)
    second = torch.zeros(width, width, dtype=torch.float64)
    for part in torch.split(images, _AT_A_TIME):
        found = features(part).double()
        first += found.sum(0)
        second += found.T @ found
    mean = first / len(images)
    covariance = second / len(images) - torch.outer(mean, mean)
    one = torch.eye(width, dtype=mean.dtype)
    root = torch.linalg.cholesky(covariance + floor * covariance.diagonal().mean() * one)
    return mean.float(), torch.linalg.solve_triangular(root, one, upper=False).T.float()
