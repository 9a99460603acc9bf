# SPDX-License-Identifier: Apache-2.0
"""The asking side: what it says when nobody, or somebody else, answers."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from dpcohort.deploy.guard import GuardClient, GuardRefusedError, Refusal
from dpcohort.deploy.guard._client import receive_exactly
from dpcohort.deploy.guard._protocol import ReceiptRequest, encode
from dpcohort.errors import InputError


@pytest.fixture
def answering(folder):
    """A listener that answers every connection with the same bytes."""
    listeners = []

    def listen(answer):
        path = folder / "a.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen()
        listeners.append(listener)

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        return path

    yield listen
    for listener in listeners:
        listener.close()


def test_no_guard_is_said_plainly(folder):
    with pytest.raises(InputError, match="Start it with: dpcohort guard"):
        GuardClient(folder / "none.sock")


def test_a_guard_whose_queue_is_full_is_asked_again(folder):
    path = folder / "a.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with GuardClient(path), pytest.raises(InputError, match="ask again later"):
            GuardClient(path, timeout=0.02)
        threading.Timer(0.05, lambda: listener.accept()[0].close()).start()
        GuardClient(path, timeout=30).close()


def test_a_refusal_is_an_error_with_its_code(answering):
    path = answering(encode(Refusal(code="lost", message="gone", counted=True)))
    with GuardClient(path) as guard, pytest.raises(GuardRefusedError, match="gone") as caught:
        guard.receipt("spring")
    assert (caught.value.code, caught.value.counted, caught.value.exit_code) == ("lost", True, 4)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "no answer"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "frame"),
        (encode(ReceiptRequest(run="a")), "Hello"),
    ],
    ids=["closed", "another server", "another message"],
)
def test_other_answers_are_refused(answering, answer, said):
    with GuardClient(answering(answer), timeout=5) as guard, pytest.raises(InputError, match=said):
        guard.hello("spring")


def test_receiving_goes_on_until_all_is_there():
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"ab")
        there.sendall(b"cd")
        there.shutdown(socket.SHUT_WR)
        assert receive_exactly(here, 3) == b"abc"
        with pytest.raises(EOFError):
            receive_exactly(here, 2)


def test_a_client_app_loads_neither_torch_nor_a_transport():
    code = (
        "import sys, dpcohort.deploy.guard, dpcohort.cli._guard\n"
        "heavy = {'torch', 'flwr', 'sklearn', 'dp_accounting', 'matplotlib', 'plotly'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
