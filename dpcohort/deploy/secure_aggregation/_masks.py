# SPDX-License-Identifier: Apache-2.0
"""Vectors under masks, and secrets in shares: what masked sums are made of.

A mask is the ChaCha20 stream of a seed that is used once, read as integers; it is added to a vector
of integers modulo 2^64, of which the low b bits are kept. Whoever does not know the seed cannot
tell the masked vector from coin tosses.

A secret of 32 bytes is shared as Shamir (1979) does: the value at 0 of a random polynomial of
degree t - 1 over the integers modulo a prime, of which each member gets the value at a place of its
own. Any t values give the secret, fewer say nothing. Flower's copy is not used: a guard needs no
Flower, and a hundred members have a hundred secrets each to share in a round, for which it is too
slow. These few lines are the textbook's, over Python's own integers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

#: Length of a seed, which is a secret that may be shared.
SEED_BYTES = 32
#: The smallest prime above 2^256.
PRIME = 2**256 + 297
#: Length of a share.
SHARE_BYTES = 33

Masked = NDArray[np.uint64]
_AT_A_TIME = 1 << 13  # numbers, so that all that is added to them is in a cache
_ZEROS = bytes(8 * _AT_A_TIME)
_NO_NONCE = bytes(16)  # a seed is used for one stream


def add_masks_(vector: Masked, plus: Iterable[bytes], minus: Iterable[bytes] = ()) -> Masked:
    """Add the streams of some seeds to a vector and take those of others away, modulo 2^64.

    Args:
        vector: changed in place.
        plus: seeds, each used for this vector alone.
        minus: likewise.

    Returns:
        ``vector``.

    Example:
        >>> masked = add_masks_(np.arange(3, dtype=np.uint64), [bytes(32)])
        >>> [int(n) for n in add_masks_(masked, [], [bytes(32)])]
        [0, 1, 2]
    """
    streams: list[tuple[Any, np.ufunc]] = [(_stream(seed), np.add) for seed in plus]
    streams += [(_stream(seed), np.subtract) for seed in minus]
    bytes_of = bytearray(_ZEROS)
    numbers = np.frombuffer(bytes_of, dtype="<u8")
    for start in range(0, vector.size, _AT_A_TIME):
        part = vector[start : start + _AT_A_TIME]
        size = 8 * part.size
        for stream, apply in streams:
            stream.update_into(memoryview(_ZEROS)[:size], memoryview(bytes_of)[:size])
            apply(part, numbers[: part.size], out=part)
    return vector


def split(secret: bytes, *, threshold: int, members: int) -> list[int]:
    """Shares of a secret, one for each member: any ``threshold`` of them give it, fewer nothing.

    Args:
        secret: 32 bytes.
        threshold: t.
        members: how many shares; number i belongs to place i + 1.

    Example:
        >>> shares = split(bytes(range(32)), threshold=2, members=3)
        >>> join_all([1, 3], [[shares[0], shares[2]]]) == [bytes(range(32))]
        True
    """
    if len(secret) != SEED_BYTES or not 1 <= threshold <= members:
        raise ValueError("a secret has 32 bytes, and a threshold is 1 to the number of members")
    falling = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    falling.append(int.from_bytes(secret, "big"))
    shares = []
    for place in range(1, members + 1):
        value = 0
        for coefficient in falling:
            value = value * place + coefficient
        shares.append(value % PRIME)
    return shares


def join_all(places: Sequence[int], rows: Iterable[Sequence[int]]) -> list[bytes]:
    """Many secrets, each from one row of shares at the same places.

    With too few shares or wrong ones a secret is anything.

    Raises:
        ValueError: two places are the same.
    """
    if len(set(places)) != len(places):
        raise ValueError("a place has one share")
    weights = []
    for own in places:
        above = below = 1
        for other in places:
            if other != own:
                above, below = above * other % PRIME, below * (other - own) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    found = []
    for row in rows:
        value = sum(weight * share for weight, share in zip(weights, row, strict=True)) % PRIME
        # Wrong shares may give 2^256 or more, which is no secret; it must not fail.
        found.append((value % 2**256).to_bytes(SEED_BYTES, "big"))
    return found


def _stream(seed: bytes) -> Any:
    return Cipher(algorithms.ChaCha20(seed, _NO_NONCE), mode=None).encryptor()
