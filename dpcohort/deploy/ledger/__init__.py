# SPDX-License-Identifier: Apache-2.0
"""The client's lifetime ledger: no server can make a client spend more than its owner allows.

It counts what a client's data spend over all runs, on the client's own disk, and needs neither
torch nor Flower. The ledger of one local simulation run is :mod:`dpcohort.runs._journal`.
"""

from __future__ import annotations

from dpcohort.deploy.ledger._ledger import ClientLedger
from dpcohort.deploy.ledger._reading import (
    Verification,
    lifetime_receipt,
    lifetime_risk,
    read_state,
    verify_ledger,
)
from dpcohort.deploy.ledger._spending import LifetimeCapError
from dpcohort.deploy.ledger._terms import DrawKey, LifetimeCap, RunTerms

__all__ = [
    "ClientLedger",
    "DrawKey",
    "LifetimeCap",
    "LifetimeCapError",
    "RunTerms",
    "Verification",
    "lifetime_receipt",
    "lifetime_risk",
    "read_state",
    "verify_ledger",
]
