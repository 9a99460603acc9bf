# SPDX-License-Identifier: Apache-2.0
"""The noise every client really adds, calibrated to its realised draws and certified.

Calibration and certificate are two different computations: whatever proposed the noise (the
printed formula or the contour integral), a pessimistic privacy-loss distribution decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.paper import paper_noise_multiplier
from dpcohort.accounting.pld import certified_epsilon
from dpcohort.accounting.tight import calibrate_noise
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError
from dpcohort.progress import Progress, silent

__all__ = ["DeployedNoise", "Guard", "deploy_noise"]

Guard = Literal["refuse", "lift"]

#: The certificate rounds against us; where that alone breaks a promise, the noise is raised by
#: this share, then by twice as much, and so on, until it certifies or has more than doubled.
_RAISE = 2.5e-4
_RAISES = 12

#: Clients certified between two words of progress.
_BLOCK = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class DeployedNoise:
    """Per client, in the order of the population.

    Attributes:
        noise_multiplier: z; 0 for public clients, NaN for clients never drawn.
        certified_epsilon: pessimistic epsilon at the client's delta after all its steps; 0 for
            clients never drawn, NaN for public ones.
        lifted: clients whose paper noise did not certify and was replaced by the tight noise.
    """

    noise_multiplier: FloatArray
    certified_epsilon: FloatArray
    lifted: BoolArray

    def __post_init__(self) -> None:
        for column in (self.noise_multiplier, self.certified_epsilon, self.lifted):
            column.setflags(write=False)


def deploy_noise(
    population: Population,
    *,
    calibrated_epsilon: FloatArray,
    sampling_rates: FloatArray,
    steps: IntArray,
    contract: Contract,
    guard: Guard = "refuse",
    progress: Progress = silent,
) -> DeployedNoise:
    """Calibrate the noise of every drawn client and certify it.

    Args:
        population: the clients and their budgets.
        calibrated_epsilon: what the noise is calibrated to; a rule may ask for less than the
            budget, never for more.
        sampling_rates: r_k.
        steps: T_k T^l, from the schedule; 0 for clients never drawn.
        contract: sampler, neighbours, accountant.
        guard: what happens where the paper's noise does not certify.
        progress: told how many clients are certified.

    Raises:
        BudgetExceededError: noise that does not keep a promise; the clients are named.
    """
    noise_multiplier = np.where(population.public, 0.0, np.nan)
    certified = np.where(population.public, np.nan, 0.0)
    lifted = np.zeros(len(population), dtype=np.bool_)
    held = np.flatnonzero((steps > 0) & ~population.public)
    if held.size:
        tuples = _Tuples(
            epsilon=np.minimum(calibrated_epsilon[held], population.epsilon[held]),
            delta=population.delta[held],
            rate=sampling_rates[held],
            steps=steps[held],
            contract=contract,
            progress=progress,
        )
        if contract.accountant == "paper":
            z, spent, was_lifted = _guarded_paper_noise(population, held, tuples, guard)
            lifted[held] = was_lifted
        else:
            z, spent = _certified_tight_noise(tuples)
        noise_multiplier[held] = z
        certified[held] = spent
    return DeployedNoise(
        noise_multiplier=noise_multiplier, certified_epsilon=certified, lifted=lifted
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tuples:
    """What fixes the noise of each drawn client."""

    epsilon: FloatArray
    delta: FloatArray
    rate: FloatArray
    steps: IntArray
    contract: Contract
    progress: Progress

    def only(self, mask: BoolArray) -> _Tuples:
        return _Tuples(
            epsilon=self.epsilon[mask],
            delta=self.delta[mask],
            rate=self.rate[mask],
            steps=self.steps[mask],
            contract=self.contract,
            progress=silent,
        )

    def broken(self, spent: FloatArray) -> BoolArray:
        """Promises that are not kept; a certificate that is not a number keeps none."""
        return ~(spent <= self.epsilon)

    def tight(self) -> FloatArray:
        return calibrate_noise(
            epsilon=self.epsilon,
            delta=self.delta,
            sampling_rate=self.rate,
            steps=self.steps,
            sampler=self.contract.sampler,
            neighbours=self.contract.neighbours,
        )

    def paper(self) -> FloatArray:
        return paper_noise_multiplier(
            epsilon=self.epsilon, delta=self.delta, sampling_rate=self.rate, steps=self.steps
        )

    def certified(self, noise_multiplier: FloatArray) -> FloatArray:
        spent = np.empty_like(noise_multiplier)
        for start in range(0, spent.size, _BLOCK):
            self.progress("certifying", start, spent.size)
            block = slice(start, start + _BLOCK)
            spent[block] = certified_epsilon(
                delta=self.delta[block],
                noise_multiplier=noise_multiplier[block],
                sampling_rate=self.rate[block],
                steps=self.steps[block],
                sampler=self.contract.sampler,
                neighbours=self.contract.neighbours,
            )
        self.progress("certifying", spent.size, spent.size)
        return spent


def _certified_tight_noise(tuples: _Tuples) -> tuple[FloatArray, FloatArray]:
    z = tuples.tight()
    spent = tuples.certified(z)
    for attempt in range(_RAISES):
        over = tuples.broken(spent)
        if not over.any():
            return z, spent
        z[over] *= 1 + _RAISE * 2**attempt
        spent[over] = tuples.only(over).certified(z[over])
    raise BudgetExceededError(
        f"the noise of {int(tuples.broken(spent).sum())} clients could not be certified; the "
        "budgets or deltas are beyond what double precision can prove. Raise epsilon or delta."
    )


def _guarded_paper_noise(
    population: Population, held: IntArray, tuples: _Tuples, guard: Guard
) -> tuple[FloatArray, FloatArray, BoolArray]:
    z = tuples.paper()
    spent = tuples.certified(z)
    broken = tuples.broken(spent)
    if not broken.any():
        return z, spent, broken
    if guard == "refuse":
        raise BudgetExceededError(_refusal(population, held, tuples, spent, broken))
    z[broken], spent[broken] = _certified_tight_noise(tuples.only(broken))
    return z, spent, broken


def _refusal(
    population: Population,
    held: IntArray,
    tuples: _Tuples,
    spent: FloatArray,
    broken: BoolArray,
    shown: int = 5,
) -> str:
    count = int(broken.sum())
    clients = "client" if count == 1 else "clients"
    rows = [
        f"  {population.ids[held[i]]}: promised epsilon {tuples.epsilon[i]:.4g}, "
        f"the paper's noise spends {spent[i]:.4g} ({tuples.steps[i]} steps)"
        for i in np.flatnonzero(broken)[:shown]
    ]
    if count > shown:
        rows.append(f"  ... and {count - shown} more")
    return (
        f"the paper's noise does not keep the promise of {count} {clients} "
        f"({tuples.contract.sampler} batches, {tuples.contract.neighbours} neighbours):\n"
        + "\n".join(rows)
        + "\nUse the guard 'lift' to give them the tight noise, or the accountant 'tight'."
    )
