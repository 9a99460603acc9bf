# SPDX-License-Identifier: Apache-2.0
"""One door to every data set, by name, by path or by a function of the user's; and what is here.

The digits are embedded: 1,797 handwritten digits of 8x8 pixels that come with scikit-learn (the
test part of the UCI "Optical Recognition of Handwritten Digits" set), there without a network. So
is ``heart-disease``, records of four hospitals: ``heart_disease.csv`` beside this file is the UCI
"Heart Disease" set of Andras Janosi, William Steinbrunn, Matthias Pfisterer and Robert Detrano
(1989, https://doi.org/10.24432/C52P4X), CC BY 4.0; its four "processed" files in one, with blanks
for what is missing.

The files of the other sets that have a name (``sources.toml`` lists them) are held against
published checksums. A checksum is the SHA-256 of a file's **content**: decompressed for IDX, as
binary records for CIFAR-10. Packagers compress again, but the content is the same bytes everywhere.
The archives' own MD5 sums are those published with
the sets.

A set is looked for in this order: the folder given, ``$DPCOHORT_DATA``, the user's cache, and where
a system package puts it; in each, the usual sub-folders and the folder itself.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from dpcohort._validate import choice, did_you_mean
from dpcohort.data._arrays import ARRAY_NAMES, dataset_from_mapping, load_arrays
from dpcohort.data._dataset import Dataset, Normalisation
from dpcohort.data._image_files import read_batch, read_idx
from dpcohort.data._tables import TableColumns, read_table, table_dataset
from dpcohort.errors import DataMissingError, DpcohortError, FileFormatError, InputError
from dpcohort.plugins import is_named_function, named_plugin
from dpcohort.text_files import is_table


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One published file: a part of a data set, or an archive as it is downloaded.

    Attributes:
        names: file names to look for, the usual one first.
        size: in bytes; of a part, those of its content.
        sha256: of the content of a part.
        md5: of an archive, as published with the set.
    """

    names: tuple[str, ...]
    size: int
    sha256: str = ""
    md5: str = ""

    @property
    def name(self) -> str:
        """The usual file name."""
        return self.names[0]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A public data set: what it holds, where it may lie, where it comes from.

    Attributes:
        name: as `load_dataset` takes it.
        layout: ``idx`` (train images, train labels, test images, test labels) or ``cifar10``
            (five training batches, one test batch).
        shape: of one record.
        classes: number of classes.
        train_records: number of training records.
        test_records: number of test records.
        normalisation: constants published for the set.
        folders: sub-folders of a data folder to look in.
        system_folders: where a system package puts it.
        files: its parts, in the order of the layout.
        archives: what to download; either one per part, or one tar file with all parts.
        urls: folders on the web that hold the archives, the first one tried first.
        commands: other ways to get it, as shell commands.
    """

    name: str
    layout: str
    shape: tuple[int, ...]
    classes: int
    train_records: int
    test_records: int
    normalisation: Normalisation
    folders: tuple[str, ...]
    files: tuple[DataFile, ...]
    archives: tuple[DataFile, ...]
    urls: tuple[str, ...]
    system_folders: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    @property
    def how_to_get(self) -> tuple[str, ...]:
        """Shell commands that would get it, the simplest first."""
        return (f"dpcohort data fetch {self.name}", *self.commands)


def source_named(name: str) -> Source:
    """The known set of that name.

    Raises:
        InputError: if there is none; the nearest name is suggested.

    Example:
        >>> source_named("mnist").shape
        (1, 28, 28)
    """
    return SOURCES[choice("data set", name, SOURCES)]


_TABLES = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
#: Every set that can be asked for by name, apart from the embedded ones.
SOURCES = TypeAdapter(dict[str, Source]).validate_python(
    {name: {"name": name, **table} for name, table in _TABLES.items()}
)


#: The environment variable that names a folder of data sets.
DATA_VARIABLE = "DPCOHORT_DATA"


#: The folder of a data set and its files, in the order of the source's; None for one not there.
FoundSet = tuple[Path, tuple[Path | None, ...]]


def user_cache() -> Path:
    """The folder for downloaded data sets: ``$XDG_CACHE_HOME/dpcohort`` or ``~/.cache/dpcohort``.

    Example:
        >>> user_cache().name
        'dpcohort'
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base and Path(base).is_absolute():  # the standard says to ignore a relative one
        return Path(base) / "dpcohort"
    return Path(os.path.expanduser("~")) / ".cache" / "dpcohort"


def data_roots(data_dir: str | Path | None = None) -> tuple[Path, ...]:
    """The folders that data sets are looked for in, the first one first.

    Example:
        >>> data_roots("here")[0].name
        'here'
    """
    stated = [data_dir, os.environ.get(DATA_VARIABLE) or None, user_cache()]
    roots = [Path(place).expanduser() for place in stated if place is not None]
    return tuple(dict.fromkeys(roots))


def find_set(source: Source, data_dir: str | Path | None = None) -> FoundSet | None:
    """The first folder with every part of the set, else the one with most parts, else None.

    Example:
        >>> from dpcohort.data._load import SOURCES
        >>> found = find_set(SOURCES["mnist"])
        >>> found is None or len(found[1]) == 4
        True
    """
    best: FoundSet | None = None
    fewest_missing = len(source.files)
    for folder in _candidates(source, data_dir):
        # Not Path.is_file, which fails in a folder that may not be entered.
        paths = tuple(
            next((folder / name for name in part.names if os.path.isfile(folder / name)), None)
            for part in source.files
        )
        if (missing := paths.count(None)) < fewest_missing:
            best, fewest_missing = (folder, paths), missing
        if not fewest_missing:
            break
    return best


def missing_set(
    source: Source, data_dir: str | Path | None = None, found: FoundSet | None = None
) -> DataMissingError:
    """The error for a set that is not there or not whole: where it was sought, how to get it.

    Example:
        >>> from dpcohort.data._load import SOURCES
        >>> print(str(missing_set(SOURCES["mnist"], "data")).splitlines()[0])
        The data set 'mnist' was not found.
    """
    first = f"The data set {source.name!r} was not found."
    if found is not None:
        folder, paths = found
        absent = source.files[paths.index(None)].name
        first = f"The data set {source.name!r} is not whole: {folder} has no {absent}."
    roots = data_roots(data_dir)
    names = ", ".join(part.name for part in source.files)
    lines = [
        first,
        "Looked in:",
        *(f"  {place}" for place in (*roots, *source.system_folders)),
        f"(each folder itself, and in it: {', '.join(source.folders)})",
        "Any of these gets it:",
        *(f"  {command}" for command in source.how_to_get),
        f"  put these files into {roots[-1] / source.folders[0]}: {names}",
        f"  say where it is: --data-dir FOLDER, or the variable {DATA_VARIABLE}",
    ]
    return DataMissingError("\n".join(lines))


def _candidates(source: Source, data_dir: str | Path | None) -> Iterator[Path]:
    for root in data_roots(data_dir):
        for name in source.folders:
            yield root / name
        # The folder itself comes last: MNIST and Fashion-MNIST use the same file names, so a
        # folder that says its name is the better evidence.
        yield root
    yield from map(Path, source.system_folders)


#: What can be asked for by name.
DATASET_NAMES = ("digits", "heart-disease", *SOURCES)


def load_dataset(name_or_path: str | Path, *, data_dir: str | Path | None = None) -> Dataset:
    """A data set, checked whole.

    Args:
        name_or_path: ``digits`` or ``heart-disease`` (embedded), ``mnist``, ``fashion-mnist`` or
            ``cifar10``; the path of an ``.npz`` file or of a folder of ``.npy`` files; or
            ``module:function``, which is called without arguments and returns a `Dataset` or a
            mapping of arrays.
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
    if text == "heart-disease":
        return _load_heart_disease()
    if text in SOURCES:
        return _load_source(SOURCES[text], data_dir)
    if is_table(text):
        raise InputError.because(
            f"{text} is a table, and a name says nothing of its columns. Write a configuration for "
            f"it (dpcohort new my.toml --from {text} --label COLUMN), or in Python: "
            "dataset_from_table(frame, label=...)."
        )
    is_path = text.endswith((".npz", ".npy")) or "/" in text or os.sep in text
    if isinstance(name_or_path, Path) or is_path or (text and Path(text).is_dir()):
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
    folder, paths = found

    def status(part: DataFile, path: Path | None) -> FileStatus:
        if path is None:
            detail = f"not in {folder}; get it with: {source.how_to_get[0]}"
            return FileStatus(part.name, path, "missing", detail)
        try:
            read_part(source, part, path)
        except FileFormatError as error:
            return FileStatus(part.name, path, "corrupt", str(error))
        return FileStatus(part.name, path, "ok", f"SHA-256 {part.sha256}")

    return tuple(map(status, source.files, paths))


def describe_datasets(data_dir: str | Path | None = None) -> list[DatasetRow]:
    """Every data set that has a name: what it holds, where it is, how to get it.

    Files are looked for, not read; `check_dataset` reads them.

    Example:
        >>> [row.name for row in describe_datasets()]
        ['digits', 'heart-disease', 'mnist', 'fashion-mnist', 'cifar10']
    """
    rows = [
        DatasetRow("digits", (1, 8, 8), 10, 1_442, 355, "embedded", ()),
        DatasetRow("heart-disease", (17,), 2, 497, 243, "embedded", ()),
    ]
    for source in SOURCES.values():
        found = find_set(source, data_dir)
        folder = str(found[0]) if found is not None and None not in found[1] else None
        size = source.train_records, source.test_records
        ways = () if folder else source.how_to_get
        rows.append(DatasetRow(source.name, source.shape, source.classes, *size, folder, ways))
    return rows


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
        test_public=True,
        public=True,
    )


def heart_columns() -> TableColumns:
    """What the columns of ``heart_disease.csv`` mean.

    Example:
        >>> heart_columns().labels
        ('healthy', 'disease')
    """
    text = Path(__file__).with_name("heart_disease.toml").read_text(encoding="utf-8")
    return TableColumns(**tomllib.loads(text))


def _load_heart_disease() -> Dataset:
    """497 training and 243 test records of four hospitals, 2 classes.

    As in FLamby's Fed-Heart-Disease: without slope, ca and thal, which most hospitals did not
    record, and without the records that lack anything else (740 of 920 stay).
    """
    table = read_table(Path(__file__).with_name("heart_disease.csv"))
    kept = [name for name in table if name not in ("slope", "ca", "thal")]
    rows = [row for row in zip(*(table[name] for name in kept), strict=True) if all(row)]
    whole = dict(zip(kept, zip(*rows, strict=True), strict=True))
    whole["target"] = tuple("healthy" if cell == "0" else "disease" for cell in whole["target"])
    # As for the digits: every third record of a hospital and class, in file order.
    groups = np.array([f"{h} {t}" for h, t in zip(whole["hospital"], whole["target"], strict=True)])
    is_test = np.zeros(len(groups), np.bool_)
    for group in np.unique(groups):
        is_test[np.flatnonzero(groups == group)[2::3]] = True
    found = table_dataset(
        whole, heart_columns(), name="heart-disease", test_public=True, is_test=is_test
    )
    # A cholesterol of 0 lies beyond the bounds on purpose.
    return replace(found, remarks=(), public=True)


def _load_source(source: Source, data_dir: str | Path | None) -> Dataset:
    found = find_set(source, data_dir)
    if found is None or None in found[1]:
        raise missing_set(source, data_dir, found)
    parts = [
        read_part(source, part, path)
        for part, path in zip(source.files, found[1], strict=True)
        if path is not None
    ]
    if source.layout == "idx":
        train_images, train_labels, test_images, test_labels = parts
    else:  # a record is its label and its image
        train, test = np.concatenate(parts[:-1]), parts[-1]
        train_images, train_labels = np.ascontiguousarray(train[:, 1:]), train[:, 0]
        test_images, test_labels = np.ascontiguousarray(test[:, 1:]), test[:, 0]
    data = Dataset(
        name=source.name,
        train_inputs=train_images.reshape(-1, *source.shape),
        train_labels=train_labels.astype(np.int64),
        test_inputs=test_images.reshape(-1, *source.shape),
        test_labels=test_labels.astype(np.int64),
        classes=source.classes,
        normalisation=source.normalisation,
        test_public=True,
        public=True,
    )
    _PUBLISHED.add(data)
    return data


#: Data sets as they were read, their bytes held against the published checksums.
_PUBLISHED: WeakSet[Dataset] = WeakSet()


def is_published(data: Dataset) -> bool:
    """Whether this very object was read from the checked files of a set that anyone can download.

    A data set that was changed, or only has the name of one, is not.

    Example:
        >>> is_published(load_dataset("digits"))
        False
    """
    return data in _PUBLISHED


def _from_function(text: str) -> Dataset:
    function = named_plugin("data", text, "dataset")
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
