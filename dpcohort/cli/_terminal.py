# SPDX-License-Identifier: Apache-2.0
"""Between commands and the terminal: how they print, and the options they share.

Results go to stdout, errors and progress to stderr. Whatever a command prints goes through here,
and here words of others (names in a plan, a client's refusal, the text of a remote error) lose
their power over the terminal.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.segment import Segment
from rich.table import Table
from typer import Argument, Option

from dpcohort.atomic_file import write_text
from dpcohort.consent import typed
from dpcohort.errors import InputError
from dpcohort.plain_text import json_visible, visible
from dpcohort.progress import Progress, silent
from dpcohort.text_files import finite_json


class _Screen(Console):
    """A console on which text is only text; colours and cursor are rich's own to move."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Every piece that is printed: sentences, tables, live views and progress bars alike."""
        for piece in super().render(renderable, options):
            if piece.control:
                yield piece
            else:
                yield Segment(visible(piece.text), piece.style)


# No emoji and no markup: an id such as ward:100:a is not a picture, and [bold] in one is a name.
console = _Screen(highlight=False, emoji=False, markup=False)
_errors = _Screen(stderr=True, highlight=False, emoji=False, markup=False)

#: Characters of one message; a broken receipt may quote anything.
LONGEST_MESSAGE = 2000
#: Work of fewer items is done before one could read how far it is.
_WORTH_TELLING = 500


def say(text: str, **style: Any) -> None:
    """A sentence on stdout, in one line however narrow the terminal."""
    console.print(text, soft_wrap=True, **style)


def program() -> str:
    """How this program can be called again: its name where that is found, else as it was called.

    Example:
        >>> program().endswith("dpcohort")
        True
    """
    called = Path(sys.argv[0])
    if shutil.which("dpcohort") is not None or called.name not in ("dpcohort", "__main__.py"):
        return "dpcohort"

    words = [str(called)] if called.name == "dpcohort" else [sys.executable, "-m", "dpcohort"]
    return shlex.join(words)


def print_error(message: str) -> None:
    """One message on stderr, never marked up: it may quote a user's file."""
    _errors.print("error: ", style="bold red", end="")
    _errors.print(message, soft_wrap=True)


def print_note(message: str) -> None:
    """Something to know that stops nothing, on stderr."""
    _errors.print(f"note: {message}", soft_wrap=True)


def show_messages() -> None:
    """Print what the package logs as notes: where features were read from, for one."""
    log, handler = logging.getLogger("dpcohort"), logging.Handler()
    handler.emit = lambda record: print_note(record.getMessage())  # type: ignore[method-assign]
    log.handlers = [handler]
    log.setLevel(logging.INFO)


def print_progress(work: str, done: int, total: int) -> None:
    """One line on a terminal that says how far long work is, and goes away when it is done."""
    if not _errors.is_terminal or total <= _WORTH_TELLING:
        return
    text = visible(f"{work} {done:,} of {total:,}") if done < total else ""
    _errors.file.write(f"\r\x1b[2K{text}")
    _errors.file.flush()


@contextmanager
def showing_progress(title: str, *, quiet: bool) -> Iterator[Progress]:
    """A bar with the time left on a terminal, a line now and then in a pipe."""
    if quiet or not console.is_terminal:
        yield silent if quiet else _lines(title)
        return

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    left = TimeRemainingColumn()
    with Bar(*columns, TextColumn("left"), left, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{title}: {what}"[:60])

        yield show


def _lines(title: str) -> Progress:
    """Progress in a pipe: a line for each tenth, with the time left."""
    shown, began = -1, time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(1, total)
        if tenth != shown:
            shown = tenth
            seconds = (time.monotonic() - began) * (total - done) / max(1, done)
            left = f", about {_duration(seconds)} left" if done else ""
            say(f"{title}: {10 * tenth} %{left}: {what}")

    return show


def _duration(seconds: float) -> str:
    """Seconds as a person says them.

    Example:
        >>> _duration(200)
        '3 min'
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_json(value: Any = None, /, **values: Any) -> None:
    """The value, or the named values, as JSON on stdout; what is not a finite number is null.

    Example:
        >>> print_json(rounds=3)
        {
          "rounds": 3
        }
    """
    print(json_visible(json.dumps(finite_json(values or value), indent=2, ensure_ascii=False)))


def print_text(text: str, *, to_errors: bool = False, end: str = "\n") -> None:
    """Text as it is, without width or colour, on stdout or stderr: a file's content, a log line."""
    print(visible(text), end=end, file=sys.stderr if to_errors else sys.stdout, flush=True)


def new_table(
    *columns: str,
    numbers: Sequence[str] = (),
    close: bool = False,
    title: str | None = None,
    **options: Any,
) -> Table:
    """A table with a line under its head, and columns of these names, all with these options.

    Args:
        columns: their names.
        numbers: names of columns after them that are set to the right, without these options.
        close: whether columns are one space apart, and not two.
        title: above it, on the left.
        options: of ``rich.table.Table.add_column``.
    """
    padding = (0, 1, 0, 0) if close else (0, 1)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding, title=title)
    table.title_justify = "left"
    for name in columns:
        table.add_column(name, **options)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def sparkline(values: Sequence[float]) -> str:
    """The values as a row of bars, lowest to highest.

    Example:
        >>> sparkline([0, 1, 2, 4])
        '▁▃▅█'
    """
    bars = "▁▂▃▄▅▆▇█"
    finite = [v for v in values if math.isfinite(v)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = high - low
    return "".join(
        " " if not math.isfinite(v) else bars[round((v - low) / span * 7) if span > 0 else 0]
        for v in values
    )


SourceArgument = Annotated[
    Path | None,
    Argument(
        metavar="[SOURCE]",
        help="A config (.toml), a list of clients (.csv) or a saved plan (.json).",
    ),
]
ClientsOption = Annotated[
    Path | None,
    Option(
        "--clients",
        metavar="FILE.csv",
        help="Clients as id,size,epsilon,delta[,batch_size][,public]; replaces a config's own.",
    ),
]


Typed = TypeVar("Typed", str, list[str], None)


def typed_here(value: Typed) -> Typed:
    """An option as it is; each ``module:name`` in it may be loaded, since the user typed it.

    Example:
        >>> typed_here(["selection.rule=my_rules:Quieter"])
        ['selection.rule=my_rules:Quieter']
    """
    texts: list[str] = [value] if isinstance(value, str) else value or []
    for text in texts:
        if names := _NAME.findall(text):
            typed(*names)
    return value


_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")

SimulateOption = Annotated[
    int | None,
    Option(
        "--simulate",
        metavar="SEED",
        min=0,
        help="Simulate: batches and noise from this seed, NOT PRIVATE. Public data need no asking.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        callback=typed_here,
        help="Change a setting, e.g. --set training.rounds=200; may be repeated.",
    ),
]
MetricsOption = Annotated[
    str | None,
    Option(metavar="WHERE", help="HOST:PORT for /metrics and /health, or a file FILE.prom."),
]
LogJsonOption = Annotated[bool, Option("--log-json", help="Log lines of JSON.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON for programs.")]
DeviceOption = Annotated[str | None, Option(help="auto, cpu or cuda; the config's if not given.")]
JobsOption = Annotated[
    int, Option("--jobs", "-j", min=1, help="Trainings at a time, in processes of their own.")
]
BackendOption = Annotated[
    str,
    Option(
        metavar="dask=ADDRESS|ray=ADDRESS",
        help="A cluster whose processes train, e.g. dask=tcp://host:8786.",
    ),
]

PaidAfterOption = Annotated[
    Path | None,
    Option(
        "--after",
        metavar="RUN",
        help="A run that was trained on these records: what is paid counts there, within its "
        "promises.",
    ),
]
LetterOption = Annotated[
    Path | None,
    Option(metavar="FILE.html", help="Write it in plain words too, to print and hand out."),
]
DraftOption = Annotated[
    bool,
    Option("--draft", help="The letter is a draft, and may be of a run that is not private."),
]
LargeDeltaOption = Annotated[
    bool, Option("--allow-large-delta", help="Accept a delta of 1/size or more.")
]
DataDirOption = Annotated[
    Path | None, Option("--data-dir", help="Where to look for the data first.")
]


def write_new(
    path: Path, text: str, *, force: bool, as_json: bool, mode: int | None = None, **told: Any
) -> bool:
    """Write a text to a new file; print it where the path is ``-``.

    Args:
        path: where.
        text: what.
        force: replace a file that exists.
        as_json: say so in JSON.
        mode: of the file, if it is for its owner only.
        told: more for the JSON.

    Returns:
        Whether it remains to be said what comes next.

    Raises:
        InputError: the file exists already.
    """
    to_terminal = str(path) == "-"
    if not to_terminal:
        if path.exists() and not force:
            raise InputError.because(f"{path} exists already. Choose another name, or use --force.")
        write_text(path, text)
        if mode is not None:
            os.chmod(path, mode)
    if as_json:
        print_json(path=str(path), **told, **({"text": text} if to_terminal else {}))
    elif to_terminal:
        print_text(text, end="")
    return not (as_json or to_terminal)


def shape_from(text: str) -> tuple[int, ...]:
    """The shape of a record from the words of ``--input-shape``.

    Raises:
        InputError: they are no lengths.

    Example:
        >>> shape_from("1x28x28"), shape_from("64")
        ((1, 28, 28), (64,))
    """
    try:
        return tuple(int(length) for length in text.replace("x", ",").split(","))
    except ValueError:
        allowed = "lengths such as 64 or 1x28x28"
        raise InputError("--input-shape", given=text, allowed=allowed) from None
