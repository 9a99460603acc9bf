# SPDX-License-Identifier: Apache-2.0
"""How fast each client's noise grows with its draws: the costs that selection weighs.

The noise variance of one draw, in units of C^2 and on the mean of the batch, is modelled as
``floor + level * T^l * T_k`` for a client drawn T_k times. The paper's formula is exactly of this
form with floor 0 and level V_k. For the tight accountant the line goes through two calibrations,
at one draw and at twice the draws of unbiased selection. Only probabilities are computed from it:
the noise a client really adds is calibrated to its realised draws afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.gaussian import gaussian_mu
from dpcohort.accounting.paper import noise_level as paper_noise_level
from dpcohort.accounting.tight import calibrate_noise

__all__ = ["CALIBRATION_LIMIT", "NoiseLevels", "noise_levels"]

#: Above this many clients the line comes from the central limit theorem: calibrating a million
#: clients twice would take minutes and change the probabilities by little.
CALIBRATION_LIMIT = 20_000


@dataclass(frozen=True, kw_only=True)
class NoiseLevels:
    """Noise variance of a draw on the batch mean, in units of C^2: ``floor + level T^l T_k``.

    Attributes:
        level: V_k, per local step taken over the whole training; 0 for public clients.
        floor: what even the first step costs; 0 for public clients and in the paper's formula.
    """

    level: FloatArray
    floor: FloatArray


def noise_levels(
    *,
    epsilon: FloatArray,
    delta: FloatArray,
    public: BoolArray,
    sizes: IntArray,
    batch_sizes: IntArray,
    expected_draws: FloatArray,
    local_steps: int,
    contract: Contract,
    calibrated: bool = True,
) -> NoiseLevels:
    """The affine noise model of every client under a contract.

    Args:
        epsilon: budgets; ignored where ``public``.
        delta: budgets; ignored where ``public``.
        public: clients without a budget, whose noise is 0.
        sizes: records of each client.
        batch_sizes: expected batch B of each client.
        expected_draws: draws of each client under unbiased selection.
        local_steps: T^l.
        contract: which accountant, sampler and neighbours.
        calibrated: fit the line to calibrations; otherwise, and for more than
            ``CALIBRATION_LIMIT`` clients, use the limit of many steps.

    Example:
        >>> levels = noise_levels(
        ...     epsilon=np.array([1.0, 4.0]), delta=np.array([1e-5, 1e-5]),
        ...     public=np.array([False, False]), sizes=np.array([600, 600]),
        ...     batch_sizes=np.array([60, 60]), expected_draws=np.array([10.0, 10.0]),
        ...     local_steps=1, contract=Contract.of("tight"))
        >>> bool(levels.level[0] > levels.level[1])
        True
    """
    level = np.zeros(len(sizes))
    floor = np.zeros(len(sizes))
    private = ~public
    eps, dlt = epsilon[private], delta[private]
    size, batch = sizes[private].astype(np.float64), batch_sizes[private].astype(np.float64)
    if contract.accountant == "paper":
        level[private] = paper_noise_level(
            epsilon=eps, delta=dlt, sampling_rate=batch / size, size=size
        )
    elif calibrated and eps.size <= CALIBRATION_LIMIT:
        level[private], floor[private] = _through_two_calibrations(
            eps, dlt, size, batch, expected_draws[private], local_steps, contract
        )
    else:
        # z^2 = 1 / ln(1 + mu^2 / (r^2 T)) = r^2 T / mu^2 + 1/2 - ... as T grows.
        mu = gaussian_mu(epsilon=eps, delta=dlt)
        level[private] = (contract.sensitivity / (size * mu)) ** 2
        floor[private] = 0.5 * (contract.sensitivity / batch) ** 2
    return NoiseLevels(level=level, floor=floor)


def _through_two_calibrations(
    epsilon: FloatArray,
    delta: FloatArray,
    size: FloatArray,
    batch: FloatArray,
    expected_draws: FloatArray,
    local_steps: int,
    contract: Contract,
) -> tuple[FloatArray, FloatArray]:
    """(level, floor) of the line through one draw and twice the expected draws."""
    few = np.full(epsilon.size, local_steps, dtype=np.int64)
    many = few * np.maximum(2, np.ceil(2 * expected_draws)).astype(np.int64)
    z = calibrate_noise(
        epsilon=np.tile(epsilon, 2),
        delta=np.tile(delta, 2),
        sampling_rate=np.tile(batch / size, 2),
        steps=np.concatenate([few, many]),
        sampler=contract.sampler,
        neighbours=contract.neighbours,
    )
    variance = (z / np.tile(batch, 2)) ** 2
    variance_few, variance_many = variance[: epsilon.size], variance[epsilon.size :]
    level = (variance_many - variance_few) / (many - few)
    floor = variance_few - level * few
    # Where the variance grows faster than a line, a line through the origin stays above it.
    return np.where(floor < 0, variance_many / many, level), np.maximum(floor, 0)
