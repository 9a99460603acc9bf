# SPDX-License-Identifier: Apache-2.0
"""A table (CSV, Parquet or a DataFrame) as a data set: one row a record, one column the client.

What turns a cell into a number is stated, never computed: bounds of numbers, lists of values, what
a missing cell counts as. The smallest and largest number of a column, or the values that occur in
it, are each a fact about some record, which no budget would pay for.

Nothing that a cell may hold changes how many columns there are. A number beyond its bounds is moved
to the bound, and counted in public records only: how many of a client's lie there is a fact about
them, and so would a refusal be. A value outside its list goes to a column of its own, ``other``. A
cell of a column of numbers that holds no number counts as missing, and a record without a usable
label contributes nothing; a simulation is refused with a message that names the cell's place, never
what it holds, and a private run does without telling.
"""

from __future__ import annotations

import importlib
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, choice, did_you_mean, number, whole_number
from dpcohort.accounting._unit import BlankPerson
from dpcohort.clients._csv_file import rows_with_lines
from dpcohort.data._dataset import NO_CLASS, Dataset, dataset_from_arrays
from dpcohort.data._persons import (
    PersonTerms,
    check_persons,
    looks_like_person,
    persons_for_test,
)
from dpcohort.errors import DataMissingError, FileFormatError, InputError
from dpcohort.limits import LARGEST_TABLE, MOST_TABLE_CELLS, MOST_TABLE_COLUMNS, check_unpacking
from dpcohort.plain_text import counted, one_line
from dpcohort.tasks import Task
from dpcohort.text_files import number_in, of_file, read_utf8

#: Words that stand for a missing cell, in any case.
MISSING_WORDS = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "#n/a"})

#: What is wrong with a record, by its place: the first such cell of each. SENSITIVE.
Problems = dict[int, str]

#: Column names to cells, one a record: text, numbers, truth values, None or NaN where missing.
Table = Mapping[str, Sequence[Any]]

_NONE = ("none", "None", "NONE")
_TEST_STREAM = 23
_TRUTHS = {"true": 1.0, "false": 0.0}
_WHY = (
    "What a table's own smallest and largest values, or the values that occur in it, would say is "
    "a fact about single records, and no budget pays for it."
)


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """What the columns of a table mean. All of it is public and none of it comes from the records.

    Attributes:
        label: the column to be predicted; several for a task of several labels, each 0 or 1.
        client: the column that says whose record it is; None where the table does not say.
        person: the column that says of which person a row is.
        features: columns a model sees; () for all others. A column whose name is that of a person's
            id is never one of them.
        categories: the values that a column of text or codes can have; each becomes a column of
            0 and 1, and all other values, missing ones too, share one more.
        bounds: smallest and largest value of a column of numbers, which become -1 and 1; or two
            dates as text, ``2015-01-31``, of a column of dates, which are counted in days.
        missing: what a missing number counts as: ``middle`` of its bounds, ``indicator`` (the
            middle, and a column that says so), or a number; for all columns or by column.
        labels: the values that the label can have, in the order of the classes.

    Example:
        >>> columns = TableColumns(label="sick", bounds={"age": (0, 110)}, labels=("no", "yes"))
        >>> inputs, labels, names = columns.encode({"age": ["55", "200"], "sick": ["yes", "no"]})
        >>> inputs.tolist(), labels.tolist(), names
        ([[0.0], [1.0]], [1, 0], ('age',))
    """

    label: str | tuple[str, ...]
    client: str | None = None
    person: str | None = None
    features: tuple[str, ...] = ()
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    bounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    missing: str | float | Mapping[str, str | float] = "middle"
    labels: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        for name in ("label", "features", "labels"):
            given = getattr(self, name)
            if isinstance(given, list if name == "label" else list | str):
                object.__setattr__(self, name, _listed(name, given))
        if not self.targets or not all(isinstance(one, str) and one for one in self.targets):
            raise InputError("label", given=self.label, allowed="the name of a column, or several")
        open_ = [
            f"{key}.{one}"
            for key in ("bounds", "categories")
            for one, values in getattr(self, key).items()
            if isinstance(values, list | tuple) and not values
        ]
        if open_:
            more = f" (and so are {', '.join(map(one_line, open_[1:9]))})" if open_[1:] else ""
            raise InputError.about(
                open_[0],
                f"is not filled in{more}. Bounds are the smallest and the largest number that a "
                "column can hold, as in [0, 110]; categories are the values that it can have, as "
                f'in ["no", "yes"]. {_WHY} Where nothing is known of a number, bounds can be '
                "estimated with noise and paid for: dpcohort data bounds --help",
            )
        for one, values in self.categories.items():
            _check_values(f"categories.{one}", values)
        for one, values in self.bounds.items():
            _check_bounds(f"bounds.{one}", values)
        if self.labels:
            _check_values("labels", self.labels, at_least=2)
        both = set(self.categories) & set(self.bounds)
        if both:
            words = f"is in categories too; {min(both)!r} is a number or one of some values."
            raise InputError.about(f"bounds.{min(both)}", words)
        if self.person is not None and self.person in (*self.targets, self.client):
            raise InputError.about("person", f"names {self.person!r}, the label or the client.")
        for key in ("features", "categories", "bounds"):
            for one in getattr(self, key):
                if one in self._taken:
                    words = f"names {one!r}, which is the {self._taken[one]} and no feature."
                    raise InputError.about(key, words)
                if looks_like_person(one):
                    words = f"names {one!r}, which by its name says whose a row is: a model would "
                    words += f"learn persons by heart. Say person = {one!r}, or rename the column."
                    raise InputError.about(key, words)
        self._check_missing()

    def _check_missing(self) -> None:
        rules = self.missing if isinstance(self.missing, Mapping) else {"": self.missing}
        for one, rule in rules.items():
            name = f"missing.{one}" if one else "missing"
            if isinstance(rule, str):
                choice(name, rule, ("middle", "indicator"))
            else:
                number(name, rule)
            if one and one not in self.bounds:
                words = "is for a column with bounds; a missing category is among the others."
                raise InputError.about(name, words)

    @property
    def _taken(self) -> dict[str | None, str]:
        """Columns that no model sees, and what each of them says."""
        return dict.fromkeys(self.targets, "label") | {self.client: "client", self.person: "person"}

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to be predicted."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)

    def seen(self, table: Table) -> tuple[str, ...]:
        """The columns of a table that a model sees.

        Raises:
            InputError: a column is not there, or nothing says how to make numbers of it.
        """
        owners = [one for one in (self.client, self.person) if one]
        named = [*self.targets, *owners, *self.features]
        for one in (*named, *self.categories, *self.bounds):
            if one not in table:
                listed = ", ".join(map(one_line, list(table)[:20]))
                same = [name for name in table if name.strip().lower() == one.strip().lower()]
                step = f"Did you mean {same[0]!r}?" if same else did_you_mean(one, table)
                raise InputError("column", given=one, allowed=f"one of {listed}", next_step=step)
        seen = self.features or tuple(
            one for one in table if one not in self._taken and not looks_like_person(one)
        )
        unknown = [one for one in seen if one not in self.bounds and one not in self.categories]
        if not seen:
            raise InputError.because("there is no column beside the label to predict it from.")
        if unknown:
            listed = ", ".join(map(one_line, unknown[:8])) + (" ..." if len(unknown) > 8 else "")
            raise InputError.because(
                f"nothing says what the columns {listed} can hold. Give the smallest and largest "
                f"possible number, as in bounds = {{ {_key(unknown[0])} = [0, 100] }}, or the "
                f"possible values, as in categories = {{ {_key(unknown[0])} = [...] }}; or name "
                f"the columns to be used in features. {_WHY} Where nothing is known of a number, "
                "bounds can be estimated with noise and paid for: dpcohort data bounds --help"
            )
        return seen

    def unnamed_persons(self, table: Table, public: BoolArray) -> list[str]:
        """A sentence on each column that by its name says whose a row is, where none is named.

        Args:
            table: the cells.
            public: which records are; how often values are repeated is told of no other.

        Example:
            >>> columns = TableColumns(label="sick", bounds={"age": (0, 110)}, labels=(0, 1))
            >>> rows = {"age": [3, 4], "sick": [0, 1], "patient_id": ["a", "a"]}
            >>> columns.unnamed_persons(rows, np.array([True, True]))
            ['the column patient_id by its name says whose a row is, and no person is named: each
              promise is about one record, and somebody with several is protected less. Say person =
              "patient_id" to protect persons. Of 2 public records 2 are of persons with several.']
        """
        found = []
        for one in table if self.person is None else ():
            if not looks_like_person(one) or one in self._taken:
                continue
            name = _key(one)
            words = f"the column {name} by its name says whose a row is, and no person is named: "
            words += "each promise is about one record, and somebody with several is protected "
            words += f'less. Say person = "{one_line(one, 60)}" to protect persons.'
            cells = [
                _word(cell) for cell in compress(table[one], public) if not is_missing_cell(cell)
            ]
            if cells:
                several = sum(count for count in Counter(cells).values() if count > 1)
                words += f" Of {counted(len(cells), 'public record')} {several:,} are of persons "
                words += "with several."
            found.append(words)
        return found

    def task(self, **settings: Any) -> Task:
        """The task of the label: its classes or labels with their names, and what else is stated.

        Args:
            **settings: of `Task`; without ``kind`` a class, or labels where there are several.

        Example:
            >>> TableColumns(label="sick", labels=("no", "yes")).task().names
            ('no', 'yes')
        """
        several = not isinstance(self.label, str)
        kind = settings.pop("kind", "multi-label" if several else "classification")
        if several != (kind == "multi-label"):
            words = 'names several columns exactly where the task is kind = "multi-label".'
            raise InputError.about("label", words)
        if kind == "classification":
            if not self.labels:
                raise InputError.about(
                    "labels",
                    f"is missing: the values that {self.label!r} can have, as in labels = "
                    f'["no", "yes"]. {_WHY}',
                )
            names = tuple(map(_word, self.labels))
            return Task(kind=kind, outputs=len(names), names=names, **settings)
        if self.labels:
            words = f"goes with classes; a task of {kind} has none."
            raise InputError.about("labels", words)
        if several:
            return Task(kind=kind, outputs=len(self.targets), names=self.targets, **settings)
        return Task(kind=kind, outputs=1, **settings)

    def encode(self, table: Table) -> tuple[NDArray[np.float32], NDArray[Any], tuple[str, ...]]:
        """Inputs from -1 to 1, what is to be predicted (not yet scaled), and names of the inputs.

        What is predicted are classes where there are ``labels``, else numbers as they are written.

        Raises:
            InputError: a column or its meaning is missing, or a cell cannot be used.
        """
        inputs, targets, names, problems = self.encode_leniently(table)
        for problem in problems.values():
            raise InputError.because(problem)
        return inputs, targets, names

    def encode_leniently(
        self, table: Table
    ) -> tuple[NDArray[np.float32], NDArray[Any], tuple[str, ...], Problems]:
        """As `encode`; cells that cannot be used are missing, and listed. The list is SENSITIVE.

        Raises:
            InputError: a column or its meaning is missing.
        """
        problems: Problems = {}
        inputs, names = self._inputs(table, self.seen(table), problems)
        if self.labels:
            targets: NDArray[Any] = self._classes(table[self.targets[0]], problems)
        else:
            columns = [_needed_numbers(one, table[one], problems) for one in self.targets]
            targets = columns[0] if isinstance(self.label, str) else np.stack(columns, 1)
        return inputs, targets, names, problems

    def encode_inputs(self, table: Table) -> tuple[NDArray[np.float32], list[str]]:
        """Inputs of records without a label, and sentences on cells that are not as was stated.

        Raises:
            InputError: ``features`` are not stated, or one of them is not there.

        Example:
            >>> columns = TableColumns(label="sick", features=("age",), bounds={"age": (0, 110)},
            ...     labels=("no", "yes"))
            >>> columns.encode_inputs({"age": ["55", "200"]})[1]
            ['age: 1 number is beyond [0, 110]']
        """
        for one in self.features:
            if one not in table:
                given = ", ".join(map(one_line, list(table)[:20]))
                step = did_you_mean(one, table)
                raise InputError("column", given=one, allowed=f"one of {given}", next_step=step)
        remarks = []
        for one in self.features:
            remarks += [
                f"{one_line(one, 60)}: {told}" for told in self._unexpected(one, table[one])
            ]
        return self._inputs(table, self.features, {})[0], remarks

    def ends(self, name: str) -> tuple[float, float]:
        """Smallest and largest number of a column; dates in days since 1970.

        Example:
            >>> columns = TableColumns(label="sick", bounds={"day": ["1970-01-02", "1971-01-01"]})
            >>> columns.ends("day")
            (1.0, 365.0)
        """
        low, high = self.bounds[name]
        if self.has_dates(name):
            low, high = (_days(str(one)) or 0.0 for one in (low, high))
        return float(low), float(high)

    def has_dates(self, name: str) -> bool:
        """Whether a column holds dates."""
        return isinstance(self.bounds.get(name, (0,))[0], str)

    def filled(self, name: str) -> tuple[float, bool]:
        """What a missing number of a column counts as, and whether a column more says so."""
        stated = self.missing
        rule = stated.get(name, "middle") if isinstance(stated, Mapping) else stated
        return (
            (sum(self.ends(name)) / 2, rule == "indicator")
            if isinstance(rule, str)
            else (rule, False)
        )

    def words(self, name: str) -> tuple[str, ...]:
        """The values of a column of categories, as text."""
        return tuple(map(_word, self.categories[name]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; nothing of what is empty."""
        return {key: value for key, value in asdict(self).items() if value}

    def _numbers(
        self, name: str, cells: Sequence[Any], problems: Problems | None
    ) -> tuple[FloatArray, BoolArray]:
        read = _days_of_cell if self.has_dates(name) else _number_of_cell
        return numbers_of(name, cells, problems, read)

    def _unexpected(self, name: str, cells: Sequence[Any]) -> list[str]:
        """What cells of a column hold that was not stated, with how many there are."""
        if name in self.categories:
            is_other = self._one_hot(name, cells, {})[0][:, -1] == 1
            unknown = sum(not is_missing_cell(cell) for cell in compress(cells, is_other))
            more = "is another value than was listed" if unknown == 1 else "are values not listed"
            return [f"{counted(unknown, 'cell')} {more}, and counts as other"] if unknown else []
        problems: Problems = {}
        values, is_missing = self._numbers(name, cells, problems)
        low, high = self.ends(name)
        beyond = int((~is_missing & ((values < low) | (values > high))).sum())
        texts = len(problems)
        found = []
        if texts:
            verb, what = (
                "holds" if texts == 1 else "hold",
                "date" if self.has_dates(name) else "number",
            )
            found.append(f"{counted(texts, 'cell')} {verb} no {what} and counts as missing")
        if beyond:
            verb = "is" if beyond == 1 else "are"
            found.append(f"{counted(beyond, 'number')} {verb} beyond {_shown(self.bounds[name])}")
        return found

    def _inputs(
        self, table: Table, seen: Sequence[str], problems: Problems
    ) -> tuple[NDArray[np.float32], tuple[str, ...]]:
        parts: list[NDArray[np.float32]] = []
        names: list[str] = []
        wide = len(seen) + sum(len(values) for values in self.categories.values())
        whole_number("numbers of all records", wide * len(table[seen[0]]), at_most=MOST_TABLE_CELLS)
        for one in seen:
            make = self._one_hot if one in self.categories else self._scaled
            part, called = make(one, table[one], problems)
            parts.append(part)
            names += called
        return np.concatenate(parts, 1), tuple(names)

    def beyond_bounds(self, table: Table, public: BoolArray, task: Task) -> list[str]:
        """A sentence on numbers of public records that lie beyond their bounds; none if none do.

        Args:
            table: the cells.
            public: which records are; no other is looked at.
            task: whose bounds are those of a number to be predicted.

        Example:
            >>> columns = TableColumns(label="sick", bounds={"age": (0, 110)}, labels=(0, 1))
            >>> rows = {"age": [30, 200, -1, 300], "sick": [0, 1, 0, 1]}
            >>> columns.beyond_bounds(rows, np.array([True, True, True, False]), columns.task())
            ['of 3 public records, numbers beyond their bounds count as the bound: age 1 below and 1
             above [0, 110]. Records that are not public are cut off as well, and not counted.']
        """
        count = int(public.sum())
        seen = [one for one in self.seen(table) if one in self.bounds]
        bounds = {one: (self.ends(one), self.bounds[one]) for one in seen}
        if isinstance(self.label, str) and task.bounds is not None:
            bounds[self.label] = task.bounds, task.bounds
        found = []
        for one, ((low, high), stated) in bounds.items() if count else ():
            values, is_missing = self._numbers(one, list(compress(table[one], public)), {})
            below = int((~is_missing & (values < low)).sum())
            above = int((~is_missing & (values > high)).sum())
            if below or above:
                found.append(
                    f"{one_line(one, 60)} {below:,} below and {above:,} above {_shown(stated)}"
                )
        if not found:
            return []
        return [
            f"of {counted(count, 'public record')}, numbers beyond their bounds count as the "
            f"bound: {', '.join(found)}. Records that are not public are cut off as well, and not "
            "counted."
        ]

    def _one_hot(
        self, name: str, cells: Sequence[Any], problems: Problems
    ) -> tuple[NDArray[np.float32], list[str]]:
        values = self.categories[name]
        places, other = places_of(values), len(values)
        columns = _by_value(
            name, cells, lambda cell: place_of(cell, places, other), problems, other
        )
        hot = np.zeros((len(cells), len(values) + 1), np.float32)
        hot[np.arange(len(cells)), np.asarray(columns, np.int64)] = 1.0
        return hot, [*(f"{name} = {_word(one)}" for one in values), f"{name} = other"]

    def _scaled(
        self, name: str, cells: Sequence[Any], problems: Problems
    ) -> tuple[NDArray[np.float32], list[str]]:
        low, high = self.ends(name)
        filling, is_told = self.filled(name)
        values, is_missing = self._numbers(name, cells, problems)
        filled = np.where(is_missing, filling, values)
        scaled = (2.0 * np.clip(filled, low, high) - (low + high)) / (high - low)
        columns, names = [scaled], [name]
        if is_told:
            columns.append(is_missing.astype(np.float64))
            names.append(f"{name} is missing")
        return np.stack(columns, 1).astype(np.float32), names

    def _classes(self, cells: Sequence[Any], problems: Problems) -> NDArray[np.int64]:
        places, name = places_of(self.labels), self.targets[0]
        classes = np.asarray(
            _by_value(
                name, cells, lambda cell: place_of(cell, places, NO_CLASS), problems, NO_CLASS
            ),
            np.int64,
        )
        listed = ", ".join(map(_word, self.labels[:10]))
        for place in np.flatnonzero(classes == NO_CLASS).tolist():
            problems.setdefault(
                place,
                f"{_record(name, place)} is not one of the labels {listed}. "
                "Add it to labels if it is a class of its own, or take such records out.",
            )
        return classes


def dataset_from_table(
    table: Any,
    *,
    label: str | Sequence[str],
    client: str | None = None,
    features: Sequence[str] = (),
    categories: Mapping[str, Sequence[Any]] | None = None,
    bounds: Mapping[str, Sequence[float]] | None = None,
    missing: str | float | Mapping[str, str | float] = "middle",
    labels: Sequence[Any] = (),
    task: Task | None = None,
    test_share: float = 0.2,
    test_public: bool = False,
    seed: int = 0,
    name: str = "table",
    person: str | None = None,
    person_terms: PersonTerms | None = None,
) -> Dataset:
    """A data set from a table: a DataFrame of pandas or polars, or a mapping of columns.

    Args:
        table: one row a record.
        label: as in `TableColumns`, like all that follow up to ``labels``.
        client: the column that says whose record it is; the data set then knows its clients.
        features: columns a model sees; all others if none are named.
        categories: public lists of values.
        bounds: public bounds of numbers.
        missing: what a missing number counts as.
        labels: public values of the label.
        task: what is predicted; without it one of the ``labels``.
        test_share: share of each client's records that are test records.
        test_public: whether results on the test records may be published; else a private run
            does not write them down.
        seed: which records are test records.
        name: what to call it.
        person: the column that says of which person a row is, where that is the unit of privacy.
        person_terms: how the rows of a person are used.

    Raises:
        InputError: a column or its meaning is missing, or a cell cannot be used.

    Example:
        >>> rows = {"age": [30, 61, 45, 70], "ward": ["a", "a", "b", "b"], "sick": [1, 2, 1, 2]}
        >>> data = dataset_from_table(rows, label="sick", labels=[1, 2], client="ward",
        ...     bounds={"age": (0, 110)}, test_share=0.5)
        >>> len(data), data.clients.tolist(), data.classes
        (2, ['a', 'b'], 2)
    """
    columns = TableColumns(
        label=label if isinstance(label, str) else tuple(label),
        client=client,
        features=_listed("features", features),
        categories=dict(categories or {}),
        bounds=dict(bounds or {}),
        missing=missing,
        labels=_listed("labels", labels),
        person=person,
    )
    return table_dataset(
        columns_of_frame(table),
        columns,
        task=task,
        test_share=test_share,
        test_public=test_public,
        seed=seed,
        name=name,
        persons=(person_terms or PersonTerms()) if person is not None else None,
    )


def table_dataset(
    table: Table,
    columns: TableColumns,
    *,
    task: Task | None = None,
    test_share: float = 0.2,
    test_public: bool = False,
    seed: int = 0,
    name: str = "table",
    is_test: BoolArray | None = None,
    tested: Collection[str] | None = None,
    public: Collection[str] = (),
    persons: PersonTerms | None = None,
) -> Dataset:
    """The data set of a table whose columns are known; see `dataset_from_table`.

    Args:
        table: the cells.
        columns: what they mean.
        task: what is predicted.
        test_share: share of each client's records that are test records.
        test_public: whether results on them may be published.
        seed: which records they are.
        name: what to call it.
        is_test: which records they are, instead of a share.
        tested: whose test records are used, if not everybody's: one that left takes its own along.
        public: clients whose records are.
        persons: how the rows of a person are used, where the person is the unit of privacy.
    """
    wanted = columns.task(**({} if task is None else {"kind": task.kind, "bounds": task.bounds}))
    inputs, targets, _, problems = columns.encode_leniently(table)
    clients = None
    if columns.client is not None:
        clients = np.array(client_names(columns.client, table[columns.client]))
    blank = "own" if persons is None else persons.blank_person
    names = person_names(columns.person, table, blank)
    if is_test is None:
        is_test = held_for_test(len(inputs), clients, names, share=test_share, seed=seed)
    if not is_test.any():
        allowed = "large enough for one test record of some client"
        raise InputError("test_share", given=test_share, allowed=allowed)
    scored = is_test
    if tested is not None and clients is not None:
        scored = is_test & np.isin(clients, list(tested))
        if not scored.any():
            raise InputError.because("no client that takes part has a test record.")
    for place, problem in problems.items():
        if test_public and scored[place]:
            raise InputError.because(problem)
    found = dataset_from_arrays(
        name,
        train_inputs=inputs[~is_test],
        train_labels=targets[~is_test],
        test_inputs=inputs[scored],
        test_labels=targets[scored],
        task=wanted if task is None else task,
        clients=None if clients is None else clients[~is_test],
        test_public=test_public,
    )
    shown = scored & test_public
    if clients is not None and public:
        shown |= np.isin(clients, list(public))
    remarks = (
        *columns.unnamed_persons(table, shown),
        *columns.beyond_bounds(table, shown, found.task),
    )
    grouped = tested_ones = None
    if names is not None and persons is not None:
        grouped = persons.group(names[~is_test], found.clients, seed=seed)
        whose = None if clients is None else clients[scored]
        tested_ones = persons.group(names[scored], whose, seed=seed)
    seen = columns.seen(table)
    return replace(
        found,
        columns=replace(columns, features=seen),
        persons=grouped,
        test_persons=tested_ones,
        remarks=remarks,
        # Each column, scaled to its bounds or one of its values, is at most 1 away from 0.
        row_bound=math.sqrt(len(seen) + 1),
        test_clients=None if clients is None else clients[scored],
        unusable=next(iter(problems.values()), found.unusable),
    )


def held_for_test(
    records: int,
    clients: NDArray[np.str_] | None,
    persons: NDArray[np.str_] | None = None,
    *,
    share: float,
    seed: int,
) -> BoolArray:
    """Which records are test records: the share of each client's, by the seed and its name alone.

    So a client that holds only its own rows finds the same ones. Where persons are named, about
    this share of them are test persons.

    Example:
        >>> wards = np.array(["a", "b", "a", "b", "a", "a"])
        >>> both = held_for_test(6, wards, share=0.5, seed=1)
        >>> alone = held_for_test(4, wards[wards == "a"], share=0.5, seed=1)
        >>> both[wards == "a"].tolist() == alone.tolist()
        True
    """
    if persons is not None:
        return persons_for_test(persons, clients, share=share, seed=seed)
    number("test_share", share, above=0, below=1)
    whole_number("seed", seed, at_least=0)
    owners = np.full(records, "") if clients is None else clients
    is_test = np.zeros(records, np.bool_)
    distinct, inverse, counts = np.unique(owners, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
    for client, own in zip(distinct.tolist(), groups, strict=True):
        rng = np.random.default_rng([seed, _TEST_STREAM, zlib.crc32(client.encode())])
        held = min(round(share * own.size), own.size - 1)
        is_test[rng.permutation(own)[:held]] = True
    return is_test


def read_table(path: str | Path) -> Table:
    r"""The columns of a CSV or Parquet file.

    A CSV file has a header; commas, semicolons or tabs separate its columns. Rows of empty cells
    and columns without a name (an index that was written too) are left out.

    Raises:
        DataMissingError: there is no such file, or what reads Parquet is not installed.
        FileFormatError: it cannot be read, or is larger than a table may be.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "patients.csv"
        >>> _ = path.write_text("age;ward\n30,5;north\n;\n41;south\n")
        >>> read_table(path)
        {'age': ['30,5', '41'], 'ward': ['north', 'south']}
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise DataMissingError(
            f"The table {place} is not there. Paths start from the folder of the configuration."
        )
    if place.suffix.lower() == ".parquet":
        return _read_parquet(place)
    return _read_csv(place)


def columns_of_frame(table: Any) -> Table:
    """The columns of a DataFrame (pandas, polars) or of a mapping of columns.

    Example:
        >>> columns_of_frame({"age": [30, None]})
        {'age': [30, None]}
    """
    if isinstance(table, Mapping):
        found = {str(name): list(cells) for name, cells in table.items()}
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):
        # By position: two columns of one name would come as a table.
        names = [str(name) for name in table.columns]
        _check_header(names)
        found = {str(name): _cells(table[name]) for name in table.columns}
    else:
        allowed = "a DataFrame, or a mapping of columns"
        raise InputError("table", given=type(table).__name__, allowed=allowed)
    lengths = {len(cells) for cells in found.values()}
    if len(lengths) != 1 or not max(lengths):
        raise InputError("lengths of columns", given=sorted(lengths), allowed="one length above 0")
    return found


def kind_of(cells: Sequence[Any]) -> str:
    """Whether a column holds ``number``s, ``date``s, ``text`` of few values, or ``free text``.

    Example:
        >>> kind_of(["1", "2,5", ""]), kind_of(["a", "b", "a", "a"]), kind_of(["x1", "y2", "z3"])
        ('number', 'text', 'free text')
    """
    there = [cell for cell in cells if not is_missing_cell(cell)]
    distinct = {_word(cell) for cell in there}
    if all(not isinstance(c, str) or _number_in_cell(c.strip()) is not None for c in there):
        return "number"
    if all(_days_of_cell(cell) is not None for cell in there):
        return "date"
    return "text" if len(distinct) <= max(2, min(50, len(there) // 2)) else "free text"


def values_of(cells: Sequence[Any]) -> list[Any]:
    """The different values of a column that is public, numbers as such, in order.

    Example:
        >>> values_of(["2", "1", "", "2"]), values_of(["b", "a", "A", "none", ""])
        ([1, 2], ['a', 'b', 'none'])
    """
    words = {_word(cell) for cell in cells if not is_missing_cell(cell)}
    numbers = {word: _number_in_cell(word) for word in words}
    if None in numbers.values():
        # Beside other words, none is a value like them; those that differ in case only are one.
        words |= {_word(cell) for cell in cells if isinstance(cell, str) and _word(cell) in _NONE}
        return sorted({word.casefold(): word for word in sorted(words)}.values())
    found = sorted({value for value in numbers.values() if value is not None})
    return [int(value) if value.is_integer() else value for value in found]


def client_names(name: str, cells: Sequence[Any]) -> list[str]:
    """The client of each record, as text.

    Raises:
        InputError: a record has none.

    Example:
        >>> client_names("ward", [7, "north ", 7.0])
        ['7', 'north', '7']
    """
    problems: Problems = {}
    names = _by_value(
        name, cells, lambda cell: "" if is_missing_cell(cell) else _word(cell), problems, ""
    )
    if "" in names:
        place = names.index("")
        empty = f"{_record(name, place)} is empty: it must say whose record it is."
        raise InputError.because(problems.get(place, empty))
    return names


def person_names(
    name: str | None, table: Table, blank: BlankPerson, *, whole: bool = True
) -> NDArray[np.str_] | None:
    """Whose each row is, "" where a cell says nothing; None where no column says it.

    Args:
        name: the column, if there is one.
        table: the cells.
        blank: what a row is of which it is not known.
        whole: whether these are all clients, whose persons must have several rows.

    Raises:
        InputError: a row has no person and that is refused, or the column names no persons.
    """
    if name is None:
        return None
    if name not in table:
        step = did_you_mean(name, table)
        raise InputError("person", given=name, allowed="a column of the table", next_step=step)
    words = _by_value(
        name, table[name], lambda cell: "" if is_missing_cell(cell) else _word(cell), {}, ""
    )
    check_persons(name, words, blank=blank, whole=whole)
    return np.array(words)


def _listed(name: str, values: Any) -> tuple[Any, ...]:
    """The values of a list; a text is no list of its letters."""
    if isinstance(values, str):
        raise InputError(name, given=values, allowed=f"a list, as in [{values!r}, ...]")
    return tuple(values)


def _check_values(name: str, values: Any, at_least: int = 1) -> None:
    if not isinstance(values, list | tuple):
        raise InputError(name, given=values, allowed="a list of values")
    if len(values) < at_least:
        raise InputError(name, given=list(values), allowed=f"a list of {at_least} values or more")
    for one in values:
        if not isinstance(one, str | int | float | bool | np.generic) or one != one:
            raise InputError(name, given=one, allowed="text, numbers, or true and false")
    if len({_word(one) for one in values}) < len(values):
        raise InputError(name, given=list(values), allowed="different values")


def _check_bounds(name: str, values: Any) -> None:
    if not isinstance(values, list | tuple) or len(values) != 2:
        allowed = "the smallest and the largest number, as in [0, 100]"
        raise InputError(name, given=values, allowed=allowed)
    if isinstance(values[0], str):
        low, high = (_days(one) if isinstance(one, str) else None for one in values)
        if low is None or high is None or not low < high:
            allowed = 'the first and the last date, as in ["2015-01-31", "2025-12-31"]'
            raise InputError(name, given=list(values), allowed=allowed)
        return
    low, high = (number(name, one) for one in values)
    if not low < high or not np.isfinite(high - low):
        raise InputError(name, given=list(values), allowed="a smaller and a larger number")


def _shown(bounds: Sequence[Any]) -> str:
    return f"[{', '.join(one if isinstance(one, str) else f'{one:g}' for one in bounds)}]"


def _key(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else f'"{one_line(name, 60)}"'


def _record(column: str, place: int) -> str:
    return f"the column {one_line(column, 60)} of record {place + 1:,}"


def _by_value(
    name: str,
    cells: Sequence[Any],
    read: Callable[[Any], Any],
    problems: Problems,
    unreadable: Any,
) -> list[Any]:
    """What is read of every cell, and ``unreadable`` for lists and the like; each cell once."""
    known: dict[tuple[type, Hashable], Any] = {}
    values = []
    for place, cell in enumerate(cells):
        key = (type(cell), cell)
        try:
            is_new = key not in known
        except TypeError:
            kind = type(cell).__name__
            problem = f"{_record(name, place)} holds a {kind}; it must be text or a number."
            problems.setdefault(place, problem)
            values.append(unreadable)
            continue
        if is_new:
            known[key] = read(cell)
        values.append(known[key])
    return values


def is_missing_cell(cell: Any) -> bool:
    """Whether a cell is empty, or one of the words that stand for that."""
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING_WORDS):
        return True
    return isinstance(cell, float | np.floating) and cell != cell


def _word(value: Any) -> str:
    """A value as text; 3.0 is 3."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _same(word: str) -> str:
    """A text that is equal for texts of the same number or truth value, and in any case."""
    if (value := number_in(word)) is not None:
        return _word(value)
    return word.casefold()


def places_of(values: Sequence[Any]) -> dict[str, int]:
    """The place of each value, as it is written and as a number."""
    places: dict[str, int] = {}
    for read in (_same, _word):  # what is written comes first: it overwrites
        places |= {read(_word(one)): place for place, one in reversed(list(enumerate(values)))}
    return places


def place_of(cell: Any, places: Mapping[str, int], other: int) -> int:
    word = "" if cell is None or (isinstance(cell, float) and cell != cell) else _word(cell)
    return places.get(word, places.get(_same(word), other) if word else other)


def numbers_of(
    name: str,
    cells: Sequence[Any],
    problems: Problems | None = None,
    read: Callable[[Any], float | None] | None = None,
) -> tuple[FloatArray, BoolArray]:
    """The numbers of a column, 0 where one is missing, and where that is.

    Args:
        name: of the column, for messages.
        cells: its cells.
        problems: where messages on cells that hold no number go, which then count as missing;
            without it they are refused.
        read: the number of a cell, NaN where it is missing, None where it holds none.

    Example:
        >>> values, is_missing = numbers_of("age", ["30,5", "", True])
        >>> values.tolist(), is_missing.tolist()
        ([30.5, 0.0, 1.0], [False, True, False])
    """
    listed: Problems = {} if problems is None else problems
    numbers = _by_value(name, cells, read or _number_of_cell, listed, None)
    for place in [place for place, value in enumerate(numbers) if value is None]:
        listed.setdefault(
            place,
            f"{_record(name, place)} is not a {'date' if read is _days_of_cell else 'number'}. "
            "Correct it, leave it empty if "
            "it is missing, or list the column's values in categories.",
        )
    if problems is None and listed:
        raise InputError.because(listed[min(listed)])
    values = np.asarray(numbers, np.float64)  # None becomes NaN
    is_missing = np.isnan(values)
    return np.where(is_missing, 0.0, values), is_missing


def _number_of_cell(cell: Any) -> float | None:
    """A cell as a number, NaN where it is missing; None where it is none."""
    if is_missing_cell(cell):
        return np.nan
    if isinstance(cell, str):
        word = cell.strip().lower()
        return _TRUTHS[word] if word in _TRUTHS else _number_in_cell(word)
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None


def _days(text: str) -> float | None:
    """A date that is written as 2015-01-31, whatever time follows, in days since 1970."""
    written = _DATE.match(text.strip())
    try:
        return float(date.fromisoformat(written[0]).toordinal() - _EPOCH) if written else None
    except ValueError:
        return None


_DATE, _EPOCH = re.compile(r"\d{4}-\d\d-\d\d(?!\d)", re.ASCII), date(1970, 1, 1).toordinal()


def _days_of_cell(cell: Any) -> float | None:
    """A cell as days since 1970, NaN where it is missing; None where it is no date."""
    if is_missing_cell(cell):
        return np.nan
    return _days(str(cell)) if isinstance(cell, str | date | np.datetime64) else None


def _number_in_cell(word: str) -> float | None:
    """The number of a cell as people write it: 12 %, 1 234 567, 1,234,567 or 1'234.5.

    1,234 alone is none: it may as well be 1.234.

    Example:
        >>> [_number_in_cell(one) for one in ("12 %", "1,234,567", "1.234.567,8", "1'234", "1,234")]
        [12.0, 1234567.0, 1234567.8, 1234.0, None]
    """
    plain = word.removesuffix("%").strip()
    if (grouped := _GROUPED.fullmatch(plain)) is not None:
        whole, mark, end = grouped["whole"], grouped["mark"], grouped["end"]
        if whole.count(mark) > 1 or end or mark not in ",.":
            return number_in(whole.replace(mark, "") + end.replace(",", "."))
    return number_in(plain)


_GROUPED = re.compile(
    r"(?P<whole>[+-]?\d{1,3}(?P<mark>[,.'\u00a0\u202f ])\d{3}(?:(?P=mark)\d{3})*)"
    r"(?P<end>(?:(?!(?P=mark))[.,]\d+)?)",
    re.ASCII,
)


def _needed_numbers(name: str, cells: Sequence[Any], problems: Problems) -> FloatArray:
    """The numbers to be predicted; NaN where there is none that can be."""
    values, is_missing = numbers_of(name, cells, problems)
    infinite = np.isinf(values)
    for place in np.flatnonzero(is_missing | infinite).tolist():
        why = "is not finite." if infinite[place] else "is missing: every record needs one."
        problems.setdefault(place, f"{_record(name, place)} {why}")
    return np.where(is_missing | infinite, np.nan, values)


def _cells(column: Any) -> list[Any]:
    """The cells of a column of a DataFrame, None where one is missing."""
    if hasattr(column, "notna"):  # pandas
        column = column.astype(object).where(column.notna(), None)
    for way in ("to_list", "tolist"):
        if hasattr(column, way):
            return list(getattr(column, way)())
    return list(column)


def _check_header(names: Sequence[str]) -> None:
    if len(names) > MOST_TABLE_COLUMNS:
        raise InputError("columns", given=len(names), allowed=f"at most {MOST_TABLE_COLUMNS}")
    for name, times in Counter(names).items():
        if name and times > 1:
            words = f"the column {one_line(name, 60)} appears {times} times; rename one."
            raise InputError.because(words)
    if not any(names):
        raise InputError.because("there is no header: the first line must name the columns.")


def _read_csv(path: Path) -> Table:
    content = read_utf8(path, at_most_bytes=LARGEST_TABLE)
    written = rows_with_lines(path, content, separators=",;\t")
    rows = ((line, cells) for line, cells in written if any(map(str.strip, cells)))
    line, header = next(rows, (1, []))
    names = [cell.strip() for cell in header]
    try:
        _check_header(names)
    except InputError as error:
        raise FileFormatError(path, str(error), line=line) from None
    keep = [bool(name) for name in names]
    table: dict[str, list[str]] = {name: [] for name in names if name}
    shared: dict[str, str] = {}
    for line, cells in rows:
        if len(cells) != len(names):
            words = f"the row has {len(cells)} cells; the header has {len(names)}."
            raise FileFormatError(path, words, line=line)
        for column, cell in zip(table.values(), compress(cells, keep), strict=True):
            # A table has few different cells: each is kept once.
            column.append(shared.setdefault(cell, cell))
        if len(shared) > 1_000_000:
            shared.clear()
    if not next(iter(table.values())):
        raise FileFormatError(path, "there is a header but no record below it")
    return dict(table)


def _read_parquet(path: Path) -> Table:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise DataMissingError(
            f"Reading {path} needs pyarrow, which is not installed. Get it with: python -m pip "
            'install "dpcohort[tables]", or save the table as CSV.'
        ) from None
    words = "not a Parquet file that can be read ({})"
    # pyarrow has a dozen errors for bytes that are wrong
    with of_file(path, words, (Exception,)), of_file(path):
        with parquet.ParquetFile(path) as file:
            _check_parquet(path, file)
            _check_header([str(name) for name in file.schema_arrow.names])
            kinds = [file.schema.column(place) for place in range(len(file.schema))]
        # A text is stored once, and rows are numbers of texts: so it stays in memory.
        texts = [kind.path for kind in kinds if kind.physical_type == "BYTE_ARRAY"]
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            found = file.read()
        table = {name: _cells_of_chunks(found.column(name).chunks) for name in found.column_names}
    if not table or not next(iter(table.values())):
        raise FileFormatError(path, "there are no records in it")
    # An index that pandas wrote too.
    return {name: cells for name, cells in table.items() if not name.startswith("__index_level_")}


def _cells_of_chunks(chunks: Iterable[Any]) -> list[Any]:
    """The cells of a column of a Parquet file; equal texts of a chunk are one object."""
    cells: list[Any] = []
    for chunk in chunks:
        if hasattr(chunk, "dictionary"):
            distinct = chunk.dictionary.to_pylist()
            places = chunk.indices.to_pylist()
            cells += [None if place is None else distinct[place] for place in places]
        else:
            cells += chunk.to_pylist()
    return cells


def _check_parquet(path: Path, file: Any) -> None:
    """Refuse a file that would be out of all proportion to its bytes, before it is read."""
    for column in file.schema_arrow:
        if column.type.num_fields:
            words = (
                f"the column {one_line(column.name, 60)} holds {column.type}; it must be text or "
            )
            raise FileFormatError(path, words + "numbers. Save the table without it.")
    about = file.metadata
    cells = about.num_rows * about.num_columns
    if cells > MOST_TABLE_CELLS:
        words = f"{cells:,} cells; a table may have {MOST_TABLE_CELLS:,}."
        raise FileFormatError(path, words)
    groups: Iterable[int] = range(about.num_row_groups)
    size = sum(int(about.row_group(group).total_byte_size) for group in groups)
    # Numbers of texts, numbers, and fixed bytes have a width; texts are in the file's own count.
    kinds = [file.schema.column(place) for place in range(len(file.schema))]
    width = sum(max(8, kind.length if "FIXED" in kind.physical_type else 0) for kind in kinds)
    size = max(size, about.num_rows * width)
    check_unpacking(path, size, "Save it with less compression, or as CSV.")
