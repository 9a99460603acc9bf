# SPDX-License-Identifier: Apache-2.0
"""A user's own arrays as a data set: one ``.npz`` file, or a folder of ``.npy`` files.

Both hold the arrays train_inputs, train_labels, test_inputs and test_labels, and optionally the
public constants classes, scale, mean and std, and test_public: whether results on the test records
may be published. What a private run needs is stated there or where the file is named. Files that
need pickle are refused. Arrays in a folder are mapped, not read: a set may be larger than memory.
"""

from __future__ import annotations

import math
import mmap
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import did_you_mean, number, whole_number
from dpcohort.data._dataset import Dataset, Normalisation, dataset_from_arrays
from dpcohort.data._persons import PersonTerms
from dpcohort.errors import DataMissingError, FileFormatError, InputError
from dpcohort.limits import check_unpacking
from dpcohort.plain_text import one_line
from dpcohort.tasks import Task
from dpcohort.text_files import of_file

#: The arrays every set needs.
ARRAY_NAMES = ("train_inputs", "train_labels", "test_inputs", "test_labels")
#: Of a set whose clients pay for an evaluation: whose each test record is.
_TEST_CLIENTS = "test_clients"
_CONSTANT_NAMES = ("classes", "scale", "mean", "std", "test_public")


def load_arrays(
    path: str | Path,
    task: Mapping[str, Any] | None = None,
    stated: Mapping[str, Any] | None = None,
    person: str | None = None,
    *,
    clients: NDArray[Any] | None = None,
    terms: PersonTerms | None = None,
) -> Dataset:
    """The data set in an ``.npz`` file or in a folder of ``.npy`` files.

    Beside the arrays that every set needs it may have ``test_clients``: whose each test record is.

    Args:
        path: the file or folder.
        task: kind, loss, bounds and so on of what is predicted; without it a class.
        stated: ``classes`` and ``test_public``, where the file does not say them.
        person: the array that says of which person a training row is; ``test_`` and this name is
            that of test rows, if there is one.
        clients: the client of each training row.
        terms: how the rows of a person are used.

    Raises:
        DataMissingError: if there is nothing at that path.
        FileFormatError: if the file is broken, needs pickle, or lacks an array.
        InputError: if the arrays do not fit together.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "mine.npz"
        ...     np.savez(path, train_inputs=np.zeros((3, 2)), train_labels=[0, 1, 1],
        ...              test_inputs=np.zeros((1, 2)), test_labels=[0], classes=2)
        ...     load_arrays(path).name
        'mine'
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise DataMissingError(
            f"The data set {place} is not there. Give an .npz file or a folder of .npy files with "
            f"the arrays {', '.join(ARRAY_NAMES)}."
        )
    if place.is_dir():
        more = (_TEST_CLIENTS, *(() if person is None else (person, f"test_{person}")))
        paths = [place / f"{name}.npy" for name in (*ARRAY_NAMES, *_CONSTANT_NAMES, *more)]
        entries = {path.stem: map_npy(path) for path in paths if path.is_file()}
    elif place.suffix == ".npz":
        entries = read_npz(place)
    else:
        problem = "a data set is an .npz file, or a folder with the files " + ", ".join(
            f"{name}.npy" for name in ARRAY_NAMES
        )
        raise FileFormatError(place, problem)
    with of_file(place):
        whose: dict[str, Any] = {}
        if person is not None:
            if person not in entries:
                allowed = f"an array of the file: {', '.join(sorted(entries))}"
                raise InputError("person", given=person, allowed=allowed)
            whose = {"persons": entries.pop(person), "clients": clients, "person_terms": terms}
            whose["test_persons"] = entries.pop(f"test_{person}", None)
        if _TEST_CLIENTS in entries:
            whose["test_clients"] = entries.pop(_TEST_CLIENTS)
        for key, value in (stated or {}).items():
            if key in entries and _scalar(entries[key]) != value:
                allowed = f"{_scalar(entries[key])}, as the file itself says"
                raise InputError(key, given=value, allowed=allowed)
        data = dataset_from_mapping(place.stem, {**entries, **(stated or {})}, task, **whose)
    return of_path(data, place)


def of_path(data: Dataset, path: str | Path) -> Dataset:
    """The data set, whose message on records that cannot be used names their file."""
    return replace(data, unusable=f"{path}: {data.unusable}") if data.unusable else data


def load_test_arrays(path: str | Path, task: Mapping[str, Any] | None = None) -> Dataset:
    """As `load_arrays`, for a server that tests and has no training records.

    A file with ``test_inputs`` and ``test_labels`` alone is enough; they stand in both places.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "test.npz"
        ...     np.savez(path, test_inputs=np.zeros((1, 2)), test_labels=[0], classes=2)
        ...     load_test_arrays(path).test_inputs.shape
        (1, 2)
    """
    place = Path(path).expanduser()
    if place.suffix != ".npz" or not place.is_file():
        return load_arrays(place, task)
    entries = read_npz(place)
    if not entries.keys() & set(ARRAY_NAMES[:2]):
        entries |= {
            f"train_{k}": entries[f"test_{k}"]
            for k in ("inputs", "labels")
            if f"test_{k}" in entries
        }
    with of_file(place):
        return dataset_from_mapping(place.stem, {**entries, "test_public": True}, task)


def dataset_from_mapping(
    name: str, entries: Mapping[str, Any], task: Mapping[str, Any] | None = None, **whose: Any
) -> Dataset:
    """A data set from named arrays and constants; for the task see `load_arrays`.

    Raises:
        InputError: if one is missing, unknown, or does not fit the others.

    Example:
        >>> dataset_from_mapping("tiny", {"train_inputs": [[1.0]], "train_labels": [0]})
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: The array 'test_inputs' is missing; a data set needs
        train_inputs, train_labels, test_inputs, test_labels.
    """
    needed = ", ".join(ARRAY_NAMES)
    for unknown in set(entries) - set(ARRAY_NAMES) - set(_CONSTANT_NAMES):
        hint = did_you_mean(unknown, (*ARRAY_NAMES, *_CONSTANT_NAMES)) or ""
        raise InputError.because(
            f"The array {unknown!r} is not known; a data set has {needed}, and may have "
            f"{', '.join(_CONSTANT_NAMES)}. {hint}".rstrip()
        )
    for wanted in ARRAY_NAMES:
        if wanted not in entries:
            raise InputError.because(f"The array {wanted!r} is missing; a data set needs {needed}.")
    classes = entries.get("classes")
    public = _scalar(entries.get("test_public", False))
    if public not in (True, False):
        raise InputError("test_public", given=public, allowed="true or false")
    return dataset_from_arrays(
        name,
        **{wanted: entries[wanted] for wanted in ARRAY_NAMES},
        classes=None if classes is None else whole_number("classes", _scalar(classes), at_least=2),
        normalisation=_normalisation(entries),
        test_public=bool(public),
        task=_task(task, entries["train_labels"]),
        **whose,
    )


def _task(given: Mapping[str, Any] | None, labels: Any) -> Task | None:
    """The task, once the labels say how many there are of them; None for plain classes."""
    if not given or given.get("kind", "classification") == "classification":
        return None
    columns = np.shape(labels)[1:]
    if given["kind"] == "multi-label" and len(columns) != 1:
        allowed = "(records, labels), a 0 or 1 for each label"
        raise InputError("shape of train_labels", given=np.shape(labels), allowed=allowed)
    return Task.from_dict(given, outputs=columns[0] if given["kind"] == "multi-label" else 1)


def _normalisation(entries: Mapping[str, Any]) -> Normalisation | None:
    """The constants stated, the rest as for a set that states none; None if there are none."""
    if not {"scale", "mean", "std"} & set(entries):
        return None
    is_bytes = np.asarray(entries["train_inputs"]).dtype == np.uint8
    mean = _numbers("mean", entries.get("mean", 0.0))
    std = _numbers("std", entries.get("std", [1.0] * len(mean)))
    scale = number("scale", _scalar(entries.get("scale", 255.0 if is_bytes else 1.0)), above=0)
    return Normalisation(scale=scale, mean=mean, std=std)


def _numbers(field: str, values: Any) -> tuple[float, ...]:
    array = np.atleast_1d(np.asarray(values))
    if array.dtype.kind not in "iuf" or array.ndim != 1:
        raise InputError(field, given=values, allowed="a number, or one number a channel")
    return tuple(float(value) for value in array)


def _scalar(value: Any) -> Any:
    array = np.asarray(value)
    return array.item() if array.size == 1 else value


_READ_HEADER: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(path: str | Path) -> dict[str, NDArray[Any]]:
    """Every array of an ``.npz`` file.

    Raises:
        FileFormatError: if the file is missing, broken, something else, or needs pickle.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(Path(folder) / "two.npz", a=[1, 2], b=[0.5])
        ...     sorted(read_npz(Path(folder) / "two.npz"))
        ['a', 'b']
    """
    try:
        # Opened here: numpy leaves the file open when it turns out to be no archive.
        with open(path, "rb") as file:
            if file.read(6) == np.lib.format.MAGIC_PREFIX:
                raise FileFormatError(path, "a single array, not an .npz file of several")
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            with archive:
                _check_sizes(path, archive.zip)
                return {name: archive[name] for name in archive.files}
    except FileFormatError:
        raise
    except Exception as error:  # zip, zlib and numpy have a dozen errors for bytes that are wrong
        raise FileFormatError(path, _why(error)) from None


def map_npy(path: str | Path) -> NDArray[Any]:
    """The array of an ``.npy`` file, mapped into memory; changes to it stay in memory.

    Unlike an array mapped to be read only, it counts as writable, which torch wants of an array
    it shares memory with.

    Raises:
        FileFormatError: if the file is missing, broken, something else, or needs pickle.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(Path(folder) / "one.npy", [1, 2])
        ...     map_npy(Path(folder) / "one.npy").tolist()
        [1, 2]
    """
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="c")
    except Exception as error:  # as above
        raise FileFormatError(path, _why(error)) from None
    return array


def is_mapped(array: NDArray[Any]) -> bool:
    """Whether an array's numbers lie in a file that is mapped into memory, as `map_npy` does.

    Example:
        >>> is_mapped(np.zeros(3))
        False
    """
    return _mapping_of(array) is not None


def let_go(array: NDArray[Any]) -> None:
    """Let go of the pages of an array that is mapped to be read only; they are read when needed.

    Numbers that were looked through once, to be checked, then take no memory of this process.
    Where they may have been changed in memory, or are not mapped, nothing happens.

    Example:
        >>> let_go(np.zeros(3))
    """
    mapping = _mapping_of(array)
    if mapping is not None and mapping.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
        mapping._mmap.madvise(mmap.MADV_DONTNEED)


def _mapping_of(array: NDArray[Any]) -> Any:
    """The mapped array that an array is a part of, or None."""
    part: Any = array
    while isinstance(part, np.ndarray) and not isinstance(part, np.memmap):
        part = part.base
    return part if isinstance(part, np.memmap) else None


def _check_sizes(path: str | Path, archive: zipfile.ZipFile | None) -> None:
    """Refuse arrays that would be larger than the file says or larger than a file may become.

    numpy makes room for what an array's header says before it reads one number of it.
    """
    members = [] if archive is None else archive.infolist()
    check_unpacking(
        path,
        sum(member.file_size for member in members),
        "Save it without compression (numpy.savez), or as a folder of .npy files.",
    )
    for member in members:
        assert archive is not None
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = _READ_HEADER.get(version)
            if read is None:
                raise ValueError(f"{member.filename!r} has the unknown version {version}")
            shape, _, dtype = read(file)
            if dtype.hasobject:
                raise ValueError("Python objects")
            size = math.prod(shape) * dtype.itemsize
            if not dtype.itemsize or size != member.file_size - file.tell():
                raise ValueError(
                    f"{one_line(member.filename, 100)} says it has {size:,} bytes of numbers and "
                    f"has {member.file_size - file.tell():,}"
                )


def _why(error: Exception) -> str:
    if "pickle" in str(error) or "Python objects" in str(error):
        return "an array of Python objects, or no array at all; save plain numbers (no pickle)"
    if isinstance(error, OSError) and error.strerror:
        return f"the file cannot be read ({error.strerror})"
    return f"the file cannot be read ({error})"
