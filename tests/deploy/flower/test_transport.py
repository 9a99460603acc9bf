# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dpcohort.deploy.flower.exchange import InProcess


def test_answers_carry_the_name_of_their_letter_and_come_once():
    transport = InProcess({"a": lambda body: b"A" + body, "b": lambda body: b"B" + body})
    first, second = transport.nodes()
    letters = [(second.id, b"1"), (first.id, b"2")]
    names = transport.push(letters, group="7", ttl=1.0)
    answers = {answer.message: answer.body for answer in transport.pull(names)}
    assert [answers[name] for name in names] == [b"B1", b"A2"]
    assert transport.pull(names) == []


def test_a_courier_that_fails_is_an_error_of_its_letter():
    def broken(body: bytes) -> bytes:
        raise RuntimeError("cut off")

    transport = InProcess({"a": broken})
    names = transport.push([(0, b"")], group="0", ttl=1.0)
    (answer,) = transport.pull(names)
    assert answer.body is None
    assert answer.error == "RuntimeError: cut off"
