# SPDX-License-Identifier: Apache-2.0
"""One door to every data set: by name, by path, or by a function of the user's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import nearest
from dpcohort.data.arrays import ARRAY_NAMES, dataset_from_mapping, load_arrays
from dpcohort.data.content import read_part
from dpcohort.data.dataset import Dataset
from dpcohort.data.digits import load_digits
from dpcohort.data.places import find_set, missing_set
from dpcohort.data.sources import SOURCES, Source
from dpcohort.errors import DpcohortError, InputError
from dpcohort.plugins import is_named_function, named_function

__all__ = ["DATASET_NAMES", "load_dataset"]

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
