# SPDX-License-Identifier: Apache-2.0
"""The guard's socket: who may connect, how much they may send, how long they may take.

Linux tells a listener which user is at the other end of a Unix socket (``SO_PEERCRED``); only users
the owner named are answered. Requests are answered one at a time, and a fresh draw only at whole
multiples of the terms' ``answer_seconds``, since the time a batch takes tells its size.
"""

from __future__ import annotations

import math
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from dpcohort.deploy._monitoring import Log, LogLine, Metric
from dpcohort.deploy.guard._client import receive
from dpcohort.deploy.guard._handler import GuardHandler
from dpcohort.deploy.guard._protocol import (
    AgreeRequest,
    DrawRequest,
    Message,
    Refusal,
    Released,
    ReportRequest,
    encode,
)
from dpcohort.errors import InputError

_CONNECTIONS = 8  # at once; more wait in the queue
_QUEUE = 128  # connections that may wait; one more is told to try again
_IDLE_SECONDS = 60.0  # for the next byte of a request
_CREDENTIALS = struct.Struct("3i")


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel says.

    Example:
        >>> here, there = socket.socketpair()
        >>> peer_uid(here) == os.getuid()
        True
        >>> here.close(), there.close()
        (None, None)
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        raise InputError.because("a guard needs a kernel that tells who connects (SO_PEERCRED).")
    raw = connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(raw)[1]
    return uid


class GuardService(AbstractContextManager["GuardService"]):
    """Listens on a socket and lets a handler answer.

    Args:
        handler: what answers.
        path: where the socket is made, mode 0660.
        log: told one line a request.
        on_close: called once when it stops.

    Raises:
        InputError: something else is at ``path``, or a guard listens there already.
    """

    def __init__(
        self,
        handler: GuardHandler,
        path: str | Path,
        *,
        log: Log = lambda line: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = Path(path)
        self.handler = handler
        self._log, self._on_close, self._is_open = log, on_close, True
        self._refused = 0
        self._users = set(handler.terms.allowed_users)
        if handler.terms.same_user:
            self._users.add(os.geteuid())
        self._one_at_a_time = threading.Lock()
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._socket = _listen(self.path, handler.terms.socket_gid)

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve from a thread of this process."""
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def metrics(self) -> list[Metric]:
        """Numbers for the data's owner, from the ledger; of no time and no record."""
        found = [Metric("guard_refusals", "Requests refused since the start.", self._refused)]
        for run in self.handler.spent():
            labels = {"run": run["run"]}
            found += [
                Metric("guard_draws_counted", "Draws of a run.", run["counted_draws"], labels),
                Metric(
                    "guard_epsilon_promised", "Epsilon of a run.", run["promised_epsilon"], labels
                ),
            ]
        return found

    def ill(self) -> str:
        """Why it does not answer; empty where it does."""
        return "it is being stopped" if self._stopping.is_set() else ""

    def interrupt(self) -> None:
        """Let :meth:`serve_forever` return; safe to call from a signal handler."""
        self._stopping.set()

    def stop(self) -> None:
        """Answer no more; a draw under way is finished and stored first."""
        self.interrupt()
        if self._thread is not None:
            self._thread.join()
        with self._one_at_a_time:
            if self._is_open:
                self._is_open = False
                self._socket.close()
                self.path.unlink(missing_ok=True)
                self._on_close()

    def serve_forever(self) -> None:
        """Serve until :meth:`stop`."""
        while not self._stopping.is_set():
            if not self._slots.acquire(timeout=0.2):
                continue
            try:
                connection, _ = self._socket.accept()
            except OSError:  # nobody came within the time limit, or the socket is closed
                self._slots.release()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_IDLE_SECONDS)
            with connection, suppress(OSError, EOFError):
                uid = peer_uid(connection)
                if uid not in self._users:
                    self._log(f"user {uid}: not allowed")
                    message = "the client's owner has not allowed this user to ask"
                    connection.sendall(encode(Refusal(code="not-allowed", message=message)))
                    return
                while not self._stopping.is_set() and self._exchange(connection):
                    pass
        except Exception as error:
            self._log(f"a connection failed: {type(error).__name__}")
        finally:
            self._slots.release()

    def _exchange(self, connection: socket.socket) -> bool:
        """One request and its answer; whether the connection is still of use."""
        try:
            message = receive(connection, largest_payload=self.handler.largest_payload)
        except InputError as error:
            # What follows on this connection cannot be told apart from the rest of the request.
            self._log("malformed request refused")
            connection.sendall(encode(Refusal(code="malformed", message=str(error))))
            return False
        with self._one_at_a_time:
            if self._stopping.is_set():
                return False
            started = time.monotonic()
            try:
                answer = self.handler.answer(message)
            except Exception as error:  # its text could be about a record
                self._log(f"a request failed: {type(error).__name__}")
                self._wait(Refusal(code="failed", message=""), started)
                return False
            self._wait(answer, started)
        self._refused += isinstance(answer, Refusal)
        self._log(_line(message, answer))
        connection.sendall(encode(answer))
        return True

    def _wait(self, answer: Message, started: float) -> None:
        """Until the next multiple of ``answer_seconds``, where records were looked at."""
        every = self.handler.terms.answer_seconds
        fresh = isinstance(answer, Released) and not answer.resent
        failed = isinstance(answer, Refusal) and answer.code in ("failed", "ledger")
        if every > 0 and (fresh or failed):
            taken = time.monotonic() - started
            multiples = math.ceil(taken / every)
            if multiples > 1:
                self._log(
                    f"WARNING: this answer left after {multiples} times answer_seconds, not one: "
                    "its time told of the batch's size. Set a longer answer_seconds in the terms."
                )
            time.sleep(max(0.0, multiples * every - taken))  # rounding


def _line(message: object, answer: Message) -> LogLine:
    facts: dict[str, Any] = {}
    if isinstance(message, DrawRequest | AgreeRequest):
        facts |= {"run": message.run[:200], "round": message.round}
        if isinstance(message, DrawRequest) and not isinstance(message, ReportRequest):
            facts["draw"] = message.draw
    where = "".join(f" {key} {value!r}" for key, value in facts.items())
    outcome = answer.kind
    if isinstance(answer, Refusal):
        outcome += f" ({answer.code}){', counted' if answer.counted else ''}"
    elif isinstance(answer, Released):
        outcome = "sent again" if answer.resent else "counted, computed, sent"
    kind = getattr(message, "kind", "?")
    return LogLine(f"{kind}{where}: {outcome}", asked=kind, **facts, outcome=outcome)


def _listen(path: Path, group: int | None) -> socket.socket:
    _remove_dead(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)  # the socket never exists with a wider mode than 0660
    try:
        listener.bind(str(path))
        if group is not None:
            os.chown(path, -1, group)
        listener.listen(_QUEUE)
        listener.settimeout(0.2)
    except OSError as error:
        listener.close()
        raise InputError.because(
            f"the socket {path} cannot be made: {error.strerror or error}. "
            "Its folder must exist, and the whole path be shorter than 108 characters."
        ) from None
    finally:
        os.umask(before)
    return listener


def _remove_dead(path: Path) -> None:
    """Take away the socket of a guard that was killed; anything else stays."""
    try:
        found = os.lstat(path)
    except OSError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise InputError.because(f"{path} is there and is not a socket. Give another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass
    raise InputError.because(f"a guard listens at {path} already. Nothing was changed.")
