# SPDX-License-Identifier: Apache-2.0
"""Clients, their privacy budgets, and the population they form.

A client k holds |M_k| records and promises each of them (epsilon_k, delta_k)-differential
privacy. A client whose data needs no privacy is *public*: a kind of its own, so that an infinite
epsilon never appears by accident.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray, number, whole_number
from dpcohort.clients.columns import (
    EPSILON_ALLOWED,
    ID_ALLOWED,
    MAX_EPSILON,
    MAX_SIZE,
    ClientColumns,
    columns_of,
    epsilon_step,
    first_problem,
    nearest_id,
    read_clients_csv,
    write_clients_csv,
)
from dpcohort.errors import InputError
from dpcohort.training import Training

__all__ = [
    "DEFAULT_SAMPLING_RATE",
    "PUBLIC",
    "Budget",
    "Client",
    "Population",
    "Public",
]


#: Share of its records a client uses in a step when nobody named a batch, as in the paper's figure
#: of selection probabilities.
DEFAULT_SAMPLING_RATE = 0.1


_COLUMNS = ("ids", "sizes", "epsilon", "delta", "batch_sizes", "public")


class Public(Enum):
    """The kind of a client whose data needs no privacy; its one member is ``PUBLIC``."""

    PUBLIC = "public"

    def __repr__(self) -> str:
        return "PUBLIC"


PUBLIC: Final = Public.PUBLIC


@dataclass(frozen=True)
class Budget:
    """What a client promises each of its records over the whole training: (epsilon_k, delta_k).

    Attributes:
        epsilon: above 0 and at most 700.
        delta: above 0 and below 1; should be well below 1/size.

    Example:
        >>> Budget(1.0, 1e-5)
        Budget(epsilon=1.0, delta=1e-05)
        >>> Budget(float("inf"), 1e-5)
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: epsilon = inf is not allowed: it must be a finite number above 0
        and at most 700. For data that needs no privacy mark the client public; then it has no
        epsilon.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        try:
            number("epsilon", self.epsilon, above=0, at_most=MAX_EPSILON)
        except InputError:
            step = epsilon_step(self.epsilon) if isinstance(self.epsilon, int | float) else None
            raise InputError(
                "epsilon", given=self.epsilon, allowed=EPSILON_ALLOWED, next_step=step
            ) from None
        number("delta", self.delta, above=0, below=1)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))


@dataclass(frozen=True)
class Client:
    """One data holder.

    Attributes:
        id: its name, unique in a population.
        size: number of its records, |M_k|.
        budget: a ``Budget``, or ``PUBLIC``.
        batch_size: its own expected batch B_k, or None to use the one of the training settings.

    Example:
        >>> Client("north", 800, Budget(2.0, 1e-5)).is_public
        False
    """

    id: str
    size: int
    budget: Budget | Public
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id.strip():
            raise InputError("id", given=self.id, allowed=ID_ALLOWED)
        object.__setattr__(
            self, "size", whole_number("size", self.size, at_least=1, at_most=MAX_SIZE)
        )
        if not isinstance(self.budget, Budget | Public):
            raise InputError("budget", given=self.budget, allowed="a Budget, or PUBLIC")
        if self.batch_size is not None:
            batch_size = whole_number("batch_size", self.batch_size, at_least=1)
            object.__setattr__(self, "batch_size", batch_size)

    @property
    def is_public(self) -> bool:
        """Whether the data of this client needs no privacy."""
        return self.budget is PUBLIC


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """All clients, as columns; the arrays cannot be written to.

    Attributes:
        ids: unique names.
        sizes: numbers of records |M_k|, int64.
        epsilon: epsilon_k, float64; NaN for public clients.
        delta: delta_k, float64; NaN for public clients.
        batch_sizes: the clients' own batches B_k, int64; 0 where a client names none.
        public: which clients need no privacy.
        allow_large_delta: whether delta_k >= 1/|M_k| is accepted.

    Example:
        >>> population = Population.from_arrays(sizes=[600, 200], epsilon=[1.0, 4.0], delta=1e-5)
        >>> population.unbiased
        array([0.75, 0.25])
        >>> population["client-1"].budget
        Budget(epsilon=4.0, delta=1e-05)
    """

    ids: tuple[str, ...]
    sizes: IntArray
    epsilon: FloatArray
    delta: FloatArray
    batch_sizes: IntArray
    public: BoolArray
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        columns = columns_of(**{field: getattr(self, field) for field in _COLUMNS})
        problem = first_problem(columns, allow_large_delta=self.allow_large_delta)
        if problem is not None:
            where = "" if problem.field == "id" else f" of client {columns.ids[problem.row]!r}"
            raise problem.error(f"{problem.field}{where}")
        self._settle(columns)

    @classmethod
    def from_arrays(
        cls,
        *,
        sizes: ArrayLike,
        epsilon: ArrayLike,
        delta: ArrayLike,
        ids: Iterable[str] | None = None,
        batch_sizes: ArrayLike | None = None,
        public: ArrayLike | None = None,
        allow_large_delta: bool = False,
    ) -> Population:
        """A population from columns; one number stands for all clients that are not public.

        Example:
            >>> len(Population.from_arrays(sizes=[60, 20, 20], epsilon=1.0, delta=1e-5))
            3
        """
        given: dict[str, Any] = {
            "ids": ids,
            "sizes": sizes,
            "epsilon": epsilon,
            "delta": delta,
            "batch_sizes": batch_sizes,
            "public": public,
        }
        return cls(**given, allow_large_delta=allow_large_delta)

    @classmethod
    def from_clients(
        cls, clients: Iterable[Client], *, allow_large_delta: bool = False
    ) -> Population:
        """A population from single clients.

        Example:
            >>> clients = [Client("a", 90, Budget(1.0, 1e-5)), Client("b", 10, PUBLIC)]
            >>> Population.from_clients(clients).public
            array([False,  True])
        """
        rows = list(clients)
        for row in rows:
            if not isinstance(row, Client):
                raise InputError("clients", given=row, allowed="Client objects only")
        budgets = [c.budget if isinstance(c.budget, Budget) else None for c in rows]
        return cls.from_arrays(
            ids=[client.id for client in rows],
            sizes=[client.size for client in rows],
            epsilon=[np.nan if b is None else b.epsilon for b in budgets],
            delta=[np.nan if b is None else b.delta for b in budgets],
            batch_sizes=[client.batch_size or 0 for client in rows],
            public=[client.is_public for client in rows],
            allow_large_delta=allow_large_delta,
        )

    @classmethod
    def from_csv(cls, path: str | Path, *, allow_large_delta: bool = False) -> Population:
        """A population from a file ``id,size,epsilon,delta[,batch_size][,public]``.

        Args:
            path: the file; see ``dpcohort.clients.columns.read_clients_csv``.
            allow_large_delta: accept delta_k >= 1/|M_k|; ``large_delta`` then counts them.

        Raises:
            FileFormatError: with file, line, field and value.
        """
        population = cls.__new__(cls)  # checked by the reader: no second look at a million rows
        object.__setattr__(population, "allow_large_delta", allow_large_delta)
        population._settle(read_clients_csv(path, allow_large_delta=allow_large_delta))
        return population

    def to_csv(self, path: str | Path) -> None:
        """Write the clients to a file that ``from_csv`` reads back exactly; atomic."""
        write_clients_csv(path, self)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Client]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: int | str) -> Client:
        row = self._row(key)
        budget: Budget | Public = PUBLIC
        if not self.public[row]:
            budget = Budget(float(self.epsilon[row]), float(self.delta[row]))
        batch_size = int(self.batch_sizes[row]) or None
        return Client(self.ids[row], int(self.sizes[row]), budget, batch_size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Population):
            return NotImplemented
        return self.ids == other.ids and all(
            np.array_equal(getattr(self, field), getattr(other, field), equal_nan=True)
            for field in _COLUMNS[1:]
        )

    def __repr__(self) -> str:
        public = int(self.public.sum())
        return f"Population({len(self)} clients, {self.total_size} records, {public} public)"

    def index_of(self, client_id: str) -> int:
        """The position of a client.

        Raises:
            InputError: if there is no such client; the nearest id is suggested.

        Example:
            >>> population = Population.from_arrays(
            ...     ids=["north", "south"], sizes=[60, 40], epsilon=1.0, delta=1e-5)
            >>> population.index_of("south")
            1
        """
        try:
            return self._positions[client_id]
        except (KeyError, TypeError):
            hint = nearest_id(str(client_id), self.ids)
            raise InputError(
                "client",
                given=client_id,
                allowed=f"the id of one of the {len(self)} clients",
                next_step=None if hint is None else f"Did you mean {hint!r}?",
            ) from None

    @property
    def total_size(self) -> int:
        """Records of all clients together, |S|."""
        if len(self) * int(self.sizes.max()) < 2**63:
            return int(self.sizes.sum())
        return sum(self.sizes.tolist())

    @property
    def unbiased(self) -> FloatArray:
        """Probabilities proportional to sizes, p^u_k = |M_k| / |S|."""
        return np.asarray(self.sizes / self.total_size, dtype=np.float64)

    @property
    def large_delta(self) -> int:
        """How many clients have delta_k >= 1/|M_k|; only above 0 with ``allow_large_delta``."""
        with np.errstate(invalid="ignore"):  # NaN on public rows: not large
            return int(np.count_nonzero(self.delta * self.sizes >= 1))

    def with_budget(self, client_id: str, budget: Budget | Public) -> Population:
        """The same population with another budget for one client, to ask what would be if.

        Example:
            >>> population = Population.from_arrays(sizes=[60, 40], epsilon=1.0, delta=1e-5)
            >>> population.with_budget("client-0", Budget(2.0, 1e-5)).epsilon
            array([2., 1.])
        """
        row = self.index_of(client_id)
        if not isinstance(budget, Budget | Public):
            raise InputError("budget", given=budget, allowed="a Budget, or PUBLIC")
        private = budget if isinstance(budget, Budget) else None
        epsilon, delta, public = self.epsilon.copy(), self.delta.copy(), self.public.copy()
        epsilon[row] = np.nan if private is None else private.epsilon
        delta[row] = np.nan if private is None else private.delta
        public[row] = private is None
        return replace(self, epsilon=epsilon, delta=delta, public=public)

    def batches(self, training: Training) -> IntArray:
        """The expected batch of each client, B_k.

        A client's own batch comes first, then ``training.batch_size`` or
        ``training.sampling_rate``. Where none of them is given, a client uses 10 % of its records
        (rounded, at least 1), the rate of the paper's figure of selection probabilities.

        Raises:
            InputError: if a batch is larger than its client, unless ``training.oversized_batch``
                is ``"whole"``; such a client then uses all its records in each step.

        Example:
            >>> population = Population.from_arrays(sizes=[600, 204], epsilon=1.0, delta=1e-5)
            >>> population.batches(Training(batch_size=128))
            array([128, 128])
            >>> population.batches(Training())
            array([60, 20])
        """
        if training.batch_size is not None:
            # No size reaches 2^62: a batch beyond it is as oversized as that, and fits an int64.
            shared = np.full(len(self), min(training.batch_size, 2**62), dtype=np.int64)
        else:
            rate = training.sampling_rate or DEFAULT_SAMPLING_RATE
            shared = np.maximum(np.rint(rate * self.sizes), 1).astype(np.int64)
        batches = np.where(self.batch_sizes > 0, self.batch_sizes, shared)
        oversized = batches > self.sizes
        if training.oversized_batch == "error" and oversized.any():
            row, others = int(oversized.argmax()), int(np.count_nonzero(oversized)) - 1
            more = f" ({others} other client{'s' * (others > 1)} too)" if others else ""
            raise InputError(
                "batch_size",
                given=int(batches[row]),
                allowed=f"at most the size of the client, but {self.ids[row]!r} has "
                f"{self.sizes[row]} records{more}",
                next_step="Lower the batch size, give such clients their own in a batch_size "
                'column, or set training.oversized_batch = "whole" to let them use all their '
                "records in each step.",
            )
        return np.asarray(np.minimum(batches, self.sizes), dtype=np.int64)

    def sampling_rates(self, training: Training) -> FloatArray:
        """The share of its records each client uses in a step, r_k = B_k / |M_k|.

        Example:
            >>> population = Population.from_arrays(sizes=[640, 256], epsilon=1.0, delta=1e-5)
            >>> population.sampling_rates(Training(batch_size=128))
            array([0.2, 0.5])
        """
        return np.asarray(self.batches(training) / self.sizes, dtype=np.float64)

    def _settle(self, columns: ClientColumns) -> None:
        """Take the columns over, in their final types and closed for writing."""
        arrays: dict[str, NDArray[Any]] = {
            "sizes": columns.sizes.astype(np.int64),
            "epsilon": columns.epsilon,
            "delta": columns.delta,
            "batch_sizes": np.nan_to_num(columns.batch_sizes, nan=0.0).astype(np.int64),
            "public": columns.public,
        }
        object.__setattr__(self, "ids", columns.ids)
        for field, array in arrays.items():
            array.setflags(write=False)
            object.__setattr__(self, field, array)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def _row(self, key: int | str) -> int:
        if isinstance(key, str):
            return self.index_of(key)
        allowed = f"an id, or a position from 0 to {len(self) - 1}"
        try:
            row = operator.index(key)
        except TypeError:
            raise InputError("client", given=key, allowed=allowed) from None
        if not -len(self) <= row < len(self):
            raise InputError("client", given=key, allowed=allowed)
        return row % len(self)
