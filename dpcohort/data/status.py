# SPDX-License-Identifier: Apache-2.0
"""Which data sets are on this machine, and whether their files are the published ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpcohort.data.content import read_part
from dpcohort.data.places import find_set, missing_set
from dpcohort.data.sources import SOURCES, source_named
from dpcohort.errors import FileFormatError

__all__ = ["DatasetRow", "FileStatus", "check_dataset", "describe_datasets"]


@dataclass(frozen=True, kw_only=True)
class FileStatus:
    """What was found of one file of a data set.

    Attributes:
        name: the file's usual name.
        path: where it is, or None.
        state: ``ok``, ``missing`` or ``corrupt``.
        detail: the checksum that holds, or what is wrong.
    """

    name: str
    path: Path | None
    state: Literal["ok", "missing", "corrupt"]
    detail: str


@dataclass(frozen=True, kw_only=True)
class DatasetRow:
    """One line of the list of data sets.

    Attributes:
        name: as `load_dataset` takes it.
        shape: of one record.
        classes: number of classes.
        train_records: number of training records.
        test_records: number of test records.
        found: the folder it lies in, ``embedded``, or None where it is missing or not whole.
        how_to_get: commands that would get it; empty where it is there.
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    train_records: int
    test_records: int
    found: str | None
    how_to_get: tuple[str, ...]


def check_dataset(name: str, data_dir: str | Path | None = None) -> tuple[FileStatus, ...]:
    """The state of every file of a named set: present, and the published bytes.

    Raises:
        DataMissingError: if no file of the set is on this machine.
        InputError: if there is no set of that name with files.

    Example:
        >>> check_dataset("digits")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: data set = 'digits' is not allowed: it must be one of mnist,
        fashion-mnist, cifar10.
    """
    source = source_named(name)
    found = find_set(source, data_dir)
    if found is None:
        raise missing_set(source, data_dir)
    statuses = []
    for part, path in zip(source.files, found.paths, strict=True):
        if path is None:
            detail = f"not in {found.folder}; get it with: {source.how_to_get[0]}"
            statuses.append(FileStatus(name=part.name, path=None, state="missing", detail=detail))
            continue
        try:
            read_part(source, part, path)
        except FileFormatError as error:
            status = FileStatus(name=part.name, path=path, state="corrupt", detail=str(error))
        else:
            detail = f"SHA-256 {part.sha256}"
            status = FileStatus(name=part.name, path=path, state="ok", detail=detail)
        statuses.append(status)
    return tuple(statuses)


def describe_datasets(data_dir: str | Path | None = None) -> list[DatasetRow]:
    """Every data set that has a name: what it holds, where it is, how to get it.

    Files are looked for, not read; `check_dataset` reads them.

    Example:
        >>> [row.name for row in describe_datasets()]
        ['digits', 'mnist', 'fashion-mnist', 'cifar10']
    """
    rows = [
        DatasetRow(
            name="digits",
            shape=(1, 8, 8),
            classes=10,
            train_records=1442,
            test_records=355,
            found="embedded",
            how_to_get=(),
        )
    ]
    for source in SOURCES.values():
        found = find_set(source, data_dir)
        is_here = found is not None and found.is_complete
        rows.append(
            DatasetRow(
                name=source.name,
                shape=source.shape,
                classes=source.classes,
                train_records=source.train_records,
                test_records=source.test_records,
                found=str(found.folder) if found is not None and is_here else None,
                how_to_get=() if is_here else source.how_to_get,
            )
        )
    return rows
