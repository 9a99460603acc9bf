# SPDX-License-Identifier: Apache-2.0
"""Changes to a configuration from the command line: ``training.rounds=200``."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dpcohort.config.problems import Where
from dpcohort.config.schema import AggregationSection, SelectionSection
from dpcohort.errors import InputError
from dpcohort.text_files import parse_toml

__all__ = ["apply_overrides"]

_BARE_WORD = re.compile(r"[A-Za-z_./~\\][A-Za-z0-9_./~\\:\- ]*")
_FORM = "a key and a value, as in training.rounds=200"
_EMPTY = object()

# Setting the first takes the others out: they cannot stand beside it.
_TAKES_OUT: dict[Where, tuple[Where, ...]] = {
    ("training", "batch_size"): (("training", "sampling_rate"),),
    ("training", "sampling_rate"): (("training", "batch_size"),),
    ("selection", "eta"): (("selection", "bias_cap"),),
    ("selection", "bias_cap"): (("selection", "eta"),),
}
# Another rule takes all settings out but these, which go with every rule.
_KEPT: dict[Where, tuple[str, ...]] = {
    ("selection", "rule"): tuple(SelectionSection.model_fields),
    ("aggregation", "rule"): tuple(AggregationSection.model_fields),
}


def apply_overrides(
    values: Mapping[str, Any], overrides: Iterable[str]
) -> tuple[dict[str, Any], list[Where]]:
    """A changed copy of the tables, and the places that were changed.

    A value is TOML; a single word needs no quotes. An empty value takes the key out. Setting one
    of two keys that exclude each other takes the other out, and another rule takes the settings of
    the old one out.

    Args:
        values: the tables of the file.
        overrides: ``section.key=value``, later ones on top of earlier ones.

    Raises:
        InputError: if one is not of this form, or does not lead to a key.

    Example:
        >>> apply_overrides({"training": {"batch_size": 64}}, ["training.sampling_rate=0.1"])
        ({'training': {'sampling_rate': 0.1}}, [('training', 'sampling_rate')])
    """
    changed: dict[str, Any] = copy.deepcopy(dict(values))
    places: list[Where] = []
    for override in overrides:
        place, value = _parse(override)
        if value is not _EMPTY and value != _at(changed, place):
            for other in _taken_out(changed, place):
                if other not in places:
                    _put(changed, override, other, _EMPTY)
        _put(changed, override, place, value)
        places.append(place)
    return changed, places


def _taken_out(tables: dict[str, Any], place: Where) -> tuple[Where, ...]:
    if place not in _KEPT:
        return _TAKES_OUT.get(place, ())
    table = tables.get(str(place[0]))
    old = table if isinstance(table, dict) else {}
    return tuple((place[0], name) for name in old if name not in _KEPT[place])


def _parse(override: str) -> tuple[Where, Any]:
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise InputError("--set", given=override, allowed=_FORM)
    place = tuple(int(part) if part.isdecimal() else part for part in parts)
    return place, _value(override, text.strip())


def _value(override: str, text: str) -> Any:
    if not text:
        return _EMPTY
    try:
        table = parse_toml(f"value = {text}")
        if list(table) == ["value"]:
            return table["value"]
    except ValueError:
        if _BARE_WORD.fullmatch(text):
            return text
    raise InputError(
        "--set",
        given=override,
        allowed=_FORM,
        next_step=f"What stands after = is not a TOML value: {text[:60]}",
    )


def _at(tables: dict[str, Any], place: Where) -> Any:
    """The value at a place of two names, or None."""
    table = tables.get(str(place[0]))
    return table.get(place[-1]) if isinstance(table, dict) and len(place) == 2 else None


def _put(tables: dict[str, Any], override: str, place: Where, value: Any) -> None:
    *around, key = place
    table: Any = tables
    for part in around:
        if isinstance(table, dict) and isinstance(part, str):
            table = table.setdefault(part, {})
        elif isinstance(table, list) and isinstance(part, int) and part < len(table):
            table = table[part]
        else:
            table = None
    if not isinstance(table, dict) or not isinstance(key, str):
        raise InputError("--set", given=override, allowed="a key inside an existing table")
    if value is _EMPTY:
        table.pop(key, None)
    else:
        table[key] = value
