# SPDX-License-Identifier: Apache-2.0
"""The guard's local training, wrapped so that the privacy tests can look at it from outside.

The guard trains a classifier by cross-entropy. The probe's scores are always (0, 0), so the loss of
class 0 has the slope -1/2 in the first score; the first score is built to have the slope -2 x in
the weights, whatever they are. So the gradient of a record is its input, to the last bit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort._validate import FloatArray, IntArray
from dpcohort.audit.claims import Claim
from dpcohort.audit.engines import HOSTILE, hostile_factors, hostile_start
from dpcohort.deploy.guard.files import GuardedData
from dpcohort.deploy.guard.terms import ModelTerms
from dpcohort.deploy.guard.training import LocalTraining
from dpcohort.engine.lattice import Bytes, Lattice

__all__ = ["GuardUnderTest", "scored_probe"]


class _ScoredProbe(nn.Module):
    def __init__(self, dimension: int, hostile: str | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dimension, 1))
        self._hostile = hostile

    def forward(self, inputs: Tensor) -> Tensor:
        inputs, outer = hostile_factors(inputs, self._hostile)
        output = (inputs @ self.weight) * outer
        score = -2 * (output - output.detach())
        return torch.cat([score, torch.zeros_like(score)], dim=1)


def scored_probe(input_shape: Sequence[int], hostile: str | None = None) -> nn.Module:
    """A classifier of two classes whose gradient, for a record of class 0, is its input.

    Example:
        >>> model = scored_probe((3,))
        >>> model(torch.ones(1, 3)).abs().tolist()
        [[0.0, 0.0]]
    """
    return _ScoredProbe(input_shape[0], hostile)


class GuardUnderTest:
    """A ``PrivateTraining`` that is the guard's, with the operating system's entropy.

    Args:
        source: where random bytes come from.
        hostile: what is hostile in the model, one of ``HOSTILE``; None for nothing.

    Example:
        >>> GuardUnderTest()(np.zeros((2, 4)), claim=Claim(sampler="fixed"), batch_size=1, seed=0,
        ...                  cohorts=np.zeros((3, 2), dtype=np.int64)).shape
        (3, 2, 4)
    """

    def __init__(self, source: Bytes = os.urandom, *, hostile: str | None = None) -> None:
        self._source, self._hostile = source, hostile

    @property
    def hostile(self) -> Mapping[str, GuardUnderTest]:
        """The guard on hostile models, by what is hostile."""
        names = HOSTILE if self._hostile is None else ()
        return {name: GuardUnderTest(self._source, hostile=name) for name in names}

    def __call__(
        self,
        gradients: FloatArray,
        *,
        claim: Claim,
        batch_size: int,
        seed: int,
        cohorts: IntArray,
        local_steps: int = 1,
    ) -> FloatArray:
        """Updates [rounds, draws, D]; the step size is 1, and the seed is ignored."""
        size, dimension = gradients.shape
        with np.errstate(over="ignore"):
            inputs = gradients.astype(np.float32)
        training = LocalTraining(
            ModelTerms(
                name="dpcohort.audit.guards:scored_probe",
                input_shape=(dimension,),
                classes=2,
                options={} if self._hostile is None else {"hostile": self._hostile},
            ),
            GuardedData(inputs, np.zeros(size, np.int64), ""),
            self._source,
        )
        weights = np.full(dimension, hostile_start(self._hostile), dtype=np.float32)
        lattice = Lattice(claim.noise_multiplier, claim.clip)
        updates = [
            training.update(
                weights,
                lattice,
                claim.sampler,
                rate=batch_size / size,
                batch_size=batch_size,
                step_sizes=[1.0] * local_steps,
            )
            for _ in range(cohorts.size)
        ]
        return np.stack(updates).reshape(*cohorts.shape, dimension).astype(np.float64)
