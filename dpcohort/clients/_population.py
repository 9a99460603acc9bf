# SPDX-License-Identifier: Apache-2.0
"""A population: all clients, their sizes and their privacy budgets.

A client k holds |M_k| records and guarantees each of them (epsilon_k, delta_k)-differential
privacy. A client whose data needs no privacy is *public*: a kind of its own, so that an infinite
epsilon never appears by accident. A population comes from arrays or from a CSV file; either way
the first client that is wrong is named.
"""

from __future__ import annotations

import csv
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpcohort._validate import BoolArray, FloatArray, IntArray, float_array
from dpcohort.atomic_file import atomic_writer
from dpcohort.clients._client import PUBLIC, Budget, Client, Public
from dpcohort.clients._columns import COLUMNS, Columns, columns_of, first_problem, shared
from dpcohort.clients._csv_file import read_clients_csv
from dpcohort.clients._ids import Names, nearest_id
from dpcohort.errors import InputError
from dpcohort.training import Training

#: Share of its records a client uses in a step when nobody named a batch, as in the paper's figure
#: of selection probabilities.
DEFAULT_SAMPLING_RATE = 0.1


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

    ids: Sequence[str]
    sizes: IntArray
    epsilon: FloatArray
    delta: FloatArray
    batch_sizes: IntArray
    public: BoolArray
    allow_large_delta: bool = False

    def __post_init__(self) -> None:
        columns = columns_of(**{field: getattr(self, field) for field in COLUMNS})
        problem = first_problem(columns, allow_large_delta=self.allow_large_delta)
        if problem is not None:
            where = "" if problem.field == "id" else f" of client {columns['ids'][problem.row]!r}"
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
        columns = (ids, sizes, epsilon, delta, batch_sizes, public)
        given: Any = dict(zip(COLUMNS, columns, strict=True))
        return cls(**given, allow_large_delta=allow_large_delta)

    @classmethod
    def from_clients(
        cls, clients: Iterable[Client], *, allow_large_delta: bool = False
    ) -> Population:
        """A population from single clients.

        Example:
            >>> from dpcohort.clients import PUBLIC, Budget, Client
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
    def from_csv(
        cls,
        path: str | Path,
        *,
        sizes: Mapping[str, int] | None = None,
        allow_large_delta: bool = False,
    ) -> Population:
        """A population from a file ``id,size,epsilon,delta[,batch_size][,public]``.

        Args:
            path: the file; see ``dpcohort.clients._csv_file.read_clients_csv``.
            sizes: of each client by its id, for a file that leaves them out.
            allow_large_delta: accept delta_k >= 1/|M_k|; ``large_delta`` then counts them.

        Raises:
            FileFormatError: with file, line, field and value.
        """
        population = cls.__new__(cls)  # checked by the reader: no second look at a million rows
        object.__setattr__(population, "allow_large_delta", allow_large_delta)
        columns = read_clients_csv(path, sizes=sizes, allow_large_delta=allow_large_delta)
        population._settle(columns)
        return population

    def to_csv(self, path: str | Path) -> None:
        """Write the clients to a file that ``from_csv`` reads back to the last bit; atomic.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = Path(folder, "clients.csv")
            ...     Population.from_arrays(sizes=[500], epsilon=1.5, delta=1e-5).to_csv(path)
            ...     print(path.read_text())
            id,size,epsilon,delta
            client-0,500,1.5,1e-05
            <BLANKLINE>
        """
        public = self.public.tolist()

        def promised(values: FloatArray) -> list[str]:
            rows = zip(values.tolist(), public, strict=True)
            return ["" if is_public else repr(value) for value, is_public in rows]

        columns: dict[str, Iterable[object]] = {
            "id": self.ids,
            "size": self.sizes.tolist(),
            "epsilon": promised(self.epsilon),
            "delta": promised(self.delta),
        }
        if self.batch_sizes.any():
            columns["batch_size"] = [batch or "" for batch in self.batch_sizes.tolist()]
        if any(public):
            columns["public"] = ["true" if is_public else "false" for is_public in public]
        with atomic_writer(path) as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))

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
            for field in COLUMNS[1:]
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
            >>> from dpcohort.clients import Budget
            >>> population = Population.from_arrays(sizes=[60, 40], epsilon=1.0, delta=1e-5)
            >>> population.with_budget("client-0", Budget(2.0, 1e-5)).epsilon
            array([2., 1.])
        """
        row = self.index_of(client_id)
        if not isinstance(budget, Budget | Public):
            raise InputError("budget", given=budget, allowed="a Budget, or PUBLIC")
        epsilon, delta, public = self.epsilon.copy(), self.delta.copy(), self.public.copy()
        epsilon[row] = budget.epsilon if isinstance(budget, Budget) else np.nan
        delta[row] = budget.delta if isinstance(budget, Budget) else np.nan
        public[row] = budget is PUBLIC
        return replace(self, epsilon=epsilon, delta=delta, public=public)

    def with_scaled_budgets(self, epsilon: ArrayLike, delta: ArrayLike = 1.0) -> Population:
        """The same clients with every epsilon, and every delta, times a factor, or one for each.

        Example:
            >>> clients = Population.from_arrays(sizes=[90], epsilon=[2.0], delta=1e-5)
            >>> clients.with_scaled_budgets(3.0).epsilon.tolist()
            [6.0]
        """
        return replace(
            self,
            epsilon=float_array("factor of epsilon", epsilon, above=0) * self.epsilon,
            delta=float_array("factor of delta", delta, above=0, at_most=1) * self.delta,
        )

    def with_sizes(self, sizes: ArrayLike) -> Population:
        """The same clients with other numbers of records; no batch is larger than its client.

        Example:
            >>> clients = Population.from_arrays(sizes=[90], epsilon=[2.0], delta=1e-5)
            >>> clients.with_sizes([81]).sizes.tolist()
            [81]
        """
        own: IntArray = np.asarray(sizes)
        return replace(self, sizes=own, batch_sizes=np.minimum(self.batch_sizes, own))

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
            common: int | IntArray = min(training.batch_size, 2**62)
        else:
            rate = training.sampling_rate or DEFAULT_SAMPLING_RATE
            common = np.maximum(np.rint(rate * self.sizes), 1).astype(np.int64)
        batches: IntArray = np.where(self.batch_sizes > 0, self.batch_sizes, common)
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
        return np.minimum(batches, self.sizes, out=batches)

    def _settle(self, columns: Columns) -> None:
        """Take the columns over, in their final types and closed for writing."""
        for field in ("sizes", "batch_sizes"):
            columns[field] = np.nan_to_num(columns[field], nan=0.0).astype(np.int64)
        for field, column in columns.items():
            if field != "ids":
                column = shared(column)
            elif not isinstance(column, Names):
                column = Names.of(column)
            object.__setattr__(self, field, column)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def _row(self, key: int | str) -> int:
        if isinstance(key, str):
            return self.index_of(key)
        try:
            return range(len(self))[operator.index(key)]
        except (TypeError, IndexError):
            allowed = f"an id, or a position from 0 to {len(self) - 1}"
            raise InputError("client", given=key, allowed=allowed) from None
