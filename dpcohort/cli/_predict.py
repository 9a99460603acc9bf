# SPDX-License-Identifier: Apache-2.0
"""``dpcohort predict``, ``export`` and ``coefficients``: what to do with the model of a run."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from dpcohort.atomic_file import write_text
from dpcohort.cli._terminal import (
    JsonOption,
    console,
    new_table,
    print_json,
    print_note,
    say,
)
from dpcohort.data import read_table
from dpcohort.errors import InputError
from dpcohort.plain_text import counted, one_line
from dpcohort.report._model_card import model_card
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


def export(
    run: Annotated[Path, Argument(metavar="RUN", help="A finished run.")],
    onnx: Annotated[
        Path | None, Option("--onnx", metavar="FILE.onnx", help="For ONNX runtimes.")
    ] = None,
    sklearn: Annotated[
        Path | None, Option("--sklearn", metavar="FILE.skops", help="A pipeline of scikit-learn.")
    ] = None,
    torch: Annotated[
        Path | None, Option("--torch", metavar="FILE.pt2", help="For torch.export.load.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write the model with its preprocessing for other programs, and a model card beside it."""
    from dpcohort.runs._export import FORMATS, Exported

    read = Run.load(run)
    model = Exported.of(read)
    asked = {"onnx": onnx, "sklearn": sklearn, "torch": torch}
    files = {name: path for name, path in asked.items() if path is not None}
    if not files:
        raise InputError.because("name a file to write: --onnx, --sklearn or --torch.")
    cards = {path.parent / "model-card.md" for path in files.values()}
    for path in (*files.values(), *cards):
        if path.exists() and not force:
            raise InputError("file", given=str(path), allowed="a new file, or --force")
    for name, path in files.items():
        FORMATS[name](model, path)
    for path in cards:
        write_text(path, model_card(read))
    say(f"Wrote {', '.join(map(str, (*files.values(), *cards)))}.")


def coefficients(
    run: Annotated[Path, Argument(metavar="RUN", help="A finished run of a linear model.")],
    public: Annotated[
        Path | None,
        Option("--public", metavar="TABLE", help="Public rows whose inputs are like the clients'."),
    ] = None,
    confidence: Annotated[float, Option(help="Of the intervals.")] = 0.95,
    csv_file: Annotated[
        Path | None, Option("--csv", metavar="FILE.csv", help="Write the table here too.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a linear model's coefficients with intervals: sampling error and noise together."""
    from dpcohort.runs._coefficients import coefficients as coefficients_of

    rows = None if public is None else read_table(public)
    found = coefficients_of(Run.load(run), rows, confidence=confidence)
    if csv_file is not None:
        fields = ("of", "name", "estimate", "error", "noise", "low", "high")
        lines = [fields, *([getattr(one, field) for field in fields] for one in found.rows)]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        write_text(csv_file, text.getvalue())
    if as_json:
        print_json(asdict(found))
        return
    ends = f"{100 * confidence:g} % interval"
    has_ratio = any(one.ratio for one in found.rows)
    what = "ratio" if has_ratio else "coefficient"
    table = new_table("", numbers=("coefficient", "error", "by noise", f"{what}, {ends}"))
    for one in found.rows:
        name = f"{one.of}: {one.name}" if one.of else one.name
        numbers = (f"{value:.3g}" for value in (one.estimate, one.error, one.noise))
        shown = "{:.3g} ({:.3g} to {:.3g})".format(
            *(one.ratio or (one.estimate, one.low, one.high))
        )
        table.add_row(one_line(name), *numbers, shown)
    console.print(table)
    say(
        f"{'Ratios of odds (of counts: of rates) are for' if has_ratio else 'For'} one unit more, "
        f"or against the first category listed. Inputs are taken to be like {found.inputs}."
    )
    for words in found.remarks:
        print_note(f"{words}.")
