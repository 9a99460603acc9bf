# SPDX-License-Identifier: Apache-2.0
"""What is in a letter and in its answer: requests to a guard, and the guard's words, untouched.

A client gets one letter a round with all its draws in it, because a letter costs seconds and a
draw milliseconds. The draws of a letter differ in their number alone, so the model travels once. A
letter is a line of JSON and one frame of the guard's protocol; an answer is frames one after the
other, a courier's own refusal among them where there was no guard to ask.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dpcohort.deploy.guard.protocol import DrawRequest, HelloRequest, decode, encode, read_frame
from dpcohort.errors import InputError
from dpcohort.limits import LARGEST_HEADER, MOST_LETTER_DRAWS
from dpcohort.text_files import parse_json

__all__ = ["NO_GUARD", "Opened", "draw_letter", "hello_letter", "open_letter", "read_frames"]

#: Code of a refusal that the courier writes itself: nobody was asked, nothing is counted.
NO_GUARD = "no-guard"

_FORMAT = "dpcohort letter 1"


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """A letter as a courier reads it.

    Attributes:
        client: whom it is for; in a simulation, whose guard to open.
        asks: ``hello`` or ``draws``.
        requests: what to ask the guard, in this order.
    """

    client: str
    asks: Literal["hello", "draws"]
    requests: tuple[Any, ...]


def hello_letter(client: str, *, run: str) -> bytes:
    """A letter that asks what a client's owner has accepted.

    Example:
        >>> open_letter(hello_letter("ward-7", run="spring")).asks
        'hello'
    """
    return _line({"asks": "hello", "client": client}) + encode(HelloRequest(run=run))


def draw_letter(client: str, request: DrawRequest, *, draws: Sequence[int]) -> bytes:
    """A letter that asks for draws of one round, which differ in their number alone.

    Args:
        client: whose draws.
        request: one of them.
        draws: their numbers.
    """
    if not draws or len(set(draws)) != len(draws):
        raise InputError("draws", given=list(draws), allowed="one or more different numbers")
    line = _line({"asks": "draws", "client": client, "draws": list(draws)})
    return line + encode(replace(request, draw=draws[0]))


def open_letter(body: bytes) -> Opened:
    """The requests in a letter.

    Raises:
        InputError: it is no letter.
    """
    line, newline, frame = body[:LARGEST_HEADER].partition(b"\n")
    if not newline:
        raise InputError("letter", given=f"{len(body)} bytes", allowed="a line of JSON and a frame")
    try:
        head = parse_json(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise InputError("letter", given=line[:40], allowed=f"one of the format {_FORMAT!r}")
    client, asks = head.get("client"), head.get("asks")
    if not isinstance(client, str) or asks not in ("hello", "draws"):
        raise InputError("letter", given=asks, allowed="to a client, asking 'hello' or 'draws'")
    frame = body[len(line) + 1 :]
    request = decode(frame)
    if asks == "hello":
        return Opened(client=client, asks="hello", requests=(request,))
    if not isinstance(request, DrawRequest):
        raise InputError("letter", given=type(request).__name__, allowed="a request for draws")
    draws = head.get("draws")
    if (
        not isinstance(draws, list)
        or not 1 <= len(draws) <= MOST_LETTER_DRAWS
        or not all(type(draw) is int for draw in draws)
    ):
        allowed = f"a list of 1 to {MOST_LETTER_DRAWS} whole numbers"
        raise InputError("draws", given=draws, allowed=allowed)
    requests = tuple(replace(request, draw=draw) for draw in draws)
    return Opened(client=client, asks="draws", requests=requests)


def read_frames(body: bytes) -> Iterator[Any]:
    """The messages of an answer, one after the other.

    Raises:
        InputError: something in it is no frame.
    """
    place = 0

    def take(size: int) -> bytes:
        nonlocal place
        part = body[place : place + size]
        if len(part) != size:
            raise InputError.because("the answer ends in the middle of a frame.")
        place += size
        return part

    while place < len(body):
        yield read_frame(take, largest_payload=len(body))


def _line(head: dict[str, Any]) -> bytes:
    return json.dumps({"format": _FORMAT, **head}, sort_keys=True).encode() + b"\n"
