# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a configuration, in plain words and with the line where it stands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpcohort._validate import choice, did_you_mean
from dpcohort.errors import FileFormatError, InputError

__all__ = [
    "ConfigProblem",
    "Lines",
    "Where",
    "dotted",
    "error_of",
    "key_lines",
    "within",
    "words_of",
]

#: Where a key stands: names of tables and keys, and positions in lists of tables.
Where = tuple[str | int, ...]
#: The line of each place; None for what does not stand in the file.
Lines = dict[Where, int | None]

_MOST_SHOWN = 5
_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_LIST_OF_TABLES = re.compile(r"\s*\[\[\s*([^\[\]]+?)\s*\]\]\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-\"'. ]+?)\s*=")
_KINDS = {
    "int_type": "a whole number, written without a decimal point",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "list_type": "a list of tables, each under its own line [[{name}]]",
    "model_type": "a table, under its own line [{name}]",
    "model_attributes_type": "a table, under its own line [{name}]",
    "dict_type": "a table, under its own line [{name}]",
}


@dataclass(frozen=True)
class ConfigProblem:
    """One problem: where in the tables it is, and what it is."""

    where: Where
    words: str


def dotted(where: Where) -> str:
    """A place as a person writes it.

    Example:
        >>> dotted(("population", "public", 0, "size"))
        'population.public[0].size'
    """
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def within(section: str, error: InputError) -> ConfigProblem:
    """An error about a field, as a problem of the section the field is in.

    Example:
        >>> within("training", InputError("clip", given=0, allowed="above 0")).words
        'training.clip = 0 is not allowed: it must be above 0.'
    """
    parts = [int(p) if p.isdigit() else p for p in re.findall(r"[^.\[\] ]+", error.field)]
    joint = "." if error.field else ": "
    return ConfigProblem((*section.split("."), *parts), f"{section}{joint}{error}")


def words_of(details: Mapping[str, Any], keys: Mapping[str, Sequence[str]]) -> ConfigProblem:
    """One finding of the schema check, in plain words.

    Args:
        details: an entry of pydantic's ``errors()``.
        keys: the known keys of each section; the sections themselves under "".

    Example:
        >>> found = {"type": "extra_forbidden", "loc": ("training", "rouns"), "input": 3}
        >>> words_of(found, {"": ["training"], "training": ["rounds", "clip"]}).words
        "training.rouns is not a known key. Did you mean 'rounds'?"
    """
    where: Where = tuple(details["loc"])
    name, kind, given = dotted(where), str(details["type"]), details.get("input")
    if kind == "extra_forbidden":
        return ConfigProblem(where, _unknown_key(where, keys))
    if kind == "missing":
        what = f"the table [{name}]" if len(where) == 1 else name
        return ConfigProblem(where, f"{what} is missing; it must be given.")
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(details["ctx"]["expected"]))
        try:
            choice(name, given, allowed)
        except InputError as error:
            return ConfigProblem(where, str(error))
    if kind in _KINDS:
        table = ".".join(part for part in where if isinstance(part, str))
        allowed_words = _KINDS[kind].format(name=table)
        return ConfigProblem(where, str(InputError(name, given=given, allowed=allowed_words)))
    return ConfigProblem(where, f"{name} cannot be used: {str(details['msg']).lower()}.")


def error_of(path: str | Path, problems: Sequence[ConfigProblem], lines: Lines) -> FileFormatError:
    """All problems as one error; one alone on one line, several as a list of the first ones.

    Example:
        >>> problem = ConfigProblem(("training", "clip"), "training.clip = 0 is not allowed.")
        >>> str(error_of("a.toml", [problem], {("training",): 1, ("training", "clip"): 3}))
        'a.toml, line 3: training.clip = 0 is not allowed.'
    """
    found = sorted(
        ((_line_of(problem.where, lines), problem.words) for problem in problems),
        key=lambda pair: pair[0] or 0,
    )
    if len(found) == 1:
        line, words = found[0]
        return FileFormatError(path, words, line=line)
    shown = [f"  line {line}: {words}" if line else f"  {words}" for line, words in found]
    if len(found) > _MOST_SHOWN:
        shown[_MOST_SHOWN:] = [f"  and {len(found) - _MOST_SHOWN} more"]
    return FileFormatError(path, "\n".join([f"{len(found)} problems", *shown]))


def key_lines(text: str) -> Lines:
    r"""The line of each table and key, as far as a look at the beginning of lines can tell.

    Example:
        >>> key_lines("[training]\nrounds = 3\n[[population.public]]\nsize = 5\n")
        {('training',): 1, ('training', 'rounds'): 2, ('population', 'public', 0): 3,
         ('population', 'public', 0, 'size'): 4}
    """
    lines: Lines = {}
    tables: Counter[Where] = Counter()
    table: Where = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _LIST_OF_TABLES.match(line):
            name = _parts(found[1])
            table = (*name, tables[name])
            tables[name] += 1
            lines.setdefault(table, number)
        elif found := _TABLE.match(line):
            table = _parts(found[1])
            lines.setdefault(table, number)
        elif found := _KEY.match(line):
            lines.setdefault((*table, *_parts(found[1])), number)
    return lines


def _parts(name: str) -> Where:
    return tuple(part.strip().strip("\"'") for part in name.split("."))


def _line_of(where: Where, lines: Lines) -> int | None:
    """The line of the key, or else of the nearest table around it."""
    for end in range(len(where), 0, -1):
        if where[:end] in lines:
            return lines[where[:end]]
    return None


def _unknown_key(where: Where, keys: Mapping[str, Sequence[str]]) -> str:
    *around, key = where
    known = keys.get(".".join(part for part in around if isinstance(part, str)), ())
    text = f"{dotted(where)} is not a known key."
    for home, words in keys.items():
        if home and key in words:
            return f"{text} It belongs under [{home}]."
    if hint := did_you_mean(key, known):
        return f"{text} {hint}"
    return f"{text} Known here: {', '.join(known)}." if known else text
