# SPDX-License-Identifier: Apache-2.0
"""A result of ``dpcohort reproduce`` for the report: cells beside the paper's numbers.

Only plain values are read, and each is checked, so that a result of another version still shows
what it has in common with this one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_RESULT, read_bounded
from dpcohort.report.html.sources import Problem
from dpcohort.text_files import parse_json

__all__ = ["Reproduction", "ReproductionCell", "read_reproduction"]

_FORMAT, _SCHEMA = "dpcohort reproduction", 1


@dataclass(frozen=True, kw_only=True)
class ReproductionCell:
    """One number of a table or figure of the paper, measured again; accuracies in percent.

    Attributes:
        name: mechanism and the values of the axes.
        mechanism: which.
        axes: the values of the axes, in words.
        paper: the paper's number; None if it has none.
        mean: ours.
        low: lower end of the 95 % interval; None from one seed.
        high: upper end.
        difference: ours minus the paper's, in points.
        verdict: in words.
        curve: (rounds, accuracy) pairs, the mean over seeds.
        seeds: measurements behind it.
        promises_hold: every receipt held.
    """

    name: str
    mechanism: str
    axes: str
    paper: float | None
    mean: float | None
    low: float | None
    high: float | None
    difference: float | None
    verdict: str
    curve: tuple[tuple[float, float], ...]
    seeds: int
    promises_hold: bool


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A recipe's result.

    Attributes:
        path: the file.
        title: what was reproduced.
        command: what makes it again.
        warning: that it is a reduced form; empty if it is whole.
        notes: what must be said beside the numbers.
        findings: (sentence, whether it holds, numbers).
        cells: in the recipe's order.
        promises_hold: every receipt of every training held.
        facts: settings and environment, in words.
        problems: what could not be read.
    """

    path: str
    title: str
    command: str
    warning: str
    notes: tuple[str, ...]
    findings: tuple[tuple[str, bool | None, str], ...]
    cells: tuple[ReproductionCell, ...]
    promises_hold: bool
    facts: Mapping[str, str]
    problems: tuple[Problem, ...]


def read_reproduction(path: str | Path) -> Reproduction:
    """Read a result file.

    Raises:
        InputError: it is not a result of ``dpcohort reproduce``.

    Example:
        >>> read_reproduction("no-such.json")
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: no-such.json cannot be read: No such file or directory. ...
    """
    try:
        values = parse_json(read_bounded(path, LARGEST_RESULT))
    except OSError as error:
        raise InputError.because(
            f"{path} cannot be read: {error.strerror or error}. "
            "Make a result with: dpcohort reproduce NAME"
        ) from None
    except FileFormatError:
        raise
    except ValueError:
        raise FileFormatError(path, "not valid JSON, so no result of dpcohort reproduce.") from None
    if isinstance(values, dict) and str(values.get("format")).endswith(" plan"):
        raise FileFormatError(
            path,
            f"a plan, so no result: nothing was trained yet. Look at it: dpcohort plan {path}",
        )
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise FileFormatError(
            path, "no result of dpcohort reproduce. Give a run folder, or such a result."
        )
    problems = []
    if values.get("schema") != _SCHEMA:
        problems.append(
            Problem(
                kind="broken",
                where=str(path),
                message=f"written in schema {values.get('schema')!r}; this dpcohort reads schema "
                f"{_SCHEMA}. What is known of it is shown.",
            )
        )
    cells = tuple(_cell(item) for item in _objects(values.get("cells")))
    if not cells and not values.get("findings"):
        problems.append(
            Problem(kind="missing", where=str(path), message="it holds no measured cell.")
        )
    held = values.get("promises_hold") is True and all(cell.promises_hold for cell in cells)
    return Reproduction(
        path=str(path),
        title=str(values.get("title") or values.get("recipe") or path),
        command=str(values.get("command") or ""),
        warning=str(values.get("warning") or ""),
        notes=tuple(
            str(note) for note in (values.get("note"), *_list(values.get("notes"))) if note
        ),
        findings=tuple(
            (str(item.get("text", "")), _truth(item.get("holds")), str(item.get("detail") or ""))
            for item in _objects(values.get("findings"))
        ),
        cells=cells,
        promises_hold=held,
        facts=_facts(values),
        problems=tuple(problems),
    )


def _cell(item: Mapping[str, Any]) -> ReproductionCell:
    axes = item.get("axes")
    words = (
        ", ".join(f"{key} {value}" for key, value in axes.items())
        if isinstance(axes, Mapping)
        else ""
    )
    mechanism = str(item.get("mechanism") or "-")
    mean, half = _number(item.get("mean")), _number(item.get("half_width"))
    known = mean is not None and half is not None
    curve = [
        (float(point[0]), float(point[1]))
        for point in _list(item.get("curve"))
        if isinstance(point, list)
        and len(point) == 2
        and all(_number(v) is not None for v in point)
    ]
    return ReproductionCell(
        name=f"{mechanism}, {words}" if words else mechanism,
        mechanism=mechanism,
        axes=words,
        paper=_number(item.get("paper")),
        mean=mean,
        low=(mean or 0.0) - (half or 0.0) if known else None,
        high=(mean or 0.0) + (half or 0.0) if known else None,
        difference=_number(item.get("difference")),
        verdict=str(item.get("verdict") or ""),
        curve=tuple(curve),
        seeds=len(_list(item.get("accuracy"))),
        promises_hold=item.get("promises_hold") is True,
    )


def _facts(values: Mapping[str, Any]) -> dict[str, str]:
    facts = {
        "recipe": values.get("recipe"),
        "of": values.get("of"),
        "form": values.get("form"),
        "seeds": values.get("seeds"),
        "training time": f"{values['seconds']} s" if "seconds" in values else None,
        "recipe SHA-256": values.get("recipe_sha256"),
        "settings searched": values.get("search"),
    }
    environment = values.get("environment")
    if isinstance(environment, Mapping):
        facts |= {str(k): v for k, v in environment.items() if isinstance(v, str | int | float)}
    return {key: str(value) for key, value in facts.items() if value not in (None, "", {})}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in _list(value) if isinstance(item, Mapping)]
