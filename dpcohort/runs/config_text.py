# SPDX-License-Identifier: Apache-2.0
"""A configuration written back as TOML, as it was after all changes from the command line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from dpcohort.errors import InputError

__all__ = ["toml_text"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(values: Mapping[str, Any]) -> str:
    """Tables of plain values as TOML; reading it back gives equal tables.

    Example:
        >>> print(toml_text({"training": {"rounds": 3, "clip": 1.0}}), end="")
        [training]
        rounds = 3
        clip = 1.0
    """
    loose = [f"{_key(k)} = {_value(v)}\n" for k, v in values.items() if not isinstance(v, Mapping)]
    tables = []
    for name, table in values.items():
        if isinstance(table, Mapping):
            lines = [f"{_key(key)} = {_value(value)}\n" for key, value in table.items()]
            tables.append(f"[{_key(name)}]\n" + "".join(lines))
    return "\n".join(["".join(loose), *tables] if loose else tables)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise InputError("config", given=value, allowed="text, numbers, lists and tables")
