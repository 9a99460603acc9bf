# SPDX-License-Identifier: Apache-2.0
"""Processes that belong together: started one by one, ended all at once, whatever happens.

Each is started in a process group of its own, with its output in a file, so that a failure can be
read afterwards. What they start in turn, in whatever group or session, is known by a word in its
environment that no other process has, and is ended with them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from dpcohort.errors import DpcohortError, InputError

__all__ = ["Processes", "free_ports"]

_PATIENCE = 5.0
_MARK = "DPCOHORT_PROCESSES"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now.

    Example:
        >>> len(set(free_ports(3)))
        3
    """
    found = []
    with contextlib.ExitStack() as stack:
        # All are held until all are found, so that none comes twice.
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found.append(int(listener.getsockname()[1]))
    return found


class Processes:
    """Processes by name; leaving the block ends them, last started first.

    Args:
        logs: folder for their output, one file each.

    Example:
        >>> import sys, tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        ...     processes.start("one", [sys.executable, "-c", "print('here')"])
        ...     processes.wait("one", seconds=30)
        ...     processes.tail("one")
        0
        'here'
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._token = secrets.token_hex(16)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        #: All ever started: what a killed one left behind is ended, too.
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start a process; one of the same name must have ended.

        Raises:
            InputError: the program is not there.
        """
        if name in self._running and self._running[name].poll() is None:
            raise InputError("name", given=name, allowed="one that is not running")
        self._logs.mkdir(parents=True, exist_ok=True)
        with open(self._logs / f"{name}.log", "ab") as log:
            try:
                self._running[name] = subprocess.Popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(env or {}), _MARK: self._token},
                    cwd=cwd,
                    start_new_session=True,
                )
                self._started.append(self._running[name])
            except OSError as error:
                raise InputError.because(
                    f"{command[0]} cannot be started: {error.strerror or error}."
                ) from None

    def pid(self, name: str) -> int:
        """The number of a process."""
        return self._running[name].pid

    def is_running(self, name: str) -> bool:
        """Whether it has not ended; asking also takes it off the system's list when it has."""
        return name in self._running and self._running[name].poll() is None

    def wait(self, name: str, *, seconds: float) -> int | None:
        """The exit code of a process, or None if it is still running after so long."""
        try:
            return self._running[name].wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self, name: str) -> None:
        """End a process alone, without warning; what it started is left behind (a crash)."""
        process = self._running[name]
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()

    def stop(self, name: str) -> None:
        """End a process and all it started: asked first, made to after a few seconds."""
        process = self._running[name]
        self._signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_PATIENCE)
        self._signal(process, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End them all."""
        running = list(reversed(self._started))
        for process in running:
            self._signal(process, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
        for process in running:
            # The group outlives its first process if something that was started hangs on.
            self._signal(process, signal.SIGKILL)
            process.wait()
        self._sweep()
        self._running.clear()
        self._started.clear()

    def await_port(self, name: str, port: int, *, seconds: float) -> None:
        """Wait until a process listens on a port of the loopback address.

        Raises:
            DpcohortError: it ended, or does not listen after so long; with its last words.
        """
        self.await_that(name, lambda: _listens(port), f"listen on port {port}", seconds=seconds)

    def await_that(
        self, name: str, happened: Callable[[], bool], words: str, *, seconds: float
    ) -> None:
        """Wait until something has happened that a process was started for.

        Raises:
            DpcohortError: it ended, or nothing happened after so long; with its last words.
        """
        deadline = time.monotonic() + seconds
        while not happened():
            if not self.is_running(name):
                raise DpcohortError(f"{name} ended before it could {words}:\n{self.tail(name)}")
            if time.monotonic() > deadline:
                raise DpcohortError(
                    f"{name} did not {words} within {seconds:g} s:\n{self.tail(name)}"
                )
            time.sleep(0.1)

    def tail(self, name: str, *, lines: int = 12) -> str:
        """The last words of a process."""
        try:
            text = (self._logs / f"{name}.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.strip().splitlines()[-lines:])

    def descendants(self) -> list[int]:
        """All processes alive that we started, and all that those started (on Linux)."""
        mark = f"{_MARK}={self._token}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def _sweep(self) -> None:
        """End what is left in groups of its own."""
        deadline = time.monotonic() + _PATIENCE
        while (left := self.descendants()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        # The group's number is that of its first process, also when that one is gone.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
