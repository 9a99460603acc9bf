# SPDX-License-Identifier: Apache-2.0
"""Frames: what goes in comes out, and whatever is not exactly a message is refused."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.deploy.guard import DrawUpdate, Hello, Refusal, RunReceipt
from dpcohort.deploy.guard._protocol import (
    LARGEST_HEADER,
    HelloRequest,
    ReceiptRequest,
    decode,
    encode,
    read_frame,
)
from dpcohort.errors import InputError

VECTOR = np.array([1.5, -0.0, np.inf], np.float32)
MESSAGES = [
    HelloRequest(run="a"),
    ReceiptRequest(run="ä"),
    Refusal(code="terms", message="no", counted=True),
    DrawUpdate(run="a", round=1, draw=2, resent=False, key="k", signature="s", vector=VECTOR),
    RunReceipt(dataset="d", spending={"steps": 3}, entries=4, head="h", ledger="l"),
    Hello(
        dpcohort="1",
        dataset="d",
        records=3,
        dimension=4,
        model="m",
        layout="l",
        accepted=None,
        plan=None,
        counted=0,
        key="k",
    ),
]


def frame(header, payload=b"", magic=b"DPG1"):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return magic + struct.pack("<IQ", len(text), len(payload)) + text + payload


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_a_message_survives_the_wire(message):
    found = decode(encode(message))
    assert type(found) is type(message)
    assert found.header() == message.header()
    assert found.payload() == message.payload()


def test_a_draw_request_survives_and_has_a_hash_of_all_of_it(good):
    request = good()
    assert decode(encode(request)).sha256() == request.sha256()
    changes = [{"round": 1}, {"clip": 0.5}, {"vector": np.full(18, 1e-30, np.float32)}]
    assert len({request.sha256()} | {good(**one).sha256() for one in changes}) == 4


GOOD = {"kind": "hello?", "run": "a", "protocol": 1}
BAD = {
    "unknown kind": {**GOOD, "kind": "exec"},
    "kind of another type": {**GOOD, "kind": ["hello?"]},
    "unknown key": {**GOOD, "more": 1},
    "missing key": {"kind": "hello?", "run": "a"},
    "number for a string": {**GOOD, "run": 3},
    "float for a whole number": {**GOOD, "protocol": 1.0},
    "truth for a number": {**GOOD, "protocol": True},
    "a list": [1, 2],
    "not JSON": b"{'run': 1}",
    "not UTF-8": b'{"run": "\xff"}',
    "NaN": b'{"kind": "hello?", "run": "a", "protocol": NaN}',
    "key twice": b'{"kind": "hello?", "run": "a", "run": "b", "protocol": 1}',
    "deep": b"[" * 100_000,
    "huge number": b'{"kind": "hello?", "run": "a", "protocol": ' + b"1" * 5000 + b"}",
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_exactly_a_message_is_refused(case):
    with pytest.raises(InputError):
        decode(frame(BAD[case]))
    decode(frame(GOOD))


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        frame(GOOD)[:-1],
        frame(GOOD) + b"x",
        frame(GOOD, magic=b"HTTP"),
        frame(GOOD, payload=b"1234"),
        frame({"kind": "update", "run": "a", "round": 0, "draw": 0, "resent": True}, b"123"),
        b"DPG1" + struct.pack("<IQ", LARGEST_HEADER + 1, 0),
    ],
    ids=["empty", "cut", "longer", "other magic", "payload unasked", "odd bytes", "long header"],
)
def test_broken_frames_are_refused(broken):
    with pytest.raises(InputError):
        decode(broken)


def test_lengths_are_checked_before_anything_is_received():
    asked = []

    def receive(size):
        asked.append(size)
        return b"DPG1" + struct.pack("<IQ", 10, 2**40)

    with pytest.raises(InputError, match="payload"):
        read_frame(receive, largest_payload=72)
    assert asked == [16]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_one_error(noise):
    for broken in (noise, b"DPG1" + noise, frame(noise)):
        with pytest.raises(InputError):
            decode(broken)


def test_a_header_may_not_be_nested_without_end():
    text = b'{"kind":"receipt?","run":' + b"[" * 200 + b"]" * 200 + b"}"
    with pytest.raises(InputError, match="the header is not JSON"):
        decode(b"DPG1" + struct.pack("<IQ", len(text), 0) + text)
