# SPDX-License-Identifier: Apache-2.0
"""How much a file or a message may ask for, in one place: looked at before memory is taken.

A small file must not cost a large memory. Everything whose size is *said* (a count of clients, the
shape of an array, the length of a frame) is held against a limit here before room is made for it;
everything that is *there* (the bytes of a file) against the largest file of its kind. The limits
are far above what is of use; ``docs/reference/limits.md`` lists them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from dpcohort.errors import FileFormatError
from dpcohort.plain_text import one_line

#: Clients of a population, drawn or listed, public ones included.
MOST_CLIENTS = 10_000_000
#: rounds x cohort_size: a schedule is drawn whole before training; this many draws take 0.8 GB.
MOST_DRAWS = 100_000_000
#: Local steps of one draw: each has a step size in memory and on the wire.
MOST_LOCAL_STEPS = 1_000_000
#: Configurations of a [grid], cells of a recipe, settings of a search.
MOST_CELLS = 100_000
#: Repetitions of a recipe or search.
MOST_SEEDS = 10_000
#: Trained parameters of a layer of a known model: what the largest frame can carry.
MOST_PARAMETERS = 1 << 29
#: Numbers of one record, where a file states its shape.
MOST_INPUT_VALUES = 1 << 27
#: Classes of a data set or a model.
MOST_CLASSES = 1_000_000
#: Cells of a table of records, and numbers that become of it.
MOST_TABLE_CELLS = 500_000_000
#: Columns of a table of records.
MOST_TABLE_COLUMNS = 100_000
#: Rows of one person that a training may use.
MOST_PERSON_ROWS = 10_000
#: Levels of tables and lists inside each other in TOML and JSON.
DEEPEST_NESTING = 64

#: Bytes of a configuration or a recipe (TOML).
LARGEST_CONFIG = 1_000_000
#: Bytes of the terms of a guard or of a run; with distributed noise they have a line per round.
LARGEST_TERMS = 16 << 20
#: Bytes of a federation.toml, which has a key for each client.
LARGEST_FEDERATION = 64 << 20
#: Bytes of a CSV list of clients.
LARGEST_CLIENT_LIST = 2 << 30
#: Bytes of a table of records as CSV.
LARGEST_TABLE = 1 << 29
#: Bytes of a plan.json.
LARGEST_PLAN = 2 << 30
#: Bytes of any other JSON file of a run: run.json, a receipt, result.json.
LARGEST_JSON = 256 << 20
#: Bytes of ledger.jsonl or rounds.jsonl.
LARGEST_LOG = 4 << 30
#: Bytes of one line of ledger.jsonl or rounds.jsonl.
LARGEST_LINE = 64 << 20
#: Bytes of a result of `dpcohort reproduce`.
LARGEST_RESULT = 20_000_000
#: Bytes of the measurements of one cell.
LARGEST_CELL_FILE = 5_000_000

#: Bytes of the JSON header of a guard's message, or of the first line of a message to a client.
LARGEST_HEADER = 1 << 20
#: Bytes of the vector in a guard's message.
LARGEST_FRAME = 1 << 31
#: Draws that one message asks for.
MOST_MESSAGE_DRAWS = 10_000

#: Bytes that a compressed file (.npz, .gz) may unpack to, however small it is.
LARGEST_FREE_UNPACKING = 1 << 30
#: Times its own size that a compressed file may unpack to, beyond LARGEST_FREE_UNPACKING.
MOST_TIMES_UNPACKED = 20

_PIECE = 1 << 24

#: Every limit by its name, for the documentation.
LIMITS = {
    name: int(value)
    for name, value in sorted(globals().items())
    if name.startswith(("MOST_", "LARGEST_", "DEEPEST_"))
}

__all__ = ["LIMITS", "check_unpacking", "exhausted", "read_bounded", *LIMITS]


def check_unpacking(path: str | Path, size: int, next_step: str) -> None:
    """Refuse a compressed file whose content would be out of all proportion to it.

    Args:
        path: the file as it lies there.
        size: bytes it says it unpacks to.
        next_step: what somebody with honest data can do.

    Raises:
        FileFormatError: it is too much.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     check_unpacking(file.name, 3 << 30, "")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        dpcohort.errors.FileFormatError: ...: its 0 bytes would unpack to 3,221,225,472...
    """
    packed = os.stat(path).st_size
    allowed = max(LARGEST_FREE_UNPACKING, MOST_TIMES_UNPACKED * packed)
    if size > allowed:
        raise FileFormatError(
            path,
            f"its {packed:,} bytes would unpack to {size:,}; at most {allowed:,} are allowed "
            f"({LARGEST_FREE_UNPACKING:,}, or {MOST_TIMES_UNPACKED} times the file). {next_step}",
        )


def exhausted(error: BaseException) -> str | None:
    """What to say when room ran out in spite of the limits; None for any other error.

    Example:
        >>> exhausted(RecursionError())
        'what was given is nested too deeply to be worked through. Look at ...'
        >>> exhausted(ValueError("7"))
    """
    look = (
        "Look at the counts and sizes in the files it was given, above all if they came from "
        "somebody else; docs/reference/limits.md lists the limits."
    )
    if isinstance(error, RecursionError):
        return f"what was given is nested too deeply to be worked through. {look}"
    # torch has errors of its own for a processor's and an accelerator's memory.
    words = str(error)
    of_torch = isinstance(error, RuntimeError) and re.search("allocate memory|out of memory", words)
    if isinstance(error, MemoryError) or of_torch:
        told = f" ({one_line(words.splitlines()[0], 200)})" if words else ""
        return f"this needs more memory than there is{told}. {look}"
    return None


def read_bounded(path: str | Path, at_most: int) -> bytes:
    """The bytes of a file that must not have more than so many; never reads more than that.

    Raises:
        FileFormatError: it has more.
        OSError: it cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = file.write(b"abc"), file.flush()
        ...     read_bounded(file.name, 3)
        b'abc'
    """
    content = bytearray()
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        # A device or a pipe has no size: what comes out of it is bounded all the same.
        while size <= at_most and (piece := file.read(min(_PIECE, at_most + 1 - len(content)))):
            content += piece
    if size > at_most or len(content) > at_most:
        found = f"{size:,}" if size > at_most else "more"
        raise FileFormatError(
            path,
            f"the file has {found} bytes; at most {at_most:,} are allowed. Is it the right file?",
        )
    return bytes(content)
