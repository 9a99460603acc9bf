# SPDX-License-Identifier: Apache-2.0
r"""The page: template, style, scripts and data in one file that needs no network.

Everything that comes from a run (client names above all) is text: jinja2 escapes it in the
markup, and in the data block every character that could end a script is written as ``\uXXXX``.
Characters that hide or turn the direction of text are shown as escapes in both.
A content security policy allows exactly the scripts below, by their hashes, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from dpcohort._validate import choice
from dpcohort._version import __version__
from dpcohort.atomic_file import write_text
from dpcohort.errors import InputError
from dpcohort.plain_text import visible
from dpcohort.report.html.report import Report, report_of_reproduction, report_of_runs
from dpcohort.report.html.reproduction import read_reproduction
from dpcohort.report.html.sources import read_groups
from dpcohort.runs.folder import finite_json

__all__ = ["data_block", "make_report", "render", "write_report"]

#: In the order in which the page runs them.
_SCRIPTS = ("solver.js", "noise.js", "frame.js", "charts.js", "explorer.js", "page.js")

_NEEDS = "The HTML report needs jinja2 and plotly: pip install 'dpcohort[report]'."


def write_report(sources: Sequence[str | Path], path: str | Path, *, method: str = "pld") -> Report:
    """Read runs or a result and write the report about them, whole or not at all.

    Args:
        sources: run folders, folders of seeds, or one result (.json) of ``dpcohort reproduce``.
        path: where the page goes.
        method: the accountant that verifies the promises: ``pld``, ``auto`` or ``dp-accounting``.

    Raises:
        DataMissingError: a run is not there.
        InputError: a source is neither, or the page cannot be written there.
    """
    if not Path(path).parent.is_dir():  # said before the work, not after it
        raise InputError.because(
            f"{path} cannot be written: there is no folder {Path(path).parent}. Make it first."
        )
    report = make_report(sources, method=method)
    write_text(path, render(report))
    return report


def make_report(sources: Sequence[str | Path], *, method: str = "pld") -> Report:
    """The content of the report about runs or a result.

    Raises:
        DataMissingError: a run is not there.
        InputError: a source is neither.
    """
    if not sources:
        raise InputError("sources", given=[], allowed="at least one run folder or result")
    choice("method", method, ["pld", "auto", "dp-accounting"])
    results = [source for source in sources if Path(source).suffix.lower() == ".json"]
    if not results:
        return report_of_runs(read_groups(sources, method=method), method=method)
    if len(sources) > 1:
        raise InputError.because(
            f"{results[0]} is a file: give one result of dpcohort reproduce, or run folders only."
        )
    return report_of_reproduction(read_reproduction(results[0]))


def render(report: Report) -> str:
    """The whole page as text."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise InputError.because(_NEEDS) from None
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update(number=_number, percent=_percent)
    scripts = [_plotly(), *(_asset(name) for name in _SCRIPTS)]
    template = environment.from_string(_asset("page.html.j2"))
    page: str = template.render(
        report=report,
        version=__version__,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=_asset("style.css"),
        scripts=scripts,
        data=data_block(report.chart_data()),
        policy=_policy(scripts),
    )
    return page.lstrip()


def data_block(values: object) -> str:
    r"""Values as JSON that is inert inside a script element, whatever the names in it say.

    Example:
        >>> data_block({"name": "</script><b>"})
        '{"name":"\\u003c/script\\u003e\\u003cb\\u003e"}'
    """
    text = json.dumps(_all_shown(finite_json(values)), separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _shown(value: object) -> object:
    """What stands in the page for a value; our own markup is of a type of its own."""
    return visible(value) if type(value) is str else value


def _all_shown(value: Any) -> Any:
    """The same for every text in plain values; keys too, so that both sides of a lookup agree."""
    if isinstance(value, dict):
        return {_shown(key): _all_shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_all_shown(item) for item in value]
    return _shown(value)


def _policy(scripts: Sequence[str]) -> str:
    """No network, no foreign script: only these scripts, by their hashes."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


@cache
def _asset(name: str) -> str:
    text = files("dpcohort.report.html").joinpath("assets", name).read_text(encoding="utf-8")
    # Browsers hash what they read, and they read CRLF as LF.
    return text.replace("\r\n", "\n")


@cache
def _plotly() -> str:
    try:
        path = files("plotly").joinpath("package_data", "plotly.min.js")
    except ImportError:
        raise InputError.because(_NEEDS) from None
    return path.read_text(encoding="utf-8").replace("\r\n", "\n")


def _number(value: float | None, digits: int = 4) -> str:
    """A number for a table: ``-`` where there is none."""
    if value is None:
        return "–"
    if value == float("inf"):
        return "unbounded"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def _percent(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "–"
    return "unbounded" if value == float("inf") else f"{100 * value:.{digits}f} %"
