# SPDX-License-Identifier: Apache-2.0
"""Configurations to start from: every key, why it is there, and a value that works.

Their text is in the folder ``examples``: a population of its own for most, and the settings that
all share, with places in braces where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpcohort._validate import choice
from dpcohort.text_files import parse_toml, toml_text

_FOLDER = Path(__file__).parent / "examples"


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


_TEXTS = parse_toml(_text("examples"))
#: Names of the examples.
EXAMPLES = tuple(_TEXTS["examples"])


def commented_config(example: str = "hospitals") -> str:
    """A configuration with comments, as TOML text.

    Args:
        example: ``digits``, ``heart-disease``, ``hospitals``, ``paper-mnist``, ``paper-figure``,
            ``paper-cifar10`` or ``csv``.

    Example:
        >>> print(commented_config("csv").splitlines()[0])
        # Your own clients, from a CSV file.
    """
    about = _TEXTS["examples"][choice("example", example, EXAMPLES)]
    is_figure = example == "paper-figure"
    population = _text("population-paper-mnist" if is_figure else f"population-{example}")
    settings = _settings(about["batch"], f"dimension = {about['dimension']}", paper=is_figure)
    following, execution = "dpcohort train FILE --out RUN", _text("execution")
    if example == "heart-disease":
        own = 'name = "heart-disease"      # embedded; its four hospitals are the clients\n\n'
        execution = f"[data]\n{own}{execution[execution.index('# [task]') :]}"
    elif example != "digits":  # the others come without data: it is commented out
        following = "dpcohort plan FILE"
        execution = "# To train as well, with data of as many records:\n" + "".join(
            line if not line.strip() or line.startswith("#") else f"# {line}"
            for line in execution.splitlines(keepends=True)
        )
    return f"# {about['title']}\n# Next: {following}\n\n{population}\n{settings}\n{execution}"


def _settings(batch: str, dimension: str, *, paper: bool = False, cohort_size: int = 10) -> str:
    return _text("settings").format(
        cohort_size=cohort_size,
        batch=_TEXTS["batches"][batch],
        dimension=dimension,
        accountant="paper" if paper else "tight",
        noise_model="paper" if paper else "exact",
    )


_FILL = "FILL IN"


def table_config(
    *,
    table: str,
    label: str | Sequence[str],
    client: str,
    person: str | None = None,
    clients: str,
    kind: str,
    labels: Sequence[Any],
    features: Sequence[str],
    bounds: Mapping[str, Sequence[float]],
    categories: Mapping[str, Sequence[Any]],
    target_bounds: Sequence[float] = (),
    left_out: Sequence[str] = (),
    proposed: Sequence[str] = (),
    dates: Sequence[str] = (),
    public: bool = False,
    cohort_size: int = 10,
) -> str:
    """A configuration with comments for a table of one's own; empty lists are for people to fill.

    Args:
        table: path of the table, from the folder of the configuration.
        label: the column or columns to be predicted.
        client: the column that says whose record it is.
        person: the column that says of which person a row is, if there is one.
        clients: path of the list of clients.
        kind: of the task.
        labels: values of the label, for a task of classes.
        features: columns that a model sees.
        bounds: of each column of numbers.
        categories: the values of each column of text.
        target_bounds: of a number that is predicted.
        left_out: columns that are left out, which is said.
        proposed: columns whose bounds are proposed by their names.
        dates: columns of dates.
        public: whether all records are public, and results on the test records may be published.
        cohort_size: draws in each round.

    Example:
        >>> text = table_config(table="t.csv", label="sick", client="ward", clients="c.csv",
        ...     kind="classification", labels=[], features=["age"], bounds={"age": []},
        ...     categories={})
        >>> "age = []" in text
        True
    """
    data: dict[str, Any] = {
        "name": table,
        "label": label if isinstance(label, str) else list(label),
        **({"labels": list(labels)} if kind == "classification" else {}),
        "client": client,
        **({} if person is None else {"person": person}),
        "features": list(features),
    }
    said = {
        "name": "the table; the path starts from the folder of this file",
        "label": "what is predicted",
        "labels": "its values, one class each" if labels else f"{_FILL}: its values, in any order",
        "client": "the column that says whose record it is",
        "person": "the column that says of which person a row is: persons are protected",
        "features": "what the model sees",
    }
    origin = "From what is known, not from the data."
    if any(bounds.values()) and not proposed:
        origin = "Of the table, which is public: all but 1 % at each end."
    task = _TASK if kind == "classification" else f'\n\n[task]\nkind = "{kind}"'
    if kind == "regression":
        task += _open({"bounds": target_bounds}, "smallest and largest to be predicted")
    dimension = "# dimension = 100           # trained parameters; counted if left out"
    execution = _text("execution")
    return _text("table").format(
        title=f"{', '.join([label] if isinstance(label, str) else label)} of {Path(table).name}",
        clients=_commented({"clients": clients}, {}).lstrip(),
        settings=_settings("whole", dimension, cohort_size=cohort_size),
        data=_commented(data, said),
        left_out=f"\n# left out: {', '.join(left_out)}" if left_out else "",
        test_public=str(public).lower(),
        public="public = true" if public else "# public = true",
        person=_PERSON if person is None else "",
        origin=origin,
        bounds=_commented(bounds, _said_of_bounds(bounds, proposed, dates)),
        categories=_open(categories, 'such as ["no", "yes"]'),
        task=task,
        execution=execution[execution.index("[model]") :].rstrip("\n"),
    )


def _said_of_bounds(
    bounds: Mapping[str, Sequence[Any]], proposed: Sequence[str], dates: Sequence[str]
) -> dict[str, str]:
    said = dict.fromkeys(proposed, "PROPOSED by its name: check it")
    for name in (name for name, ends in bounds.items() if not ends):
        example = "dates, such as ['2015-01-01', '2025-12-31']"
        example = example if name in dates else "smallest and largest, such as [0, 110]"
        said[name] = f"{_FILL}: {example}"
    return said


_TASK = """

# How frequent each class is, where that is publicly known: rare ones are then predicted too.
# [task]
# class_shares = [0.9, 0.1]"""
_PERSON = """# person = "patient_id"       # whose a row is: all rows of one are protected together
"""


def _commented(values: Mapping[str, Any], said: Mapping[str, str]) -> str:
    """Lines of TOML, each after a line break, with what is said of some of the keys."""
    lines = toml_text({"": values}).splitlines()[1:]
    return "".join(
        f"\n{line:<26}  # {said[key]}" if key in said else f"\n{line}"
        for key, line in zip(values, lines, strict=True)
    )


def _open(values: Mapping[str, Sequence[Any]], example: str) -> str:
    """A line for each column; one that is empty says what to fill in."""
    return _commented(values, {key: f"{_FILL}: {example}" for key, v in values.items() if not v})
