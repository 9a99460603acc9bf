# SPDX-License-Identifier: Apache-2.0
"""Schemes in which each client adds noise to what it uploads: DP-FedAvg, model clipping, UDP.

Cohorts are uniform and drawn before training, and the server sees each client's noisy update.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcohort.accounting import gaussian_mu, paper_noise_multiplier
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError
from dpcohort_lab.checks import FloatArray, IntArray, number, whole_number
from dpcohort_lab.schemes.sampled_gaussian import certified_noise, sampled_epsilon
from dpcohort_lab.schemes.scheme import (
    Account,
    Mode,
    RoundUpdate,
    budget_of,
    mean_of_cohort,
    participations,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort_lab.schemes.simulation import Simulation

_PLAIN_STEPS = 5  # Q of model clipping
_DISCOUNT = 0.8  # of the number of rounds, when the loss rose (CRD)


def dp_fedavg(simulation: Simulation, mode: Mode) -> tuple[RoundUpdate, Account]:
    """The yardstick: DP-FedAvg with each client's own noise, as this project trains by default.

    A client in the cohort takes T^l steps. Each step draws a Poisson batch at rate r_k, sums
    clipped gradients, adds N(0, (z_k C)^2) and divides by the public B_k. z_k is the least noise
    for the client's own (epsilon_k, delta_k) after its T_k T^l steps. This is Algorithm 1 of arXiv
    2602.22633 with uniform cohorts and the tight accountant; ``formula`` has the paper's own noise
    and batches of fixed size instead.
    """
    people, local = simulation.population, simulation.training.local_steps
    cohorts, rates = simulation.cohorts(), simulation.rates
    fixed, uses = mode == "formula", np.zeros(len(people), dtype=np.int64)
    steps = local * participations(cohorts, len(people))
    noise = (paper_noise if fixed else certified_noise)(people, rates=rates, steps=steps)

    def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
        rate, own = float(rates[k]), float(noise[k])
        return noisy_local_steps(simulation, t, k, weights, rate=rate, noise=own, fixed=fixed)

    def account() -> dict[str, Any]:
        sampler = "fixed" if fixed else "poisson"
        return {
            "claimed": people.epsilon if fixed else None,
            "certified": sampled_epsilon(people, noise, rates, local * uses, sampler=sampler),
            "noise": noise,
            "uses": local * uses,
            "assumptions": ["batches are drawn by the client and known to nobody else"],
        }

    return mean_of_cohort(cohorts, update, uses), account


def paper_noise(population: Population, *, rates: FloatArray, steps: IntArray) -> FloatArray:
    """The paper's z_k of each client; 0 for public clients, NaN for those without steps."""
    found = np.where(population.public, 0.0, np.nan)
    some = ~population.public & (steps > 0)
    if some.any():
        found[some] = paper_noise_multiplier(
            epsilon=population.epsilon[some],
            delta=population.delta[some],
            sampling_rate=rates[some],
            steps=steps[some],
        )
    return found


def noisy_local_steps(
    simulation: Simulation,
    t: int,
    k: int,
    weights: Tensor,
    *,
    rate: float,
    noise: float,
    fixed: bool = False,
) -> tuple[Tensor, float]:
    """T^l steps of DP-SGD of one client from the global model.

    Args:
        simulation: clients, data, model.
        t: the round.
        k: the client.
        weights: the global model.
        rate: Poisson rate of its batches.
        noise: z, noise on the clipped sum in units of the clip.
        fixed: batches of fixed size B_k instead.

    Returns:
        Its update (what to subtract from the model), and the noise std in it.
    """
    training, local = simulation.training, weights.clone()
    alpha, size = simulation.step_size(t), int(simulation.batch_sizes[k])
    std = noise * training.clip / size
    for step in range(training.local_steps):
        batch = simulation.batch(k, rate=rate, round=t, step=step, batch_size=size if fixed else 0)
        raw = simulation.clipped_sum(local, k, batch, training.clip)
        local = local - alpha * (raw / size + std * simulation.noise(t, k, step=step))
    return weights - local, alpha * std * float(np.sqrt(training.local_steps))


def clip_update(update: Tensor, clip: float) -> Tensor:
    """The update, shortened to length c; zero if it is not finite.

    Example:
        >>> import torch
        >>> clip_update(torch.tensor([3.0, 4.0]), 1.0)
        tensor([0.6000, 0.8000])
    """
    from dpcohort.engine import CLIP_SLACK  # torch: only training needs it

    length = float(update.double().norm())
    if not math.isfinite(length):
        return update.new_zeros(update.shape)
    return update * min(1.0, clip * (1 - CLIP_SLACK) / max(length, 1e-300))


def model_clipping(
    simulation: Simulation, mode: Mode, *, update_clip: float = 1.0
) -> tuple[RoundUpdate, Account]:
    """Model-difference clipping (Zhang et al.): the unit is everything a client holds.

    X. Zhang, X. Chen, M. Hong, S. Wu and J. Yi, "Understanding clipping for federated learning:
    convergence and client-level differential privacy", ICML 2022, arXiv 2106.13673 (abstract only;
    the algorithm as generally known). A client trains Q plain steps without noise, clips the
    difference of models to length c, adds noise and uploads:

        update_k = clip_c(w - w_k) + N(0, (z_k c)^2).

    Taking a client's whole data away moves its upload by at most c, so T_k uploads are one Gaussian
    mechanism with mu = sqrt(T_k)/z_k, and z_k comes from the exact Gaussian curve for the client's
    own budget. The published noise formula could not be read, so there is no formula mode. No
    amplification by sampling clients is taken, because the server sees who uploads.

    Args:
        simulation: clients, data, model.
        mode: ``honest`` only.
        update_clip: c, length of an update.
    """
    number("update_clip", update_clip, above=0)
    people, cohorts = simulation.population, simulation.cohorts()
    uses = np.zeros(len(people), dtype=np.int64)
    noise = certified_noise(people, rates=1.0, steps=participations(cohorts, len(people)))

    def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
        # SENSITIVE: Q plain steps, not clipped and without noise.
        local, alpha = weights.clone(), simulation.step_size(t)
        size = int(simulation.batch_sizes[k])
        for step in range(_PLAIN_STEPS):
            batch = simulation.batch(k, rate=1.0, round=t, step=step, batch_size=size)
            local = local - alpha * simulation.clipped_sum(local, k, batch) / size
        std = float(noise[k]) * update_clip
        clipped = clip_update(weights - local, update_clip)
        return clipped + std * simulation.noise(t, k), std

    def account() -> dict[str, Any]:
        return {
            "certified": sampled_epsilon(people, noise, 1.0, uses),
            "noise": noise,
            "uses": uses,
            "assumptions": ["all of a client's records are one unit; that it took part is public"],
        }

    return mean_of_cohort(cohorts, update, uses), account


def formula_noise(*, epsilon: float, delta: float, rounds: float) -> float:
    """UDP's published noise in units of alpha C / n: z = 2 sqrt(2 q T ln(1/delta)) / epsilon.

    Args:
        epsilon: promised.
        delta: promised.
        rounds: q T, expected uploads.

    Example:
        >>> round(formula_noise(epsilon=1.0, delta=1e-5, rounds=50), 2)
        67.86
    """
    return 2 * math.sqrt(2 * rounds * math.log(1 / delta)) / epsilon


def discounted_noise(*, left: float, budget: float, spent: float) -> float:
    """CRD: the noise that spreads the rest of a budget of sum 1/z^2 evenly over the uploads left.

    Example:
        >>> round(discounted_noise(left=4, budget=2.0, spent=1.0), 6)
        2.0
    """
    rest = budget - spent
    if rest <= 0:
        raise BudgetExceededError(
            f"the cap on sum 1/z^2, {budget:g}, is spent and {left:g} uploads are left."
        )
    # The last digit goes to the noise, so that the cap is never passed by rounding.
    return math.sqrt(left / rest) * (1 + 1e-12)


def udp(
    simulation: Simulation, mode: Mode, *, adaptive_rounds: bool = False, local_steps: int = 1
) -> tuple[RoundUpdate, Account]:
    """UDP of Wei et al.: noise on the uploaded model, uniform clients, adaptive number of rounds.

    K. Wei et al., "User-level privacy-preserving federated learning: analysis and performance
    optimization", IEEE TMC 2021, arXiv 2003.00229 (authors' code read, the paper not). Each round K
    of N clients are chosen uniformly, train on all their records and upload w + N(0, s^2), with

        s = D sqrt(2 q T ln(1/delta)) / epsilon,   D = 2 alpha C / n,   q = K/N.

    CRD (communication rounds discounting): when the loss rose, T <- ceil(0.8 T), and what is left
    of the budget is spread over the rounds that are left,

        s_t = sqrt((T - t) / ((epsilon/D)^2 / (2 q ln(1/delta)) - sum_{i<t} 1/s_i^2)).

    Despite the name the unit is a record: D is how far replacing one record moves a step.

    What does not hold, and what the honest mode does instead:

    - *q.* The server sees who uploads, so sampling clients hides nothing from it. Honest: each
      client is charged for the uploads it really makes, T_k; cohorts are drawn before training.
    - *The square root.* sqrt(2 T ln(1/delta)) D/epsilon drops the T D^2/(2 s^2) of
      zero-concentrated privacy and overspends at large epsilon. Honest: the exact Gaussian curve
      (Balle and Wang).
    - *D* is proved for one full-batch step of clipped gradients (replace-one). After a second step
      the other records' gradients have moved too, and only the length of an update is known: the
      factor is then n times the number of steps. This is why one local step is the default here.
    - *The loss* behind CRD. In the authors' code it is the mean training loss of the clients, which
      is a leak. Here it is the loss on the server's own public records. The noise then depends on
      earlier outputs, which ordinary composition does not allow; Gaussians with a fixed cap on the
      sum of mu_t^2 do (fully adaptive composition: arXiv 2210.17520, 2209.15596). The certified
      epsilon is that of the cap, not of what happened to be spent.

    Args:
        simulation: clients, data, model.
        mode: ``honest``, or ``formula`` for the published noise.
        adaptive_rounds: CRD.
        local_steps: full-batch steps of an upload.
    """
    people, clip = simulation.population, simulation.training.clip
    cohorts, clients = simulation.cohorts(), len(people)
    private = np.flatnonzero(~people.public).tolist()
    whole_number("local_steps", local_steps, at_least=1)
    # How far zeroing out a record moves an update, in units of alpha C / n. After a second step
    # only the length of an update, at most steps * alpha * C, is known.
    factor = np.ones(clients) if local_steps == 1 else local_steps * people.sizes.astype(float)
    caps, constant = udp_noise(simulation, mode, participations(cohorts, clients), factor)
    uses = np.zeros(clients, dtype=np.int64)
    spent = np.zeros(clients)  # sum of 1/z^2
    noise, used = np.zeros(clients), np.zeros(clients)  # z of the next and of the last upload
    rounds, last_loss = simulation.training.rounds, math.inf

    def charge(k: int, left: float) -> None:
        """The noise of a client's next upload, counted before it is used."""
        noise[k] = constant[k]
        if adaptive_rounds:
            noise[k] = discounted_noise(left=left, budget=caps[k], spent=spent[k])
        spent[k] += float(noise[k]) ** -2

    # The published CRD charges every client for every round, whether it uploads or not.
    charges_all = adaptive_rounds and mode == "formula"

    def update(t: int, k: int, weights: Tensor) -> tuple[Tensor, float]:
        if not people.public[k] and not charges_all:
            charge(k, left=sum(k in cohort for cohort in cohorts[t:rounds]))
        used[k] = noise[k]
        alpha, local = simulation.step_size(t), weights.clone()
        size = int(simulation.sizes[k])
        for _ in range(local_steps):
            raw = simulation.clipped_sum(local, k, np.arange(size), clip)
            local = local - alpha * raw / size
        std = float(used[k]) * alpha * clip / size
        return weights - local + std * simulation.noise(t, k), std

    mean = mean_of_cohort(cohorts, update, uses)

    def one_round(t: int, weights: Tensor) -> tuple[Tensor, float] | None:
        nonlocal rounds, last_loss
        if adaptive_rounds and t > 0:
            loss = simulation.server_loss(weights)
            if loss >= last_loss:  # shorten the training, never to before this round
                rounds = max(math.ceil(_DISCOUNT * rounds), t)
            last_loss = loss
        if t >= rounds:
            return None
        for k in private if charges_all else ():
            charge(k, left=rounds - t)
        return mean(t, weights)

    def account() -> dict[str, Any]:
        # Adaptive noise: the cap counts. Fixed noise: the uploads that were made.
        squares = factor**2 * (caps if adaptive_rounds else spent)
        with np.errstate(divide="ignore"):
            together = 1 / np.sqrt(squares)  # noise of one release that tells as much
        once = (squares > 0).astype(np.int64)
        assumptions = [
            "gradients are clipped record by record",
            "an upload is one full-batch step, so a record moves it by 2 alpha C / n"
            if local_steps == 1
            else "several local steps: only the length of an update bounds a record",
        ]
        notes = []
        if adaptive_rounds:
            assumptions.append("the loss that shortens the training is of public server data")
            assumptions.append("fully adaptive composition of Gaussians under a fixed cap on mu^2")
            notes.append(
                f"CRD: {rounds} of {simulation.training.rounds} rounds; no client uploaded more "
                f"than {int(uses.max(initial=0))} times."
            )
        return {
            "claimed": people.epsilon if mode == "formula" else None,
            "certified": sampled_epsilon(people, together, 1.0, once, neighbours="replace-one"),
            "noise": np.where(uses > 0, used / factor, np.nan),
            "uses": uses,
            "assumptions": assumptions,
            "notes": notes,
        }

    return one_round, account


def udp_noise(
    simulation: Simulation, mode: Mode, uploads: IntArray, factor: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The cap on each client's sum of 1/z^2, fixed before training, and z without CRD.

    Args:
        simulation: clients, rounds and cohorts.
        mode: ``honest`` or ``formula``.
        uploads: planned uploads of each client.
        factor: how far zeroing out a record moves an update, in units of alpha C / n.
    """
    people, clients = simulation.population, len(uploads)
    rounds = simulation.training.rounds
    share = min(simulation.training.cohort_size, clients) / clients
    caps, constant = np.full(clients, math.inf), np.zeros(clients)
    if mode == "honest":
        constant = factor * certified_noise(
            people, rates=1.0, steps=uploads, neighbours="replace-one"
        )
    for k in np.flatnonzero(~people.public).tolist():
        if mode == "formula":
            published = formula_noise(**budget_of(people, k), rounds=share * rounds)
            caps[k] = rounds / published**2
            constant[k] = math.sqrt(rounds / caps[k])
        else:
            mu = gaussian_mu(**budget_of(people, k)) / (2 * factor[k])
            # A hair less, so that the certificate of the cap holds in spite of its rounding.
            caps[k] = (mu * (1 - 1e-9)) ** 2
    return caps, constant
