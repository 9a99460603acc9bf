# SPDX-License-Identifier: Apache-2.0
"""One door to every data set, by name, by path or by a function of the user's; and what is here.

The digits are embedded: 1,797 handwritten digits of 8x8 pixels that come with scikit-learn (the
test part of the UCI "Optical Recognition of Handwritten Digits" set), there without a network. The
files of the other sets that have a name are held against the published checksums.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import did_you_mean
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
    "describe_datasets",
    "load_dataset",
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
        return _load_digits()
    if text in SOURCES:
        return _load_source(SOURCES[text], data_dir)
    if isinstance(name_or_path, Path) or _looks_like_a_path(text):
        return load_arrays(name_or_path)
    if is_named_function(text):
        return _from_function(text)
    raise InputError(
        "dataset",
        given=text,
        allowed=f"one of {', '.join(DATASET_NAMES)}, the path of an .npz file or of a folder of "
        ".npy files, or module:function",
        next_step=did_you_mean(text, DATASET_NAMES),
    )


def read_part(source: Source, part: DataFile, path: Path) -> NDArray[np.uint8]:
    """One part of a named set, known to be the published bytes.

    The checksum is of its content: of an IDX file decompressed, header included; else of the
    records.

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
    digest = hashlib.sha256()
    if source.layout == "idx":
        values = read_idx(path, axes=3 if "idx3" in part.name else 1)
        digest.update(bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes())
    else:
        values = read_batch(path)
    digest.update(np.ascontiguousarray(values).data)
    found = digest.hexdigest()
    if found != part.sha256:
        # MNIST and Fashion-MNIST share their file names.
        owners = [(p.name, s.name) for s in SOURCES.values() for p in s.files if p.sha256 == found]
        hint = "Remove it and fetch it again."
        if owners:
            hint = "These are the bytes of {} of {}.".format(*owners[0])
        problem = (
            f"this is not {part.name} of {source.name}: SHA-256 of its content "
            f"{part.sha256} expected, found {found}. {hint}"
        )
        raise FileFormatError(path, problem)
    return values


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
        state: Literal["ok", "missing", "corrupt"] = "ok"
        detail = f"SHA-256 {part.sha256}"
        if path is None:
            state = "missing"
            detail = f"not in {found.folder}; get it with: {source.how_to_get[0]}"
        else:
            try:
                read_part(source, part, path)
            except FileFormatError as error:
                state, detail = "corrupt", str(error)
        statuses.append(FileStatus(part.name, path, state, detail))
    return tuple(statuses)


def describe_datasets(data_dir: str | Path | None = None) -> list[DatasetRow]:
    """Every data set that has a name: what it holds, where it is, how to get it.

    Files are looked for, not read; `check_dataset` reads them.

    Example:
        >>> [row.name for row in describe_datasets()]
        ['digits', 'mnist', 'fashion-mnist', 'cifar10']
    """
    rows = [DatasetRow("digits", (1, 8, 8), 10, 1_442, 355, "embedded", ())]
    for source in SOURCES.values():
        found = find_set(source, data_dir)
        folder = str(found.folder) if found is not None and found.is_complete else None
        rows.append(
            DatasetRow(
                name=source.name,
                shape=source.shape,
                classes=source.classes,
                train_records=source.train_records,
                test_records=source.test_records,
                found=folder,
                how_to_get=() if folder else source.how_to_get,
            )
        )
    return rows


def _looks_like_a_path(text: str) -> bool:
    if text.endswith((".npz", ".npy")) or "/" in text or os.sep in text:
        return True
    return bool(text) and Path(text).is_dir()


def _load_digits() -> Dataset:
    """1,442 training and 355 test records, 10 classes, pixels from 0 to 16."""
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
    # Fixed and public: within each class every fifth record in file order is a test record, so
    # that every class has its share and no random generator decides.
    is_test = np.zeros(len(classes), np.bool_)
    for label in range(10):
        is_test[np.flatnonzero(classes == label)[4::5]] = True
    return Dataset(
        name="digits",
        train_inputs=inputs[~is_test],
        train_labels=classes[~is_test],
        test_inputs=inputs[is_test],
        test_labels=classes[is_test],
        classes=10,
        normalisation=Normalisation(scale=16.0),
    )


def _load_source(source: Source, data_dir: str | Path | None) -> Dataset:
    found = find_set(source, data_dir)
    if found is None or not found.is_complete:
        raise missing_set(source, data_dir, found)
    parts = [
        read_part(source, part, path)
        for part, path in zip(source.files, found.paths, strict=True)
        if path is not None
    ]
    if source.layout == "idx":
        train_images, train_labels, test_images, test_labels = parts
    else:  # a record is its label and its image
        train, test = np.concatenate(parts[:-1]), parts[-1]
        train_images, train_labels = np.ascontiguousarray(train[:, 1:]), train[:, 0]
        test_images, test_labels = np.ascontiguousarray(test[:, 1:]), test[:, 0]
    return Dataset(
        name=source.name,
        train_inputs=train_images.reshape(-1, *source.shape),
        train_labels=train_labels.astype(np.int64),
        test_inputs=test_images.reshape(-1, *source.shape),
        test_labels=test_labels.astype(np.int64),
        classes=source.classes,
        normalisation=source.normalisation,
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
