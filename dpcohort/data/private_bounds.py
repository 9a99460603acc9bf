# SPDX-License-Identifier: Apache-2.0
"""Bounds of a column of numbers, estimated from the records and paid for.

Each client counts its records in the cells of a public grid and adds noise to every count: whole
numbers from the discrete Laplace distribution, drawn exactly (Canonne, Kamath and Steinke 2020).
One record is in one cell of a column, so with c columns and noise of scale c Δ/ε all counts of a
client together are (ε, 0)-differentially private; Δ is 1 where a neighbour lacks a record, 2 where
it has another one instead. The noisy counts are added up, a client's by the precision of its own,
and the bounds reach from the first cell that stands out of the noise to the last, with a cell more
on either side; which costs no more. Where no cell stands out they are the whole range.

What it cost stays with the estimate: a file that a configuration names
(``data.estimated_bounds``), whose epsilons are taken from the budgets before anything is planned.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort._validate import FloatArray, IntArray, number
from dpcohort.accounting.segments import left, private_clients
from dpcohort.clients import Population
from dpcohort.data.tables import Table, numbers_of
from dpcohort.errors import InputError
from dpcohort.limits import LARGEST_JSON
from dpcohort.text_files import of_file, parse_json, read_utf8

FORMAT = "dpcohort estimated bounds"
#: Cells of the grid of a column.
CELLS = 32
#: Standard deviations of the noise by which a cell stands out of it.
STANDS_OUT = 5.0

PRIVATE = "the noise was drawn exactly from the operating system's entropy."
SEEDED = (
    "NOT PRIVATE (simulation): the noise comes from a seed, so whoever knows it can take the noise "
    "off again."
)


def estimate_bounds(
    table: Table,
    owners: Sequence[str],
    population: Population,
    ranges: Mapping[str, tuple[float, float]],
    *,
    share: float,
    neighbours: str,
    seed: int | None,
) -> dict[str, Any]:
    """Estimated bounds of columns, with what each client paid for them.

    Args:
        table: the records.
        owners: the client of each.
        population: the clients with their budgets; public ones pay nothing and add no noise.
        ranges: of each column, a public range that is sure to hold it.
        share: of each client's epsilon that is spent, above 0 and below 1.
        neighbours: ``zero-out`` or ``replace-one``, as in the contract of the training.
        seed: of the noise in a simulation; None takes the operating system's entropy.

    Returns:
        What the file of an estimate holds.

    Raises:
        InputError: a column or range cannot be used.

    Example:
        >>> people = Population.from_arrays(ids=["a"], sizes=[3000], epsilon=2.0, delta=1e-5)
        >>> ages = np.random.default_rng(1).normal(50, 10, 3000)
        >>> found = estimate_bounds({"age": ages}, ["a"] * 3000, people, {"age": (0, 320)},
        ...     share=0.5, neighbours="zero-out", seed=1)
        >>> found["bounds"], found["clients"]["a"]["charged_epsilon"]
        ({'age': [10.0, 90.0]}, 1.0)
    """
    number("share", share, above=0, below=1)
    if not ranges:
        raise InputError.because("no column is named whose bounds are to be estimated.")
    rng: random.Random = random.SystemRandom() if seed is None else random.Random(seed)
    sensitivity = 1 if neighbours == "zero-out" else 2
    charged = np.where(population.public, 0.0, share * population.epsilon)
    names = np.asarray(owners)
    bounds = {}
    for column, (low, high) in ranges.items():
        if column not in table:
            raise InputError("column", given=column, allowed=f"one of {', '.join(table)}")
        cells = _cells_of(column, table[column], low, high)
        total, variance = np.zeros(CELLS), 0.0
        for k, client in enumerate(population.ids):
            own = cells[names == client]
            counts = np.bincount(own[own >= 0], minlength=CELLS)
            size, noise = float(population.sizes[k]), 0.0
            if not population.public[k]:
                scale = Fraction(sensitivity * len(ranges)) / Fraction(float(charged[k]))
                counts = counts + np.array([discrete_laplace(scale, rng) for _ in range(CELLS)])
                noise = 2.0 * float(scale) ** 2
            # Sizes and variances are public; a cell's own variance is about its share of the size.
            weight = size / (noise + size / CELLS)
            total += weight * counts
            variance += weight**2 * noise
        bounds[column] = _hull(total, STANDS_OUT * float(np.sqrt(variance)), low, high)
    return {
        "format": FORMAT,
        "schema": 1,
        "bounds": bounds,
        "ranges": {column: list(ends) for column, ends in ranges.items()},
        "cells": CELLS,
        "stands_out": STANDS_OUT,
        "neighbours": neighbours,
        "share": share,
        "stamp": PRIVATE if seed is None else SEEDED,
        "clients": {
            client: {
                "promised_epsilon": promised,
                "charged_epsilon": float(charged[k]),
                "left_epsilon": left(promised, float(charged[k])),
            }
            for k, client, promised, _ in private_clients(population)
        },
    }


def read_estimate(path: str | Path) -> dict[str, Any]:
    """The estimate in a file, with the file's hash under ``sha256``.

    Raises:
        FileFormatError: it is not there, or not an estimate.
    """
    content = read_utf8(path, at_most_bytes=LARGEST_JSON)
    words = "not a whole estimate of dpcohort data bounds ({})"
    with of_file(path, words, (ValueError, KeyError, TypeError, AttributeError)):
        found = parse_json(content)
        if found["format"] != FORMAT or found["schema"] != 1:
            raise ValueError(f"{FORMAT!r} expected")
        if found["neighbours"] not in ("zero-out", "replace-one"):
            raise ValueError("the neighbours are not known")
        for name, one in found["clients"].items():
            promised, charged = one["promised_epsilon"], one["charged_epsilon"]
            number(f"charged_epsilon of {name}", charged, above=0, below=promised)
        for column, ends in found["bounds"].items():
            for end in ends:
                number(column, end)
        digest = hashlib.sha256(content).hexdigest()
        return {**found, "stamp": str(found["stamp"]), "sha256": digest}


def charge(
    population: Population, estimate: Mapping[str, Any], path: Path, *, tuned: float = 0.0
) -> Population:
    """The population with what the estimate cost taken from each budget.

    Args:
        population: the clients, with what tuning left of their budgets.
        estimate: what was estimated, and paid.
        path: its file.
        tuned: share of the budgets that tuning spent, before the estimate or after it.

    Raises:
        InputError: a client did not pay, or promises another budget than it did then.
    """
    epsilon = population.epsilon.copy()
    for k, name, has, _ in private_clients(population):
        paid = estimate["clients"].get(name)
        promised = math.nan if paid is None else float(paid["promised_epsilon"])
        if promised == has:
            epsilon[k] = left(has, paid["charged_epsilon"])
        elif tuned and (1.0 - tuned) * promised == has:
            # Tuning came later, and spent its share of what the estimate had left.
            epsilon[k] = (1.0 - tuned) * left(promised, paid["charged_epsilon"])
        else:
            said = "nothing" if paid is None else f"epsilon {promised:g}"
            raise InputError.because(
                f"{path}: {name!r} promises epsilon {has / (1.0 - tuned):g}, and promised {said} "
                "when the bounds were estimated. Use the list of clients of that time."
            )
    return replace(population, epsilon=epsilon)


def discrete_laplace(scale: Fraction, rng: random.Random) -> int:
    """A whole number y with probability in proportion to exp(-|y| / scale), drawn exactly.

    Example:
        >>> draws = [discrete_laplace(Fraction(2), random.Random(k)) for k in range(2000)]
        >>> abs(float(np.mean(draws))) < 0.2, 2.4 < float(np.std(draws)) < 3.2
        (True, True)
    """
    t, s = scale.numerator, scale.denominator
    while True:
        u = rng.randrange(t)
        if not _true_with_exp(Fraction(u, t), rng):
            continue
        v = 0
        while _true_with_exp(Fraction(1), rng):
            v += 1
        y = (u + t * v) // s
        negative = bool(rng.randrange(2))
        if not (negative and y == 0):
            return -y if negative else y


def _true_with_exp(gamma: Fraction, rng: random.Random) -> bool:
    """True with probability exp(-gamma), for gamma from 0 to 1."""
    k = 1
    while rng.randrange(gamma.denominator * k) < gamma.numerator:
        k += 1
    return k % 2 == 1


def _cells_of(column: str, cells: Sequence[Any], low: float, high: float) -> IntArray:
    """The cell of each record's number; -1 for a missing one."""
    low, high = number(f"range of {column}", low), number(f"range of {column}", high)
    if not low < high:
        allowed = "a smaller and a larger number"
        raise InputError(f"range of {column}", given=[low, high], allowed=allowed)
    values, is_missing = numbers_of(column, cells)
    inside = (np.clip(values, low, high) - low) / (high - low) * CELLS
    found = np.minimum(inside.astype(np.int64), CELLS - 1)
    return np.where(is_missing, -1, found)


def _hull(counts: FloatArray, threshold: float, low: float, high: float) -> list[float]:
    """From the first to the last cell above the threshold, with a cell more on either side."""
    edges = np.linspace(low, high, CELLS + 1)
    found = np.flatnonzero(counts > threshold)
    if not found.size:
        return [float(low), float(high)]
    return [float(edges[max(found[0] - 1, 0)]), float(edges[min(found[-1] + 2, CELLS)])]
