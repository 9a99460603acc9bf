# SPDX-License-Identifier: Apache-2.0
"""A person's configuration file with some values changed, and everything else as it was."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dpcohort.config.settings import Where, apply_overrides, key_lines
from dpcohort.errors import InputError
from dpcohort.text_files import parse_toml, toml_text

_LINE = re.compile(
    r"""(?P<head>\s*[^=#]+?\s*=\s*)(?P<value>"[^"]*"|'[^']*'|[^#"']*?)(?P<gap>\s*)(?P<note>\#.*)?$"""
)
#: Where the comment of a new line begins.
_COLUMN = 28


def rewritten(
    text: str,
    changes: Sequence[str],
    *,
    notes: Mapping[str, str] | None = None,
    tell_old: bool = True,
) -> str:
    r"""The text with some keys changed; comments, order and every other value stay.

    A changed line says what it was, a key that cannot stand beside a new one is commented out, and
    a new key stands at the end of its table.

    Args:
        text: a configuration that reads.
        changes: ``section.key=value`` each, as ``--set`` takes them.
        notes: a comment for some of the keys.
        tell_old: whether a changed line says what it was.

    Raises:
        InputError: the file is written in a way in which a key cannot be changed by itself.

    Example:
        >>> print(rewritten("[training]\nrounds = 40  # ours\n", ["training.rounds=100"]), end="")
        [training]
        rounds = 100  # ours (was 40)
    """
    before = parse_toml(text)
    wanted, places = apply_overrides(before, changes)
    lines = text.splitlines()
    gone = [place for place in _leaves(before) if _at(wanted, place) is None]
    for place in gone:
        _comment_out(lines, place)
    for place in dict.fromkeys(places):
        new, old = _at(wanted, place), _at(before, place)
        if new is None or (new == old and type(new) is type(old)):
            continue
        note = (notes or {}).get(".".join(map(str, place)), "")
        if old is None:
            _insert(lines, place, new, note)
        else:
            _replace(lines, place, new, old if tell_old else None, note)
    result = "\n".join(lines) + "\n"
    if _parsed(result) != wanted:
        tables = ", ".join(f"[{place[0]}]" for place in dict.fromkeys(places))
        raise InputError.because(
            f"a value of the file cannot be changed by itself. Write {tables} as tables of their "
            "own, one key a line, as dpcohort new does."
        )
    return result


def _parsed(text: str) -> Any:
    try:
        return parse_toml(text)
    except ValueError:
        return None


def _leaves(values: Mapping[str, Any]) -> list[Where]:
    return [
        (name, key) for name, table in values.items() if isinstance(table, dict) for key in table
    ]


def _at(values: Mapping[str, Any], place: Where) -> Any:
    found: Any = values
    for part in place:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _row(lines: list[str], place: Where) -> int | None:
    number = key_lines("\n".join(lines)).get(place)
    return None if number is None else number - 1


def _value(value: Any) -> str:
    return toml_text({"v": value}).removeprefix("v = ").rstrip("\n")


def _replace(lines: list[str], place: Where, new: Any, old: Any, note: str) -> None:
    row = _row(lines, place)
    found = None if row is None else _LINE.match(lines[row])
    if row is None or found is None:
        return  # the check at the end says so
    comment = (found["note"] or "#").rstrip()
    was = "" if old is None else f"was {_value(old)}"
    said = "; ".join(words for words in (note, was) if words)
    if said:
        comment = f"# {said}" if comment == "#" else f"{comment} ({said})"
    start = f"{found['head']}{_value(new)}"
    width = max(len(start) + 2, len(found["head"] + found["value"] + found["gap"]))
    lines[row] = f"{start:<{width}}{comment}" if comment != "#" else start


def _comment_out(lines: list[str], place: Where) -> None:
    row = _row(lines, place)
    if row is not None:
        lines[row] = f"# {lines[row].lstrip()}"


def _insert(lines: list[str], place: Where, new: Any, note: str) -> None:
    """A new key after the last one of its table; a new table after everything."""
    known = key_lines("\n".join(lines))
    header = known.get(place[:-1])
    inside = [line for where, line in known.items() if where[: len(place) - 1] == place[:-1]]
    key = str(place[-1])
    if header is None and inside:  # training.rounds = 3, without a table of its own
        key = ".".join(map(str, place))
    if header is None and not inside:
        lines += ["", f"[{'.'.join(map(str, place[:-1]))}]"]
        end = len(lines)
    else:
        direct = [
            line
            for where, line in known.items()
            if where[:-1] == place[:-1]
            and len(where) == len(place)
            and where not in _headers(lines)
        ]
        end = max([*(line for line in direct if line is not None), header or 0])
        end = _value_end(lines, end)
    made = f"{key} = {_value(new)}"
    lines.insert(end, f"{made:<{_COLUMN}}# {note}" if note else made)


def _headers(lines: list[str]) -> set[Where]:
    """Places that are tables of their own."""
    known = key_lines("\n".join(lines))
    return {
        where for where, line in known.items() if line and lines[line - 1].lstrip().startswith("[")
    }


def _value_end(lines: list[str], row: int) -> int:
    """The row after a key's value, which may go over several lines."""
    for end in range(row, len(lines) + 1):
        if _parsed("\n".join(lines[:end])) is not None:
            return end
    return row
