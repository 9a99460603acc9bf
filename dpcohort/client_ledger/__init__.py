# SPDX-License-Identifier: Apache-2.0
"""The client's lifetime ledger: no server can make a client spend more than its owner allows.

It counts what a client's data spend over all runs, on the client's own disk, and needs neither
torch nor Flower. The ledger of one local simulation run is :mod:`dpcohort.runs.ledger`.
"""

from __future__ import annotations

from dpcohort.client_ledger.cap import LifetimeCap
from dpcohort.client_ledger.keys import DrawKey
from dpcohort.client_ledger.ledger import ClientLedger
from dpcohort.client_ledger.receipt import LifetimeReceipt, lifetime_receipt
from dpcohort.client_ledger.spending import LifetimeCapError
from dpcohort.client_ledger.terms import RunTerms
from dpcohort.client_ledger.verification import (
    Finding,
    Verification,
    read_state,
    verify_ledger,
)

__all__ = [
    "ClientLedger",
    "DrawKey",
    "Finding",
    "LifetimeCap",
    "LifetimeCapError",
    "LifetimeReceipt",
    "RunTerms",
    "Verification",
    "lifetime_receipt",
    "read_state",
    "verify_ledger",
]
