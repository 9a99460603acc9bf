# SPDX-License-Identifier: Apache-2.0
"""The client's own records, from one ``.npz`` file that runs no code."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import IntArray
from dpcohort.data.arrays import read_npz
from dpcohort.data.dataset import Normalisation
from dpcohort.deploy.guard.permissions import check_private
from dpcohort.deploy.guard.terms import ModelTerms
from dpcohort.errors import DataMissingError, FileFormatError, InputError

__all__ = ["GuardedData", "load_data"]


@dataclass(frozen=True, eq=False)
class GuardedData:
    """Records as the model sees them. SENSITIVE, all of it but their number.

    Attributes:
        inputs: [records, ...] float32, or int64 token ids.
        labels: [records] int64.
        fingerprint: SHA-256 of the file.
    """

    inputs: NDArray[Any]
    labels: IntArray
    fingerprint: str

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"GuardedData({len(self)} records)"  # the arrays must not get into a log


def load_data(path: str | Path, model: ModelTerms, normalisation: Normalisation) -> GuardedData:
    """Read ``inputs`` and ``labels``, check them against the model and scale them.

    Messages name shapes and types, never a value.

    Args:
        path: an ``.npz`` file closed to others.
        model: what the records must fit.
        normalisation: the public constants of the terms.

    Raises:
        DataMissingError: there is no such file.
        InputError: others can open it, or it is not what the model takes.

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
        raise DataMissingError(f"there are no data at {path}. Give the client's .npz file.")
    check_private(path, "data")
    arrays = read_npz(path)
    for key in ("inputs", "labels"):
        if key not in arrays:
            raise FileFormatError(path, f"there is no array {key!r}; it needs inputs and labels.")
    inputs, labels = arrays["inputs"], arrays["labels"]
    _check(path, inputs, labels, model)
    if inputs.dtype.kind in "fu" and inputs.dtype != np.int64:
        inputs = normalisation.apply(inputs)
        if not np.isfinite(inputs).all():
            raise FileFormatError(path, "there are inputs that are not finite.")
    else:
        inputs = inputs.astype(np.int64)
    with open(path, "rb") as file:
        fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
    return GuardedData(inputs, labels.astype(np.int64), fingerprint)


def _check(path: str | Path, inputs: Any, labels: Any, model: ModelTerms) -> None:
    if inputs.shape[1:] != model.input_shape or inputs.ndim < 2:
        raise FileFormatError(
            path,
            f"inputs have shape {inputs.shape}; the model takes records of {model.input_shape}.",
        )
    if labels.dtype.kind not in "iu" or labels.shape != inputs.shape[:1] or not labels.size:
        raise FileFormatError(
            path, f"labels must be whole numbers, one for each of the {len(inputs)} inputs."
        )
    if inputs.dtype.kind not in "fiu":
        raise InputError("type of inputs", given=str(inputs.dtype), allowed="numbers")
    if labels.min() < 0 or labels.max() >= model.classes:
        raise FileFormatError(path, f"labels must be from 0 to {model.classes - 1}.")
