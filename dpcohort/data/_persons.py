# SPDX-License-Identifier: Apache-2.0
"""Rows of a data set by person: what one person contributes where the person is the unit.

A person of a client is one record of a training: drawn as one, its rows' gradients added or
averaged, and clipped as one. So that one person's work has a public size, at most a public number
of its rows is used; of more, some are chosen at random, by a stream of the person's own. Which rows
these are depends on nobody else.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray, choice, number, whole_number
from dpcohort.accounting._unit import BlankPerson, PersonRows
from dpcohort.errors import InputError
from dpcohort.limits import MOST_PERSON_ROWS, MOST_TABLE_CELLS
from dpcohort.plain_text import one_line

_ROWS_STREAM, _TEST_STREAM = 29, 31
#: Beginnings and ends of the names of columns that say whose a row is.
_WHO = ("patient", "person", "subject", "member", "customer", "user", "participant", "enrolee")
_ID = ("id", "nbr", "no", "number", "num", "key", "code", "mrn")
_ALONE = ("patient", "person", "participant", "enrolee", "mrn", "ssn", "pid")


@dataclass(frozen=True, kw_only=True, eq=False)
class Persons:
    """The rows of each person, of which a training uses at most a public number.

    Attributes:
        rows: [persons, most] row numbers; -1 where a person has fewer.
        person_rows: whether their gradients are added (``sum``) or averaged (``mean``).

    Example:
        >>> persons = persons_of(["ann", "bob", "ann"], None, most=2)
        >>> len(persons), persons.rows.tolist()
        (2, [[0, 2], [1, -1]])
    """

    rows: IntArray
    person_rows: PersonRows = "sum"

    def __post_init__(self) -> None:
        choice("person_rows", self.person_rows, get_args(PersonRows))
        if self.rows.ndim != 2 or not self.rows.shape[1] or (self.rows[:, :1] < 0).any():
            allowed = "(persons, rows of each), with one row at least"
            raise InputError("shape of rows", given=self.rows.shape, allowed=allowed)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def most(self) -> int:
        """Rows of one person that are used, at most; public."""
        return int(self.rows.shape[1])

    @property
    def first(self) -> IntArray:
        """A row of each person: whose client is that of all of them."""
        return self.rows[:, 0]

    def all_rows(self, persons: IntArray) -> IntArray:
        """The rows of these persons, one after the other."""
        rows = self.rows[persons]
        return rows[rows >= 0]

    def only(self, persons: IntArray) -> tuple[Persons, IntArray]:
        """These persons, and which rows are theirs; their rows are numbered anew, in that order."""
        there = self.rows[persons] >= 0
        numbered = np.full(there.shape, -1, np.int64)
        numbered[there] = np.arange(int(there.sum()))
        return replace(self, rows=numbered), self.all_rows(persons)

    def means(self, of_rows: FloatArray) -> FloatArray:
        """The mean over the rows of each person that are used. SENSITIVE.

        Example:
            >>> persons_of(["ann", "bob", "ann"], None, most=2).means(np.array([[1.0], [7], [3]]))
            array([[2.],
                   [7.]])
        """
        there = self.rows >= 0
        sums = np.zeros((len(self), of_rows.shape[1]))
        for rows, has in zip(self.rows.T, there.T, strict=True):  # a row of each at a time
            sums += of_rows[rows] * has[:, None]
        found: FloatArray = sums / there.sum(axis=1, keepdims=True)
        return found

    @classmethod
    def alone(cls, rows: int) -> Persons:
        """Each row a person of its own.

        Example:
            >>> Persons.alone(2).rows.tolist()
            [[0], [1]]
        """
        return cls(rows=np.arange(rows)[:, None])

    def without(self, unusable: BoolArray) -> tuple[IntArray, BoolArray]:
        """Rows of each person that can be used, first those; and which persons have one. SENSITIVE.

        Args:
            unusable: which rows contribute nothing.
        """
        rows = np.where((self.rows >= 0) & unusable[self.rows], -1, self.rows)
        rows = np.take_along_axis(rows, np.argsort(rows < 0, axis=1, kind="stable"), axis=1)
        return rows, rows[:, 0] >= 0


@dataclass(frozen=True, kw_only=True)
class PersonTerms:
    """How the rows of a person are used; all of it public.

    Attributes:
        rows_per_person: how many of them, at most.
        person_rows: whether their gradients are added or averaged.
        blank_person: what a row is that says nothing of its person.
    """

    rows_per_person: int = 5
    person_rows: PersonRows = "sum"
    blank_person: BlankPerson = "refuse"

    def __post_init__(self) -> None:
        whole_number("rows_per_person", self.rows_per_person, at_least=1, at_most=MOST_PERSON_ROWS)
        choice("person_rows", self.person_rows, get_args(PersonRows))
        choice("blank_person", self.blank_person, get_args(BlankPerson))

    def group(self, names: NDArray[Any], owners: NDArray[Any] | None, *, seed: int = 0) -> Persons:
        """The persons of rows, see `persons_of`."""
        given: Any = {"most": self.rows_per_person, "person_rows": self.person_rows}
        return persons_of(names, owners, **given, seed=seed)


def persons_of(
    names: Sequence[Any] | NDArray[Any],
    owners: NDArray[Any] | None,
    *,
    most: int,
    person_rows: PersonRows = "sum",
    seed: int = 0,
) -> Persons:
    """The persons of each client, by name.

    Args:
        names: whose each row is; "" is a person of its own.
        owners: the client of each row; somebody who is with two of them is two persons.
        most: rows of a person that are used.
        person_rows: whether gradients of a person's rows are added or averaged.
        seed: by which some of the rows of a person with more are chosen.
    """
    who = np.asarray(names)
    if who.dtype.kind not in "iuU" or who.ndim != 1:
        who = who.astype(np.str_)
    _, codes = np.unique(who, return_inverse=True)
    codes = codes.astype(np.int64)
    if who.dtype.kind == "U":
        blank = who == ""
        codes[blank] = codes.max(initial=0) + 1 + np.arange(int(blank.sum()))
    if owners is not None:
        _, held = np.unique(owners, return_inverse=True)
        codes += held * (int(codes.max(initial=0)) + 1)
    _, person, counts = np.unique(codes, return_inverse=True, return_counts=True)
    whole_number("rows_per_person of all persons", most * len(counts), at_most=MOST_TABLE_CELLS)
    order = np.argsort(person, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    places = starts[:, None] + np.arange(most)
    there = np.arange(most) < counts[:, None]
    rows = np.where(there, order[np.minimum(places, len(order) - 1)], -1)
    for one in np.flatnonzero(counts > most).tolist():
        own = order[starts[one] : starts[one] + counts[one]]
        label = f"{'' if owners is None else owners[own[0]]}\0{who[own[0]]}"
        rng = np.random.default_rng([seed, _ROWS_STREAM, zlib.crc32(label.encode())])
        rows[one] = np.sort(rng.choice(own, most, replace=False))
    return Persons(rows=rows.astype(np.int64), person_rows=person_rows)


def persons_for_test(
    names: NDArray[np.str_], owners: NDArray[np.str_] | None, *, share: float, seed: int
) -> BoolArray:
    """Which rows are of test persons: about this share of all persons, each by its name alone.

    So a person is on the same side with every client, and a client that holds only its own rows
    finds the same ones. Of a client whose persons would all be test persons, one is not; of a
    client with few persons there may be none.

    Example:
        >>> found = persons_for_test(np.array(["ann", "bob", "ann", "cy"]), None, share=0.5, seed=0)
        >>> bool(found[0] == found[2])
        True
    """
    number("test_share", share, above=0, below=1)
    whole_number("seed", seed, at_least=0)
    distinct, person = np.unique(np.asarray(names, np.str_), return_inverse=True)
    salt = f"{_TEST_STREAM} {seed} "
    digests = [hashlib.blake2b((salt + name).encode(), digest_size=6) for name in distinct.tolist()]
    drawn = [int.from_bytes(one.digest(), "big") < share * 2**48 for one in digests]
    held: BoolArray = np.asarray(drawn, np.bool_)[person]
    whose = np.full(len(names), "") if owners is None else owners
    for client in np.setdiff1d(whose, whose[~held]):
        own = whose == client
        held &= ~(own & (names == names[own].max()))
    return held


def check_persons(
    column: str, names: Sequence[str], *, blank: BlankPerson, whole: bool = True
) -> None:
    """Refuse a column that says of no row, or of each alone, whose it is.

    Args:
        column: its name, for messages.
        names: whose each row is, "" where that is not known.
        blank: what a row is of which it is not known.
        whole: whether these are the rows of all clients; one alone may have one person, or persons
            of one row each.
    """
    key = one_line(column, 60)
    distinct, missing = len({*names}), sum(not name for name in names)
    if missing and blank == "refuse":
        raise InputError.because(
            f"the person of a row is missing in the column {key}. Fill it in; or, where such rows "
            'are surely of different persons, say so: blank_person = "own".'
        )
    if whole and distinct == 1 and not missing:
        words = "has one value in all rows: one person cannot be hidden among others."
        raise InputError.because(
            f"the column {key} {words} Name the column that says whose a row is."
        )
    if whole and distinct == len(names) and not missing:
        raise InputError.because(
            f"the column {key} is different in every row: it names rows, not persons. Name the "
            "column that says whose a row is; or leave person out if nobody has two rows: a record "
            "is then a person."
        )


def looks_like_person(column: str) -> bool:
    """Whether a column's name says that it names persons; nothing of its cells is looked at.

    Example:
        >>> [looks_like_person(one) for one in ("patient_nbr", "PersonID", "mrn", "users", "paid")]
        [True, True, True, False, False]
    """
    plain = "".join(letter for letter in column.lower() if letter.isalnum())
    return plain in _ALONE or any(plain == who + end for who in _WHO for end in _ID)
