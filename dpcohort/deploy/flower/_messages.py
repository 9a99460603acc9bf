# SPDX-License-Identifier: Apache-2.0
"""What the server asks a client, and what it takes of the answer.

A client gets one message a round with all its draws in it, because a message costs seconds and a
draw milliseconds. The draws of a message differ in their number alone, so the model travels once. A
message is a line of JSON and one frame of the guard's protocol; an answer is frames one after the
other, a refusal of the client app's own among them where there was no guard to ask.

A client may be broken or hostile. An update is taken only if it is of this run and round, of a draw
that was asked for and did not come before, of the model's length (a report is one number), finite,
and no longer than any update that the steps asked for can be. The last is a bound of the mechanism
itself, so no honest update is ever refused: T^l steps of at most α (C n / B + z C / B (√D + 12)),
because at most n records are clipped to C and divided by B, and a Gaussian vector is longer than
√D + 12 with a probability below e^-72. So with the sum of a cohort that was masked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Literal

import numpy as np

from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard._protocol import (
    AgreeRequest,
    CardRequest,
    DrawRequest,
    DrawUpdate,
    Hello,
    HelloRequest,
    MaskedRequest,
    Message,
    Refusal,
    RunReceipt,
    Vector,
    decode,
    encode,
    read_frame,
)
from dpcohort.errors import DpcohortError, InputError
from dpcohort.limits import LARGEST_HEADER, MOST_MESSAGE_DRAWS
from dpcohort.plain_text import one_line
from dpcohort.signatures import DrawSignature
from dpcohort.text_files import parse_json

#: Code of a refusal that the client app writes itself: nobody was asked, nothing is counted.
NO_GUARD = "no-guard"

_FORMAT = "dpcohort letter 1"
#: What a message may ask: requests of these kinds, in words.
_ASKED: dict[Any, tuple[tuple[type[Message], ...], str]] = {
    "hello": ((HelloRequest,), "a request for what is accepted"),
    "draws": ((DrawRequest,), "a request for draws"),
    "distributed": ((CardRequest, MaskedRequest, AgreeRequest), "a request about masked sums"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """A message as a client app reads it.

    Attributes:
        client: whom it is for; in a simulation, whose guard to open.
        asks: ``hello``, ``draws``, or ``distributed`` for anything about masked sums.
        requests: what to ask the guard, in this order.
    """

    client: str
    asks: Literal["hello", "draws", "distributed"]
    requests: tuple[Any, ...]


def hello_message(client: str, *, run: str) -> bytes:
    """A message that asks what a client's owner has accepted.

    Example:
        >>> open_message(hello_message("ward-7", run="spring")).asks
        'hello'
    """
    return _line({"asks": "hello", "client": client}) + encode(HelloRequest(run=run))


def draw_message(client: str, request: DrawRequest, *, draws: Sequence[int]) -> bytes:
    """A message that asks for draws of one round, which differ in their number alone.

    Args:
        client: whose draws.
        request: one of them.
        draws: their numbers.
    """
    if not draws or len(set(draws)) != len(draws):
        raise InputError("draws", given=list(draws), allowed="one or more different numbers")
    line = _line({"asks": "draws", "client": client, "draws": list(draws)})
    return line + encode(replace(request, draw=draws[0]))


def distributed_message(client: str, request: Message) -> bytes:
    """A message with one request about masked sums.

    Example:
        >>> open_message(distributed_message("ward-7", CardRequest(run="spring"))).asks
        'distributed'
    """
    return _line({"asks": "distributed", "client": client}) + encode(request)


def open_message(body: bytes) -> Opened:
    """The requests in a message.

    Raises:
        InputError: it is no message.
    """
    line, newline, _ = body[:LARGEST_HEADER].partition(b"\n")
    if not newline:
        raise InputError(
            "message", given=f"{len(body)} bytes", allowed="a line of JSON and a frame"
        )
    try:
        head = parse_json(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise InputError("message", given=line[:40], allowed=f"one of the format {_FORMAT!r}")
    client: Any = head.get("client")
    asks: Any = head.get("asks")
    if not isinstance(client, str) or asks not in list(_ASKED):  # it may be anything
        allowed = "to a client, asking 'hello', 'draws' or 'distributed'"
        raise InputError("message", given=asks, allowed=allowed)
    request = decode(body[len(line) + 1 :])
    kinds, words = _ASKED[asks]
    if not isinstance(request, kinds):
        raise InputError("message", given=type(request).__name__, allowed=words)
    if asks != "draws":
        return Opened(client=client, asks=asks, requests=(request,))
    draws = head.get("draws")
    if (
        not isinstance(draws, list)
        or not 1 <= len(draws) <= MOST_MESSAGE_DRAWS
        or not all(type(draw) is int for draw in draws)
    ):
        allowed = f"a list of 1 to {MOST_MESSAGE_DRAWS} whole numbers"
        raise InputError("draws", given=draws, allowed=allowed)
    requests = tuple(replace(request, draw=draw) for draw in draws)
    return Opened(client=client, asks=asks, requests=requests)


def read_frames(body: bytes) -> Iterator[Any]:
    """The messages of an answer, one after the other.

    Raises:
        InputError: something in it is no frame.
    """
    stream = BytesIO(body)

    def take(size: int) -> bytes:
        part = stream.read(size)
        if len(part) != size:
            raise InputError.because("the answer ends in the middle of a frame.")
        return part

    while stream.tell() < len(body):
        yield read_frame(take, largest_payload=len(body))


def _line(head: dict[str, Any]) -> bytes:
    return json.dumps({"format": _FORMAT, **head}, sort_keys=True).encode() + b"\n"


#: Refusals after which the same draws may be asked for again at no cost: nothing was decided.
_PASSING = (NO_GUARD, "failed")
#: Beyond √D, and for the rounding of float32 and of the noise's lattice.
_TAIL, _SLACK = 12.0, 1.01


class Signers:
    """Keys of clients' guards in a run: those that the operator pinned, first ones of all others.

    Args:
        pinned: public key of a client's guard, by its id.
        run: name of the run.
        plan: SHA-256 of its plan.
    """

    def __init__(self, pinned: Mapping[str, str], *, run: str, plan: str) -> None:
        self._keys, self._run, self._plan = dict(pinned), run, plan
        self._signed: dict[tuple[str, int, int], DrawSignature] = {}

    def fault(self, signature: DrawSignature) -> str | None:
        """Why a draw is not taken for its client's; None if the client's guard has signed it.

        The first key of a client that has none is kept, as is the first answer to a draw.

        Args:
            signature: over the draw.
        """
        draw = (signature.client, signature.round, signature.draw)
        if self._keys.get(signature.client, signature.key) != signature.key:
            return f"signed with {one_line(signature.key, 64)}, which is not its guard's key"
        if not signature.is_of(self._run, self._plan):
            return "its guard has not signed it for this run and draw"
        if self._signed.setdefault(draw, signature) != signature:
            return "its guard has signed another answer to this draw before"
        self._keys[signature.client] = signature.key
        return None


@dataclass(kw_only=True, eq=False)
class Reply:
    """What one client's answer was worth.

    Attributes:
        updates: accepted updates by the draw's number.
        resent: draws that came from the client's ledger, not computed anew.
        losses: why each other draw that was asked for is not there.
        passing: asking again may help and costs nothing.
        receipt: what the client's ledger counts for the run, if it said so.
        signatures: of its guard over the accepted updates.
    """

    updates: dict[int, Vector] = field(default_factory=dict)
    resent: set[int] = field(default_factory=set)
    losses: dict[int, str] = field(default_factory=dict)
    passing: bool = False
    receipt: RunReceipt | None = None
    signatures: list[DrawSignature] = field(default_factory=list)


def longest_update(request: DrawRequest, *, records: int) -> float:
    """A length that no honest update for this request exceeds.

    Args:
        request: the draw asked for.
        records: the client's size n.

    Example:
        >>> import numpy as np
        >>> request = DrawRequest(run="a", plan="", round=0, draw=0, clip=1.0, noise_multiplier=1.0,
        ...     sampling_rate=0.1, batch_size=10, local_steps=1, sampler="poisson",
        ...     neighbours="zero-out", step_sizes=[0.5], model="", layout="",
        ...     vector=np.zeros(100, np.float32))
        >>> round(longest_update(request, records=100), 2)
        6.16
    """
    signal = request.clip * records / request.batch_size
    deviation = request.noise_multiplier * request.clip / request.batch_size
    noise = deviation * (np.sqrt(request.numbers) + _TAIL)
    return float(_SLACK * sum(request.step_sizes) * (signal + noise))


def longest_sum(requests: Sequence[MaskedRequest], records: Sequence[int], *, honest: int) -> float:
    """A length that no honest sum of a cohort exceeds, on the lattice.

    Args:
        requests: what those who are left were asked.
        records: their sizes.
        honest: h, over whose shares a member's noise is spread.
    """
    share = math.ldexp(1.0, requests[0].exponent)  # one share of noise, in every coordinate
    of_record = [share * math.sqrt(honest) / request.noise_multiplier for request in requests]
    signal = sum(size * one for size, one in zip(records, of_record, strict=True))
    noise = share * math.sqrt(len(requests)) * (math.sqrt(requests[0].numbers) + _TAIL)
    return _SLACK * (signal + noise)


def guard_answered(client: str, body: bytes) -> bool:
    """Whether a guard was there to answer; one that is being started is asked again."""
    try:
        frames = list(read_frames(body))
    except DpcohortError:
        return True
    return not any(isinstance(one, Refusal) and one.code == NO_GUARD for one in frames)


def read_hello(body: bytes) -> Hello | str:
    """What a client's owner has accepted, or why that is not known."""
    try:
        frames = list(read_frames(body))
    except DpcohortError as error:
        return f"the answer cannot be read: {one_line(str(error))}"
    if len(frames) != 1 or not isinstance(frames[0], Hello | Refusal):
        return "the answer is not one to this question"
    found = frames[0]
    return found if isinstance(found, Hello) else refusal_words(found)


def read_draws(
    body: bytes,
    request: DrawRequest,
    *,
    draws: Sequence[int],
    records: int,
    signers: Signers,
    client: str,
    earlier: Reply | None = None,
) -> Reply:
    """Check a client's answer to a message for draws.

    Args:
        body: the answer.
        request: what was asked, for any of the draws.
        draws: the numbers that were asked for, in this order.
        records: the client's size.
        signers: whose keys sign updates.
        client: whose answer it is.
        earlier: what its earlier answers were worth; a draw that came once has come.
    """
    reply, longest = earlier or Reply(), longest_update(request, records=records)
    reply.losses, reply.passing = {}, False
    answers: list[DrawUpdate | Refusal] = []
    problem = "no answer"
    try:
        for frame in read_frames(body):
            if isinstance(frame, RunReceipt):
                reply.receipt = frame
            elif isinstance(frame, DrawUpdate | Refusal):
                if len(answers) > 2 * len(draws):
                    break  # nothing more was asked for, so nothing more is kept
                answers.append(frame)
            else:
                problem = f"a {type(frame).__name__} instead of an update"
    except DpcohortError as error:
        problem = f"the answer cannot be read: {one_line(str(error))}"
    # Refusals carry no number: the answers stand in the order of the questions.
    for place, answer in enumerate(answers):
        asked = draws[place] if place < len(draws) else None
        if isinstance(answer, Refusal):
            if asked is not None and asked not in reply.updates:
                reply.losses[asked] = refusal_words(answer)
                reply.passing |= answer.code in _PASSING and not answer.counted
            continue
        fault = _fault(answer, request, reply.updates, draws, longest)
        signature = answer.statement(client)
        fault = fault or signers.fault(signature)
        if fault is None:
            reply.signatures.append(signature)
            reply.updates[answer.draw] = answer.vector
            reply.losses.pop(answer.draw, None)
            if answer.resent:
                reply.resent.add(answer.draw)
        elif asked is not None and asked not in reply.updates:
            reply.losses[asked] = fault
    for draw in draws:
        if draw not in reply.updates:
            reply.losses.setdefault(draw, problem)
    return reply


def refusal_words(refusal: Refusal) -> str:
    """A refusal as it may be printed and written down: its words are the client's, not ours."""
    return f"{one_line(refusal.code, 40)}: {one_line(refusal.message)}"


def _fault(
    answer: DrawUpdate,
    request: DrawRequest,
    taken: dict[int, Vector],
    draws: Sequence[int],
    longest: float,
) -> str | None:
    if answer.run != request.run:
        return "an update of another run"
    if answer.round != request.round:
        return f"an update of round {answer.round}"
    if answer.draw not in draws:
        return f"an update of draw {answer.draw}, which was not asked for"
    if answer.draw in taken:
        return f"draw {answer.draw} a second time"
    if answer.vector.shape != (request.numbers,):
        return f"{answer.vector.size} numbers instead of {request.numbers}"
    if not np.isfinite(answer.vector).all():
        return "numbers that are not finite"
    if float(np.linalg.norm(answer.vector.astype(np.float64))) > longest:
        return "an update longer than any that was asked for can be"
    return None
