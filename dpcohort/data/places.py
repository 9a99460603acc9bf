# SPDX-License-Identifier: Apache-2.0
"""Where a data set may lie on this machine, and which of its files are there.

Looked in, in this order: the folder given, ``$DPCOHORT_DATA``, the user's cache, and where a system
package puts it; in each, the folder itself and the usual sub-folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpcohort.data.sources import DataFile, Source
from dpcohort.errors import DataMissingError

__all__ = ["DATA_VARIABLE", "FoundSet", "data_roots", "find_set", "missing_set", "user_cache"]

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
    for folder in _candidates(source, data_dir):
        found = FoundSet(folder=folder, paths=tuple(_locate(folder, part) for part in source.files))
        if found.is_complete:
            return found
        if _parts(found) > (_parts(best) if best is not None else 0):
            best = found
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
    lines = [f"The data set {source.name!r} was not found."]
    if found is not None:
        absent = [
            part.name for part, path in zip(source.files, found.paths, strict=True) if path is None
        ]
        lines = [f"The data set {source.name!r} is not whole: {found.folder} has no {absent[0]}."]
    lines.append("Looked in:")
    lines += [f"  {root}" for root in data_roots(data_dir)]
    lines += [f"  {folder}" for folder in source.system_folders]
    lines.append(f"(each folder itself, and in it: {', '.join(source.folders)})")
    lines.append("Any of these gets it:")
    lines += [f"  {command}" for command in source.how_to_get]
    names = ", ".join(part.name for part in source.files)
    lines.append(f"  put these files into {data_roots(data_dir)[-1] / source.folders[0]}: {names}")
    lines.append(f"  say where it is: --data-dir FOLDER, or the variable {DATA_VARIABLE}")
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


def _parts(found: FoundSet | None) -> int:
    return 0 if found is None else sum(path is not None for path in found.paths)
