# SPDX-License-Identifier: Apache-2.0
"""A user's own noisy step, wrapped so that the privacy tests can look at it from outside."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from dpcohort._validate import FloatArray, IntArray, choice
from dpcohort.audit.claims import Claim, PrivateTraining
from dpcohort.errors import DpcohortError, InputError
from dpcohort.plugins import named_function

__all__ = ["StepUnderTest", "step_by_name"]

_FORMS = (
    "step(gradients, *, clip, noise_multiplier, batch_size, rng_seed), which returns the noisy "
    "mean or sum [D], or the PrivateTraining protocol: training(gradients, *, claim, batch_size, "
    "seed, cohorts, local_steps=1), which returns updates [rounds, draws, D]"
)


class StepUnderTest:
    """A ``PrivateTraining`` that takes one noisy step after the other by a function of the user's.

    The function is called as ``step(gradients, clip=C, noise_multiplier=z, batch_size=B,
    rng_seed=seed)``, with the raw gradients of all records, [records, D]. It draws its batch, at
    the rate B / records, clips, adds up, adds noise, and returns [D] numbers. A deployment takes
    its randomness from the operating system and ignores the seed; a simulation uses it.

    Args:
        step: the function.
        returns: whether it returns the ``mean``, divided by the public B, or the ``sum``.
        draws_batches: whether it draws its batches; if not, it is given Poisson batches, and its
            sampler is not tested.

    Example:
        >>> def step(gradients, *, clip, noise_multiplier, batch_size, rng_seed):
        ...     return np.zeros(gradients.shape[1])
        >>> StepUnderTest(step)(np.zeros((2, 4)), claim=Claim(sampler="poisson"), batch_size=1,
        ...                     seed=0, cohorts=np.zeros((3, 2), dtype=np.int64)).shape
        (3, 2, 4)
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        returns: Literal["mean", "sum"] = "mean",
        draws_batches: bool = True,
    ) -> None:
        choice("returns", returns, ["mean", "sum"])
        self._step, self._returns, self.draws_batches = step, returns, draws_batches

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
        """Updates [rounds, draws, D]; every step has a seed of its own."""
        updates = []
        for t, cohort in enumerate(cohorts.tolist()):
            for draw, client in enumerate(cohort):
                names = [(seed, t, client, draw, step) for step in range(local_steps)]
                updates.append(sum(self._one(gradients, claim, batch_size, n) for n in names))
        return np.stack(updates).reshape(*cohorts.shape, gradients.shape[1])

    def _one(
        self, gradients: FloatArray, claim: Claim, batch_size: int, name: tuple[int, ...]
    ) -> FloatArray:
        rows = gradients
        if not self.draws_batches:
            chance = np.random.default_rng(_seed_of("batch", name)).random(len(gradients))
            rows = gradients[chance < batch_size / len(gradients)]
        found = self._step(
            rows.copy(),
            clip=claim.clip,
            noise_multiplier=claim.noise_multiplier,
            batch_size=batch_size,
            rng_seed=_seed_of("noise", name),
        )
        result = _as_array(found, (gradients.shape[1],))
        return result / batch_size if self._returns == "sum" else result


def step_by_name(
    name: str, *, returns: Literal["mean", "sum"] = "mean", draws_batches: bool = True
) -> PrivateTraining:
    """The training behind ``module:function``, in either of the two forms.

    Args:
        name: ``module:function``; modules in the current folder are found too.
        returns: for a plain step, see :class:`StepUnderTest`.
        draws_batches: for a plain step.

    Raises:
        InputError: there is no such function, or it has neither form; later, from the training
            itself, if the function fails or returns something else.
    """
    function = named_function("--step", name, example="my_project.training:noisy_step")
    try:
        accepted = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        accepted = set()
    if "cohorts" in accepted:
        training: PrivateTraining = function
    elif "rng_seed" in accepted:
        training = StepUnderTest(function, returns=returns, draws_batches=draws_batches)
    else:
        raise InputError("--step", given=name, allowed=f"a function of one of two forms: {_FORMS}")
    return _Explained(training, name)


class _Explained:
    """A training whose failures are told as what they are: failures of the user's function."""

    def __init__(self, training: PrivateTraining, name: str) -> None:
        self._training, self._name = training, name
        self.hostile = getattr(training, "hostile", {})
        self.draws_batches = getattr(training, "draws_batches", True)

    def __call__(self, gradients: FloatArray, **settings: Any) -> FloatArray:
        # Gradients that are not finite are given on purpose; a warning about them is no news.
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = self._training(gradients, **settings)
            return _as_array(found, (*settings["cohorts"].shape, gradients.shape[1]))
        except DpcohortError:
            raise
        except Exception as error:  # the user's function may fail in any way
            raise InputError.because(
                f"the step {self._name} failed on gradients of shape {gradients.shape}: "
                f"{type(error).__name__}: {error}"
            ) from error


def _as_array(found: Any, shape: tuple[int, ...]) -> FloatArray:
    """What a user's function returned, as floats of the shape it should have."""
    try:
        array = np.asarray(found)
        if array.dtype != np.float32:
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError("what the step returns", given=found, allowed="numbers") from None
    if array.shape != shape:
        raise InputError("shape of what the step returns", given=array.shape, allowed=f"{shape}")
    return array


def _seed_of(purpose: str, name: tuple[int, ...]) -> int:
    """A seed of 63 bits for one purpose of one step."""
    digest = hashlib.blake2b(f"{purpose}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
