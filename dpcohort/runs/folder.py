# SPDX-License-Identifier: Apache-2.0
"""A run's folder: its files, how they are written so that a crash leaves them whole, and read back.

JSON lines are append-only: an entry is on disk when ``append`` returns, and never changed. The last
two checkpoints are kept, each in one file that knows its own hash.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._version import __version__
from dpcohort.atomic_file import atomic_writer, new_file_mode, write_text
from dpcohort.errors import DataMissingError, FileFormatError, InputError, VerificationError
from dpcohort.limits import LARGEST_JSON, LARGEST_LINE, LARGEST_LOG, read_bounded
from dpcohort.text_files import parse_json

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


class RunFolder:
    """Paths inside one run folder.

    Example:
        >>> RunFolder("runs/first").plan.name
        'plan.json'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        #: The configuration, if the run was made from one.
        self.config = self.path / "config.toml"
        #: The plan.
        self.plan = self.path / "plan.json"
        #: Who holds which records; private, like the records themselves.
        self.partition = self.path / "partition.npz"
        #: What a resume must agree with; written last, so that its presence means a whole start.
        self.settings = self.path / "run.json"
        #: Draws, counted before they are computed.
        self.ledger = self.path / "ledger.jsonl"
        #: Public records of the rounds.
        self.rounds = self.path / "rounds.jsonl"
        #: The last states.
        self.checkpoints = self.path / "checkpoints"
        #: One file a drawn client, or one for all.
        self.receipts = self.path / "receipts"
        #: The model that was scored: the average of iterates where one is kept, else the last one.
        self.model = self.path / "model.safetensors"
        #: The last iterate, beside an average.
        self.last = self.path / "model-last.safetensors"
        #: The average in runs of before, in which ``model`` is the last iterate.
        self.average = self.path / "model-average.safetensors"
        #: Test results and hashes; present when the run is finished.
        self.result = self.path / "result.json"
        #: How good clients' own models are, in a simulation; nothing of it leaves a real client.
        self.personal = self.path / "personal.json"
        #: Versions and device.
        self.environment = self.path / "environment.json"
        #: Where the run goes on, if it does; written by the run that takes over.
        self.continued = self.path / "continued.json"
        #: Of a run that goes on from others: their plans, ledgers, settings and partitions.
        self.before = self.path / "before"

    @classmethod
    def begin(cls, path: str | Path, *, again: bool = False, private: bool = False) -> RunFolder:
        """Make a new run folder; one that holds anything is never touched.

        Args:
            path: where.
            again: begin anew where a start was cut short before anything was computed.
            private: only its owner may enter it: sizes of files and the times they change tell of
                the records, too.

        Raises:
            InputError: the folder is in use, or cannot be made.
        """
        folder = cls(path)
        try:
            if again and folder._is_half_begun():
                folder.ledger.unlink(missing_ok=True)
                folder.rounds.unlink(missing_ok=True)
            elif folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
                words = "something else. Choose another name."
                if folder.is_run:
                    words = "a run. Go on with it (--resume), or choose another name."
                raise InputError.because(f"{folder.path} exists and holds {words}")
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
            folder.receipts.mkdir(exist_ok=True)
            if private:
                folder.close_to_others()
        except OSError as error:
            raise InputError.because(
                f"{folder.path} cannot be made: {error.strerror or error}. Choose another place."
            ) from None
        return folder

    @classmethod
    def find(cls, path: str | Path) -> RunFolder:
        """A run folder that is there.

        Raises:
            DataMissingError: there is none.
            InputError: it is a file.
        """
        folder = cls(path)
        if not folder.is_run:
            raise no_run(folder.path)
        return folder

    @classmethod
    def find_all(cls, path: str | Path) -> list[RunFolder]:
        """The run folder itself, or the run folders (one a seed) in it.

        Raises:
            DataMissingError: there is none.
            InputError: it is a file.
        """
        folder = cls(path)
        found = [folder] if folder.is_run else folder._inside()
        if not found:
            raise no_run(folder.path)
        return found

    def close_to_others(self) -> None:
        """Leave the folder and all that is in it to its owner: 0700 and 0600."""
        os.chmod(self.path, 0o700)
        for place in self.path.rglob("*"):
            if not place.is_symlink():
                os.chmod(place, 0o700 if place.is_dir() else 0o600)

    def _inside(self) -> list[RunFolder]:
        folders = (RunFolder(place) for place in sorted(self.path.glob("*")))
        return [folder for folder in folders if folder.is_run]

    def _is_half_begun(self) -> bool:
        """Only what is written before the first round is there, and not all of it."""
        if self.is_run or not self.path.is_dir() or self._counts_rounds():
            return False
        begun = (self.config, self.plan, self.partition, self.environment, self.ledger, self.rounds)
        first = {place.name for place in begun}
        return all(
            p.name in first
            or (p.is_file() and p.name.startswith(tuple(f".{name}." for name in first)))
            or (p in (self.checkpoints, self.receipts) and not any(p.iterdir()))
            or p == self.before
            for p in self.path.iterdir()
        )

    def _counts_rounds(self) -> bool:
        """Whether the ledger holds more than its header: what is counted is never taken back."""
        return self.ledger.is_file() and read_bounded(self.ledger, LARGEST_LOG).count(b"\n") > 1

    @property
    def is_run(self) -> bool:
        """Whether a run was begun here."""
        return self.settings.is_file()


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
    inside = RunFolder(path)._inside()
    if inside:
        return DataMissingError(
            f"{path} is not a run folder, but holds some. Give one of them: {inside[0].path}"
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
    try:
        value = parse_json(read_bounded(path, LARGEST_JSON))
    except OSError as error:
        raise DataMissingError(f"{path} cannot be read: {error.strerror or error}.") from None
    except FileFormatError:
        raise
    except ValueError as error:
        raise FileFormatError(path, f"not valid JSON ({error}).") from None
    if not isinstance(value, dict):
        raise FileFormatError(path, "not a JSON object.")
    return value


def finite_json(value: Any) -> Any:
    """The value with every number that JSON cannot hold replaced by null.

    Example:
        >>> finite_json({"a": (1.0, float("nan"))})
        {'a': [1.0, None]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return value


class AppendLog:
    """A file of JSON lines that grows.

    A line that a crash cut short is taken off when the file is opened again: it was not on disk
    when the crash came, so nothing that waits for its entry had begun.

    Args:
        path: the file; it is made if it is not there.
        exclusive: refuse to open it while another process has it open so.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = AppendLog(Path(folder) / "log.jsonl")
        ...     log.append({"round": 0})
        ...     log.close()
        ...     read_log(Path(folder) / "log.jsonl")
        [{'round': 0}]
    """

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, new_file_mode()
            )
            if exclusive:
                self._lock()
            _cut_torn_line(path)
        except OSError as error:
            raise InputError.because(
                f"{path} cannot be written: {error.strerror or error}."
            ) from None

    def _lock(self) -> None:
        """Keep every other process out until this one closes the file or dies."""
        try:
            import fcntl
        except ImportError:  # not on this system
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InputError.because(
                f"{self.path} is in use: another process is training in this folder. Wait for it, "
                "or choose another folder."
            ) from None

    def append(self, entry: Mapping[str, Any], *, durable: bool = True) -> None:
        """Write one line; with ``durable`` it survives a power cut from now on.

        Raises:
            InputError: the disk is full or gone; a half-written line is taken back.
        """
        line = (json.dumps(finite_json(dict(entry)), ensure_ascii=False) + "\n").encode()
        try:
            before = os.fstat(self._descriptor).st_size
            try:
                if os.write(self._descriptor, line) != len(line):
                    raise OSError(None, "the disk is full")
                if durable:
                    os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, before)
                raise
        except OSError as error:
            raise InputError.because(
                f"{self.path} could not be written: {error.strerror or error}. Nothing after the "
                "last whole line was done; make room and go on with --resume."
            ) from None

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole entries; a last line cut short by a crash is left out.

    Raises:
        DataMissingError: there is no such file.
        FileFormatError: a whole line is not a JSON object.
    """
    try:
        content = read_bounded(path, LARGEST_LOG)
    except OSError as error:
        raise DataMissingError(f"{path} cannot be read: {error.strerror or error}.") from None
    lines = content.split(b"\n")[:-1]
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
    write_text(
        path, "".join(json.dumps(finite_json(e), ensure_ascii=False) + "\n" for e in entries)
    )


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with open(path, "rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)


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
    from safetensors.numpy import save

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
    from safetensors import SafetensorError, safe_open

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
) -> tuple[int, dict[str, NDArray[Any]], list[str]] | None:
    """The newest state that is whole, and what was wrong with any newer one; None without any.

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
    return None


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)
