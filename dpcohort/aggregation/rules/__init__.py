# SPDX-License-Identifier: Apache-2.0
"""The aggregation rules: one file each, named like the rule. None loads torch before it is used."""

from __future__ import annotations

__all__: list[str] = []
