# SPDX-License-Identifier: Apache-2.0
"""Noise from budgets, and epsilon from noise.

``calibrate_noise`` gives the smallest noise for a budget, ``certify_epsilon`` what a noise spends,
by another computation; ``audit_paper_noise`` what the paper's formula really buys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.accounting.calibration import calibrate_noise as calibrate_noise
    from dpcohort.accounting.charges import Charge as Charge
    from dpcohort.accounting.charges import Paid as Paid
    from dpcohort.accounting.closed_forms import gaussian_delta as gaussian_delta
    from dpcohort.accounting.closed_forms import gaussian_mu as gaussian_mu
    from dpcohort.accounting.closed_forms import paper_noise_multiplier as paper_noise_multiplier
    from dpcohort.accounting.contract import Contract as Contract
    from dpcohort.accounting.deployed_noise import PaperAudit as PaperAudit
    from dpcohort.accounting.deployed_noise import audit_paper_noise as audit_paper_noise
    from dpcohort.accounting.deployed_noise import deploy_noise as deploy_noise
    from dpcohort.accounting.events import Event as Event
    from dpcohort.accounting.events import History as History
    from dpcohort.accounting.events import affordable_steps as affordable_steps
    from dpcohort.accounting.events import calibrate_remaining as calibrate_remaining
    from dpcohort.accounting.events import certify_delta as certify_delta
    from dpcohort.accounting.events import certify_epsilon as certify_epsilon
    from dpcohort.accounting.risk import AttackRisk as AttackRisk
    from dpcohort.accounting.risk import attack_risk as attack_risk
    from dpcohort.accounting.risk import charged_risk as charged_risk
    from dpcohort.accounting.risk import hull_corners as hull_corners
    from dpcohort.accounting.risk import promised_risk as promised_risk
    from dpcohort.accounting.segments import Segment as Segment

__all__, __getattr__ = names_on_use(__name__)
