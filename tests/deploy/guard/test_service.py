# SPDX-License-Identifier: Apache-2.0
"""The socket: who is answered, one at a time, within limits, and how it ends."""

from __future__ import annotations

import math
import os
import socket
import stat
import struct
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import GuardClient, GuardRefusedError, Refusal
from dpcohort.deploy.guard import _service as module
from dpcohort.deploy.guard._service import GuardService
from dpcohort.deploy.ledger import read_state, verify_ledger
from dpcohort.errors import InputError


class Quick:
    dimension = 18

    def __init__(self, layout, seconds=0.0):
        self.layout, self.seconds, self.inside, self.most = layout, seconds, 0, 0

    def update(self, parameters, lattice, batches, step_sizes):
        self.inside += 1
        self.most = max(self.most, self.inside)
        if self.seconds:
            time.sleep(self.seconds)
        self.inside -= 1
        return np.full(18, 0.5, np.float32)


@pytest.fixture
def serve(open_handler, folder, good, terms):
    services = []

    def start(terms=terms, trainer=None, **options):
        handler = open_handler(terms, trainer=trainer or Quick(good().layout))
        service = GuardService(handler, folder / "g.sock", **options)
        services.append(service)
        service.start()
        return service

    yield start
    for service in services:
        service.stop()


def raw(path, sent):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
        plain.settimeout(10)
        plain.connect(str(path))
        plain.sendall(sent)
        plain.shutdown(socket.SHUT_WR)
        found = b""
        with suppress(ConnectionResetError):  # the rest of what was sent was not read
            while part := plain.recv(1 << 16):
                found += part
        return found


def test_a_client_app_is_answered(serve, good):
    said = []
    service = serve(log=said.append)
    with GuardClient(service.path) as guard:
        assert guard.hello("spring").records == 40
        assert guard.draw(good()).vector.tolist() == [0.5] * 18
        assert guard.draw(good()).resent
        with pytest.raises(GuardRefusedError, match="accepted"):
            guard.draw(good(round=1, batch_size=11))
        assert guard.receipt("spring").spending["counted_draws"] == 1
    assert "draw? run 'spring' round 0 draw 0: counted, computed, sent" in said
    assert "draw? run 'spring' round 1 draw 0: refused (terms)" in said
    assert not any("0.5" in line for line in said)


def test_the_socket_is_closed_to_others(serve):
    path = serve().path
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660


def test_a_user_who_is_not_named_is_refused(serve, terms, good):
    service = serve(replace(terms, same_user=False, allowed_users=(os.geteuid() + 1,)))
    with GuardClient(service.path) as guard, pytest.raises(GuardRefusedError) as caught:
        guard.draw(good())
    assert caught.value.code == "not-allowed"
    assert service.handler.ledger.head[0] == 3  # nothing was counted


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n  ", b"DPG1" + struct.pack("<IQ", 10, 1 << 40), b"DPG1" + bytes(12)],
    ids=["http", "huge", "empty header"],
)
def test_malformed_requests_end_the_connection(serve, sent):
    service = serve()
    assert b'"malformed"' in raw(service.path, sent)
    with GuardClient(service.path) as guard:
        assert guard.hello("spring").counted == 0  # and nobody else is disturbed


def test_half_a_request_spends_nothing(serve, good):
    from dpcohort.deploy.guard._protocol import encode

    service = serve()
    assert raw(service.path, encode(good())[:-1]) == b""
    assert service.handler.ledger.head[0] == 3


def test_a_connection_that_says_nothing_blocks_nobody(serve, monkeypatch):
    monkeypatch.setattr(module, "_IDLE_SECONDS", 0.05)
    service = serve()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.settimeout(10)
        silent.connect(str(service.path))
        with GuardClient(service.path) as guard:
            guard.hello("spring")
        assert silent.recv(1) == b""  # closed by the guard


@pytest.mark.parametrize("error", [ZeroDivisionError, OSError, EOFError], ids=lambda e: e.__name__)
def test_an_error_nobody_foresaw_is_logged_without_its_text(serve, monkeypatch, error):
    """Also one that a broken connection could have raised."""
    said, waits = [], []
    service = serve(log=said.append)

    def fail(message):
        raise error("age 4711")

    monkeypatch.setattr(service.handler, "answer", fail)
    monkeypatch.setattr(service, "_wait", lambda answer, started: waits.append(answer.code))
    with GuardClient(service.path) as guard, pytest.raises(InputError, match="no answer"):
        guard.hello("spring")
    service.stop()
    assert said == [f"a request failed: {error.__name__}"]
    assert waits == ["failed"]  # records may have been looked at: not at once either


def test_fifty_requests_at_once_are_answered_or_refused_and_counted_once(
    serve, with_run, good, folder
):
    """Thirty draws, twenty of them asked for twice at the same time; twelve are accepted."""
    trainer = Quick(good().layout, 0.002)
    service = serve(with_run(rounds=30, draws=12, least_noise_multiplier=4.0), trainer=trainer)
    start, heard, failed = threading.Barrier(50), [], []

    def ask(round):
        try:
            start.wait(timeout=30)
            with GuardClient(service.path, timeout=30) as guard:
                try:
                    update = guard.draw(good(round=round, noise_multiplier=4.0))
                    heard.append((round, update.resent, update.vector.tobytes()))
                except GuardRefusedError as refused:
                    heard.append((round, refused.code, refused.counted))
        except Exception as error:  # what a client app must never meet
            failed.append(repr(error))

    threads = [threading.Thread(target=ask, args=(round,)) for round in [*range(30), *range(20)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(heard) == 50
    fresh = [round for round, how, _ in heard if how is False]
    assert len(fresh) == len(set(fresh)) == 12  # nothing twice, and no more than was accepted
    again = [round for round, how, _ in heard if how is True]
    assert set(again) <= set(fresh)
    refused = [row[1:] for row in heard if isinstance(row[1], str)]
    assert set(refused) == {("exhausted", False)}
    assert len(fresh) + len(again) + len(refused) == 50
    assert trainer.most == 1
    service.stop()
    counted = read_state(folder / "ward.ledger").account("ward", "spring").draws
    assert {key.round for key in counted} == set(fresh)
    assert verify_ledger(folder / "ward.ledger").findings == ()


@pytest.mark.parametrize(("taken", "slept"), [(0.3, 0.7), (1.4, 0.6), (0.0, 0.0)])
def test_fresh_answers_leave_at_whole_multiples(
    open_handler, folder, terms, good, monkeypatch, taken, slept
):
    handler = open_handler(replace(terms, answer_seconds=1.0), trainer=Quick(good().layout))
    with GuardService(handler, folder / "g.sock") as service:  # not started: this test is its clock
        waits = []
        monkeypatch.setattr(module.time, "monotonic", lambda: 10.0 + taken)
        monkeypatch.setattr(module.time, "sleep", waits.append)
        service._wait(handler.answer(good()), 10.0)
        assert waits == [pytest.approx(slept)]
        service._wait(handler.answer(good()), 10.0)  # sent again: no record was looked at
        service._wait(handler.answer(good(clip=9.0)), 10.0)  # refused: likewise
        assert len(waits) == 1
        for code in ("failed", "ledger"):  # records were looked at, or may have been
            service._wait(Refusal(code=code, message=""), 10.0)
        assert waits[1:] == [pytest.approx(slept)] * 2
        monkeypatch.undo()


def test_an_answer_that_came_too_late_is_told_to_the_owner(
    open_handler, folder, terms, good, monkeypatch
):
    handler = open_handler(replace(terms, answer_seconds=1.0), trainer=Quick(good().layout))
    said = []
    with GuardService(handler, folder / "g.sock", log=said.append) as service:
        answer = handler.answer(good())
        monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
        for taken in (0.9, 2.5):
            monkeypatch.setattr(module.time, "monotonic", lambda taken=taken: taken)
            service._wait(answer, 0.0)
        monkeypatch.undo()
    assert len(said) == 1
    assert "after 3 times answer_seconds" in said[0]
    assert "2.5" not in said[0]  # how long it took is in no file, only when it left


def test_a_wait_is_never_negative(open_handler, folder, terms, good, monkeypatch):
    """A quotient can round down to a whole number whose multiple is the smaller one."""
    handler = open_handler(replace(terms, answer_seconds=0.1), trainer=Quick(good().layout))
    with GuardService(handler, folder / "g.sock") as service:
        waits = []
        answer = handler.answer(good())
        monkeypatch.setattr(module.time, "sleep", waits.append)
        for taken in (math.nextafter(k * 0.1, math.inf) for k in range(1, 400)):
            monkeypatch.setattr(module.time, "monotonic", lambda taken=taken: taken)
            service._wait(answer, 0.0)
        assert min(waits) >= 0
        monkeypatch.undo()


def test_what_is_in_the_way_is_not_removed(serve, folder, open_handler):
    (folder / "g.sock").write_text("a file")
    with pytest.raises(InputError, match="not a socket"):
        serve()
    assert (folder / "g.sock").read_text() == "a file"


def test_a_second_guard_is_refused_and_a_dead_ones_socket_is_not_in_the_way(serve, folder):
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(folder / "g.sock"))
    dead.close()  # as kill -9 leaves it
    service = serve()
    with pytest.raises(InputError, match="listens at"):
        GuardService(service.handler, service.path)
    with GuardClient(service.path) as guard:
        guard.hello("spring")


def test_a_path_that_is_too_long_is_explained(open_handler, folder):
    with pytest.raises(InputError, match="108"):
        GuardService(open_handler(), folder / ("x" * 120))


def test_stopping_closes_once_and_removes_the_socket(serve):
    closed = []
    service = serve(on_close=lambda: closed.append(1))
    service.stop()
    service.stop()
    assert closed == [1]
    assert not service.path.exists()
