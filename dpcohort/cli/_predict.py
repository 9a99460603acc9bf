# SPDX-License-Identifier: Apache-2.0
"""``dpcohort predict``: the model of a run on the rows of a table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dpcohort.atomic_file import write_text
from dpcohort.cli._terminal import print_note, say
from dpcohort.data import read_table
from dpcohort.errors import InputError
from dpcohort.plain_text import counted, one_line
from dpcohort.runs import Run
from dpcohort.runs._prediction import predicted_table


def predict(
    run: Annotated[Path, Argument(metavar="RUN", help="A finished run on a table.")],
    table: Annotated[
        Path, Argument(metavar="TABLE", help="CSV or Parquet; needs neither label nor client.")
    ],
    out: Annotated[
        Path, Option("--out", "-o", metavar="FILE.csv", help="The table with predictions.")
    ],
    force: Annotated[bool, Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Predict for the rows of a table: classes by name with probabilities, or numbers."""
    if out.exists() and not force:
        raise InputError("--out", given=str(out), allowed="a new file, or --force")
    cells = read_table(table)
    found, remarks = predicted_table(Run.load(run), cells)
    taken = sorted(set(found) & set(cells))
    if taken:
        raise InputError.because(
            f"{table} has a column {one_line(taken[0], 60)!r} already, which predictions need. "
            "Rename it."
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*cells, *found])
    writer.writerows(zip(*cells.values(), *found.values(), strict=True))
    write_text(out, text.getvalue())
    for remark in remarks:
        print_note(f"{remark}.")
    rows = len(next(iter(found.values())))
    say(f"Wrote {out}: {counted(rows, 'row')} with {', '.join(map(one_line, found))}.")
