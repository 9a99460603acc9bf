# SPDX-License-Identifier: Apache-2.0
"""The guard: a process of the client's owner that holds data, ledger, sampler and noise.

A server, and whatever code it ships, can ask over a Unix socket for noisy updates within the
owner's terms and for nothing else. :mod:`~dpcohort.guard.client` is the asking side,
:mod:`~dpcohort.guard.terms` what the owner writes, :mod:`~dpcohort.guard.desk` the decision about
a request, :mod:`~dpcohort.guard.service` the socket. torch is loaded for training alone.
"""

from __future__ import annotations

from dpcohort.guard.client import GuardClient, GuardRefusedError
from dpcohort.guard.protocol import DrawRequest, DrawUpdate, Hello, Refusal, RunReceipt
from dpcohort.guard.terms import AcceptedRun, GuardTerms, ModelTerms

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
    "RunReceipt",
]
