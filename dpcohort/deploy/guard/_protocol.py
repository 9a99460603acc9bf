# SPDX-License-Identifier: Apache-2.0
"""What travels between a guard and whoever asks it: framed messages, no code in them.

A frame is ``DPG1``, the length of a JSON header (u32), the length of a payload (u64), the header,
the payload; all little-endian. The payload is a vector of float32, of masked sums plain bytes, or
nothing. The header is an object with exactly the keys its kind has, each of its type: nothing is
guessed, nothing converted, nothing unpickled.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainValidator, SkipValidation, ValidationInfo

from dpcohort.deploy._formats import Format, replace
from dpcohort.deploy.ledger._store import canonical_json
from dpcohort.errors import InputError
from dpcohort.limits import LARGEST_HEADER
from dpcohort.signatures import DrawSignature
from dpcohort.text_files import parse_json

#: Version of this protocol; the other side must speak the same.
PROTOCOL = 3
_PREFIX = struct.Struct("<4sIQ")
_MAGIC = b"DPG1"

Vector = NDArray[np.float32]
#: Fields that are no part of a header; a message has at most one of them.
_PAYLOADS = ("vector", "data")


def _number(value: Any, info: ValidationInfo) -> Any:
    # A whole number passes for a float (JSON writes 1.0 as 1 in some languages) and stays what it
    # is; a truth value passes for nothing but itself.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(str(info.field_name), given=value, allowed="a number")
    return value


def _numbers(values: Any, info: ValidationInfo) -> Any:
    if not isinstance(values, list):
        raise InputError(str(info.field_name), given=values, allowed="a list of numbers")
    return [_number(value, info) for value in values]


Number = Annotated[float, PlainValidator(_number)]
#: The messages below, by their kinds.
_KINDS: dict[str, type[Message]] = {}


class Message(Format):
    """Any of the messages below; all its fields but ``vector`` are in the header."""

    #: What it is called on the wire; said at the head of its class.
    kind: ClassVar[str]

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        if kind is not None:
            cls.kind = kind
            _KINDS[kind] = cls

    def header(self) -> dict[str, Any]:
        """The fields that go into the header."""
        return {name: value for name, value in self if name not in _PAYLOADS}

    def payload(self) -> bytes:
        """The vector, or the bytes, that follow the header."""
        if hasattr(self, "data"):
            return bytes(self.data)
        return np.ascontiguousarray(getattr(self, "vector", ()), dtype="<f4").tobytes()


class HelloRequest(Message, kind="hello?"):
    """Who are you, and what has your owner accepted for this run?

    Attributes:
        protocol: version the asking side speaks.
        run: the run in question.
    """

    protocol: int = PROTOCOL
    run: str


class Hello(Message, kind="hello"):
    """What a server may know of a guard: nothing of it depends on the content of a record.

    Attributes:
        protocol: version the guard speaks.
        dpcohort: version of the package.
        dataset: the client's name for its data.
        records: |M|, public as in every plan: of records, or of persons.
        persons: what is done with the rows of a person, where a person is the unit; None where it
            is a record.
        tested: how many more of them are held out for tests.
        dimension: D of the model the owner allows.
        model: its fingerprint, :meth:`~dpcohort.deploy.guard._terms.ModelTerms.sha256`.
        layout: hash of the order of its parameters.
        accepted: the run's accepted terms, ``RunTerms.to_dict()`` and ``batch_size``, of a pool its
            ``outline()``; None if the owner has not accepted the run.
        refused: why the owner has refused the run, None if it has not.
        plan: hash of the plan the owner accepted the run for, None for any.
        counted: draws and reports of this run that are counted.
        key: Ed25519 public key of its signatures, hexadecimal.
    """

    protocol: int = PROTOCOL
    dpcohort: str
    dataset: str
    records: int
    persons: dict[str, Any] | None = None
    tested: int = 0
    dimension: int
    model: str
    layout: str
    accepted: dict[str, Any] | None
    refused: str | None = None
    plan: str | None
    counted: int
    key: str


class DrawRequest(Message, kind="draw?"):
    """Do one draw: T^l noisy local steps from these parameters.

    Attributes:
        run: our run id, never the transport's.
        plan: SHA-256 of the plan.
        round: global round, from 0.
        draw: number of the draw in its round, from 0.
        clip: C.
        noise_multiplier: z.
        sampling_rate: r.
        batch_size: B, the public denominator.
        local_steps: T^l.
        sampler: ``poisson`` or ``fixed``.
        neighbours: ``zero-out`` or ``replace-one``.
        step_sizes: alpha of each local step.
        model: fingerprint of the model.
        layout: hash of the order of its parameters.
        vector: the parameters w, flat, float32.
    """

    run: str
    plan: str
    round: int
    draw: int
    clip: Number
    noise_multiplier: Number
    sampling_rate: Number
    batch_size: int
    local_steps: int
    sampler: str
    neighbours: str
    step_sizes: Annotated[list[float], PlainValidator(_numbers)]
    model: str
    layout: str
    vector: Annotated[Vector, SkipValidation]

    def sha256(self) -> str:
        """Hash of all of it: the same draw asked for differently is another request."""
        return hashlib.sha256(encode(self)).hexdigest()

    @property
    def numbers(self) -> int:
        """How many numbers the answer has: one for each parameter."""
        return self.vector.size


class Released(Message):
    """The answer to a draw: counted, stored, signed and free to travel.

    Attributes:
        run: as asked.
        round: as asked.
        draw: as asked.
        resent: it was computed before and comes from the ledger; nothing new was spent.
        key: Ed25519 public key of the guard, hexadecimal.
        signature: its signature of :meth:`statement`; empty until it is signed.
    """

    run: str
    round: int
    draw: int
    resent: bool
    key: str = ""
    signature: str = ""

    def statement(self, client: str) -> DrawSignature:
        """What a guard signs of it: which draw, of which client, and the hash of the payload.

        Args:
            client: whose draw it is.
        """
        released = hashlib.sha256(self.payload()).hexdigest()
        return DrawSignature(self.round, self.draw, client, self.key, released, self.signature)

    def signed(self, client: str, plan: str, *, key: str, sign: Callable[[bytes], str]) -> Self:
        """The same with the signature of the client's guard.

        Args:
            client: the guard's.
            plan: SHA-256 of the plan.
            key: the guard's public key.
            sign: its signature, hexadecimal, of bytes.
        """
        content = replace(self, key=key).statement(client).content(self.run, plan)
        return replace(self, key=key, signature=sign(content))


class DrawUpdate(Released, kind="update"):
    """The noisy update w - w' of a draw, or a noisy report.

    Attributes:
        vector: the update, flat, float32.
    """

    vector: Annotated[Vector, SkipValidation]


class ReceiptRequest(Message, kind="receipt?"):
    """What has this run spent?"""

    run: str


class RunReceipt(Message, kind="receipt"):
    """What one run has spent, from the client's ledger, and the ledger's head at that moment.

    Attributes:
        dataset: the client's name for its data.
        spending: of the run, as :func:`~dpcohort.deploy.ledger._reading.run_spending` says it.
        entries: rows of the ledger.
        head: hash of the last one.
        ledger: the ledger's id.
    """

    dataset: str
    spending: dict[str, Any]
    entries: int
    head: str
    ledger: str


class Refusal(Message, kind="refused"):
    """No, and why; never with anything computed from a record.

    Attributes:
        code: ``malformed``, ``not-allowed``, ``not-accepted``, ``terms``, ``exhausted``, ``lost``,
            ``other-request``, ``ledger`` or ``failed``.
        message: for a person.
        counted: the draw is counted in the ledger all the same.
    """

    code: str
    message: str
    counted: bool = False


class ReportRequest(DrawRequest, kind="report?"):
    """Report the mean of a clipped statistic of the records at these parameters.

    A report is one noisy step like that of a draw, and is asked for, counted, stored and answered
    like one. Its number ``draw`` is ``REPORT_DRAW``, its clip half of the statistic's range, it has
    one local step of size 1, and its batch is all records or, of a mini-batch, B. The answer is one
    number: the mean less half of the range, so that a record adds at most clip / batch_size.

    Attributes:
        statistic: ``loss`` of a record, or ``squared-loss``.
    """

    statistic: str

    @property
    def numbers(self) -> int:
        """One."""
        return 1


class EvaluationRequest(DrawRequest, kind="evaluate?"):
    """Add up what your test records answer about the model with these parameters.

    It comes once, as the draw 0 of the round after the last one, and is asked for, counted, stored
    and answered like a draw of one step: its rate and clip are 1, and the answer is a noised sum,
    which is divided by nothing.

    Attributes:
        tested: how many test records the guard has said it has.
        answers: numbers of a sum, which the task of the model says.
    """

    tested: int
    answers: int

    @property
    def numbers(self) -> int:
        """As many as there are questions."""
        return self.answers


class CardRequest(Message, kind="card?"):
    """With which key do you mask in this run?"""

    run: str


class MemberCard(Message, kind="card"):
    """A member's key for a run, signed by its identity (``secure_aggregation.Card``)."""

    member: str
    key: str
    signature: str


class MaskedRequest(DrawRequest, kind="masked?"):
    """Do one draw of one step, add your share of the noise, mask it for this cohort.

    Attributes:
        exponent: e of the lattice that all members share.
        modulus_bits: b of the sums.
        cards: member, key and signature of everybody in the cohort.
    """

    exponent: int
    modulus_bits: int
    cards: list[list[str]]


class MaskedEvaluationRequest(EvaluationRequest, MaskedRequest, kind="evaluate-masked?"):
    """The same with a share of the noise, masked for this cohort."""


class MaskedUpdate(Released, kind="masked"):
    """Integers under masks.

    Attributes:
        masked: hash of the integers and the member's signature that it masked them for this cohort.
        data: the integers modulo 2^b, 8 bytes each, and sealed shares of the masks.
    """

    masked: str
    data: Annotated[bytes, SkipValidation]


class AgreeRequest(Message, kind="agree?"):
    """Agree on who is left of a cohort: some have vanished before they sent masked vectors.

    Attributes:
        run: the run.
        plan: SHA-256 of the plan.
        round: the round.
        exponent: as masked.
        modulus_bits: as masked.
        cards: of the whole cohort, as masked.
        survivors: names of those who are left, in order.
        signed: of each of them, its signature that it masked.
    """

    run: str
    plan: str
    round: int
    exponent: int
    modulus_bits: int
    cards: list[list[str]]
    survivors: list[str]
    signed: dict[str, str]


class Agreement(Message, kind="agreed"):
    """A signature on who is left."""

    run: str
    round: int
    signature: str


class RevealRequest(AgreeRequest, kind="reveal?"):
    """Give your shares of the masks of those who are left.

    Attributes:
        certificate: signatures of those who agreed; none where all are left.
        data: what those who are left sealed for this member.
    """

    certificate: dict[str, str]
    data: Annotated[bytes, SkipValidation]


class Shares(Message, kind="shares"):
    """Shares of masks, 33 bytes each."""

    run: str
    round: int
    data: Annotated[bytes, SkipValidation]


def encode(message: Message) -> bytes:
    """The message as one frame.

    Example:
        >>> frame = encode(ReceiptRequest(run="spring"))
        >>> frame[:4], decode(frame).run
        (b'DPG1', 'spring')
    """
    text = canonical_json({"kind": message.kind, **message.header()}).encode()
    payload = message.payload()
    return _PREFIX.pack(_MAGIC, len(text), len(payload)) + text + payload


def decode(frame: bytes) -> Any:
    """The message of one whole frame, of the class of its kind.

    Raises:
        InputError: it is no such frame.
    """
    if len(frame) < _PREFIX.size:
        raise InputError("frame", given=f"{len(frame)} bytes", allowed="a whole frame")
    head, body = _lengths(frame[: _PREFIX.size], largest_payload=len(frame))
    if len(frame) != _PREFIX.size + head + body:
        raise InputError("frame", given=f"{len(frame)} bytes", allowed="a whole frame")
    start = _PREFIX.size
    return _message(frame[start : start + head], frame[start + head :])


def read_frame(receive: Callable[[int], bytes], *, largest_payload: int) -> Any:
    """Read one message; the lengths are checked before anything is kept room for.

    Args:
        receive: gives exactly so many bytes, or raises ``EOFError``.
        largest_payload: bytes a payload may have.

    Raises:
        EOFError: the other side has closed.
        InputError: what came is no message.
    """
    head, body = _lengths(receive(_PREFIX.size), largest_payload=largest_payload)
    text = receive(head)
    return _message(text, receive(body) if body else b"")


def _lengths(prefix: bytes, *, largest_payload: int) -> tuple[int, int]:
    magic, head, body = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise InputError("frame", given=magic, allowed=f"one that begins with {_MAGIC!r}")
    if not 2 <= head <= LARGEST_HEADER:
        raise InputError("header", given=f"{head} bytes", allowed=f"at most {LARGEST_HEADER}")
    if body > largest_payload:
        allowed = f"whole float32 numbers, at most {largest_payload} bytes"
        raise InputError("payload", given=f"{body} bytes", allowed=allowed)
    return head, body


def _message(text: bytes, body: bytes) -> Any:
    header = _json_object(text)
    kind = header.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError("kind", given=kind, allowed="one of " + ", ".join(_KINDS))
    cls = _KINDS[kind]
    # All of them, also those that have a default here.
    known = [name for name in cls.model_fields if name not in _PAYLOADS]
    odd = sorted(set(header) ^ set(known))
    if odd:
        raise InputError("keys", given=odd[0], allowed="exactly " + ", ".join(known))
    if "data" in cls.model_fields:
        header["data"] = body
    elif "vector" in cls.model_fields:
        if len(body) % 4:
            allowed = "whole float32 numbers"
            raise InputError("payload", given=f"{len(body)} bytes", allowed=allowed)
        # A copy: the frame's bytes are read-only and their start may lie anywhere.
        header["vector"] = np.frombuffer(body, dtype="<f4").astype(np.float32)
    elif body:
        raise InputError("payload", given=f"{len(body)} bytes", allowed="empty")
    return cls(**header)


def _json_object(text: bytes) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise InputError("header", given=word, allowed="finite numbers only")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise InputError.because("the header has a key twice.")
        return found

    try:
        header = parse_json(text.decode("utf-8"), parse_constant=refuse, object_pairs_hook=once)
    except InputError:
        raise
    except ValueError:
        raise InputError.because("the header is not JSON.") from None
    if not isinstance(header, dict):
        raise InputError.because("the header is not a JSON object.")
    return header
