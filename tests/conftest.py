# SPDX-License-Identifier: Apache-2.0
"""What tests of several rooms need."""

from __future__ import annotations

import hashlib

import pytest


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
