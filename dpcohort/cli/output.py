# SPDX-License-Identifier: Apache-2.0
"""Where a command's words go: results to stdout, errors and progress to stderr.

Whatever a command prints goes through here, and here words of others (names in a plan, a client's
refusal, the text of a remote error) lose their power over the terminal.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from dpcohort.plain_text import json_visible, visible

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "console",
    "new_table",
    "print_error",
    "print_json",
    "print_note",
    "print_progress",
    "print_text",
    "sparkline",
]


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

#: Work of fewer items is done before one could read how far it is.
_WORTH_TELLING = 500


def print_error(message: str) -> None:
    """One message on stderr, never marked up: it may quote a user's file."""
    _errors.print("error: ", style="bold red", end="")
    _errors.print(message, soft_wrap=True)


def print_note(message: str) -> None:
    """Something to know that stops nothing, on stderr."""
    _errors.print(f"note: {message}", soft_wrap=True)


def print_progress(work: str, done: int, total: int) -> None:
    """One line on a terminal that says how far long work is, and goes away when it is done."""
    if not _errors.is_terminal or total <= _WORTH_TELLING:
        return
    text = visible(f"{work} {done:,} of {total:,}") if done < total else ""
    _errors.file.write(f"\r\x1b[2K{text}")
    _errors.file.flush()


def print_json(value: Any) -> None:
    """The value as JSON on stdout; what is not a finite number becomes null."""
    print(json_visible(json.dumps(_finite(value), indent=2, ensure_ascii=False)))


def print_text(text: str, *, to_errors: bool = False, end: str = "\n") -> None:
    """Text as it is, without width or colour, on stdout or stderr: a file's content, a log line."""
    print(visible(text), end=end, file=sys.stderr if to_errors else sys.stdout, flush=True)


def new_table(
    *columns: str, close: bool = False, title: str | None = None, **options: Any
) -> Table:
    """A table with a line under its head, and columns of these names, all with these options.

    Args:
        columns: their names.
        close: whether columns are one space apart, and not two.
        title: above it, on the left.
        options: of ``rich.table.Table.add_column``.
    """
    from rich import box
    from rich.table import Table

    padding = (0, 1, 0, 0) if close else (0, 1)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding, title=title)
    table.title_justify = "left"
    for name in columns:
        table.add_column(name, **options)
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


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
