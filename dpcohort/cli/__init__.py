# SPDX-License-Identifier: Apache-2.0
"""The command line: one file a command, and one place where errors become exit codes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dpcohort.limits import exhausted

__all__ = ["main"]

#: Exit code after Ctrl-C; typer turns the interrupt into it without a word.
_STOPPED = 130
_GO_ON = {
    "train": " What was counted stays counted; the same command with --resume goes on.",
    "reproduce": " The same command goes on where it was.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``dpcohort`` and return its exit code.

    0 ok, 1 verification failed, 2 bad input, 3 data missing, 4 a budget would be exceeded.

    Example:
        >>> main(["--version"])
        dpcohort ...
        0
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows a question mark, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with _notes():
            code = _run(arguments)
    except KeyboardInterrupt:
        code = _STOPPED
    if code == _STOPPED:
        words = sys.argv[1:] if arguments is None else arguments
        step = _GO_ON.get(words[0], "") if words else ""
        print(f"error: stopped.{step}", file=sys.stderr)
    return code


@contextmanager
def _notes() -> Iterator[None]:
    """Warnings of this package in one line, without file and line of its code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_note(
            message: Warning | str, category: type[Warning], *place: Any, **more: Any
        ) -> None:
            if category.__module__.startswith("dpcohort."):
                from dpcohort.cli.output import print_note

                print_note(str(message))
            else:
                show(message, category, *place, **more)

        warnings.showwarning = show_note
        yield


def _run(arguments: Sequence[str] | None) -> int:
    from dpcohort.cli.app import app
    from dpcohort.errors import DpcohortError

    try:
        app(args=None if arguments is None else list(arguments), prog_name="dpcohort")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
    except DpcohortError as error:
        _print_error(str(error))
        return error.exit_code
    except (MemoryError, RecursionError, RuntimeError) as error:
        words = exhausted(error)
        if words is None:
            raise
        _print_error(words)
        return 2
    except BrokenPipeError:
        # The reader (`| head`) has gone; give the interpreter nothing left to flush into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


def _print_error(message: str) -> None:
    from dpcohort.cli.output import print_error

    print_error(message)
