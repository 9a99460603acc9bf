# SPDX-License-Identifier: Apache-2.0
"""Which settings make a run what it is, and their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dpcohort.runs.folder import finite_json

__all__ = ["fixed_settings", "settings_sha256"]

#: Settings that may change on a resume without changing the result.
_FREE = ("label", "evaluate_every", "checkpoint_every")


def fixed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a resume must agree with, as a file would hold them.

    Example:
        >>> fixed_settings({"seed": 3, "label": "first try"})
        {'seed': 3}
    """
    fixed: dict[str, Any] = finite_json({k: v for k, v in settings.items() if k not in _FREE})
    return fixed


def settings_sha256(settings: Mapping[str, Any]) -> str:
    """Hash of the settings that make a run what it is.

    Example:
        >>> settings_sha256({"seed": 3}) == settings_sha256({"seed": 3, "label": "second try"})
        True
        >>> settings_sha256({"seed": 3}) == settings_sha256({"seed": 4})
        False
    """
    content = json.dumps(fixed_settings(settings), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
