# SPDX-License-Identifier: Apache-2.0
"""The client's lifetime ledger: no server can make a client spend more than its owner allows.

It counts what a client's data spend over all runs, on the client's own disk, and needs neither
torch nor Flower. The ledger of one local simulation run is :mod:`dpcohort.runs.journal`.
"""

from __future__ import annotations

from dpcohort.deploy.ledger.cap import LifetimeCap
from dpcohort.deploy.ledger.keys import DrawKey
from dpcohort.deploy.ledger.ledger import ClientLedger
from dpcohort.deploy.ledger.receipt import LifetimeReceipt, lifetime_receipt
from dpcohort.deploy.ledger.spending import LifetimeCapError
from dpcohort.deploy.ledger.terms import RunTerms
from dpcohort.deploy.ledger.verification import (
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
