# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a recipe's result: cells beside the paper's numbers, and statements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from dpcohort.errors import FileFormatError, InputError
from dpcohort.limits import LARGEST_RESULT, read_bounded
from dpcohort.report import Headline, Notice, Report, Section, fill_template
from dpcohort.runs import NOT_PRIVATE
from dpcohort.text_files import parse_json

__all__ = ["Reproduction", "read_reproduction", "report_of_result"]

_FORMAT, _RESULT_SCHEMA = "dpcohort reproduction", 1


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
        cells: numbers of a table or figure of the paper, measured again, in the recipe's order:
            ``name`` (mechanism and axes), ``paper``, ``mean`` with its 95 % interval from ``low``
            to ``high``, ``difference`` in points, ``verdict``, ``curve`` (rounds and accuracy),
            ``seeds`` and ``promises_hold``; what there is none of is None.
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
    cells: tuple[dict[str, Any], ...]
    promises_hold: bool
    facts: Mapping[str, str]
    problems: tuple[Notice, ...]


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
            path, f"a plan, so no result: nothing was trained yet. Look at it: dpcohort plan {path}"
        )
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise FileFormatError(
            path, "no result of dpcohort reproduce. Give a run folder, or such a result."
        )
    problems = []
    if values.get("schema") != _RESULT_SCHEMA:
        schemas = f"schema {values.get('schema')!r}; this dpcohort reads schema {_RESULT_SCHEMA}"
        told = f"written in {schemas}. What is known of it is shown."
        problems.append(Notice("broken", str(path), told))
    cells = tuple(_cell(item) for item in _objects(values.get("cells")))
    if not cells and not values.get("findings"):
        problems.append(Notice("missing", str(path), "it holds no measured cell."))
    held = values.get("promises_hold") is True and all(cell["promises_hold"] for cell in cells)
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


def report_of_result(path: str | Path) -> Report:
    """The report about a result of ``dpcohort reproduce``.

    Args:
        path: of the result.
    """
    found = read_reproduction(path)
    judged = [holds for _, holds, _ in found.findings if holds is not None]
    result = found.title
    if found.cells:
        result += f": {len(found.cells)} cells measured"
    if judged:
        result += f", {sum(judged)} of {len(judged)} statements hold"
    kept = "every promise certified" if found.promises_hold else "NOT every promise is certified"
    verdict = kept if found.cells else "nothing was trained"
    good = found.promises_hold and not found.problems
    tone: Literal["good", "plain", "bad"] = "good" if found.cells and not found.warning else "plain"
    return Report(
        kind="reproduction",
        title=found.title,
        headline=Headline(
            result, verdict, tone if good else "bad", kind="SIMULATION" if found.cells else ""
        ),
        stamp=NOT_PRIVATE if found.cells else "",
        problems=found.problems,
        facts={"Result": dict(found.facts)},
        rerun=(found.command,) if found.command else (),
        sections=(
            Section(
                name="reproduction",
                title="Cells",
                markup=fill_template(_asset("page.html.j2"), found=found),
                data=list(found.cells),
                scripts=(_asset("page.js"),),
            ),
        ),
    )


def _asset(name: str) -> str:
    text = files("dpcohort_lab.recipes").joinpath(name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")  # browsers hash what they read, and they read CRLF as LF


def _cell(item: Mapping[str, Any]) -> dict[str, Any]:
    axes, named = item.get("axes"), [str(item.get("mechanism") or "-")]
    if isinstance(axes, Mapping):
        named += [f"{key} {value}" for key, value in axes.items()]
    mean, half = _number(item.get("mean")), _number(item.get("half_width"))
    ends = (None, None) if mean is None or half is None else (mean - half, mean + half)
    curve = [
        (float(point[0]), float(point[1]))
        for point in _list(item.get("curve"))
        if isinstance(point, list)
        and len(point) == 2
        and all(_number(v) is not None for v in point)
    ]
    return {
        "name": ", ".join(named),
        "paper": _number(item.get("paper")),
        "mean": mean,
        "low": ends[0],
        "high": ends[1],
        "difference": _number(item.get("difference")),
        "verdict": str(item.get("verdict") or ""),
        "curve": tuple(curve),
        "seeds": len(_list(item.get("accuracy"))),
        "promises_hold": item.get("promises_hold") is True,
    }


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
