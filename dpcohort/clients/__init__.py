# SPDX-License-Identifier: Apache-2.0
"""Who takes part, and what each promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.clients._client import PUBLIC as PUBLIC
    from dpcohort.clients._client import Budget as Budget
    from dpcohort.clients._client import Client as Client
    from dpcohort.clients._client import Public as Public
    from dpcohort.clients._population import Population as Population

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _client="PUBLIC Budget Client Public",
    _population="Population",
)
