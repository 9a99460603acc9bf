# SPDX-License-Identifier: Apache-2.0
"""Ask a guard over its socket; what a client app needs, and nothing that needs torch.

The client app may be code a server has shipped. It sees the guard's answers and nothing else.
"""

from __future__ import annotations

import socket
import time
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dpcohort.deploy.guard._protocol import (
    DrawRequest,
    DrawUpdate,
    Hello,
    HelloRequest,
    Message,
    ReceiptRequest,
    Refusal,
    RunReceipt,
    encode,
    read_frame,
)
from dpcohort.errors import DpcohortError, InputError
from dpcohort.limits import LARGEST_FRAME
from dpcohort.plain_text import one_line

_CHUNK = 1 << 20
Reply = TypeVar("Reply")


class GuardRefusedError(DpcohortError):
    """The guard said no.

    Attributes:
        code: why, as in :class:`~dpcohort.deploy.guard._protocol.Refusal`.
        counted: the draw is counted in the client's ledger all the same.
    """

    exit_code = 4

    def __init__(self, refusal: Refusal) -> None:
        code, message = one_line(refusal.code, 40), one_line(refusal.message)
        super().__init__(f"the guard refused ({code}): {message}")
        self.code = refusal.code
        self.counted = refusal.counted


class GuardClient(AbstractContextManager["GuardClient"]):
    """A connection to a guard.

    Args:
        path: its socket.
        timeout: seconds to wait for an answer.

    Raises:
        InputError: no guard listens there, or this user may not ask it.

    Example:
        >>> GuardClient("no-such.socket")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: no guard answers at no-such.socket: No such file or directory.
        Start it with: dpcohort guard
    """

    def __init__(self, path: str | Path, *, timeout: float = 600.0) -> None:
        self._path = Path(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            _connect(self._socket, str(path), timeout)
        except OSError as error:
            self._socket.close()
            reason = error.strerror or str(error)
            hint = "Start it with: dpcohort guard"
            if isinstance(error, PermissionError):
                hint = "This user is not among those the client's owner allows."
            elif isinstance(error, BlockingIOError):
                hint = "Too many ask it at once; ask again later."
            raise InputError.because(f"no guard answers at {path}: {reason}. {hint}") from None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; a draw that is counted stays counted."""
        self._socket.close()

    def hello(self, run: str) -> Hello:
        """What the owner has accepted for this run.

        Raises:
            GuardRefusedError: this user may not ask.
            InputError: the guard is gone or speaks something else.
        """
        return self._ask(HelloRequest(run=run), Hello)

    def draw(self, request: DrawRequest) -> DrawUpdate:
        """Have one draw done, or its stored update sent again.

        Raises:
            GuardRefusedError: it is not within the terms, or was spent before.
            InputError: the guard is gone; ask again, a draw is never computed twice.
        """
        return self._ask(request, DrawUpdate)

    def ask(self, request: Message) -> Message:
        """The guard's answer to any other request, such as one about masked sums; as :meth:`draw`.

        A share of a mask, or a signature on who is left of a cohort, it gives once a round.
        """
        return self._ask(request, Message)

    def receipt(self, run: str) -> RunReceipt:
        """What a run has spent.

        Raises:
            GuardRefusedError: the run is not accepted.
            InputError: the guard is gone.
        """
        return self._ask(ReceiptRequest(run=run), RunReceipt)

    def _ask(self, request: Message, wanted: type[Reply]) -> Reply:
        with suppress(OSError):  # it may have refused and closed; its word is read below
            self._socket.sendall(encode(request))
        try:
            reply = receive(self._socket, largest_payload=LARGEST_FRAME)
        except (OSError, EOFError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or "it closed the connection"
            raise InputError.because(
                f"the guard at {self._path} gave no answer: {reason}. What it counted stays "
                "counted; ask again when it runs."
            ) from None
        if isinstance(reply, Refusal):
            raise GuardRefusedError(reply)
        if not isinstance(reply, wanted):
            raise InputError("answer", given=type(reply).__name__, allowed=wanted.__name__)
        return reply


def _connect(connection: socket.socket, path: str, timeout: float) -> None:
    """Connect; a guard whose queue is full says so at once, and is asked again for a while."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return connection.connect(path)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def receive(connection: socket.socket, *, largest_payload: int) -> Any:
    """One message from a socket; as :func:`~dpcohort.deploy.guard._protocol.read_frame`."""
    return read_frame(partial(receive_exactly, connection), largest_payload=largest_payload)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes from a socket.

    Raises:
        EOFError: the other side closed before.

    Example:
        >>> here, there = socket.socketpair()
        >>> _ = there.send(b"abc"), there.close()
        >>> receive_exactly(here, 3)
        b'abc'
        >>> here.close()
    """
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), _CHUNK))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
