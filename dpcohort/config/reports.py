# SPDX-License-Identifier: Apache-2.0
"""The keys of [selection] that go with every rule that chooses cohorts during the training.

::

    participation_cap = "auto"   draws of a client, at most
    reports = "private"          noised and charged; "raw" stamps the run NOT PRIVATE
    report_share = 0.1           of each budget
    report_cap = "auto"          reports of a client, at most
    loss_bound = 5.0             to which each record's loss is clipped in a report
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpcohort._validate import choice, nearest, number, whole_number
from dpcohort.errors import InputError
from dpcohort.plugins import REGISTRIES, is_named_function

__all__ = ["REPORT_KEYS", "kind_of_rule", "split_report_settings"]


def _cap(field: str, value: Any) -> None:
    if value != "auto":
        if isinstance(value, str):
            raise InputError(field, given=value, allowed="'auto' or a whole number of at least 1")
        whole_number(field, value, at_least=1)


#: Every key with its check.
_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "participation_cap": _cap,
    "reports": lambda field, value: choice(field, value, ["private", "raw"]),
    "report_share": lambda field, value: number(field, value, above=0, below=1),
    "report_cap": _cap,
    "loss_bound": lambda field, value: number(field, value, above=0),
}
REPORT_KEYS = tuple(_CHECKS)


def kind_of_rule(name: str) -> str:
    """``selection`` for a planned rule, ``adaptive`` for one that chooses during the training.

    Raises:
        InputError: there is no such rule of either kind; the nearest name is suggested.

    Example:
        >>> kind_of_rule("unbiased"), kind_of_rule("power-of-choice")
        ('selection', 'adaptive')
    """
    planned, adaptive = REGISTRIES["selection"], REGISTRIES["adaptive"]
    if is_named_function(name):
        found = planned.find(name, field="rule")
        return "adaptive" if hasattr(found, "ask") and hasattr(found, "choose") else "selection"
    return "adaptive" if choice("rule", name, _names()) in adaptive else "selection"


def _names() -> list[str]:
    return [name for kind in ("selection", "adaptive") for name in REGISTRIES[kind].names]


def split_report_settings(
    rule: str, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rule's own settings, and those about caps and reports, checked.

    Raises:
        InputError: a value out of range, or a key about reports for a rule that asks for none.

    Example:
        >>> split_report_settings("power-of-choice", {"d": 6, "report_share": 0.2})
        ({'d': 6}, {'report_share': 0.2})
    """
    known = REGISTRIES["adaptive"].settings_of(rule)
    own = {key: value for key, value in settings.items() if key not in _CHECKS or key in known}
    about = {key: value for key, value in settings.items() if key not in own}
    for key, value in about.items():
        _CHECKS[key](key, value)
    asks = getattr(REGISTRIES["adaptive"].find(rule), "statistic", None) is not None
    for key in about:
        if not asks and key != "participation_cap":
            words = f"{key} says nothing: the rule {rule} asks for no reports. Remove it."
            error = InputError.because(words)
            error.field = key
            raise error
    for key in own:
        if key not in known:
            hint = nearest(key, [*known, *REPORT_KEYS])
            takes = ", ".join([*known, *(REPORT_KEYS if asks else ("participation_cap",))])
            words = f"{key} is not a setting of the rule {rule}. It takes {takes}."
            error = InputError.because(f"{words} Did you mean {hint!r}?" if hint else words)
            error.field = key
            raise error
    return own, about
