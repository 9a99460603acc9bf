# SPDX-License-Identifier: Apache-2.0
"""One door to every data set: by name, by path, or by a function of the user's."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import IntArray, nearest
from dpcohort.data.arrays import ARRAY_NAMES, dataset_from_mapping, load_arrays
from dpcohort.data.dataset import Dataset, Normalisation
from dpcohort.data.image_files import read_batch, read_idx
from dpcohort.data.sources import SOURCES, DataFile, Source, find_set, missing_set, source_named
from dpcohort.errors import DataMissingError, DpcohortError, FileFormatError, InputError
from dpcohort.plugins import is_named_function, named_function

__all__ = [
    "DATASET_NAMES",
    "DatasetRow",
    "FileStatus",
    "check_dataset",
    "content_sha256",
    "describe_datasets",
    "load_dataset",
    "load_digits",
    "rank_within_class",
    "read_part",
]


#: What can be asked for by name.
DATASET_NAMES = ("digits", *SOURCES)


def load_dataset(name_or_path: str | Path, *, data_dir: str | Path | None = None) -> Dataset:
    """A data set, checked whole.

    Args:
        name_or_path: ``digits`` (embedded), ``mnist``, ``fashion-mnist`` or ``cifar10``; the path
            of an ``.npz`` file or of a folder of ``.npy`` files; or ``module:function``, which is
            called without arguments and returns a `Dataset` or a mapping of arrays.
        data_dir: a folder to look for named sets in first, before ``$DPCOHORT_DATA``, the user's
            cache and the system's packages.

    Raises:
        DataMissingError: if the set is not on this machine; the message says how to get it.
        FileFormatError: if a file of it is broken or is not the published one.
        InputError: if there is no set of that name, or its arrays do not fit together.

    Example:
        >>> load_dataset("digits").input_shape
        (1, 8, 8)
    """
    text = os.fspath(name_or_path)
    if text == "digits":
        return load_digits()
    if text in SOURCES:
        return _load_source(SOURCES[text], data_dir)
    if isinstance(name_or_path, Path) or _looks_like_a_path(text):
        return load_arrays(name_or_path)
    if is_named_function(text):
        return _from_function(text)
    hint = nearest(text, DATASET_NAMES)
    raise InputError(
        "dataset",
        given=text,
        allowed=f"one of {', '.join(DATASET_NAMES)}, the path of an .npz file or of a folder of "
        ".npy files, or module:function",
        next_step=f"Did you mean {hint!r}?" if hint else None,
    )


def _looks_like_a_path(text: str) -> bool:
    if text.endswith((".npz", ".npy")) or "/" in text or os.sep in text:
        return True
    return bool(text) and Path(text).is_dir()


def _load_source(source: Source, data_dir: str | Path | None) -> Dataset:
    found = find_set(source, data_dir)
    if found is None or not found.is_complete:
        raise missing_set(source, data_dir, found)
    parts = [
        read_part(source, part, path)
        for part, path in zip(source.files, found.paths, strict=True)
        if path is not None
    ]
    train, test = _assemble_idx(parts) if source.layout == "idx" else _assemble_cifar10(parts)
    return Dataset(
        name=source.name,
        train_inputs=train[0].reshape(-1, *source.shape),
        train_labels=train[1].astype(np.int64),
        test_inputs=test[0].reshape(-1, *source.shape),
        test_labels=test[1].astype(np.int64),
        classes=source.classes,
        normalisation=source.normalisation,
    )


_Pair = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def _assemble_idx(parts: list[NDArray[np.uint8]]) -> tuple[_Pair, _Pair]:
    train_images, train_labels, test_images, test_labels = parts
    return (train_images, train_labels), (test_images, test_labels)


def _assemble_cifar10(parts: list[NDArray[np.uint8]]) -> tuple[_Pair, _Pair]:
    train, test = np.concatenate(parts[:-1]), parts[-1]
    return (
        (np.ascontiguousarray(train[:, 1:]), train[:, 0]),
        (np.ascontiguousarray(test[:, 1:]), test[:, 0]),
    )


def _from_function(text: str) -> Dataset:
    function = named_function("dataset", text)
    try:
        result = function()
    except DpcohortError:
        raise
    except Exception as error:  # the user's function may fail in any way
        next_step = f"Called without arguments it raised {type(error).__name__}: {error}"
        allowed = "a function that returns a data set"
        raise InputError("dataset", given=text, allowed=allowed, next_step=next_step) from error
    if isinstance(result, Dataset):
        return result
    if isinstance(result, Mapping):
        return dataset_from_mapping(text, result)
    raise InputError(
        f"result of {text}",
        given=type(result).__name__,
        allowed=f"a Dataset, or a mapping with {', '.join(ARRAY_NAMES)}",
    )


_EVERY = 5


def load_digits() -> Dataset:
    """The digits: 1,442 training and 355 test records, 10 classes, pixels from 0 to 16.

    Raises:
        DataMissingError: if scikit-learn is not installed.

    Example:
        >>> digits = load_digits()
        >>> digits.train_inputs.shape, digits.test_inputs.shape
        ((1442, 1, 8, 8), (355, 1, 8, 8))
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ModuleNotFoundError:
        raise DataMissingError(
            "The digits come with scikit-learn, which is not installed. "
            'Get it with: python -m pip install "dpcohort[train]"'
        ) from None
    images, labels = datasets.load_digits(return_X_y=True)
    inputs = images.astype(np.uint8).reshape(-1, 1, 8, 8)
    classes = labels.astype(np.int64)
    is_test = rank_within_class(classes) % _EVERY == _EVERY - 1
    return Dataset(
        name="digits",
        train_inputs=inputs[~is_test],
        train_labels=classes[~is_test],
        test_inputs=inputs[is_test],
        test_labels=classes[is_test],
        classes=10,
        normalisation=Normalisation(scale=16.0),
    )


def rank_within_class(labels: IntArray) -> IntArray:
    """How many records of the same class come before each record.

    Example:
        >>> rank_within_class(np.array([5, 3, 5, 5, 3])).tolist()
        [0, 0, 1, 2, 1]
    """
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    ranks = np.empty(len(labels), np.int64)
    ranks[order] = np.arange(len(labels)) - starts
    return ranks


def read_part(source: Source, part: DataFile, path: Path) -> NDArray[np.uint8]:
    """One part of a set, known to be the published bytes.

    Raises:
        FileFormatError: if the file is broken, or is not the published one; both checksums are
            named.

    Example:
        >>> mnist = SOURCES["mnist"]
        >>> read_part(mnist, mnist.files[1], Path("no-such-file"))
        Traceback (most recent call last):
        ...
        dpcohort.errors.FileFormatError: no-such-file: the file cannot be read (No such file or
        directory)
    """
    values = read_idx(path, axes=_axes(part)) if source.layout == "idx" else read_batch(path)
    found = content_sha256(source, values)
    if found != part.sha256:
        owner = _owner(found)
        hint = f" These are the bytes of {owner}." if owner else " Remove it and fetch it again."
        problem = (
            f"this is not {part.name} of {source.name}: SHA-256 of its content "
            f"{part.sha256} expected, found {found}.{hint}"
        )
        raise FileFormatError(path, problem)
    return values


def content_sha256(source: Source, values: NDArray[np.uint8]) -> str:
    """The checksum of a part's content: an IDX file decompressed, header included; else records.

    Example:
        >>> content_sha256(SOURCES["cifar10"], np.zeros((1, 3073), np.uint8))[:8]
        '5fbf904d'
    """
    digest = hashlib.sha256()
    if source.layout == "idx":
        digest.update(bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes())
    view: Any = np.ascontiguousarray(values).data
    digest.update(view)
    return digest.hexdigest()


def _axes(part: DataFile) -> int:
    return 3 if "idx3" in part.name else 1


def _owner(checksum: str) -> str | None:
    """Which known set has this content: MNIST and Fashion-MNIST share their file names."""
    for source in SOURCES.values():
        for part in source.files:
            if part.sha256 == checksum:
                return f"{part.name} of {source.name}"
    return None


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
