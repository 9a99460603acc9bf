# SPDX-License-Identifier: Apache-2.0
"""Messages out and answers in, over any transport."""

from __future__ import annotations

import pytest

from dpcohort.deploy.flower._exchange import Exchange, InProcess
from dpcohort.errors import InputError


class Wire:
    """A transport by script: nodes online from a time on, answers a while after the letter."""

    def __init__(self, *, online=None, answers=None):
        self.now = 0.0
        self.online = online or {}
        self.answers = answers or {}
        self.sent: list[tuple[float, int, bytes, float]] = []
        self.names: dict[str, tuple[float, int]] = {}
        self.extra: list[tuple[str, int]] = []

    def nodes(self):
        return [
            (key, place)
            for place, (key, since) in enumerate(self.online.items())
            if self.now >= since
        ] + self.extra

    def push(self, letters, *, group, ttl):
        names = []
        for letter in letters:
            self.sent.append((self.now, letter[0], letter[1], ttl))
            name = f"m{len(self.sent)}"
            self.names[name] = (self.now, letter[0])
            names.append(name)
        return names

    def pull(self, names):
        found = []
        for name in names:
            at, node = self.names[name]
            script = self.answers.get(node, [])
            place = sum(1 for t, n, _, _ in self.sent if n == node and t < at)
            if place < len(script):
                after, answer = script[place]
                if self.now >= at + after:
                    found.append((name, answer.get("body"), answer.get("error", "")))
        return found

    def sleep(self, seconds):
        self.now += seconds


def _exchange(wire, keys, **changes):
    settings = {"timeout": 60.0, "attempts": 3, "poll": 1.0, **changes}
    return Exchange(wire, keys, clock=lambda: wire.now, sleep=wire.sleep, **settings)


def test_each_client_gets_its_letter_at_the_node_that_holds_its_key():
    wire = Wire(
        online={"kb": 0, "ka": 0}, answers={0: [(1, {"body": b"b"})], 1: [(2, {"body": b"a"})]}
    )
    heard = _exchange(wire, {"a": "ka", "b": "kb"}).ask({"a": b"A", "b": b"B"}, group="0")
    assert {c: h.bodies for c, h in heard.items()} == {"a": [b"a"], "b": [b"b"]}
    assert {(node, body) for _, node, body, _ in wire.sent} == {(0, b"B"), (1, b"A")}
    assert 2.0 <= wire.now <= 2.2  # looked for at least every tenth of the wait


def test_letters_are_void_when_the_rounds_time_is_over():
    wire = Wire(online={"ka": 0, "kb": 20.0}, answers={0: [(99, {"body": b""})]})
    heard = _exchange(wire, {"a": "ka", "b": "kb"}).ask({"a": b"A", "b": b"B"}, group="0")
    (first, _, _, whole), (second, _, _, left) = wire.sent
    assert (first, whole) == (0.0, 60.0)
    assert 20.0 <= second <= 21.0
    assert left == pytest.approx(60.0 - second)
    assert heard["a"].errors == ["no answer within 60 s"]
    assert wire.now == pytest.approx(60.0)


def test_an_error_is_asked_again_and_the_stored_answer_taken():
    script = {0: [(44, {"error": "error 5: node unavailable"}), (2, {"body": b"again"})]}
    wire = Wire(online={"ka": 0}, answers=script)
    heard = _exchange(wire, {"a": "ka"}).ask({"a": b"A"}, group="0")
    assert heard["a"].bodies == [b"again"]
    assert heard["a"].errors == ["error 5: node unavailable"]
    assert heard["a"].attempts == 2


def test_an_answer_that_settles_nothing_is_asked_again():
    script = {0: [(1, {"body": b"not yet"}), (1, {"body": b"done"})]}
    wire = Wire(online={"ka": 0}, answers=script)
    exchange = _exchange(wire, {"a": "ka"})
    heard = exchange.ask({"a": b"A"}, group="0", satisfied=lambda c, body: body == b"done")
    assert heard["a"].bodies == [b"not yet", b"done"]


def test_a_client_that_never_comes_does_not_keep_the_others_waiting_longer_than_the_limit():
    wire = Wire(online={"ka": 0, "kb": 1e9}, answers={0: [(1, {"body": b"a"})]})
    heard = _exchange(wire, {"a": "ka", "b": "kb"}).ask({"a": b"A", "b": b"B"}, group="0")
    assert heard["a"].bodies == [b"a"]
    assert heard["b"].errors == ["its node was not online within 60 s"]
    assert wire.now == pytest.approx(60.0)


def test_one_key_at_two_nodes_stops_everything():
    wire = Wire(online={"ka": 0})
    wire.extra = [("ka", 7)]
    with pytest.raises(InputError, match="two nodes are online with the key of a"):
        _exchange(wire, {"a": "ka"}).ask({"a": b"A"}, group="0")
    assert wire.sent == []


# SPDX-License-Identifier: Apache-2.0


def test_answers_carry_the_name_of_their_letter_and_come_once():
    transport = InProcess({"a": lambda body: b"A" + body, "b": lambda body: b"B" + body})
    (_, first), (_, second) = transport.nodes()
    names = transport.push([(second, b"1"), (first, b"2")], group="7", ttl=1.0)
    answers = {name: body for name, body, _ in transport.pull(names)}
    assert [answers[name] for name in names] == [b"B1", b"A2"]
    assert transport.pull(names) == []


def test_a_client_app_that_fails_is_an_error_of_its_letter():
    def broken(body: bytes) -> bytes:
        raise RuntimeError("cut off")

    transport = InProcess({"a": broken})
    names = transport.push([(0, b"")], group="0", ttl=1.0)
    assert transport.pull(names) == [(names[0], None, "RuntimeError: cut off")]


def test_who_could_not_answer_is_asked_again_after_a_while():
    """Long enough for a supervisor to start what died, however quickly answers come."""
    no = (0.0, {"error": "no guard"})
    wire = Wire(online={"ka": 0}, answers={0: [no, no, no]})
    heard = _exchange(wire, {"a": "ka"}).ask({"a": b"A"}, group="0")
    assert heard["a"].attempts == 3
    assert [at for at, _, _, _ in wire.sent] == pytest.approx([0.0, 10.0, 30.0], abs=1.1)
