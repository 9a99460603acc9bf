# SPDX-License-Identifier: Apache-2.0
"""Download of the public data sets from their original archives: resumed, checked, whole.

A file being downloaded is called ``NAME.part`` and keeps what arrived, so the next attempt asks
for the rest only. It gets its name when its size and checksum hold, never before.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpcohort.atomic_file import atomic_writer
from dpcohort.data._load import DATA_VARIABLE, DataFile, Source, source_named, user_cache
from dpcohort.errors import DataMissingError, FileFormatError, InputError, VerificationError
from dpcohort.progress import Progress, silent

_PIECE = 1 << 16
_TIMEOUT_SECONDS = 30.0
_ATTEMPTS = 3
_NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ssl.SSLError,
    TimeoutError,
    ConnectionError,
)


def fetch_dataset(
    name: str,
    dest: str | Path | None = None,
    *,
    progress: Progress = silent,
    mirror: str | None = None,
) -> Path:
    """Download a named data set, or what is still missing of it.

    Args:
        name: ``mnist``, ``fashion-mnist`` or ``cifar10``.
        dest: the data folder, in which the set gets a folder of its own; ``$DPCOHORT_DATA`` or the
            user's cache by default, where `load_dataset` finds it.
        progress: called with the file, the bytes on disk and its bytes in all, piece by piece.
        mirror: a folder on the web to try before the original archives.

    Returns:
        The folder with the files.

    Raises:
        DataMissingError: if it cannot be downloaded or written; what arrived is kept.
        VerificationError: if what arrived is not the published file; nothing of it is kept.
        InputError: if there is no set of that name, or the mirror is not on the web.

    Example:
        >>> fetch_dataset("mnits")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: data set = 'mnits' is not allowed: it must be one of mnist,
        fashion-mnist, cifar10. Did you mean 'mnist'?
    """
    source = source_named(name)
    urls = source.urls
    if mirror is not None:
        if not mirror.startswith(("http://", "https://")):
            raise InputError("mirror", given=mirror, allowed="an address with http:// or https://")
        urls = (mirror.rstrip("/") + "/", *urls)
    root = dest or os.environ.get(DATA_VARIABLE) or user_cache()
    folder = Path(root).expanduser() / source.folders[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if source.archives[0].name.endswith(".tar.gz"):
            _fetch_tar(source, folder, urls, progress)
        else:
            for archive in source.archives:
                _download(archive, folder, urls, progress)
    except OSError as error:
        raise DataMissingError(
            f"The data set {source.name!r} cannot be written to {folder}: "
            f"{error.strerror or error}. What arrived is kept."
        ) from None
    return folder


def _download(archive: DataFile, folder: Path, urls: tuple[str, ...], progress: Progress) -> Path:
    """The archive in the folder, from the first address that gives it, if it is not there yet."""
    part, target = folder / f"{archive.name}.part", folder / archive.name
    if _size(target) == archive.size and _digest(target, _md5) == archive.md5:
        return target
    problems: list[str] = []
    wrong: VerificationError | None = None
    for url in urls:
        try:
            if _complete(url + archive.name, part, archive, progress, problems):
                return _accept(part, target, archive)
        except VerificationError as error:
            wrong = error  # the next address may have the published file
    if wrong is not None:
        raise wrong
    reasons = "\n".join(f"  {problem}" for problem in dict.fromkeys(problems))
    raise DataMissingError(
        f"{archive.name} could not be downloaded: {_size(part):,} of {archive.size:,} bytes "
        f"arrived and are kept in {part}; the same command continues there.\n{reasons}".rstrip()
    )


def _complete(
    url: str, part: Path, archive: DataFile, progress: Progress, problems: list[str]
) -> bool:
    """Whether the part is complete, after as many attempts as bring something new."""
    for _ in range(_ATTEMPTS):
        before = _size(part)
        try:
            _receive(url, part, archive, progress)
        except _NETWORK_ERRORS as error:
            problems.append(f"{url}: {getattr(error, 'reason', error)}")
        if _size(part) == archive.size:
            return True
        if _size(part) <= before:
            problems.append(f"{url}: nothing more arrived")
            break
    return False


def _receive(url: str, part: Path, archive: DataFile, progress: Progress) -> None:
    """Append what the address gives to the part; the connection may end at any byte."""
    start = _size(part)
    if start > archive.size:
        part.unlink()
        start = 0
    if start == archive.size:
        return
    request = urllib.request.Request(url, headers={"User-Agent": "dpcohort"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
        span = response.headers.get("Content-Range") or ""
        continues = response.status == 206 and span.startswith(f"bytes {start}-")
        if start and response.status == 206 and not continues:
            raise http.client.HTTPException("the server continued at another byte")
        received = start if continues else 0
        with open(part, "ab" if continues else "wb") as file:
            # One byte more than expected is enough to see that it is not the file.
            while piece := response.read(min(_PIECE, archive.size + 1 - received)):
                file.write(piece)
                received += len(piece)
                progress(archive.name, received, archive.size)
                if received > archive.size:
                    break
    if received > archive.size:
        part.unlink()
        raise VerificationError(
            f"{url} is longer than the published {archive.size:,} bytes; nothing of it was kept."
        )


def _accept(part: Path, target: Path, archive: DataFile) -> Path:
    """Give the finished part its name, if it is the published file; else remove it."""
    found = _digest(part, _md5)
    if found != archive.md5:
        part.unlink()
        raise VerificationError(
            f"{archive.name}: what was downloaded is not the published file (MD5 {archive.md5} "
            f"expected, found {found}); nothing of it was kept. Try again, or another mirror."
        )
    with open(part, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, target)
    return target


def _fetch_tar(source: Source, folder: Path, urls: tuple[str, ...], progress: Progress) -> None:
    """The parts of a set that comes as one tar file, which is removed once they are laid out."""
    wanted = [
        part
        for part in source.files
        if _size(folder / part.name) != part.size
        or _digest(folder / part.name, hashlib.sha256) != part.sha256
    ]
    if not wanted:
        return
    path = _download(source.archives[0], folder, urls, progress)
    try:
        with tarfile.open(path, "r:gz") as tar:
            for part in wanted:
                _extract(tar, f"{source.folders[0]}/{part.name}", part, folder / part.name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise FileFormatError(path, f"the archive cannot be read ({error})") from None
    path.unlink()


def _extract(tar: tarfile.TarFile, member: str, part: DataFile, path: Path) -> None:
    """One member, by its exact name and as a plain file; the archive decides no path."""
    try:
        content = tar.extractfile(member)
    except KeyError:
        content = None
    if content is None:
        raise FileFormatError(path, f"the archive has no file {member}")
    values = content.read(part.size + 1)
    found = hashlib.sha256(values).hexdigest()
    if found != part.sha256:
        raise VerificationError(
            f"{member}: SHA-256 {part.sha256} expected, found {found}; nothing of it was kept."
        )
    with atomic_writer(path, binary=True) as file:
        file.write(values)


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def _digest(path: Path, algorithm: Callable[[], Any]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
