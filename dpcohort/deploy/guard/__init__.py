# SPDX-License-Identifier: Apache-2.0
"""The guard: a process of the client's owner that holds data, ledger, sampler and noise.

A server, and whatever code it ships, can ask over a Unix socket for noisy updates within the
owner's terms and for nothing else. ``client`` is the asking side,
``terms`` what the owner writes, ``handler`` the decision about a request, ``service`` the socket.
torch is loaded for training alone.
"""

from __future__ import annotations

from dpcohort.deploy.guard._client import GuardClient, GuardRefusedError
from dpcohort.deploy.guard._handler import check_with_sampling
from dpcohort.deploy.guard._protocol import (
    DrawRequest,
    DrawUpdate,
    Hello,
    Refusal,
    ReportRequest,
    RunReceipt,
)
from dpcohort.deploy.guard._terms import AcceptedRun, GuardTerms, ModelTerms

__all__ = [
    "AcceptedRun",
    "DrawRequest",
    "DrawUpdate",
    "GuardClient",
    "GuardRefusedError",
    "GuardTerms",
    "Hello",
    "ModelTerms",
    "Refusal",
    "ReportRequest",
    "RunReceipt",
    "check_with_sampling",
]
