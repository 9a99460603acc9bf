# SPDX-License-Identifier: Apache-2.0
"""Masked sums of a cohort's integers: what members check and say, and what a server makes of it.

The server, and up to c members who help it, may do anything. They learn the sum of the vectors of
one set of at least K - d members, once a round, and nothing else (proof:
docs/concepts/secure-aggregation.md). In the manner of Bonawitz et al. (2017), but:

- **Identities are pinned** by each owner's terms, as is who is in the cohort of which round.
- **Keys once a run.** A member signs one X25519 key for a run (its card). The seed of two members'
  mask comes from their agreement by HKDF, for one round: what becomes known of a member that
  vanished are seeds of that round, never a key.
- **Two exchanges** in a round in which nobody vanishes: masked vectors (:meth:`Member.mask`), then
  shares of the members' own masks (:meth:`Member.reveal`), given for the signatures of all.
  If some vanish, the others first sign who is left (:meth:`Member.agree`).

A member says once a round which set it unmasks for, and which vectors of these. That, and that it
masks once, must outlive a crash: ``commit`` and the counting of draws are the ledger's. If the disk
of one is put back and it masks again, the others do not unmask what it masked then. There are no
sockets here and no torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpcohort._validate import IntArray, whole_number
from dpcohort.deploy.ledger._store import canonical_json
from dpcohort.deploy.ledger._terms import AcceptedGroup
from dpcohort.deploy.secure_aggregation._masks import (
    SEED_BYTES,
    SHARE_BYTES,
    Masked,
    add_masks_,
    join_all,
    split,
)
from dpcohort.errors import InputError
from dpcohort.signatures import MASKED_SUMS, Card, is_signed

_NONCE, _TAG = 12, 16
#: Hexadecimal digits of the hash of a masked vector, which stand before the signature of it.
_DIGEST = 64
#: Bytes of a share of a member's own mask, sealed for one member.
_OWN = _NONCE + SHARE_BYTES + _TAG

#: Told a round and the hash of the set that is unmasked; gives the hash of the set that was told
#: first for this round, ever, which must be on disk before it returns.
Commit = Callable[[int, str], str]


def sealed_bytes(members: int) -> int:
    """Most bytes that are sealed for one member of a cohort.

    Example:
        >>> sealed_bytes(10)
        4190
    """
    return members * (_OWN + _NONCE + SHARE_BYTES * members + _TAG)


def cohort_sha256(names: Collection[str]) -> str:
    """The hash by which terms name a cohort.

    Example:
        >>> cohort_sha256(["b", "a"]) == cohort_sha256(["a", "b"])
        True
    """
    return hashlib.sha256(canonical_json(sorted(names)).encode()).hexdigest()


class Identity:
    """Who a member is: an Ed25519 key from a secret of 32 bytes, and keys derived for runs.

    Args:
        secret: 32 random bytes that nobody else has.

    Example:
        >>> len(Identity(os.urandom(32)).public)
        64
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SEED_BYTES:
            raise InputError("identity", given=f"{len(secret)} bytes", allowed=f"{SEED_BYTES}")
        self._secret = secret
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        #: The public key, hexadecimal: what others pin in their terms.
        self.public = self._key.public_key().public_bytes_raw().hex()

    def sign(self, *said: object) -> str:
        """A signature, hexadecimal, of plain values."""
        return self.sign_bytes(_said(*said))

    def sign_bytes(self, content: bytes) -> str:
        """A signature, hexadecimal, of bytes that are no message of this protocol."""
        return self._key.sign(content).hex()

    def run_key(self, ledger: str, run: str, plan: str) -> X25519PrivateKey:
        """The key of a run: the same after a restart, another one with another ledger."""
        return X25519PrivateKey.from_private_bytes(_derived(self._secret, "run", ledger, run, plan))


class MaskedRound:
    """One round as its members see it: who is in it, with which keys, on which lattice.

    Two members whose ``context`` is the same have been told the same, and have pinned the same
    identities; all that is signed and derived depends on it.

    Args:
        pool: what the owner accepted (the server: what the plan says).
        cards: of all members of the cohort.
        run: name of the run.
        plan: SHA-256 of its plan.
        round: from 0.
        coordinates: length of the vectors.
        exponent: e, as asked for.
        modulus_bits: b, as asked for.

    Raises:
        InputError: it is not what was accepted.
    """

    def __init__(
        self,
        pool: AcceptedGroup,
        cards: Sequence[Card],
        *,
        run: str,
        plan: str,
        round: int,
        coordinates: int,
        exponent: int,
        modulus_bits: int,
    ) -> None:
        whole_number("round", round, at_least=0)
        whole_number("coordinates", coordinates, at_least=1)
        for field, asked, accepted in (
            ("exponent", exponent, pool.exponent),
            ("modulus_bits", modulus_bits, pool.modulus_bits),
            ("members of the cohort", len(cards), pool.cohort_size),
        ):
            if asked != accepted or isinstance(asked, bool):
                raise InputError(field, given=asked, allowed=f"{accepted}, as accepted")
        by_name = {card.member: card for card in cards}
        if len(by_name) != len(cards):
            raise InputError.because("a member is twice in the cohort.")
        for name in by_name:
            if name not in pool.members:
                raise InputError("member", given=name, allowed="one whom the owner's terms name")
        if pool.cohorts.get(str(round)) != cohort_sha256(by_name):
            raise InputError.because(
                f"this is not the cohort that was accepted for round {round}, or there is none."
            )
        for card in cards:
            card.check(pool.members, run=run, plan=plan)
        self.pool, self.run, self.plan, self.round = pool, run, plan, round
        self.coordinates = coordinates
        #: Names of the members in their order, which gives each its place.
        self.names = sorted(by_name)
        self.keys = {name: by_name[name].key for name in self.names}
        known = [[name, pool.members[name], self.keys[name]] for name in self.names]
        integers = (coordinates, exponent, modulus_bits)
        said = _said("round", run, plan, round, known, *integers, pool.colluding, pool.dropouts)
        self.context = hashlib.sha256(said).hexdigest()

    @property
    def sealed_bytes(self) -> tuple[int, int]:
        """Lengths of what one member seals for another: of its own mask, and of common ones."""
        return _OWN, _NONCE + SHARE_BYTES * len(self.names) + _TAG

    def unpacked(self, member: str, signature: str, data: bytes) -> MaskedVector:
        """What a member sent, from bytes: integers of 8 bytes each, then what it sealed.

        Raises:
            InputError: they are of another length.
        """
        numbers = 8 * self.coordinates
        expected = numbers + len(self.names) * sum(self.sealed_bytes)
        if len(data) != expected:
            allowed = f"{expected} bytes"
            raise InputError("masked vector", given=f"{len(data)} bytes", allowed=allowed)
        vector = np.frombuffer(data[:numbers], dtype="<u8").astype(np.uint64)
        return MaskedVector(
            member=member, vector=vector, sealed=data[numbers:], signature=signature
        )

    def check_masked(self, member: str, signature: str) -> str:
        """The hash of the vector that a member masked in this round, from its signature of it.

        Raises:
            InputError: it has not signed it.
        """
        digest, rest = signature[:_DIGEST], signature[_DIGEST:]
        if not _is_signed(self.pool.members[member], rest, "masked", self.context, digest):
            raise InputError.because(f"{member} has not signed that it masked for this cohort.")
        return digest

    def check_survivors(self, survivors: Sequence[str], signed: Mapping[str, str]) -> str:
        """The hash of a set that may be unmasked, and of what its members masked.

        Args:
            survivors: names, in order.
            signed: of each, its signature of what it masked in this round.

        Raises:
            InputError: it may not be: too small, strangers in it, or not all have masked for this
                same cohort.
        """
        if list(survivors) != sorted(set(survivors)):
            raise InputError.because("the members that are left must be named once each, in order.")
        for name in survivors:
            if name not in self.keys:
                raise InputError("member", given=name, allowed="a member of this round's cohort")
        least = self.pool.cohort_size - self.pool.dropouts
        if len(survivors) < least:
            raise InputError(
                "members left",
                given=len(survivors),
                allowed=f"at least {least}",
                next_step=f"With fewer, the noise of {self.pool.honest} honest members is not sure "
                "to be in the sum.",
            )
        if set(signed) != set(survivors):
            raise InputError.because("there must be one signature of each member that is left.")
        masked = [[name, self.check_masked(name, signed[name])] for name in survivors]
        return hashlib.sha256(_said("set", self.context, masked)).hexdigest()

    def check_certificate(
        self, survivors: Sequence[str], left: str, certificate: Mapping[str, str]
    ) -> None:
        """See that enough members agreed on who is left; nothing is needed if all are.

        Raises:
            InputError: too few did, or somebody else.
        """
        if list(survivors) == self.names:
            return
        for name, signature in certificate.items():
            if name not in survivors or not _is_signed(
                self.pool.members[name], signature, "left", self.context, left
            ):
                raise InputError.because(f"{name} has not agreed on this set of members.")
        if len(certificate) < self.pool.threshold:
            allowed = f"at least {self.pool.threshold}"
            raise InputError("members that agree", given=len(certificate), allowed=allowed)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedVector:
    """What a member sends first: its integers under masks, and shares of the masks for others.

    Attributes:
        member: its name.
        vector: integers modulo 2^b.
        sealed: for each member in order, a share of the member's own mask; then for each member in
            order, shares of the masks it has in common with each.
        signature: hash of the vector, and its signature that it masked this in this round.
    """

    member: str
    vector: Masked
    sealed: bytes
    signature: str


class Member:
    """A member's side. It keeps nothing: whoever calls it keeps to once a round, on disk.

    Args:
        name: its name in the terms.
        identity: its own.
        pool: what its owner accepted.
        run: name of the run.
        plan: SHA-256 of its plan.
        ledger: id of the ledger that counts; another one means another key.

    Raises:
        InputError: the terms know it by another key, or not at all.
    """

    def __init__(
        self,
        name: str,
        identity: Identity,
        pool: AcceptedGroup,
        *,
        run: str,
        plan: str,
        ledger: str,
    ) -> None:
        if pool.members.get(name) != identity.public:
            raise InputError.because(
                f"the terms do not have the key of this identity, {identity.public}, for {name!r}."
            )
        self.name, self.pool, self.run, self.plan = name, pool, run, plan
        self._identity = identity
        self._key = identity.run_key(ledger, run, plan)
        self._public = self._key.public_key().public_bytes_raw().hex()

    @property
    def card(self) -> Card:
        """Its key for the run, for the others."""
        signature = self._identity.sign("card", self.run, self.plan, self.name, self._public)
        return Card(member=self.name, key=self._public, signature=signature)

    def mask(self, asked: MaskedRound, values: IntArray) -> MaskedVector:
        """Its integers under masks.

        To be called once a round, which the caller has counted on disk, and never for a round for
        which it was called before a restart.

        Args:
            asked: the round.
            values: integers with its share of the noise.
        """
        self.check(asked)
        if values.shape != (asked.coordinates,) or values.dtype != np.int64:
            raise InputError("values", given=values.shape, allowed=f"{asked.coordinates} integers")
        threshold, places = self.pool.threshold, range(len(asked.names))
        agreed = {name: self._agreed(asked, name) for name in asked.names}
        common = {
            name: _pair_seed(agreed[name], asked, self.name, name)
            for name in asked.names
            if name != self.name
        }
        own = os.urandom(SEED_BYTES)
        vector = values.astype(np.uint64)  # modulo 2^64
        plus = [own, *(seed for name, seed in common.items() if self.name < name)]
        add_masks_(vector, plus, [seed for name, seed in common.items() if self.name > name])
        vector &= np.uint64(2**asked.pool.modulus_bits - 1)
        digest = _digest(vector)
        own_shares = map(_share, split(own, threshold=threshold, members=len(places)))
        # With itself a member has no mask; zeros keep the places.
        secrets = [common.get(name, bytes(SEED_BYTES)) for name in asked.names]
        shares = [split(one, threshold=threshold, members=len(places)) for one in secrets]
        for_each = [b"".join(map(_share, (row[place] for row in shares))) for place in places]
        sealed = [
            _seal(agreed[name], (what, asked.context, self.name, name, digest), text)
            for what, texts in (("own", own_shares), ("pairs", for_each))
            for name, text in zip(asked.names, texts, strict=True)
        ]
        return MaskedVector(
            member=self.name,
            vector=vector,
            sealed=b"".join(sealed),
            signature=digest + self._identity.sign("masked", asked.context, digest),
        )

    def agree(
        self,
        asked: MaskedRound,
        survivors: Sequence[str],
        signed: Mapping[str, str],
        commit: Commit,
    ) -> str:
        """Sign who is left, once a round.

        Args:
            asked: the round.
            survivors: names of those who sent masked vectors, in order.
            signed: their signatures.
            commit: remembers the set for good.
        """
        left = self._committed(asked, survivors, signed, commit)
        return self._identity.sign("left", asked.context, left)

    def reveal(
        self,
        asked: MaskedRound,
        survivors: Sequence[str],
        signed: Mapping[str, str],
        certificate: Mapping[str, str],
        sealed: bytes,
        commit: Commit,
    ) -> bytes:
        """Shares that unmask the sum of those who are left.

        They are of the own masks of these, and of the masks that each of them has in common with
        each who vanished.

        Args:
            asked: the round.
            survivors: names of those who sent masked vectors, in order.
            signed: their signatures.
            certificate: where some vanished, signatures of those who agreed on who is left.
            sealed: what each survivor sealed for this member: all of ``own``, and where some
                vanished, then all of ``pairs``.
            commit: remembers the set for good.

        Returns:
            Shares, 33 bytes each: of each survivor's own mask, then for each member that vanished
            of its masks in common with each survivor.
        """
        left = asked.check_survivors(survivors, signed)
        asked.check_certificate(survivors, left, certificate)
        gone = [place for place, name in enumerate(asked.names) if name not in survivors]
        size_own, size_pairs = asked.sealed_bytes
        expected = len(survivors) * (size_own + (size_pairs if gone else 0))
        if len(sealed) != expected:
            raise InputError("sealed shares", given=f"{len(sealed)} bytes", allowed=f"{expected}")
        self._committed(asked, survivors, signed, commit)
        agreed = {name: self._agreed(asked, name) for name in survivors}
        split_at = len(survivors) * size_own
        sealed_own = _parts(sealed[:split_at], size_own)
        sealed_pairs = _parts(sealed[split_at:], size_pairs)  # none where nobody vanished

        def opened(what: str, parts: list[bytes]) -> list[bytes]:
            return [
                _open(
                    agreed[name],
                    (what, asked.context, name, self.name, signed[name][:_DIGEST]),
                    part,
                )
                for name, part in zip(survivors, parts, strict=bool(parts))
            ]

        pairs = opened("pairs", sealed_pairs)
        shares = [_part(row, SHARE_BYTES, place) for place in gone for row in pairs]
        return b"".join([*opened("own", sealed_own), *shares])

    def check(self, asked: MaskedRound) -> None:
        """See that it may mask in this round, before anything is counted for it.

        Raises:
            InputError: it may not.
        """
        if (asked.run, asked.plan, asked.pool) != (self.run, self.plan, self.pool):
            raise InputError.because("this round is of another run, plan or other terms.")
        if asked.keys.get(self.name) != self._public:
            raise InputError.because("the cohort does not have this member with its own key.")
        for name in asked.names:
            self._agreed(asked, name)

    def _committed(
        self,
        asked: MaskedRound,
        survivors: Sequence[str],
        signed: Mapping[str, str],
        commit: Commit,
    ) -> str:
        self.check(asked)
        left = asked.check_survivors(survivors, signed)
        if self.name not in survivors:
            raise InputError.because("this member is not among those who are left.")
        if commit(asked.round, left) != left:
            raise InputError.because(
                f"round {asked.round} was unmasked for another set of members; there is no second "
                "unmasking."
            )
        return left

    def _agreed(self, asked: MaskedRound, other: str) -> bytes:
        try:
            key = X25519PublicKey.from_public_bytes(bytes.fromhex(asked.keys[other]))
            return self._key.exchange(key)
        except ValueError:  # not 32 bytes, or a point with which every agreement is the same
            raise InputError.because(f"the key of {other} is not one.") from None


class MaskedSum:
    """The server's side of one round: collects, and unmasks the sum of those who are left.

    Args:
        asked: the round.

    Example:
        >>> names = ["a", "b", "c"]
        >>> who = {name: Identity(os.urandom(32)) for name in names}
        >>> pool = AcceptedGroup(cohort_size=3, colluding=0, dropouts=0, exponent=10,
        ...     modulus_bits=20, members={name: one.public for name, one in who.items()},
        ...     cohorts={"0": cohort_sha256(names)})
        >>> members = [Member(name, who[name], pool, run="spring", plan="", ledger=name)
        ...     for name in names]
        >>> asked = MaskedRound(pool, [one.card for one in members], run="spring", plan="", round=0,
        ...     coordinates=2, exponent=10, modulus_bits=20)
        >>> server = MaskedSum(asked)
        >>> for member in members:
        ...     server.take(member.mask(asked, np.array([-5, 7])))
        >>> left = server.close()
        >>> for member in members:
        ...     server.take_shares(member.name, member.reveal(asked, left, server.signed, {},
        ...         server.sealed_for(member.name), lambda round, left: left))
        >>> server.total()
        array([-15,  21])
    """

    def __init__(self, asked: MaskedRound) -> None:
        self.asked = asked
        self._sum = np.zeros(asked.coordinates, dtype=np.uint64)
        self._sealed: dict[str, bytes] = {}
        self._signed: dict[str, str] = {}
        self._left: list[str] = []
        self._hash = ""
        #: Signatures of those who agreed on who is left.
        self.certificate: dict[str, str] = {}
        self._shares: dict[str, bytes] = {}

    def take(self, masked: MaskedVector) -> None:
        """Add a masked vector.

        Raises:
            InputError: it is not one of this round, came before, or comes too late.
        """
        asked, name = self.asked, masked.member
        if name not in asked.keys or name in self._signed or self._left:
            raise InputError("member", given=name, allowed="one of the cohort, once, in time")
        vector, length = masked.vector, len(asked.names) * sum(asked.sealed_bytes)
        right = vector.shape == (asked.coordinates,) and vector.dtype == np.uint64
        if not right or len(masked.sealed) != length:
            raise InputError.because(f"the masked vector of {name} has another length.")
        if asked.check_masked(name, masked.signature) != _digest(vector):
            raise InputError.because(f"the masked vector of {name} is not the one it signed.")
        self._sum += vector
        self._sealed[name], self._signed[name] = masked.sealed, masked.signature

    def close(self) -> list[str]:
        """Take no more; the names of those who are left, in order.

        Raises:
            InputError: they are too few to be unmasked.
        """
        left = sorted(self._signed)
        self._hash = self.asked.check_survivors(left, self._signed)
        self._left = left
        return left

    @property
    def signed(self) -> dict[str, str]:
        """Signatures of those who are left, that they masked."""
        return {name: self._signed[name] for name in self._left}

    @property
    def needs_agreement(self) -> bool:
        """Whether somebody vanished, so that the others must agree on who is left."""
        return len(self._left) < len(self.asked.names)

    @property
    def is_agreed(self) -> bool:
        """Whether enough have agreed, where they must."""
        return not self.needs_agreement or len(self.certificate) >= self.asked.pool.threshold

    @property
    def is_open(self) -> bool:
        """Whether enough shares came to unmask the sum."""
        return len(self._shares) >= self.asked.pool.threshold

    def agreed(self, member: str, signature: str) -> None:
        """Note that a member agreed.

        Raises:
            InputError: it did not.
        """
        if member not in self._left or not _is_signed(
            self.asked.pool.members[member], signature, "left", self.asked.context, self._hash
        ):
            raise InputError.because(f"{member} has not agreed on who is left.")
        self.certificate[member] = signature

    def sealed_for(self, member: str) -> bytes:
        """What those who are left sealed for a member."""
        place = self.asked.names.index(member)
        size_own, size_pairs = self.asked.sealed_bytes
        came = [self._sealed[name] for name in self._left]
        sealed = [_part(one, size_own, place) for one in came]
        if self.needs_agreement:
            start = len(self.asked.names) * size_own + place * size_pairs
            sealed += [one[start : start + size_pairs] for one in came]
        return b"".join(sealed)

    def take_shares(self, member: str, shares: bytes) -> None:
        """Take the shares of a member.

        Raises:
            InputError: it was not asked, or they are of another length.
        """
        gone = len(self.asked.names) - len(self._left)
        expected = SHARE_BYTES * len(self._left) * (1 + gone)
        if member not in self._left or len(shares) != expected:
            raise InputError("shares", given=f"{len(shares)} bytes", allowed=f"{expected}")
        self._shares[member] = shares

    def total(self) -> IntArray:
        """The sum of the vectors of those who are left: integers around 0.

        Raises:
            InputError: too few gave shares, or shares that do not fit together.
        """
        asked, threshold = self.asked, self.asked.pool.threshold
        if not self.is_open:
            allowed = f"of at least {threshold} members"
            raise InputError("shares", given=len(self._shares), allowed=allowed)
        answered = sorted(self._shares)
        seeds = self._joined(answered[:threshold])
        # More than half of the members are enough, so these two are all that answered.
        if len(answered) > threshold and self._joined(answered[-threshold:]) != seeds:
            raise InputError.because(
                "the shares of the masks do not fit together: a member gave or sealed a wrong one."
            )
        plus: list[bytes] = []
        minus = seeds[: len(self._left)]
        gone = [name for name in asked.names if name not in self._left]
        rest = iter(seeds[len(self._left) :])
        for absent in gone:
            for present in self._left:
                (minus if present < absent else plus).append(next(rest))
        bits = asked.pool.modulus_bits
        total = add_masks_(self._sum.copy(), plus, minus)
        # The low b bits as a number from -2^(b-1) on.
        return (total << np.uint64(64 - bits)).astype(np.int64) >> np.int64(64 - bits)

    def _joined(self, members: Sequence[str]) -> list[bytes]:
        """The seeds that the shares of these members give."""
        places = [self.asked.names.index(name) + 1 for name in members]
        shares = [_parts(self._shares[name], SHARE_BYTES) for name in members]
        rows = ([int.from_bytes(one, "big") for one in row] for row in zip(*shares, strict=True))
        return join_all(places, rows)


def _said(*said: object) -> bytes:
    return canonical_json([MASKED_SUMS, *said]).encode()


def _is_signed(public: str, signature: str, *said: object) -> bool:
    return is_signed(public, signature, _said(*said))


def _derived(secret: bytes, *said: object) -> bytes:
    return HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=_said(*said)).derive(secret)


def _pair_seed(agreed: bytes, asked: MaskedRound, one: str, other: str) -> bytes:
    """The seed of the mask that two members have in common in this round."""
    return _derived(agreed, "mask", asked.context, *sorted((one, other)))


def _digest(vector: Masked) -> str:
    return hashlib.sha256(vector.astype("<u8", copy=False).tobytes()).hexdigest()


def _seal(agreed: bytes, purpose: Sequence[str], text: bytes) -> bytes:
    """A text that only another member reads, for what it is and with the vector it belongs to."""
    nonce = os.urandom(_NONCE)
    return nonce + ChaCha20Poly1305(_derived(agreed, *purpose)).encrypt(nonce, text, None)


def _open(agreed: bytes, purpose: Sequence[str], sealed: bytes) -> bytes:
    try:
        key = ChaCha20Poly1305(_derived(agreed, *purpose))
        return key.decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
    except InvalidTag:
        _, _, dealer, reader, _ = purpose
        raise InputError.because(
            f"what is said to be sealed by {dealer} for {reader} in this round is not."
        ) from None


def _share(value: int) -> bytes:
    return value.to_bytes(SHARE_BYTES, "big")


def _part(data: bytes, size: int, place: int) -> bytes:
    return data[size * place : size * (place + 1)]


def _parts(data: bytes, size: int) -> list[bytes]:
    return [_part(data, size, place) for place in range(len(data) // size)]
