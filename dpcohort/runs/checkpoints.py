# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the last two states of a training, each in one file that knows its own hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.atomic_file import atomic_writer
from dpcohort.errors import InputError, VerificationError
from dpcohort.text_files import parse_json

__all__ = [
    "checkpoint_files",
    "content_sha256",
    "latest_checkpoint",
    "read_checkpoint",
    "write_checkpoint",
]

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
