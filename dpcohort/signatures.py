# SPDX-License-Identifier: Apache-2.0
"""Ed25519 signatures: the one check of them, for sealed runs and for members of masked sums."""

from __future__ import annotations


def is_signed(public: str, signature: str, content: bytes) -> bool:
    """Whether a signature is that of a key over some bytes; False for what is no key or signature.

    Args:
        public: the key, 64 hexadecimal digits.
        signature: 128 hexadecimal digits.
        content: what it must be of.

    Example:
        >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        >>> key = Ed25519PrivateKey.from_private_bytes(bytes(32))
        >>> public = key.public_key().public_bytes_raw().hex()
        >>> is_signed(public, key.sign(b"a").hex(), b"a")
        True
        >>> is_signed(public, key.sign(b"a").hex(), b"b")
        False
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True
