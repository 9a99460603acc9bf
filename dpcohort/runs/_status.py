# SPDX-License-Identifier: Apache-2.0
"""Status file of a federated run: what it does now, who has answered, who is missing since when.

It lies beside the run folder, as ``RUN.status``, and holds nothing that depends on a record. The
process that executes the run keeps it locked, so that others can tell a run which goes on from one
that nobody executes: a lock ends with its process, however that ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from dpcohort.errors import DpcohortError, InputError
from dpcohort.limits import LARGEST_FEDERATION, LARGEST_JSON, read_bounded
from dpcohort.plain_text import one_line, some
from dpcohort.runs._folder import holder, lock
from dpcohort.text_files import of_file, parse_json, parse_toml, read_utf8

#: What a client that has a message is waited for with; any other reason makes it a missing one.
ASKED = "asked"


def run_of(path: Path) -> Path:
    """The run folder that a path names: itself, or that of a federation's file.

    Example:
        >>> run_of(Path("out/run"))
        PosixPath('out/run')
    """
    if path.suffix != ".toml":
        return path
    with of_file(path, "not valid TOML: {}.", (ValueError,)):
        text = read_utf8(path, at_most_bytes=LARGEST_FEDERATION).decode("utf-8")
        out = parse_toml(text).get("out")
    return path.parent / (out if isinstance(out, str) and out else "run")


def status_path(out: Path) -> Path:
    """Where the status of the run in a folder is.

    Example:
        >>> str(status_path(Path("server/run")))
        'server/run.status'
    """
    return out.with_name(f"{out.name}.status")


class Status(AbstractContextManager["Status"]):
    """The status of a run, held by the process that executes it.

    Args:
        out: the run folder, which need not be there yet.
        rounds: of the plan.
        clock: tells the time of day in seconds.

    Raises:
        WaitingError: another process executes the run.
    """

    def __init__(self, out: Path, *, rounds: int, clock: Callable[[], float] = time.time) -> None:
        path = status_path(out)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(
                path, "r+", opener=lambda name, _: os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
            )
        except OSError as error:
            raise InputError.because(f"{path} cannot be written: {error.strerror}.") from None
        lock(self._file, doing="executes this run")
        self._clock = clock
        before = read_status(out)
        self._said: dict[str, Any] = {
            "doing": "starts",
            "round": None,
            "rounds": rounds,
            "began": clock(),
            "first": None,
            "answered": [],
            "waiting": [],
            "missing": before.get("missing", {}),
            "stopped": None,
        }
        self._write()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._said["doing"] = "finished" if error is None else "stopped"
        if isinstance(error, DpcohortError):
            self._said["stopped"] = {
                "words": str(error),
                "exit_code": error.exit_code,
                "waits": error.waits,
            }
        self._write()
        self._file.close()

    def asks(self, group: str, waiting: Mapping[str, str], answered: list[str]) -> None:
        """Note whom an exchange waits for.

        Args:
            group: ``terms``, or the round, which may have a word after it.
            waiting: why each client has not answered: ``ASKED``, or what keeps it away.
            answered: the others.
        """
        number = group.partition("-")[0]
        if number.isdecimal():
            self._said["round"] = int(number)
            if self._said["first"] is None:
                self._said |= {"first": int(number), "began": self._clock()}
        missing, now = self._said["missing"], self._clock()
        away = {c: one_line(why) for c, why in waiting.items() if why != ASKED}
        for client in answered:
            missing.pop(client, None)
        for client, why in away.items():
            missing[client] = {"since": missing.get(client, {}).get("since", now), "why": why}
        self._said |= {
            "doing": "asks for terms" if group == "terms" else "asks for updates",
            "answered": sorted(answered),
            "waiting": sorted(waiting),
        }
        self._write()

    def _write(self) -> None:
        content = json.dumps(self._said).encode()
        # In place, because the lock is of this file; a reader of half a line looks again.
        with suppress(OSError):
            os.pwrite(self._file.fileno(), content, 0)
            os.ftruncate(self._file.fileno(), len(content))


def read_status(out: Path) -> dict[str, Any]:
    """What a run does; empty where nothing says so."""
    for _ in range(3):  # it may be half written
        with suppress(OSError, ValueError, DpcohortError):
            found = parse_json(read_bounded(status_path(out), LARGEST_JSON))
            return found if isinstance(found, dict) else {}
    return {}


def executed_by(out: Path) -> str | None:
    """The process that executes a run, in words; None where nobody does."""
    return holder(status_path(out))


def describe(status: dict[str, Any]) -> str:
    """A run's status in one line.

    Example:
        >>> describe({"doing": "asks for updates", "round": 2, "rounds": 8, "answered": ["lab"],
        ...           "waiting": ["ward"], "missing": {"ward": {"why": "its node is not online"}}})
        'round 3 of 8: waiting for ward (its node is not online)'
        >>> describe({"doing": "asks for updates", "round": None, "rounds": 8})  # for keys
        'asks for updates'
    """
    doing = str(status.get("doing", ""))
    if doing == "asks for updates" and status["round"] is not None:
        doing = "evaluates the model"
        if status["round"] < status["rounds"]:
            doing = f"round {status['round'] + 1} of {status['rounds']}"
    missing = {c: one["why"] for c, one in status.get("missing", {}).items()}
    away = [c for c in status.get("waiting", []) if c in missing]
    if not away:
        return doing
    return f"{doing}: waiting for {some(away)} ({missing[away[0]]})"
