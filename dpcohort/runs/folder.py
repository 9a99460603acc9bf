# SPDX-License-Identifier: Apache-2.0
"""The run folder: what lies where, and how one is begun or found again.

::

    config.toml            the configuration, if there was one
    plan.json              the plan, with its hash
    partition.npz          who holds which records
    run.json               seed, model, optimiser, engine: what a resume must agree with
    ledger.jsonl           draws of every client, written before they are computed
    rounds.jsonl           public record of every round
    checkpoints/           the last two states, each with its hash
    receipts/              what every drawn client promised and spent
    model.safetensors      the trained model; model-average.safetensors, the average of iterates
    result.json            test results and the hash of the model
    environment.json       versions and device
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpcohort.atomic_file import write_text
from dpcohort.errors import DataMissingError, FileFormatError, InputError
from dpcohort.limits import LARGEST_JSON, LARGEST_LOG, read_bounded
from dpcohort.text_files import parse_json

__all__ = ["RunFolder", "finite_json", "no_run", "read_json", "write_json"]


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder.

    Example:
        >>> RunFolder(Path("runs/first")).plan.name
        'plan.json'
    """

    path: Path

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
        folder = cls(Path(path))
        try:
            if again and folder._is_half_begun():
                folder.ledger.unlink(missing_ok=True)
                folder.rounds.unlink(missing_ok=True)
            elif folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
                what = "a run" if folder.is_run else "something else"
                step = (
                    "Go on with it (--resume), or choose another name."
                    if folder.is_run
                    else "Choose another name."
                )
                raise InputError.because(f"{folder.path} exists and holds {what}. {step}")
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
        folder = cls(Path(path))
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
        folder = cls(Path(path))
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
        first = {
            self.config.name,
            self.plan.name,
            self.partition.name,
            self.environment.name,
            self.ledger.name,
            self.rounds.name,
        }
        return all(
            p.name in first
            or (p.is_file() and p.name.startswith(tuple(f".{name}." for name in first)))
            or (p in (self.checkpoints, self.receipts) and not any(p.iterdir()))
            for p in self.path.iterdir()
        )

    def _counts_rounds(self) -> bool:
        """Whether the ledger holds more than its header: what is counted is never taken back."""
        return self.ledger.is_file() and read_bounded(self.ledger, LARGEST_LOG).count(b"\n") > 1

    @property
    def is_run(self) -> bool:
        """Whether a run was begun here."""
        return self.settings.is_file()

    @property
    def config(self) -> Path:
        """The configuration, if the run was made from one."""
        return self.path / "config.toml"

    @property
    def plan(self) -> Path:
        """The plan."""
        return self.path / "plan.json"

    @property
    def partition(self) -> Path:
        """Who holds which records; private, like the records themselves."""
        return self.path / "partition.npz"

    @property
    def settings(self) -> Path:
        """What a resume must agree with; written last, so that its presence means a whole start."""
        return self.path / "run.json"

    @property
    def ledger(self) -> Path:
        """Draws, counted before they are computed."""
        return self.path / "ledger.jsonl"

    @property
    def rounds(self) -> Path:
        """Public records of the rounds."""
        return self.path / "rounds.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The last states."""
        return self.path / "checkpoints"

    @property
    def receipts(self) -> Path:
        """One file a drawn client, or one for all."""
        return self.path / "receipts"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.path / "model.safetensors"

    @property
    def average(self) -> Path:
        """The average of iterates."""
        return self.path / "model-average.safetensors"

    @property
    def result(self) -> Path:
        """Test results and hashes; present when the run is finished."""
        return self.path / "result.json"

    @property
    def environment(self) -> Path:
        """Versions and device."""
        return self.path / "environment.json"


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
