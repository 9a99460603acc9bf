# SPDX-License-Identifier: Apache-2.0
"""Sections of the page that other distributions add, by the entry-point group ``dpcohort.report``.

An entry point names a function of a plan and its run's folder that returns a `Section`;
``dpcohort-lab`` adds an explorer. It is loaded as a command is: whoever installed the distribution
wanted it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcohort.errors import DpcohortError, InputError
from dpcohort.plain_text import visible

if TYPE_CHECKING:
    from jinja2 import Environment

    from dpcohort.plan import Plan

NEEDS = "The HTML report needs jinja2 and plotly: pip install 'dpcohort[report]'."


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the report about the plan of its run.

    Attributes:
        name: the id of its element, and of its data among those of the charts.
        title: in the list of sections; empty if there is nothing to go to.
        markup: HTML, filled in by `fill_template`.
        data: plain values that its scripts read, as ``dpcohortFrame.data.sections[name]``.
        scripts: that run after those of the charts; only these, by their hashes.
    """

    name: str
    title: str
    markup: str
    data: Any = None
    scripts: Sequence[str] = field(default_factory=tuple)


def added_sections(plan: Plan | None, folder: Path) -> tuple[Section, ...]:
    """What installed distributions add to the report of a run, in the order of their names."""
    if plan is None:
        return ()
    entries = sorted(metadata.entry_points(group="dpcohort.report"), key=lambda one: one.name)
    return tuple(_made(entry, plan, folder) for entry in entries)


def _made(entry: metadata.EntryPoint, plan: Plan, folder: Path) -> Section:
    try:
        made: Section = entry.load()(plan, folder)
    except DpcohortError as error:
        words = '<section id="{{ name }}"><p class="note">Not shown: {{ why }}</p></section>'
        return Section(
            name=entry.name, title="", markup=fill_template(words, name=entry.name, why=str(error))
        )
    return made


def fill_template(text: str, **values: Any) -> str:
    """A template of jinja2 filled in: values are escaped, and shown if they hide.

    Raises:
        InputError: jinja2 is not installed.

    Example:
        >>> fill_template("<p>{{ name }}</p>", name="<b>")
        '<p>&lt;b&gt;</p>'
    """
    return _environment().from_string(text).render(values)


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise InputError.because(NEEDS) from None
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    environment.filters.update(number=_number, percent=_percent)
    return environment


def shown(value: object) -> object:
    """What stands in the page for a value; our own markup is of a type of its own."""
    return visible(value) if type(value) is str else value


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
