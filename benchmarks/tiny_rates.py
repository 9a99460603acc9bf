# SPDX-License-Identifier: Apache-2.0
"""Calibration and certificate at tiny sampling rates, against the optimum.

    python benchmarks/tiny_rates.py              8 random clients of each contract
    python benchmarks/tiny_rates.py --grid       r x T x epsilon x delta, 54 clients of each

For every client: the noise over the smallest possible one, the smallest noise that the certificate
accepts over the smallest possible one, and the milliseconds of each. The reference shares nothing
with either: one uniform grid of a million points, the mass of every cell at its two ends such that
its probability under both data sets is kept, and a plain Fourier transform. It overstates the noise
by a share that falls with the spacing at least linearly; the optimum is taken to be as far below
the reference as this is below the reference on a grid half as fine.

The exit code is 1 if a noise is below the optimum or more than 2 percent above it, if a certificate
is not as tight, or if the reference's delta at a noise is larger than the promised one.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.fft import irfft, rfft
from scipy.special import expit, ndtr, ndtri

from dpcohort._validate import FloatArray
from dpcohort.accounting import calibrate_noise, certify_epsilon

CONTRACTS = (("poisson", "zero-out"), ("poisson", "replace-one"), ("fixed", "replace-one"))
POINTS = 2**20
MOST = 1.02


class Client(NamedTuple):
    """What fixes the noise of a client."""

    sampler: str
    neighbours: str
    rate: float
    steps: int
    epsilon: float
    delta: float


def reference_delta(client: Client, z: float, points: int = POINTS) -> float:
    """Delta at this noise on a grid of so many points."""
    if client.sampler == "fixed":
        return _delta("fixed", 2 / z, client, points)
    if client.neighbours == "replace-one":
        return _delta("replace", 1 / z, client, points)
    return max(_delta(kind, 1 / z, client, points) for kind in ("remove", "add"))


def _delta(kind: str, shift: float, client: Client, points: int) -> float:
    rate, steps = client.rate, client.steps
    # the loss as a function of the output, in a table that is finer than the grid
    top_x = shift - float(ndtri(1e-7 * client.delta / steps))
    x = np.linspace(shift / 2 if kind == "fixed" else -top_x, top_x, 200_001)
    loss = _loss(kind, shift, rate, x)
    limit = client.epsilon + 14.0 + rate * steps
    inside = np.abs(loss) <= limit
    top = float(loss[inside][-1])
    bottom = -top if kind == "fixed" else float(loss[inside][0])
    weight = np.exp(-(x**2) / 2) + rate * np.exp(-((x - shift) ** 2) / 2)
    small = np.minimum(np.abs(loss), client.epsilon)
    spread = math.sqrt(steps * float(weight @ small**2 / weight.sum()))
    # losses that hardly ever come keep the mean of all the others below 0
    drift = steps * float(weight @ np.maximum(loss - client.epsilon, 0.0) / weight.sum())
    low, high = 2 * min(bottom, 0.0) - drift - 12 * spread, 2 * max(top, 0.0) + drift + 12 * spread
    high = max(high, client.epsilon + 1e-3)
    step = (high - low) / points

    first, last = math.floor(bottom / step), math.ceil(top / step)
    index = np.arange(0 if kind == "fixed" else first, last + 1)
    ends = _output(kind, shift, rate, step * index.astype(np.float64))
    base, up, down = _cells(ends), _cells(ends - shift), _cells(ends + shift)
    p = base if kind == "add" else (1 - rate) * base + rate * up
    q = base if kind in ("remove", "fixed") else (1 - rate) * base + rate * down
    shares = (p - q * np.exp(step * index[:-1])) / -math.expm1(-step)
    shares = np.clip(shares, 0.0, p)
    mass = np.zeros(points)
    np.add.at(mass, index[:-1] % points, p - shares)
    np.add.at(mass, index[1:] % points, shares)
    if kind == "fixed":  # the same losses with the opposite sign, and none in between
        mirrored = np.minimum(shares * np.exp(-step * index[1:]), q)
        np.add.at(mass, -index[1:] % points, mirrored)
        np.add.at(mass, -index[:-1] % points, q - mirrored)
    # whatever is not in a cell: losses of 0, below the grid, and above it
    above = (ndtr(-ends[-1]) if kind == "add" else 0.0) + (
        0.0 if kind == "add" else (1 - rate) * ndtr(-ends[-1]) + rate * ndtr(shift - ends[-1])
    )
    rest = 1 - float(mass.sum()) - float(above)
    mass[0 if kind == "fixed" else first % points] += max(rest, 0.0)

    # (atom + rest)^T with the atom taken out of the transform, for small deltas
    mode = int(np.argmax(mass))
    atom = float(mass[mode])
    mass = np.roll(mass, -mode)
    mass[0] = 0.0
    odds = rfft(mass) / atom
    excess = odds.real * (2 + odds.real) + odds.imag**2
    size = 0.5 * np.log1p(np.maximum(excess, 1e-15 - 1))
    angle = np.arctan2(odds.imag, 1 + odds.real)
    law = irfft(np.exp(steps * (math.log(atom) + size + 1j * angle)), points)
    start = mode if mode < points // 2 else mode - points
    sums = step * ((np.arange(points) + steps * start - math.floor(low / step)) % points) + (
        step * math.floor(low / step)
    )
    counted = sums > client.epsilon
    gain = -np.expm1(client.epsilon - sums[counted])
    return float(law[counted] @ gain) - steps * math.expm1(math.log1p(-above))


def _loss(kind: str, shift: float, rate: float, x: FloatArray) -> FloatArray:
    def log_w(x: FloatArray) -> FloatArray:
        exponent = shift * x - shift**2 / 2
        small = np.log1p(rate * np.expm1(np.minimum(exponent, 30.0)))
        large = np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
        return np.where(exponent > 30.0, large, small)

    if kind == "add":
        return -log_w(-x)
    return log_w(x) - log_w(-x) if kind == "replace" else log_w(x)


def _output(kind: str, shift: float, rate: float, loss: FloatArray) -> FloatArray:
    """The output with this loss: a table, then Newton's method."""
    nodes = np.linspace(-60.0 - shift, 60.0 + shift, 400_001)
    x = np.interp(loss, _loss(kind, shift, rate, nodes), nodes)
    odds = math.log(rate) - math.log1p(-rate) - shift**2 / 2
    for _ in range(4):
        slope = np.zeros(loss.size)
        if kind != "add":
            slope += shift * expit(shift * x + odds)
        if kind in ("add", "replace"):
            slope += shift * expit(-shift * x + odds)
        off = (_loss(kind, shift, rate, x) - loss) / np.maximum(slope, 1e-300)
        x -= np.clip(off, -1e-2, 1e-2)
    outputs: FloatArray = np.maximum.accumulate(x)
    return outputs


def _cells(x: FloatArray) -> FloatArray:
    """Standard normal mass between consecutive outputs."""
    tail = ndtr(-np.abs(x))
    straddles = (x[:-1] < 0) & (x[1:] > 0)
    mass: FloatArray = np.where(straddles, 1 - tail[1:] - tail[:-1], np.abs(np.diff(tail)))
    return mass


def root(excess: Callable[[float], float], near: float, tolerance: float = 1e-4) -> float:
    """Where a falling function of the noise crosses 0, by secant steps in its logarithm."""
    here, slope = math.log(near), -20.0
    value = excess(near)
    for _ in range(12):
        step = min(max(-value / slope, -0.3), 0.3)
        if abs(step) < tolerance:
            return math.exp(here + step)
        there = here + step
        new = excess(math.exp(there))
        slope = min(max((new - value) / step, -300.0), -1.0)
        here, value = there, new
    return math.exp(here)


def optimum(client: Client, near: float) -> float:
    """The smallest noise, from two grids."""

    def excess(points: int) -> Callable[[float], float]:
        return lambda z: math.log(max(reference_delta(client, z, points), 1e-300) / client.delta)

    fine = root(excess(POINTS), near)
    coarse = root(excess(POINTS // 2), fine)
    return fine - max(coarse - fine, 0.0)


def accepted(client: Client, near: float) -> float:
    """About the smallest noise whose certificate keeps the promise."""

    def excess(z: float) -> float:
        return 10 * math.log(max(certified(client, z), 1e-6) / client.epsilon)

    return root(excess, near, tolerance=2e-4)


def calibrated(client: Client) -> float:
    found: float = calibrate_noise(
        epsilon=client.epsilon,
        delta=client.delta,
        sampling_rate=client.rate,
        steps=client.steps,
        sampler=client.sampler,
        neighbours=client.neighbours,
    )
    return found


def certified(client: Client, z: float) -> float:
    found: float = certify_epsilon(
        noise_multiplier=z,
        delta=client.delta,
        sampling_rate=client.rate,
        steps=client.steps,
        sampler=client.sampler,
        neighbours=client.neighbours,
    )
    return found


def random_clients(count: int, rng: np.random.Generator) -> list[Client]:
    """Of each contract, such that some noise is needed."""
    clients: list[Client] = []
    for contract in CONTRACTS:
        wanted = len(clients) + count
        while len(clients) < wanted:
            rate, steps = 10 ** rng.uniform(-6, -4), int(10 ** rng.uniform(0.31, 5))
            epsilon, delta = 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-9, -5)
            if delta < -math.expm1(steps * math.log1p(-rate)):
                clients.append(Client(*contract, rate, steps, epsilon, delta))
    return clients


def grid_clients() -> list[Client]:
    return [
        Client(*contract, rate, steps, epsilon, delta)
        for contract in CONTRACTS
        for rate in (1e-6, 1e-5, 1e-4)
        for steps in (10, 1_000, 100_000)
        for epsilon in (0.1, 1.0, 10.0)
        for delta in (1e-5, 1e-9)
        if delta < -math.expm1(steps * math.log1p(-rate))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", action="store_true", help="all cells instead of random clients")
    parser.add_argument("--clients", type=int, default=8, help="random clients of each contract")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    clients = grid_clients() if options.grid else random_clients(options.clients, rng)
    calibrated(Client("poisson", "zero-out", 1e-5, 99, 1.0, 1e-6))  # imports and first calls
    print("sampler neighbours   r             T     eps   delta        z   noise   cert.   ms   ms")
    worst: dict[tuple[str, str], list[float]] = {}
    broken = 0
    for client in clients:
        begin = time.process_time()
        z = calibrated(client)
        middle = time.process_time()
        certified(client, z * (1 + 1e-9))
        end = time.process_time()
        best = optimum(client, z)
        noise, certificate = z / best, accepted(client, z) / best
        safe = reference_delta(client, z) <= client.delta
        good = safe and 1 <= noise <= MOST and 1 - 1e-4 <= certificate <= MOST
        broken += not good
        calibration_ms, certificate_ms = 1e3 * (middle - begin), 1e3 * (end - middle)
        print(
            f"{client.sampler:7} {client.neighbours:12} {client.rate:.1e} {client.steps:7d} "
            f"{client.epsilon:7.3f} {client.delta:.1e} {z:8.5f} {noise:7.4f} {certificate:7.4f} "
            f"{calibration_ms:4.0f} {certificate_ms:4.0f}{'' if good else '  BROKEN'}",
            flush=True,
        )
        row = [noise, noise, certificate, calibration_ms, certificate_ms]
        seen = worst.setdefault((client.sampler, client.neighbours), row)
        seen[0] = min(seen[0], noise)
        seen[1:] = [max(old, new) for old, new in zip(seen[1:], row[1:], strict=True)]
    print("\ncontract                 noise / optimum     certificate   calibration   certificate")
    for (sampler, neighbours), (least, most, certificate, first, second) in worst.items():
        print(
            f"{sampler:8} {neighbours:12} {least:9.4f} to {most:.4f} {certificate:15.4f} "
            f"{first:10.0f} ms {second:10.0f} ms"
        )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
