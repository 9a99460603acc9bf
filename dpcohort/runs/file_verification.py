# SPDX-License-Identifier: Apache-2.0
"""Whether a run's files are the ones it wrote: settings, config, checkpoints, partition, model.

A run says at its end which settings and files it had (``result.json``), and every checkpoint says
which settings it belongs to. Whoever can edit all of them together is not found here: keep the hash
of a run elsewhere if that matters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpcohort.data.partition import load_partition
from dpcohort.errors import DpcohortError, InputError
from dpcohort.runs.append_log import read_log
from dpcohort.runs.checkpoints import checkpoint_files, read_checkpoint
from dpcohort.runs.folder import RunFolder, read_json
from dpcohort.runs.settings_hash import settings_sha256

__all__ = ["file_problems"]

Problem = tuple[str, str]


def file_problems(
    folder: RunFolder, settings: dict[str, Any], counted: set[int]
) -> Iterator[Problem]:
    """Every file that is not as it was written, and what is wrong with it.

    Args:
        folder: of the run.
        settings: content of its ``run.json``.
        counted: rounds in its ledger.
    """
    yield from _checkpoint_problems(folder, settings, counted)
    yield from _partition_problems(folder, settings)
    if folder.result.exists():
        yield from _result_problems(folder, settings)
    elif folder.model.exists():
        yield folder.model.name, "a model of a run that is not finished."


def _checkpoint_problems(
    folder: RunFolder, settings: dict[str, Any], counted: set[int]
) -> Iterator[Problem]:
    owner = settings_sha256(settings)
    for path in checkpoint_files(folder.checkpoints):
        try:
            next_round, _ = read_checkpoint(path)
        except DpcohortError as error:
            yield "checkpoints", str(error)
            continue
        try:
            read_checkpoint(path, owner=owner)
        except InputError:
            yield "run.json", f"its settings are not those that {path.name} was made with."
        uncounted = sorted(set(range(next_round)) - counted)
        if uncounted:
            words = f"{path.name} holds round {uncounted[0]}, which is not in the ledger."
            yield "checkpoints", words


def _partition_problems(folder: RunFolder, settings: dict[str, Any]) -> Iterator[Problem]:
    try:
        partition = load_partition(folder.partition)
    except DpcohortError as error:
        yield "partition.npz", str(error)
        return
    begun_with = settings.get("partition")
    if not isinstance(begun_with, dict) or partition.sha256 != begun_with.get("sha256"):
        yield "partition.npz", "it is not the one the run was begun with."


def _result_problems(folder: RunFolder, settings: dict[str, Any]) -> Iterator[Problem]:
    try:
        result = read_json(folder.result)
    except DpcohortError as error:
        yield "result.json", str(error)
        return
    hashes = result.get("sha256")
    written = hashes if isinstance(hashes, dict) else {}
    for name, path in (
        ("model", folder.model),
        ("average", folder.average),
        ("config", folder.config),
    ):
        if name != "model" and name not in written and not path.exists():
            continue
        told, found = str(written.get(name, "nothing")), _sha256(path)
        if found != told:
            yield path.name, f"its SHA-256 is {found[:16]}, written {told[:16]}."
    if str(written.get("settings")) != settings_sha256(settings):
        yield "run.json", "its settings are not those the run was finished with."
    try:
        rounds = read_log(folder.rounds)
    except DpcohortError:
        return  # said elsewhere
    if result.get("test") != _last_test(rounds):
        yield "result.json", "its test results are not those of the last evaluated round."


def _last_test(rounds: Sequence[Mapping[str, Any]]) -> Any:
    """The newest test results: of the average of iterates where there is one."""
    found = (line.get("test_average") or line.get("test") for line in reversed(rounds))
    return next((test for test in found if test is not None), None)


def _sha256(path: Path) -> str:
    if not path.exists():
        return "missing"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
