# SPDX-License-Identifier: Apache-2.0
"""Noise from budgets, and epsilon from noise.

``calibrate_noise`` gives the smallest noise for a budget, ``certify_epsilon`` what a noise spends,
by another computation; ``audit_paper_noise`` what the paper's formula really buys.
"""

from dpcohort.accounting.certify import certify_delta, certify_epsilon
from dpcohort.accounting.contract import Contract
from dpcohort.accounting.events import Event, History, affordable_steps, calibrate_remaining
from dpcohort.accounting.paper_audit import PaperAudit, audit_paper_noise
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
]
