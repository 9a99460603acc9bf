# SPDX-License-Identifier: Apache-2.0
"""Ed25519 signatures: the one check of them, for sealed runs, draws and members of masked sums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from dpcohort.errors import InputError


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


#: What every signed or derived text of masked sums begins with.
MASKED_SUMS = "dpcohort distributed 1"


class Card(NamedTuple):
    """A member's key for the masked sums of a run, signed by its identity.

    Attributes:
        member: its name.
        key: X25519 public key, hexadecimal.
        signature: Ed25519, hexadecimal, of run, plan, name and key.
    """

    member: str
    key: str
    signature: str

    def check(self, members: Mapping[str, str], *, run: str, plan: str) -> None:
        """See that the member of that name has signed it, for this run and plan.

        Args:
            members: Ed25519 public keys by name.
            run: name of the run.
            plan: SHA-256 of its plan.

        Raises:
            InputError: it has not.
        """
        signs = [MASKED_SUMS, "card", run, plan, self.member, self.key]
        content = json.dumps(signs, separators=(",", ":"), allow_nan=False).encode()
        if not is_signed(members.get(self.member, ""), self.signature, content):
            raise InputError.because(
                f"the key of {self.member} is not signed by the {self.member} of the terms."
            )


class DrawSignature(NamedTuple):
    """A guard's signature over one draw or report: a line of a run's ``signatures.jsonl``.

    Attributes:
        round: of the draw, from 0.
        draw: its number in the round.
        client: whose guard has released it.
        key: Ed25519 public key, 64 hexadecimal digits.
        released: SHA-256 of the bytes that were released, the update's or the masked vector's.
        signature: by that key, 128 hexadecimal digits, of :meth:`content`.

    Example:
        >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        >>> secret = Ed25519PrivateKey.from_private_bytes(bytes(32))
        >>> key, released = secret.public_key().public_bytes_raw().hex(), "0" * 64
        >>> draw = DrawSignature(0, 2, "ward-7", key, released, "")
        >>> signed = draw._replace(signature=secret.sign(draw.content("spring", "f" * 64)).hex())
        >>> signed.is_of("spring", "f" * 64), signed.is_of("autumn", "f" * 64)
        (True, False)
    """

    round: int
    draw: int
    client: str
    key: str
    released: str
    signature: str

    @classmethod
    def from_line(cls, line: object) -> DrawSignature:
        """The signature that a line of ``signatures.jsonl`` holds.

        Raises:
            InputError: it holds something else.
        """
        types = (int, int, str, str, str, str)
        if not isinstance(line, Mapping) or set(line) != set(cls._fields):
            raise InputError.because(f"a signature has exactly the keys {', '.join(cls._fields)}.")
        for field, kind in zip(cls._fields, types, strict=True):
            if type(line[field]) is not kind:
                raise InputError(field, given=line[field], allowed=f"of the type {kind.__name__}")
        return cls(**line)

    def content(self, run: str, plan: str) -> bytes:
        """The bytes that are signed: canonical JSON that names run, plan, draw and what it gave.

        Args:
            run: name of the run, as in ``run.json``.
            plan: SHA-256 of its plan.
        """
        draw = {"round": self.round, "draw": self.draw, "client": self.client}
        said = {"signs": "dpcohort draw 1", "run": run, "plan": plan, **draw}
        text = json.dumps({**said, "released": self.released}, sort_keys=True, allow_nan=False)
        return text.encode()

    def is_of(self, run: str, plan: str) -> bool:
        """Whether its key has signed this draw of this run and plan."""
        return is_signed(self.key, self.signature, self.content(run, plan))
