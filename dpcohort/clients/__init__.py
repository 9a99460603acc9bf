# SPDX-License-Identifier: Apache-2.0
"""Who takes part, and what each promised."""

from dpcohort.clients.population import PUBLIC, Budget, Client, Population, Public

__all__ = ["PUBLIC", "Budget", "Client", "Population", "Public"]
