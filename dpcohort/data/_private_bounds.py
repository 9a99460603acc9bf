# SPDX-License-Identifier: Apache-2.0
"""Bounds of a column of numbers, estimated from the records and paid for.

Each client counts its records in the cells of a public grid and adds noise to every count: whole
numbers from the discrete Laplace distribution, drawn exactly (Canonne, Kamath and Steinke 2020).
One record is in one cell of a column, so with c columns and noise of scale c Δ/ε all counts of a
client together are (ε, 0)-differentially private; Δ is 1 where a neighbour lacks a record, 2 where
it has another one instead. The noisy counts are added up, a client's by the precision of its own,
and the bounds reach from the first cell that stands out of the noise to the last, with a cell more
on either side; which costs no more. Where no cell stands out they are the whole range.

What it cost is a :class:`~dpcohort.accounting.Charge`, in the same file as the bounds: a
configuration that names the file (``data.estimated_bounds``) names the charge.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort._validate import FloatArray, IntArray, number
from dpcohort.accounting import Charge, Contract
from dpcohort.accounting._charges import charge_of, read_charge
from dpcohort.clients import Population
from dpcohort.data._tables import Table, numbers_of
from dpcohort.errors import FileFormatError, InputError
from dpcohort.text_files import of_file

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
    contract: Contract,
    seed: int | None,
    known: Sequence[Charge] = (),
    before_spending: Callable[[Charge], object] = lambda charge: None,
) -> tuple[Charge, dict[str, Any]]:
    """Estimated bounds of columns, and what each client paid for them.

    Args:
        table: the records; where the person is the unit, one of each person.
        owners: the client of each.
        population: the clients with their whole budgets; public ones pay nothing and add no noise.
        ranges: of each column, a public range that is sure to hold it.
        share: of the epsilon that each client has left that is spent, above 0 and below 1.
        contract: of the training, for its neighbours and unit.
        seed: of the noise in a simulation; None takes the operating system's entropy.
        known: what was paid before.
        before_spending: called once everything is checked, before the first noise: the place to
            write down what will be spent.

    Returns:
        The charge, and what came of it.

    Raises:
        InputError: a column or range cannot be used.
        BudgetExceededError: of a client nothing is left.

    Example:
        >>> people = Population.from_arrays(ids=["a"], sizes=[3000], epsilon=2.0, delta=1e-5)
        >>> ages = np.random.default_rng(1).normal(50, 10, 3000)
        >>> paid, found = estimate_bounds({"age": ages}, ["a"] * 3000, people,
        ...     {"age": (0, 320)}, share=0.5, contract=Contract(), seed=1)
        >>> found["bounds"], paid.spent
        ({'age': [10.0, 90.0]}, {'a': (1.0, 0.0)})
    """
    number("share", share, above=0, below=1)
    if not ranges:
        raise InputError.because("no column is named whose bounds are to be estimated.")
    rng: random.Random = random.SystemRandom() if seed is None else random.Random(seed)
    sensitivity = 1 if contract.neighbours == "zero-out" else 2
    charge = charge_of(
        population,
        known,
        lambda epsilon, delta: (share * epsilon, 0.0),
        what="estimate",
        private=seed is None,
        contract=contract,
    )
    names = np.asarray(owners)
    bounds, columns = {}, {}
    for column, (low, high) in ranges.items():
        if column not in table:
            raise InputError("column", given=column, allowed=f"one of {', '.join(table)}")
        columns[column] = _cells_of(column, table[column], low, high, private=seed is None)
    before_spending(charge)
    for column, (low, high) in ranges.items():
        cells, total, variance = columns[column], np.zeros(CELLS), 0.0
        for k, client in enumerate(population.ids):
            own = cells[names == client]
            counts = np.bincount(own[own >= 0], minlength=CELLS)
            size, noise = float(population.sizes[k]), 0.0
            if not population.public[k]:
                scale = Fraction(sensitivity * len(ranges)) / Fraction(charge.spent[client][0])
                counts = counts + np.array([discrete_laplace(scale, rng) for _ in range(CELLS)])
                noise = 2.0 * float(scale) ** 2
            # Sizes and variances are public; a cell's own variance is about its share of the size.
            weight = size / (noise + size / CELLS)
            total += weight * counts
            variance += weight**2 * noise
        bounds[column] = _hull(total, STANDS_OUT * float(np.sqrt(variance)), low, high)
    return charge, {
        "bounds": bounds,
        "ranges": {column: list(ends) for column, ends in ranges.items()},
        "cells": CELLS,
        "stands_out": STANDS_OUT,
        "share": share,
        "stamp": PRIVATE if seed is None else SEEDED,
    }


def read_estimate(path: str | Path) -> tuple[Charge, dict[str, Any]]:
    """The estimate in a file, and what was paid for it.

    Raises:
        FileFormatError: it is not there, or not an estimate.
    """
    charge, found = read_charge(path)
    if charge.what == "estimate" and not found:
        raise FileFormatError(
            path,
            "the estimate was paid for and stopped before there were bounds. What it took stays "
            f'taken: name it under [charges], as {charge.id} = "FILE", and estimate again.',
        )
    words = "not an estimate of dpcohort data bounds ({})"
    with of_file(path, words, (ValueError, KeyError, TypeError, AttributeError)):
        if charge.what != "estimate":
            raise ValueError(f"it is a charge of {charge.what}")
        for column, ends in found["bounds"].items():
            for end in ends:
                number(column, end)
        return charge, found


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


def _cells_of(
    column: str, cells: Sequence[Any], low: float, high: float, *, private: bool
) -> IntArray:
    """The cell of each record's number; -1 for a missing one.

    What is no number is refused in a simulation; else it is missing, and that is not told.
    """
    low, high = number(f"range of {column}", low), number(f"range of {column}", high)
    if not low < high:
        allowed = "a smaller and a larger number"
        raise InputError(f"range of {column}", given=[low, high], allowed=allowed)
    values, is_missing = numbers_of(column, cells, {} if private else None)
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
