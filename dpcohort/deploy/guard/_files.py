# SPDX-License-Identifier: Apache-2.0
"""The owner's files: closed to the user the client app runs as, and the client's own records.

A guard does not start otherwise. The records are one ``.npz`` file, which runs no code, or a table.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.data import Normalisation, Persons, PersonTerms, read_table
from dpcohort.data._arrays import read_npz
from dpcohort.data._dataset import normalise
from dpcohort.data._persons import check_persons
from dpcohort.data._tables import held_for_test, person_names
from dpcohort.deploy.guard._terms import GuardTerms, ModelTerms, TableTerms
from dpcohort.deploy.secure_aggregation import Identity
from dpcohort.errors import DataMissingError, FileFormatError, InputError
from dpcohort.tasks import Task
from dpcohort.text_files import is_table, of_file


def check_private(path: str | Path, what: str) -> None:
    """Refuse a file that anyone but its owner can read or write.

    Args:
        path: the file, which must exist.
        what: what it is, for the message.

    Raises:
        InputError: naming the file, its mode, and the command that closes it.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:  # 0600, in a folder with the sticky bit
        ...     check_private(file.name, "data")
    """
    found = _status(path, what)
    if found.st_mode & 0o077:
        raise InputError.because(
            f"the {what} {path} can be opened by others (mode {_mode(found)}): code that a server "
            f"ships could read it past the guard. Close it with: chmod 600 {path}"
        )
    _check_owner(path, what, found)
    check_folders(path, what)


def check_unwritable(path: str | Path, what: str) -> None:
    """Refuse a file that anyone but its owner can write.

    Raises:
        InputError: naming the file, its mode, and the command that closes it.
    """
    found = _status(path, what)
    if found.st_mode & 0o022:
        raise InputError.because(
            f"the {what} {path} can be changed by others (mode {_mode(found)}): a server's code "
            f"could write itself better terms. Close it with: chmod go-w {path}"
        )
    _check_owner(path, what, found)
    check_folders(path, what)


def check_closed_folder(folder: Path, what: str, *, shared: bool = True) -> None:
    """Refuse a folder in which others could exchange files, one of the folders above included.

    Folders are looked at as they are named and, where links are on the way, as they are.

    Args:
        folder: the folder.
        what: what is in it, for the message.
        shared: whether others may put files of their own into the folder itself, under a sticky
            bit that keeps them from ours. Not for a ledger: SQLite opens files beside it by name.

    Raises:
        InputError: naming the folder.
    """
    named, real = folder.absolute(), folder.resolve()
    for place in dict.fromkeys((named, real, *named.parents, *real.parents)):
        found = _status(place, f"folder of the {what}")
        _check_owner(place, f"folder of the {what}", found)
        protected = bool(found.st_mode & stat.S_ISVTX) and (shared or place not in (named, real))
        if found.st_mode & 0o022 and not protected:
            raise InputError.because(
                f"the folder {place} of the {what} can be written by others (mode "
                f"{_mode(found)}), who could exchange it. Close it with: chmod go-w {place}"
            )


def check_folders(path: str | Path, what: str, *, shared: bool = True) -> None:
    """The folder that names the file and, if that name is a link, the one that holds it."""
    for parent in dict.fromkeys((Path(path).absolute().parent, Path(path).resolve().parent)):
        check_closed_folder(parent, what, shared=shared)


def _check_owner(path: str | Path, what: str, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise InputError.because(
            f"the {what} {path} belongs to user {found.st_uid}, not to the guard's user "
            f"{os.geteuid()}: that user could change it at any time."
        )


def _status(path: str | Path, what: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise InputError.because(
            f"the {what} {path} cannot be looked at: {error.strerror}."
        ) from None


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"


def identity_beside(ledger: str | Path) -> Identity:
    """The identity of a guard whose terms name none: ``LEDGER.identity``, made when there is none.

    Args:
        ledger: the client's ledger.
    """
    path = Path(f"{ledger}.identity")
    return load_identity(path) if path.exists() else make_identity(path)


def make_identity(path: str | Path) -> Identity:
    """Write a new secret, readable by its owner alone, by which a member of cohorts is known.

    Raises:
        InputError: something is there already, or nothing can be written there.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = make_identity(Path(folder) / "identity.key")
        ...     load_identity(Path(folder) / "identity.key").public == made.public
        True
    """
    secret = os.urandom(32)
    try:
        write_secret(path, f"{secret.hex()}\n".encode())
    except OSError as error:
        raise InputError.because(
            f"the identity {path} cannot be made: {error.strerror}. Nothing was changed."
        ) from None
    return Identity(secret)


def write_secret(path: str | Path, content: bytes) -> None:
    """Write a new file: never readable by others, not even meanwhile; never over another."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def load_identity(path: str | Path) -> Identity:
    """The identity in a file that is closed to others.

    Raises:
        DataMissingError: there is none.
        InputError: others can open it, or it is none.
    """
    if not Path(path).is_file():
        raise DataMissingError(
            f"there is no identity at {path}. Make one with: dpcohort guard identity {path}"
        )
    check_private(path, "identity")
    with open(path, encoding="ascii", errors="replace") as file:
        text = file.read(1000).strip()
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise FileFormatError(path, "this is not an identity: 64 hexadecimal digits.")
    return Identity(bytes.fromhex(text))


@dataclass(frozen=True, eq=False)
class GuardedData:
    """Records as the model sees them. SENSITIVE, all of it but their number.

    Attributes:
        inputs: [rows, ...] float32, or int64 token ids.
        labels: [rows] int64.
        fingerprint: SHA-256 of the file.
        persons: whose each row is, where a record is a person.
        held_out: records that are never trained on, for the evaluation of the model; None for none.
    """

    inputs: NDArray[Any]
    labels: NDArray[Any]
    fingerprint: str
    persons: Persons | None = None
    held_out: GuardedData | None = None

    def __len__(self) -> int:
        return len(self.labels) if self.persons is None else len(self.persons)

    @property
    def tested(self) -> int:
        """How many records are held out for tests; public, as the number of the others is."""
        return 0 if self.held_out is None else len(self.held_out)

    def __repr__(self) -> str:
        return f"GuardedData({len(self)} records)"  # the arrays must not get into a log


def load_data(
    path: str | Path,
    model: ModelTerms,
    normalisation: Normalisation,
    table: TableTerms | None = None,
    persons: PersonTerms | None = None,
    client: str = "",
) -> GuardedData:
    """Read ``inputs``, ``labels`` and ``persons``, check them against the model and scale them.

    Records held out for tests are those of ``test_inputs``, ``test_labels`` and ``test_persons``,
    or the table's share. Messages name shapes, types and places, never a value.

    Args:
        path: an ``.npz`` file, or a table (.csv, .parquet), closed to others.
        model: what the records must fit.
        normalisation: the public constants of the terms.
        table: how a table is read.
        persons: how the rows of a person are used, where a person is the unit.
        client: the name of these data, by which rows of a person are chosen.

    Raises:
        DataMissingError: there is no such file.
        InputError: others can open it, it is not what the model takes, or it does not say whose
            its rows are.

    Example:
        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "ward.npz"
        ...     np.savez(file, inputs=np.zeros((3, 2), np.float32), labels=np.array([0, 1, 0]))
        ...     os.chmod(file, 0o600)
        ...     model = ModelTerms(name="logistic", input_shape=(2,), classes=2)
        ...     load_data(file, model, Normalisation())
        GuardedData(3 records)
    """
    if not Path(path).is_file():
        raise DataMissingError(
            f"there are no data at {path}. Give the client's .npz file, or its table."
        )
    check_private(path, "data")
    arrays = _read_table(path, table, persons) if is_table(path) else read_npz(path)
    with open(path, "rb") as file:
        fingerprint = hashlib.file_digest(file, "sha256").hexdigest()

    def records_of(part: str) -> GuardedData:
        for key in (f"{part}inputs", f"{part}labels"):
            if key not in arrays:
                words = f"there is no array {key!r}; it needs {part}inputs and {part}labels."
                raise FileFormatError(path, words)
        inputs, labels = arrays[f"{part}inputs"], arrays[f"{part}labels"]
        check_records(path, inputs, labels, model)
        if inputs.dtype.kind in "fu" and inputs.dtype != np.int64:
            inputs = normalise(inputs, normalisation)
            if not np.isfinite(inputs).all():
                raise FileFormatError(path, "there are inputs that are not finite.")
        else:
            inputs = inputs.astype(np.int64)
        task, grouped = model.predicts, None
        stored = labels.astype(np.int64) if task.predicts_classes else task.scaled(labels)
        if persons is not None:
            seed, whose = 0 if table is None else table.seed, arrays.get(f"{part}persons")
            grouped = _grouped(path, whose, len(labels), persons, client, seed)
        return GuardedData(inputs, stored, fingerprint, grouped)

    if persons is not None and {"persons", "test_persons"} <= set(arrays):
        both = set(arrays["persons"].astype(np.str_)) & set(arrays["test_persons"].astype(np.str_))
        if both - {""}:
            words = "somebody is among persons and test_persons: hold out whole persons."
            raise FileFormatError(path, words)
    is_tested = len(arrays.get("test_labels", ())) > 0
    return replace(records_of(""), held_out=records_of("test_") if is_tested else None)


def guarded_data(path: str | Path, terms: GuardTerms) -> GuardedData:
    """The data that terms speak of, from their file; see `load_data`."""
    model, constants = terms.model, terms.normalisation
    return load_data(path, model, constants, terms.table, terms.persons, terms.dataset)


def _grouped(
    path: str | Path, given: Any, rows: int, terms: PersonTerms, client: str, seed: int
) -> Persons:
    """The rows by person; no message tells who anybody is."""
    if given is None:
        raise FileFormatError(
            path,
            "there is no array 'persons', and the terms say that a person is the unit: it says "
            "whose each row is. Add it; or take [persons] out, and a record is protected.",
        )
    if given.shape != (rows,):
        raise FileFormatError(path, f"persons must be one name for each of the {rows} inputs.")
    names = given.astype(np.str_)
    with of_file(path):
        check_persons("persons", names.tolist(), blank=terms.blank_person, whole=False)
    return terms.group(names, np.full(rows, client), seed=seed)


def _read_table(
    path: str | Path, terms: TableTerms | None, persons: PersonTerms | None
) -> dict[str, NDArray[Any]]:
    """The records of a table; those that are held out for tests by names of their own."""
    if terms is None:
        raise FileFormatError(
            path, "a table; the terms say how to read one in [table], and these have none."
        )
    with of_file(path):
        table = read_table(path)
        inputs, labels, _ = terms.columns.encode(table)
        blank = "own" if persons is None else persons.blank_person
        whose = person_names(terms.columns.person, table, blank, whole=False)
        found = {"inputs": inputs, "labels": labels} | ({} if whose is None else {"persons": whose})
        if not terms.test_share:
            return found
        own, share = np.full(len(inputs), terms.client), terms.test_share
        held = held_for_test(len(inputs), own, whose, share=share, seed=terms.seed)
    return {name: array[~held] for name, array in found.items()} | {
        f"test_{name}": array[held] for name, array in found.items()
    }


def check_records(path: str | Path, inputs: Any, labels: Any, model: ModelTerms) -> None:
    """Refuse records that a model cannot be trained on; no message tells a value.

    Args:
        path: where they are from, for the message.
        inputs: one record a row.
        labels: of each record.
        model: what they must fit.
    """
    if inputs.shape[1:] != model.input_shape or inputs.ndim < 2:
        raise FileFormatError(
            path,
            f"inputs have shape {inputs.shape}; the model takes records of {model.input_shape}.",
        )
    if inputs.dtype.kind not in "fiu":
        raise InputError("type of inputs", given=str(inputs.dtype), allowed="numbers")
    if not model.predicts.predicts_classes:
        _check_numbers(path, labels, len(inputs), model.predicts)
        return
    if labels.dtype.kind not in "iu" or labels.shape != inputs.shape[:1] or not labels.size:
        raise FileFormatError(
            path, f"labels must be whole numbers, one for each of the {len(inputs)} inputs."
        )
    if labels.min() < 0 or labels.max() >= model.classes:
        raise FileFormatError(path, f"labels must be from 0 to {model.classes - 1}.")


def _check_numbers(path: str | Path, labels: Any, records: int, task: Task) -> None:
    """Labels of a task without classes; as everywhere here, no message tells a value."""
    shape = (records, task.outputs) if task.kind == "multi-label" else (records,)
    if labels.dtype.kind not in "biuf" or labels.shape != shape or not labels.size:
        raise FileFormatError(path, f"labels must be numbers of shape {shape}: {task.kind}.")
    wrong = ~np.isfinite(labels)
    if task.kind == "multi-label":
        wrong = (labels != 0) & (labels != 1)
    elif task.kind == "counts":
        wrong = ~((labels >= 0) & (labels == np.floor(labels)))
    if wrong.any():
        allowed = {"multi-label": "0 or 1", "counts": "0, 1, 2, ..."}.get(task.kind, "finite")
        raise FileFormatError(path, f"labels must be {allowed}.")
