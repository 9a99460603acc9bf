# SPDX-License-Identifier: Apache-2.0
"""A run's folder: its files, how they are written so that a crash leaves them whole, and read back.

JSON lines are append-only: an entry is on disk when ``append_line`` returns, and never changed. The
last two checkpoints are kept, each in one file that knows its own hash.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dpcohort._version import __version__
from dpcohort.atomic_file import atomic_writer, new_file_mode, sync_folder, write_text
from dpcohort.errors import (
    DataMissingError,
    FileFormatError,
    InputError,
    VerificationError,
    WaitingError,
)
from dpcohort.limits import LARGEST_JSON, LARGEST_LINE, LARGEST_LOG, read_bounded
from dpcohort.text_files import finite_json, parse_json

fcntl: Any
try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None

#: Settings that may change on a resume without changing the result.
_FREE = ("label", "evaluate_every", "checkpoint_every")


def fixed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a resume must agree with, as a file would hold them.

    Example:
        >>> fixed_settings({"seed": 3, "label": "first try"})
        {'seed': 3}
    """
    fixed: dict[str, Any] = finite_json({k: v for k, v in settings.items() if k not in _FREE})
    return fixed


def settings_sha256(settings: Mapping[str, Any]) -> str:
    """Hash of the settings that make a run what it is.

    Example:
        >>> settings_sha256({"seed": 3}) == settings_sha256({"seed": 3, "label": "second try"})
        True
        >>> settings_sha256({"seed": 3}) == settings_sha256({"seed": 4})
        False
    """
    content = json.dumps(fixed_settings(settings), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


_PACKAGES = ("numpy", "scipy", "dp-accounting", "torch", "scikit-learn", "safetensors")


def environment(device: str) -> dict[str, Any]:
    """Versions and device, for ``environment.json``.

    Example:
        >>> found = environment("cpu")
        >>> found["device"], "python" in found
        ('cpu', True)
    """
    import torch

    found: dict[str, Any] = {
        "dpcohort": __version__,
        "python": platform.python_version(),
        "system": sys.platform,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "packages": {name: installed_version(name) for name in _PACKAGES},
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
        found["cuda"] = torch.version.cuda
    return found


def installed_version(distribution: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


#: The configuration, if the run was made from one.
CONFIG = "config.toml"
#: The plan.
PLAN = "plan.json"
#: Who holds which records; private, like the records themselves.
PARTITION = "partition.npz"
#: What a resume must agree with; written last, so that its presence means a whole start.
SETTINGS = "run.json"
#: Draws, counted before they are computed.
LEDGER = "ledger.jsonl"
#: Public records of the rounds.
ROUNDS = "rounds.jsonl"
#: The last states.
CHECKPOINTS = "checkpoints"
#: One file a drawn client, or one for all.
RECEIPTS = "receipts"
#: The model that was scored: the average of iterates where one is kept, else the last one.
MODEL = "model.safetensors"
#: The last iterate, beside an average.
LAST_MODEL = "model-last.safetensors"
#: The average in runs of before, in which ``MODEL`` is the last iterate.
AVERAGE_MODEL = "model-average.safetensors"
#: Test results and hashes; present when the run is finished.
RESULT = "result.json"
#: Versions and device.
ENVIRONMENT = "environment.json"
#: Where the run goes on, if it does; written by the run that takes over.
CONTINUED = "continued.json"
#: Of a federated run: what the messages of each round came to.
EXCHANGE = "exchange.jsonl"
#: Of a federated run: what clients' own ledgers said last, and keys of members.
CLIENT_LEDGERS = "client-ledgers.json"
#: Of a federated run: guards' signatures over the draws that came, a line each.
SIGNATURES = "signatures.jsonl"
#: An operator's signature of a finished run.
SIGNATURE = "signature.json"
#: Of a run that goes on from others: their plans, ledgers, settings and partitions.
BEFORE = "before"
#: What was paid for the run's records after its plan was made: a file for each charge, by its id.
CHARGES = "charges"

#: What is written before the first round.
_FIRST = (CONFIG, PLAN, PARTITION, ENVIRONMENT, LEDGER, ROUNDS)


def without_times(folder: Path) -> None:
    """Give everything in a private run's folder the time at which its plan was written.

    Times of checkpoints and of the last round tell how long rounds took, and so how many records
    were in them.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     paths = [Path(name) / one for one in (PLAN, LEDGER)]
        ...     for time, path in enumerate(paths):
        ...         path.touch()
        ...         os.utime(path, (time, time))
        ...     without_times(Path(name))
        ...     [path.stat().st_mtime for path in paths]
        [0.0, 0.0]
    """
    if not (folder / PLAN).exists():
        return
    began = (folder / PLAN).stat().st_mtime_ns
    for path in (*folder.rglob("*"), folder):
        os.utime(path, ns=(began, began), follow_symlinks=False)


def begin_run(path: str | Path, *, again: bool = False, private: bool = False) -> Path:
    """Make a new run folder; one that holds anything is never touched.

    Args:
        path: where.
        again: begin anew where a start was cut short before anything was computed.
        private: only its owner may enter it: sizes of files and the times they change tell of
            the records, too.

    Raises:
        InputError: the folder is in use, or cannot be made.
    """
    folder = Path(path)
    try:
        if again and _is_half_begun(folder):
            (folder / LEDGER).unlink(missing_ok=True)
            (folder / ROUNDS).unlink(missing_ok=True)
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            words = "something else. Choose another name."
            if is_run(folder):
                go_on = "Go on with it (--resume; in Python resume=True)"
                again_spent = ": another private run spends every budget again" if private else ""
                words = f"a run. {go_on}, or choose another name{again_spent}."
            raise InputError.because(f"{folder} exists and holds {words}")
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        (folder / RECEIPTS).mkdir(exist_ok=True)
        if private:
            close_to_others(folder)
    except OSError as error:
        raise InputError.because(
            f"{folder} cannot be made: {error.strerror or error}. Choose another place."
        ) from None
    return folder


def _is_half_begun(folder: Path) -> bool:
    """Only what is written before the first round is there, and not all of it."""
    if is_run(folder) or not folder.is_dir():
        return False
    ledger = folder / LEDGER
    if ledger.is_file() and read_bounded(ledger, LARGEST_LOG).count(b"\n") > 1:
        return False  # more than its header: what is counted is never taken back
    return all(
        p.name in (*_FIRST, BEFORE)
        or (p.is_file() and p.name.startswith(tuple(f".{name}." for name in _FIRST)))
        or (p.name in (CHECKPOINTS, RECEIPTS) and not any(p.iterdir()))
        for p in folder.iterdir()
    )


def close_to_others(folder: Path) -> None:
    """Leave the folder and all that is in it to its owner: 0700 and 0600."""
    os.chmod(folder, 0o700)
    for place in folder.rglob("*"):
        if not place.is_symlink():
            os.chmod(place, 0o700 if place.is_dir() else 0o600)


def is_run(folder: str | Path) -> bool:
    """Whether a run was begun here."""
    return Path(folder, SETTINGS).is_file()


def find_run(path: str | Path) -> Path:
    """A run folder that is there.

    Raises:
        DataMissingError: there is none.
        InputError: it is a file.
    """
    if not is_run(path):
        raise no_run(Path(path))
    return Path(path)


def find_runs(path: str | Path) -> list[Path]:
    """The run folder itself, or the run folders (one a seed) in it.

    Raises:
        DataMissingError: there is none.
        InputError: it is a file.
    """
    found = [Path(path)] if is_run(path) else _inside(Path(path))
    if not found:
        raise no_run(Path(path))
    return found


def _inside(path: Path) -> list[Path]:
    return [place for place in sorted(path.glob("*")) if is_run(place)]


def no_run(path: Path) -> DataMissingError | InputError:
    """That there is no run, in the same words and with the same exit code in every command.

    A run that is not there is missing data; a file in its place is a wrong argument.

    Example:
        >>> print(no_run(Path("runs/none")))
        there is no run at runs/none. Make one with: dpcohort train CONFIG --out runs/none
    """
    if not path.exists():
        return DataMissingError(
            f"there is no run at {path}. Make one with: dpcohort train CONFIG --out {path}"
        )
    if not path.is_dir():
        return InputError.because(f"{path} is a file, not a run folder. Give the folder of a run.")
    if inside := _inside(path):
        return DataMissingError(
            f"{path} is not a run folder, but holds some. Give one of them: {inside[0]}"
        )
    return DataMissingError(
        f"{path} is not a run folder (it has no run.json). "
        "Make one with: dpcohort train CONFIG --out RUN"
    )


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON atomically; what is not a finite number becomes null."""
    write_text(path, json.dumps(finite_json(value), indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        DataMissingError: there is no such file.
        FileFormatError: it is not a JSON object.
    """
    content = _content(path, LARGEST_JSON)
    try:
        value = parse_json(content)
    except ValueError as error:
        raise FileFormatError(path, f"not valid JSON ({error}).") from None
    if not isinstance(value, dict):
        raise FileFormatError(path, "not a JSON object.")
    return value


def _content(path: Path, most: int) -> bytes:
    try:
        return read_bounded(path, most)
    except OSError as error:
        raise DataMissingError(f"{path} cannot be read: {error.strerror or error}.") from None


def open_log(path: Path, *, exclusive: bool = False) -> FileIO:
    """A file of JSON lines to append to.

    A line that a crash cut short is taken off: it was not on disk when the crash came, so nothing
    that waits for its entry had begun.

    Args:
        path: the file; it is made if it is not there.
        exclusive: refuse to open it while another process has it open so.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open_log(Path(folder) / "log.jsonl") as log:
        ...         append_line(log, {"round": 0})
        ...     read_log(Path(folder) / "log.jsonl")
        [{'round': 0}]
    """
    try:
        file = FileIO(path, "a+", opener=lambda name, flags: os.open(name, flags, new_file_mode()))
        if exclusive:
            lock(file)
        file.seek(0)
        content = file.readall()
        if not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
    except OSError as error:
        raise InputError.because(f"{path} cannot be written: {error.strerror or error}.") from None
    return file


def lock(file: FileIO, *, doing: str = "is training in this folder") -> None:
    """Keep every other process out until this one closes the file or dies.

    Args:
        file: open, of this process.
        doing: what the other process does, in words.

    Raises:
        WaitingError: another process, which is alive, has it; the file is closed.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        path = Path(os.fsdecode(file.name))
        file.close()
        raise WaitingError.because(
            f"{path} is in use: {holder(path) or 'another process'} {doing}. Wait for it, "
            "or choose another folder."
        ) from None


def holder(path: Path) -> str | None:
    """The living process that has locked a file, in words; None where nobody has.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open_log(Path(folder) / "log.jsonl", exclusive=True) as log:
        ...         holder(Path(folder) / "log.jsonl") == f"process {os.getpid()}"
        ...     holder(Path(folder) / "log.jsonl") is None
        True
        True
    """
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except BlockingIOError:
        pass
    except (OSError, AttributeError):  # not there; no locks on this system
        return None
    try:
        wanted = str(path.stat().st_ino)
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == wanted:
                return f"process {fields[4]}"
    except (OSError, IndexError):
        pass
    return "another process"


def append_line(file: FileIO, entry: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write one line of a log; with ``durable`` it survives a power cut from now on.

    Raises:
        InputError: the disk is full or gone; a half-written line is taken back.
    """
    line = _line(entry).encode()
    try:
        descriptor = file.fileno()
        before = os.fstat(descriptor).st_size
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError(None, "the disk is full")
            if durable:
                os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, before)
            raise
    except (OSError, ValueError) as error:  # a full disk; a file that is closed
        why = getattr(error, "strerror", None) or error
        raise WaitingError.because(
            f"{file.name} could not be written: {why}. Nothing after the last whole line was done; "
            "make room and go on with --resume."
        ) from None


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(finite_json(dict(entry)), ensure_ascii=False) + "\n"


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole entries; a last line cut short by a crash is left out.

    Raises:
        DataMissingError: there is no such file.
        FileFormatError: a whole line is not a JSON object.
    """
    lines = _content(path, LARGEST_LOG).split(b"\n")[:-1]
    return [read_entry(path, number, line) for number, line in enumerate(lines, start=1)]


def read_entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """One line of a log as its entry.

    Args:
        path: of the log, for errors.
        number: of the line, from 1.
        line: its bytes.

    Raises:
        FileFormatError: it is too long, or no JSON object.

    Example:
        >>> read_entry(Path("log.jsonl"), 1, b'{"round": 0}')
        {'round': 0}
    """
    if len(line) > LARGEST_LINE:
        problem = f"a line of {len(line):,} bytes; at most {LARGEST_LINE:,} are allowed"
        raise FileFormatError(path, problem, line=number)
    try:
        entry = parse_json(line)
    except ValueError:
        raise FileFormatError(path, "not valid JSON", line=number) from None
    if not isinstance(entry, dict):
        raise FileFormatError(path, "not a JSON object", line=number)
    return entry


def rewrite_log(path: Path, entries: list[dict[str, Any]]) -> None:
    """Replace the whole file atomically, for records that will be made again."""
    write_text(path, "".join(map(_line, entries)))


Arrays = Mapping[str, NDArray[Any]]
_KEPT = 2


def content_sha256(arrays: Arrays, note: str = "") -> str:
    """Hash of named arrays: names, types, shapes and bytes.

    Example:
        >>> content_sha256({"a": np.zeros(2)}) == content_sha256({"a": np.zeros(2)})
        True
    """
    digest = hashlib.sha256(note.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_checkpoint(folder: Path, arrays: Arrays, *, next_round: int, owner: str) -> Path:
    """Write a state atomically; of the older ones, the newest is kept.

    Args:
        folder: where checkpoints are.
        arrays: the state.
        next_round: the round it will do next; it names the file.
        owner: what the state belongs to (a hash of plan and settings); checked when it is read.
    """
    note = {"next_round": next_round, "owner": owner}
    note["sha256"] = content_sha256(arrays, json.dumps(note, sort_keys=True))
    # One metadata key: the order of several in the file would not be the same twice.
    content = save(dict(arrays), metadata={"dpcohort": json.dumps(note, sort_keys=True)})
    path = folder / f"round-{next_round:07d}.safetensors"
    with atomic_writer(path, binary=True) as file:
        file.write(content)
    for old in checkpoint_files(folder)[_KEPT:]:
        old.unlink(missing_ok=True)
    return path


def read_checkpoint(path: Path, *, owner: str | None = None) -> tuple[int, dict[str, NDArray[Any]]]:
    """The next round and the arrays of one checkpoint.

    Raises:
        VerificationError: one bit of it is not as it was written.
        InputError: it belongs to another run.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            note = parse_json(file.metadata()["dpcohort"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        stored = note.pop("sha256")
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VerificationError(f"{path} is damaged: {str(error)[:200]}.") from None
    if content_sha256(arrays, json.dumps(note, sort_keys=True)) != stored:
        raise VerificationError(f"{path} is damaged: its content is not what was written.")
    if owner is not None and note["owner"] != owner:
        raise InputError.because(f"{path} belongs to another run. Resume with that run's settings.")
    return int(note["next_round"]), arrays


def latest_checkpoint(
    folder: Path, *, owner: str
) -> tuple[int, dict[str, NDArray[Any]], list[str]]:
    """The newest state that is whole, and what was wrong with any newer one.

    Returns:
        The round to do next, arrays, and words; round 0 and no arrays where nothing was kept yet.

    Raises:
        VerificationError: there are checkpoints, and all are damaged.
    """
    problems: list[str] = []
    for path in checkpoint_files(folder):
        try:
            next_round, arrays = read_checkpoint(path, owner=owner)
        except VerificationError as error:
            problems.append(str(error))
            continue
        return next_round, arrays, problems
    if problems:
        raise VerificationError(
            " ".join(problems) + " No whole checkpoint is left: begin a new run in another folder."
        )
    return 0, {}, []


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def remove_receipts(folder: Path) -> None:
    """Remove the interim receipts of a stopped run, before anything more is counted in it.

    Args:
        folder: of the run.
    """
    for path in (folder / RECEIPTS).glob("*"):
        path.unlink()
    if (folder / RECEIPTS).is_dir():
        sync_folder(folder / RECEIPTS)
