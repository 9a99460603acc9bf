# SPDX-License-Identifier: Apache-2.0
"""The guard: a process of the client's owner that holds data, ledger, sampler and noise.

A server, and whatever code it ships, can ask over a Unix socket for noisy updates within the
owner's terms and for nothing else. ``client`` is the asking side,
``terms`` what the owner writes, ``handler`` the decision about a request, ``service`` the socket.
torch is loaded for training alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.deploy.guard._client import GuardClient as GuardClient
    from dpcohort.deploy.guard._client import GuardRefusedError as GuardRefusedError
    from dpcohort.deploy.guard._handler import check_with_sampling as check_with_sampling
    from dpcohort.deploy.guard._protocol import DrawRequest as DrawRequest
    from dpcohort.deploy.guard._protocol import DrawUpdate as DrawUpdate
    from dpcohort.deploy.guard._protocol import Hello as Hello
    from dpcohort.deploy.guard._protocol import Refusal as Refusal
    from dpcohort.deploy.guard._protocol import ReportRequest as ReportRequest
    from dpcohort.deploy.guard._protocol import RunReceipt as RunReceipt
    from dpcohort.deploy.guard._terms import AcceptedRun as AcceptedRun
    from dpcohort.deploy.guard._terms import GuardTerms as GuardTerms
    from dpcohort.deploy.guard._terms import ModelTerms as ModelTerms

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _client="GuardClient GuardRefusedError",
    _handler="check_with_sampling",
    _protocol="DrawRequest DrawUpdate Hello Refusal ReportRequest RunReceipt",
    _terms="AcceptedRun GuardTerms ModelTerms",
)
