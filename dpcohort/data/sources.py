# SPDX-License-Identifier: Apache-2.0
"""The public data sets dpcohort knows, which ``sources.toml`` lists, and where they may lie.

A checksum is the SHA-256 of a file's **content**: decompressed for IDX, as binary records for
CIFAR-10. Packagers compress again and CIFAR-10 is published in several layouts, but the content is
the same bytes everywhere. The archives' own MD5 sums are those published with the sets.

A set is looked for in this order: the folder given, ``$DPCOHORT_DATA``, the user's cache, and where
a system package puts it; in each, the usual sub-folders and the folder itself.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpcohort._validate import choice
from dpcohort.data.dataset import Normalisation
from dpcohort.errors import DataMissingError

__all__ = [
    "DATA_VARIABLE",
    "SOURCES",
    "Archive",
    "DataFile",
    "FoundSet",
    "Source",
    "data_roots",
    "find_set",
    "missing_set",
    "source_named",
    "user_cache",
]


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One file of a public archive, as it is downloaded.

    Attributes:
        name: its file name.
        size: in bytes.
        md5: as published with the set, of the file as downloaded.
    """

    name: str
    size: int
    md5: str


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One part of a data set, in every spelling of its file name.

    Attributes:
        names: file names to look for, the usual one first.
        sha256: of the content.
        size: of the content, in bytes.
    """

    names: tuple[str, ...]
    sha256: str
    size: int

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
    archives: tuple[Archive, ...]
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


def _read_sources() -> dict[str, Source]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {name: _source(name, **table) for name, table in _frozen(tomllib.loads(text)).items()}


def _source(name: str, normalisation: Any, files: Any, archives: Any, **rest: Any) -> Source:
    return Source(
        name=name,
        normalisation=Normalisation(**normalisation),
        files=tuple(DataFile(**part) for part in files),
        archives=tuple(Archive(**archive) for archive in archives),
        **rest,
    )


def _frozen(value: Any) -> Any:
    """The value with tuples instead of lists."""
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


#: Every set that can be asked for by name, apart from the embedded digits.
SOURCES = _read_sources()


#: The environment variable that names a folder of data sets.
DATA_VARIABLE = "DPCOHORT_DATA"


@dataclass(frozen=True, kw_only=True)
class FoundSet:
    """The files of one data set in one folder; a part that is not there is None.

    Attributes:
        folder: where they lie.
        paths: one per part, in the order of the source's files.
    """

    folder: Path
    paths: tuple[Path | None, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every part is there."""
        return None not in self.paths


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
        >>> from dpcohort.data.sources import SOURCES
        >>> found = find_set(SOURCES["mnist"])
        >>> found is None or len(found.paths) == 4
        True
    """
    best: FoundSet | None = None
    fewest_missing = len(source.files)
    for folder in _candidates(source, data_dir):
        paths = tuple(_locate(folder, part) for part in source.files)
        if (missing := paths.count(None)) < fewest_missing:
            best, fewest_missing = FoundSet(folder=folder, paths=paths), missing
        if not fewest_missing:
            break
    return best


def missing_set(
    source: Source, data_dir: str | Path | None = None, found: FoundSet | None = None
) -> DataMissingError:
    """The error for a set that is not there or not whole: where it was sought, how to get it.

    Example:
        >>> from dpcohort.data.sources import SOURCES
        >>> print(str(missing_set(SOURCES["mnist"], "data")).splitlines()[0])
        The data set 'mnist' was not found.
    """
    first = f"The data set {source.name!r} was not found."
    if found is not None:
        absent = source.files[found.paths.index(None)].name
        first = f"The data set {source.name!r} is not whole: {found.folder} has no {absent}."
    roots = data_roots(data_dir)
    names = ", ".join(part.name for part in source.files)
    lines = [
        first,
        "Looked in:",
        *(f"  {folder}" for folder in (*roots, *source.system_folders)),
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


def _locate(folder: Path, part: DataFile) -> Path | None:
    for name in part.names:
        path = folder / name
        try:
            if path.is_file():
                return path
        except OSError:  # a folder that may not be entered
            return None
    return None
