# SPDX-License-Identifier: Apache-2.0
"""What tests of several rooms need."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from functools import cache, lru_cache, wraps

import pytest

from dpcohort import metrics
from dpcohort.accounting import events
from dpcohort.data import load

# Plans, runs and ledgers wait for the disk at every file, and in memory for nothing.
if (
    os.access("/dev/shm", os.W_OK)
    and not os.statvfs("/dev/shm").f_flag & os.ST_NOEXEC
    and shutil.disk_usage("/dev/shm").free > 2**31
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")


@pytest.fixture(scope="session", autouse=True)
def _what_many_tests_ask_for_is_made_once():
    """dp-accounting's distribution for the same steps, the AUC of the same outputs (of a constant
    in every training), and the digits, of which each has a copy.
    """
    with pytest.MonkeyPatch.context() as patch:
        auc, areas = metrics._auc, {}

        def kept_auc(is_one, scores):
            key = is_one.tobytes(), scores.tobytes()
            if key not in areas:
                areas[key] = auc(is_one, scores)
            return areas[key]

        patch.setattr(metrics, "_auc", kept_auc)
        more = lru_cache(maxsize=200)(events._library.__wrapped__)
        patch.setattr(events, "_library", more)
        digits = cache(load._load_digits)
        arrays = ("train_inputs", "train_labels", "test_inputs", "test_labels")

        @wraps(load._load_digits)
        def copied():
            return replace(digits(), **{name: getattr(digits(), name).copy() for name in arrays})

        patch.setattr(load, "_load_digits", copied)
        yield


@pytest.fixture
def cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a GPU: there is no CUDA here")
    return "cuda"


class Keystream:
    """Bytes of a fixed key, so that a test of chance gives the same answer every time."""

    def __init__(self, key: str) -> None:
        self._key, self._block = key.encode(), 0

    def __call__(self, size: int) -> bytes:
        self._block += 1
        return hashlib.shake_128(self._key + self._block.to_bytes(8, "big")).digest(size)


@pytest.fixture
def keystream():
    return Keystream
