# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcohort.deploy._formats import replace
from dpcohort.deploy.flower._messages import (
    NO_GUARD,
    Signers,
    longest_update,
    read_draws,
    read_hello,
)
from dpcohort.deploy.guard import DrawRequest, DrawUpdate, Hello, Refusal, RunReceipt
from dpcohort.deploy.guard._protocol import encode
from dpcohort.deploy.secure_aggregation import Identity

REQUEST = DrawRequest(
    run="spring", plan="p", round=2, draw=0, clip=1.0, noise_multiplier=1.5, sampling_rate=0.1,
    batch_size=10, local_steps=2, sampler="poisson", neighbours="zero-out", step_sizes=[0.5, 0.5],
    model="m", layout="l", vector=np.zeros(40, dtype=np.float32),
)  # fmt: skip
GOOD = DrawUpdate(
    run="spring", round=2, draw=0, resent=False, vector=np.full(40, 0.1, dtype=np.float32)
)
RECEIPT = RunReceipt(dataset="lab", spending={"counted_draws": 2}, entries=3, head="h", ledger="l")


LAB, OTHER = Identity(bytes(32)), Identity(b"1" * 32)


def _signed(update, identity=LAB, client="lab", plan="p"):
    return update.signed(client, plan, key=identity.public, sign=identity.sign_bytes)


def _signers(pinned=None):
    return Signers({} if pinned is None else {"lab": pinned}, run="spring", plan="p")


def _read_bytes(body, draws=(0, 1), signers=None):
    signers = signers or _signers()
    return read_draws(body, REQUEST, draws=draws, records=100, signers=signers, client="lab")


def _read(*frames, draws=(0, 1), **how):
    """The reply of frames whose updates are signed by the client's guard, where they are not."""
    signed = [
        _signed(one) if isinstance(one, DrawUpdate) and not one.key + one.signature else one
        for one in frames
    ]
    return _read_bytes(b"".join(map(encode, signed)), draws, **how)


def test_what_is_right_is_taken():
    reply = _read(GOOD, replace(GOOD, draw=1, resent=True), RECEIPT)
    assert sorted(reply.updates) == [0, 1]
    assert reply.resent == {1}
    assert reply.losses == {}
    assert not reply.passing
    assert reply.receipt.spending == {"counted_draws": 2}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run": "autumn"}, "another run"),
        ({"round": 1}, "round 1"),
        ({"draw": 7}, "draw 7, which was not asked for"),
        ({"vector": np.zeros(39, np.float32)}, "39 numbers instead of 40"),
        ({"vector": np.zeros(0, np.float32)}, "0 numbers instead of 40"),
        ({"vector": np.full(40, np.nan, np.float32)}, "not finite"),
        ({"vector": np.full(40, np.inf, np.float32)}, "not finite"),
        ({"vector": np.full(40, 1e30, np.float32)}, "longer than any"),
        ({"vector": np.full(40, 10.0, np.float32)}, "longer than any"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_poisoned_update_is_dropped_and_the_others_stay(change, words):
    reply = _read(replace(GOOD, **change), replace(GOOD, draw=1))
    assert sorted(reply.updates) == [1]
    assert words in reply.losses[0]


def test_a_draw_counts_once_however_often_it_comes():
    reply = _read(GOOD, replace(GOOD, vector=GOOD.vector * 2), replace(GOOD, draw=1))
    assert np.array_equal(reply.updates[0], GOOD.vector)
    assert sorted(reply.updates) == [0, 1]


@pytest.mark.parametrize(
    ("code", "counted", "passing"),
    [
        (NO_GUARD, False, True),
        ("failed", False, True),
        ("failed", True, False),
        ("lost", True, False),
        ("terms", False, False),
        ("exhausted", False, False),
    ],
)
def test_only_what_decided_nothing_is_asked_again(code, counted, passing):
    reply = _read(GOOD, Refusal(code=code, message="why", counted=counted))
    assert reply.losses == {1: f"{code}: why"}
    assert reply.passing is passing


def test_rubbish_is_a_loss_of_all_it_should_have_held():
    assert _read().losses == {0: "no answer", 1: "no answer"}
    reply = _read_bytes(b"rubbish", [0])
    assert "cannot be read" in reply.losses[0]
    cut = encode(_signed(GOOD)) + encode(replace(GOOD, draw=1))[:-3]
    reply = _read_bytes(cut)
    assert sorted(reply.updates) == [0]
    assert "cannot be read" in reply.losses[1]
    assert "Refusal" not in str(_read(encode_hello()).losses)


def encode_hello():
    return Hello(
        dpcohort="0", dataset="lab", records=3, dimension=4, model="m", layout="l", accepted=None,
        plan=None, counted=0, key="",
    )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_whatever_raise_or_are_taken(body):
    reply = _read_bytes(body)
    assert reply.updates == {}
    assert sorted(reply.losses) == [0, 1]
    assert isinstance(read_hello(body), str)


def test_no_honest_update_is_longer_than_the_bound():
    # The worst there is: all records in the batch, all gradients alike, noise of every step.
    rng = np.random.default_rng(0)
    clipped = np.zeros(40)
    clipped[0] = REQUEST.clip * 100 / REQUEST.batch_size
    std = REQUEST.noise_multiplier * REQUEST.clip / REQUEST.batch_size
    longest = longest_update(REQUEST, records=100)
    lengths = []
    for _ in range(2000):
        update = sum(a * (clipped + std * rng.normal(size=40)) for a in REQUEST.step_sizes)
        lengths.append(np.linalg.norm(update))
    assert max(lengths) < longest < 1.5 * max(lengths)


def test_a_hello_is_read_and_a_refusal_is_words():
    assert read_hello(encode(encode_hello())).dataset == "lab"
    assert read_hello(encode(Refusal(code="no-guard", message="gone"))) == "no-guard: gone"
    assert "not one to this question" in read_hello(encode(GOOD))


def test_a_refusal_is_one_line_that_cannot_steer_a_terminal():
    words = "\x1b[2J\x1b[32mall promises hold\n\u202eerror: none" + "A" * 100_000
    refusal = Refusal(code="terms\x1b[8m" + "B" * 100_000, message=words)
    lost = _read(refusal, refusal).losses[1]
    told = read_hello(encode(refusal))
    for shown in (lost, told):
        assert shown.isprintable()
        assert r"\x1b[2J\x1b[32mall promises hold\n\u202eerror" in shown
        assert len(shown) < 1000


_FORGED = {
    "no signature": (lambda: replace(GOOD, key=LAB.public), "not signed it"),
    "no key": (lambda: replace(_signed(GOOD), key=""), "not its guard's key"),
    "of another draw": (lambda: replace(_signed(replace(GOOD, draw=1)), draw=0), "not signed it"),
    "of another round": (lambda: replace(_signed(replace(GOOD, round=1)), round=2), "not signed"),
    "of another run": (lambda: replace(_signed(replace(GOOD, run="a")), run="spring"), "not sig"),
    "of another plan": (lambda: _signed(GOOD, plan="q"), "not signed it"),
    "of another client": (lambda: _signed(GOOD, client="ward 7"), "not signed it"),
    "of another update": (lambda: replace(_signed(GOOD), vector=GOOD.vector / 2), "not signed"),
    "by another key": (lambda: replace(_signed(GOOD, OTHER), key=LAB.public), "not signed it"),
    "with another key": (lambda: _signed(GOOD, OTHER), "not its guard's key"),
}


@pytest.mark.parametrize(("make", "message"), _FORGED.values(), ids=_FORGED)
def test_an_update_that_its_guard_has_not_signed_is_not_taken(make, message):
    reply = _read(make(), replace(GOOD, draw=1), signers=_signers(LAB.public))
    assert sorted(reply.updates) == [1]
    assert message in reply.losses[0]
    assert [one.draw for one in reply.signatures] == [1]


def test_the_first_key_of_a_client_is_the_one_that_counts():
    signers = _signers()
    assert _read(GOOD, draws=(0,), signers=signers).losses == {}
    second = _signed(replace(GOOD, draw=1), OTHER)
    assert "not its guard's key" in _read(second, draws=(1,), signers=signers).losses[1]


def test_a_guard_that_signs_two_answers_to_one_draw_is_found():
    signers = _signers()
    assert _read(GOOD, draws=(0,), signers=signers).losses == {}
    assert _read(GOOD, draws=(0,), signers=signers).losses == {}  # after a crash of the server
    other = _read(replace(GOOD, vector=GOOD.vector / 2), draws=(0,), signers=signers)
    assert "another answer to this draw" in other.losses[0]
