# SPDX-License-Identifier: Apache-2.0
"""Who takes part, and what each promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.clients.client import PUBLIC as PUBLIC
    from dpcohort.clients.client import Budget as Budget
    from dpcohort.clients.client import Client as Client
    from dpcohort.clients.client import Public as Public
    from dpcohort.clients.population import Population as Population

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    client="PUBLIC Budget Client Public",
    population="Population",
)
