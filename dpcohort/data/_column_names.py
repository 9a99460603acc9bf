# SPDX-License-Identifier: Apache-2.0
"""What a column's name says of what it holds, as is common knowledge; no cell is looked at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

#: Names, as words joined by _, and what such columns can hold: the smallest and largest number, or
#: a kind. The first that fits counts.
_KNOWN = """
0 1         (is|has|had|was|did)_.*|.*_(flag|yn)|(share|proportion|fraction|probability)(_.*)?
0 100       .*_?(percent|percentage|pct)(_.*)?|hematocrit|hct|spo2|sao2|oxygen_saturation
0 110       (.*_)?age(_years?|_at_.*)?
1900 2030   (.*_)?year(_of_birth)?|yob
1 12        (.*_)?month
1 31        day_of_month
0 23        (.*_)?hour
0 7         (day_of_week|weekday)
10 70       (.*_)?bmi|body_mass_index
30 230      height(_cm)?
1 300       weight(_kg)?
60 260      sbp|sys_?bp|systolic(_.*)?
30 160      dbp|dia_?bp|diastolic(_.*)?
20 250      pulse|heart_?rate|hr
4 60        respiratory_rate|resp_rate|rr
3 15        gcs|glasgow_coma_(scale|score)
0 10        apgar(_.*)?|(pain|nrs)_score
-90 90      lat|latitude
-180 180    lon|lng|long|longitude
date        (.*_)?(date|dob|timestamp|datetime)(_.*)?|.*_(at|on)|date_.*
text        sex|gender|race|ethnicity|nationality|(marital|employment)_status|(.*_)?(country|region)
free_text   (.*_)?(notes?|comments?|remarks?|description|text|email|phone|address|url|surname)(_.*)?
free_text   (first|last|full)_?name|name
id          (row_?|record_?)?(id|index|number|no|nr)|uuid|guid|unnamed(_\\d+)?|.*_(id|uuid|guid)
"""
_PATTERNS = [
    (re.compile(pattern), stated.split())
    for stated, pattern in (re.split(r"\s{2,}", line) for line in _KNOWN.strip().splitlines())
]


def known_by_name(column: str) -> tuple[str, list[Any]]:
    """The kind of a column by its name alone, and the bounds of its numbers; ``("", [])`` if none.

    Example:
        >>> known_by_name("Patient Age"), known_by_name("admission_date"), known_by_name("isSmoker")
        (('number', [0, 110]), ('date', []), ('number', [0, 1]))
        >>> known_by_name("income")
        ('', [])
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower()
    plain = re.sub(r"[^a-z0-9]+", "_", apart).strip("_")
    for pattern, stated in _PATTERNS:
        if pattern.fullmatch(plain):
            if len(stated) == 2:
                return "number", [int(end) for end in stated]
            return stated[0].replace("_", " "), []
    return "", []


def alike(columns: Iterable[str]) -> dict[str, list[str]]:
    """Columns that are numbered, by the pattern that they have in common: three or more.

    Example:
        >>> alike(["q1", "q2", "q13", "age", "x1"])
        {'q*': ['q1', 'q2', 'q13']}
    """
    every = list(columns)
    stems: dict[str, list[str]] = {}
    for one in every:
        if stem := re.fullmatch(r"(.*\D)\d+", one):
            stems.setdefault(f"{stem[1]}*", []).append(one)
    return {
        pattern: names
        for pattern, names in stems.items()
        if len(names) > 2 and names == [one for one in every if fnmatchcase(one, pattern)]
    }


def spread_out(stated: Mapping[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """What is stated of columns by pattern, for each of them; a column's own name comes first.

    Example:
        >>> spread_out({"q*": [1, 5], "q2": [0, 9], "age": [0, 110]}, ["q1", "q2", "age"])
        {'q1': [1, 5], 'q2': [0, 9], 'age': [0, 110]}
    """
    every, found = list(columns), {}
    for name, value in stated.items():
        is_pattern = "*" in name and name not in every
        # A pattern that nothing fits is refused as a column that is not there.
        for one in [one for one in every if is_pattern and fnmatchcase(one, name)] or [name]:
            if not is_pattern or one not in stated:
                found[one] = value
    return found
