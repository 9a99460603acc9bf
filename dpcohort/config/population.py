# SPDX-License-Identifier: Apache-2.0
"""The section [population] of a configuration: a list of clients, or clients to be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcohort._validate import IntArray, choice, nearest, number, whole_number
from dpcohort.clients import Population
from dpcohort.clients.columns import MAX_SIZE, numbered
from dpcohort.clients.distributions import (
    DISTRIBUTIONS,
    PAPER_BUDGETS,
    PAPER_SIZE_WEIGHTS,
    Distribution,
    Fixed,
    share_out,
)
from dpcohort.clients.population import Budget
from dpcohort.config.problems import about_key
from dpcohort.errors import InputError
from dpcohort.limits import MOST_CLIENTS

if TYPE_CHECKING:
    from dpcohort.config.schema import PopulationSection

__all__ = [
    "DrawnPopulation",
    "ListedPopulation",
    "distribution_from",
    "listed_population",
    "population_source",
]

# Sizes and budgets come from streams of their own, so that changing one leaves the other alone.
_SIZE_STREAM, _EPSILON_STREAM = 1, 2


@dataclass(frozen=True, kw_only=True)
class ListedPopulation:
    """Clients from a CSV file."""

    path: Path
    allow_large_delta: bool = False

    def build(self, records: int | None = None) -> Population:
        """Read the file; ``records`` does not matter, since the file has the sizes."""
        return Population.from_csv(self.path, allow_large_delta=self.allow_large_delta)


@dataclass(frozen=True, kw_only=True)
class DrawnPopulation:
    """Clients drawn from distributions; the same seed draws the same clients.

    Attributes:
        count: clients that are not public.
        total_size: their records together; ``size`` then gives weights. None: ``size`` draws
            sizes.
        size: distribution of weights or sizes.
        epsilon: distribution of the budgets.
        delta: the same for all.
        seed: what is drawn from.
        allow_large_delta: accept delta >= 1/size.
        public: (count, size) of groups of public clients, added to the others.
        fills_data: ``total_size`` is what the data set has; it is said when they are drawn.

    Example:
        >>> drawn = DrawnPopulation(count=3, total_size=100, epsilon=Fixed(1.0), public=((1, 50),))
        >>> population = drawn.build()
        >>> population.ids, int(population.sizes[:3].sum())
        (('client-0', 'client-1', 'client-2', 'public-0'), 100)
    """

    count: int
    epsilon: Distribution
    total_size: int | None = None
    size: Distribution = PAPER_SIZE_WEIGHTS
    delta: float = 1e-5
    seed: int = 0
    allow_large_delta: bool = False
    public: tuple[tuple[int, int], ...] = ()
    fills_data: bool = False

    def build(self, records: int | None = None) -> Population:
        """Draw the clients; ``records`` is how many records there are to share out."""
        if self.fills_data:
            return replace(self, total_size=self._left_of(records), fills_data=False).build()
        groups = [np.full(count, size, dtype=np.int64) for count, size in self.public]
        public_sizes = np.concatenate([np.empty(0, dtype=np.int64), *groups])
        nothing = np.full(len(public_sizes), np.nan)
        rng = np.random.default_rng([self.seed, _EPSILON_STREAM])
        epsilon = self.epsilon.draw(self.count, rng)
        return Population.from_arrays(
            ids=numbered("client", self.count) + numbered("public", len(public_sizes)),
            sizes=np.concatenate([self._sizes(), public_sizes]),
            epsilon=np.concatenate([epsilon, nothing]),
            delta=np.concatenate([np.full(self.count, self.delta), nothing]),
            public=np.arange(self.count + len(public_sizes)) >= self.count,
            allow_large_delta=self.allow_large_delta,
        )

    def _left_of(self, records: int | None) -> int:
        if records is None:
            words = "is missing; without the data it must be given (with it: dpcohort train)."
            raise about_key("total_size", words)
        left = records - sum(count * size for count, size in self.public)
        if left < self.count:
            words = (
                f"must be at least one record a client; the data leaves {left} for {self.count}."
            )
            raise about_key("total_size", words)
        return left

    def _sizes(self) -> IntArray:
        draws = self.size.draw(self.count, np.random.default_rng([self.seed, _SIZE_STREAM]))
        if self.total_size is not None:
            return share_out(self.total_size, draws)
        if draws.max() > MAX_SIZE:
            raise InputError("size", given=float(draws.max()), allowed="at most 10^15")
        return np.rint(draws).astype(np.int64)


def population_source(
    section: PopulationSection, folder: Path, *, has_data: bool = False
) -> ListedPopulation | DrawnPopulation:
    """What the section asks for; fields in errors are named without the section.

    Args:
        section: the keys as they were written.
        folder: what a relative path of clients starts from.
        has_data: there is a data set whose records can be shared out.
    """
    if section.clients is None:
        return _drawn(section, has_data)
    unused = [name for name in section.model_fields_set if name not in _WITH_A_FILE]
    if unused:
        name = min(unused, key=list(type(section).model_fields).index)
        raise about_key(
            "clients",
            f"and {name} are both given; keep one. The file of clients says everything about them "
            "(public ones have true in its column public); without a file, count, total_size and "
            "epsilon describe clients to be drawn.",
        )
    listed = listed_population(section.clients, folder)
    return replace(listed, allow_large_delta=section.allow_large_delta)


def listed_population(clients: str, folder: Path) -> ListedPopulation:
    """The clients of a CSV file, whose path may be relative to the folder.

    Example:
        >>> listed_population("clients.csv", Path("trial")).path.as_posix()
        'trial/clients.csv'
    """
    if not clients or "\0" in clients:
        raise InputError("clients", given=clients, allowed="the path of a CSV file")
    return ListedPopulation(path=folder / clients)


_WITH_A_FILE = frozenset({"clients", "allow_large_delta"})


def _drawn(section: PopulationSection, has_data: bool) -> DrawnPopulation:
    for name in ("count", "epsilon"):
        if getattr(section, name) is None:
            words = 'is missing. Give clients = "FILE.csv", or count, total_size and epsilon.'
            raise about_key(name, words)
    fills_data = has_data and section.total_size is None and section.size in (None, "paper")
    if section.total_size is None and section.size is None and not fills_data:
        raise about_key("total_size", "is missing; or give size, if each client draws its own.")
    if isinstance(section.epsilon, int | float) and not isinstance(section.epsilon, bool):
        Budget(section.epsilon, 0.5)  # says what to do about a huge epsilon
    size: Distribution = PAPER_SIZE_WEIGHTS
    if section.size is not None:
        size = distribution_from("size", section.size, {"paper": PAPER_SIZE_WEIGHTS})
    total = section.total_size
    if total is not None:
        whole_number("total_size", total, at_least=1, at_most=MAX_SIZE)
    for row, group in enumerate(section.public):
        whole_number(f"public[{row}].count", group.count, at_least=1, at_most=MOST_CLIENTS)
        whole_number(f"public[{row}].size", group.size, at_least=1, at_most=MAX_SIZE)
    count = whole_number("count", section.count, at_least=1, at_most=MOST_CLIENTS)
    everyone = count + sum(group.count for group in section.public)
    whole_number("count with public clients", everyone, at_most=MOST_CLIENTS)
    return DrawnPopulation(
        count=count,
        total_size=total,
        size=size,
        epsilon=distribution_from("epsilon", section.epsilon, PAPER_BUDGETS),
        delta=number("delta", section.delta, above=0, below=1),
        seed=whole_number("seed", section.seed, at_least=0),
        allow_large_delta=section.allow_large_delta,
        public=tuple((group.count, group.size) for group in section.public),
        fills_data=fills_data,
    )


def distribution_from(
    field: str, given: object, names: Mapping[str, Distribution] = PAPER_BUDGETS
) -> Distribution:
    """A distribution from what a configuration says: a number, a name, or a table.

    Args:
        field: what it is for, named in errors.
        given: a number (the same for all), one of ``names``, or a table with ``distribution`` (a
            name in ``DISTRIBUTIONS``) and that distribution's settings.
        names: distributions that have a name.

    Example:
        >>> distribution_from("epsilon", {"distribution": "uniform", "low": 0.5, "high": 1.5})
        Uniform(low=0.5, high=1.5, minimum=None)
    """
    if isinstance(given, str):
        return names[choice(field, given, names)]
    if isinstance(given, Mapping):
        return _from_table(field, given)
    return Fixed(number(field, given, above=0))


def _from_table(field: str, table: Mapping[str, Any]) -> Distribution:
    settings = dict(table)
    if "distribution" not in settings:
        words = f"is missing; it must be one of {', '.join(DISTRIBUTIONS)}."
        raise about_key(f"{field}.distribution", words)
    name = choice(f"{field}.distribution", settings.pop("distribution"), DISTRIBUTIONS)
    kind: Any = DISTRIBUTIONS[name]
    known = {setting.name: setting.default is MISSING for setting in fields(kind)}
    for key in settings:
        if key not in known:
            hint = nearest(key, known)
            step = f"Did you mean {hint!r}?" if hint else f"Known: {', '.join(known)}."
            raise about_key(f"{field}.{key}", f"is not a setting of {name}. {step}")
    missing = [key for key, is_needed in known.items() if is_needed and key not in settings]
    if missing:
        raise about_key(f"{field}.{missing[0]}", f"is missing; {name} needs it.")
    try:
        distribution: Distribution = kind(**settings)
    except InputError as error:
        if not error.field:
            raise about_key(field, f"cannot be used: {error}") from None
        words = str(error).removeprefix(error.field).lstrip()
        raise about_key(f"{field}.{error.field}", words) from None
    return distribution
