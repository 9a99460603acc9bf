# SPDX-License-Identifier: Apache-2.0
"""Who takes part, and what each promised."""

from dpcohort.clients.budgets import PUBLIC, Budget, Public
from dpcohort.clients.population import Client, Population

__all__ = ["PUBLIC", "Budget", "Client", "Population", "Public"]
