# SPDX-License-Identifier: Apache-2.0
"""What the tests of data sets share: small files in the real formats, and the real ones if here."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from dpcohort.data import Normalisation
from dpcohort.data import _load as load
from dpcohort.data._load import DataFile, Source

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _digits_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests have copies of them; here reading them is what is tested."""
    monkeypatch.setattr(load, "_load_digits", load._load_digits.__wrapped__)


@pytest.fixture
def no_data_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with no data set in its variable or cache; gives the folder of the cache."""
    monkeypatch.delenv("DPCOHORT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dpcohort"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real MNIST and Fashion-MNIST, from the variable or beside the project."""
    stated = os.environ.get("DPCOHORT_DATA")
    folder = Path(stated) if stated else _REPOSITORY.parent / "shared" / "data"
    for name in ("mnist", "fashion_mnist"):
        if not (folder / name / "t10k-labels-idx1-ubyte.gz").is_file():
            pytest.skip(f"the real {name} is not here; set DPCOHORT_DATA to a folder that has it")
    return folder


def idx_bytes(array: np.ndarray) -> bytes:
    """The array as an IDX file, written independently of the reader under test."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def write_idx(tmp_path: Path):
    def write(name: str, array: np.ndarray, *, folder: Path = tmp_path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        content = idx_bytes(array.astype(np.uint8))
        path = folder / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


@pytest.fixture
def small_idx_source():
    """A made-up set in the format of MNIST: 6 training and 2 test images of 4x4 pixels."""
    rng = np.random.default_rng(11)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (6, 4, 4), np.uint8),
        "train-labels-idx1-ubyte": np.array([0, 1, 2, 0, 1, 2], np.uint8),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (2, 4, 4), np.uint8),
        "t10k-labels-idx1-ubyte": np.array([2, 0], np.uint8),
    }
    content = {name: idx_bytes(array) for name, array in arrays.items()}
    packed = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in content.items()}
    source = Source(
        name="small",
        layout="idx",
        shape=(1, 4, 4),
        classes=3,
        train_records=6,
        test_records=2,
        normalisation=Normalisation(scale=255.0),
        folders=("small",),
        files=tuple(
            DataFile(
                names=(f"{name}.gz", name), sha256=hashlib.sha256(data).hexdigest(), size=len(data)
            )
            for name, data in content.items()
        ),
        archives=tuple(
            DataFile(names=(name,), size=len(data), md5=hashlib.md5(data).hexdigest())
            for name, data in packed.items()
        ),
        urls=(),
    )
    return source, packed
