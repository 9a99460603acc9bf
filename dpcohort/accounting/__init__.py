# SPDX-License-Identifier: Apache-2.0
"""Noise from budgets, and epsilon from noise.

``calibrate_noise`` gives the smallest noise for a budget, ``certify_epsilon`` what a noise spends,
by another computation; ``audit_paper_noise`` what the paper's formula really buys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.accounting.certify import certify_delta, certify_epsilon
    from dpcohort.accounting.contract import Contract
    from dpcohort.accounting.deployed_noise import PaperAudit, audit_paper_noise, deploy_noise
    from dpcohort.accounting.events import Event, History, affordable_steps, calibrate_remaining
    from dpcohort.accounting.gaussian import gaussian_delta, gaussian_mu
    from dpcohort.accounting.paper import paper_noise_multiplier
    from dpcohort.accounting.tight import calibrate_noise

__all__ = [
    "Contract",
    "Event",
    "History",
    "PaperAudit",
    "affordable_steps",
    "audit_paper_noise",
    "calibrate_noise",
    "calibrate_remaining",
    "certify_delta",
    "certify_epsilon",
    "deploy_noise",
    "gaussian_delta",
    "gaussian_mu",
    "paper_noise_multiplier",
]

_HOMES = {
    "Contract": "contract",
    "Event": "events",
    "History": "events",
    "PaperAudit": "deployed_noise",
    "affordable_steps": "events",
    "audit_paper_noise": "deployed_noise",
    "calibrate_noise": "tight",
    "calibrate_remaining": "events",
    "certify_delta": "certify",
    "certify_epsilon": "certify",
    "deploy_noise": "deployed_noise",
    "gaussian_delta": "gaussian",
    "gaussian_mu": "gaussian",
    "paper_noise_multiplier": "paper",
}

__getattr__ = names_on_use(__name__, _HOMES)
