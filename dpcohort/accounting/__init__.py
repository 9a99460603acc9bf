# SPDX-License-Identifier: Apache-2.0
"""Noise from budgets, and epsilon from noise.

``calibrate_noise`` gives the smallest noise for a budget, ``certify_epsilon`` what a noise spends,
by another computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.accounting._calibration import calibrate_noise as calibrate_noise
    from dpcohort.accounting._charges import Charge as Charge
    from dpcohort.accounting._charges import Paid as Paid
    from dpcohort.accounting._closed_forms import gaussian_delta as gaussian_delta
    from dpcohort.accounting._closed_forms import gaussian_mu as gaussian_mu
    from dpcohort.accounting._closed_forms import paper_noise_multiplier as paper_noise_multiplier
    from dpcohort.accounting._contract import Contract as Contract
    from dpcohort.accounting._deployed_noise import CALIBRATION_LIMIT as CALIBRATION_LIMIT
    from dpcohort.accounting._deployed_noise import deploy_noise as deploy_noise
    from dpcohort.accounting._deployed_noise import noise_levels as noise_levels
    from dpcohort.accounting._events import Event as Event
    from dpcohort.accounting._events import History as History
    from dpcohort.accounting._events import affordable_steps as affordable_steps
    from dpcohort.accounting._events import calibrate_remaining as calibrate_remaining
    from dpcohort.accounting._events import certify_delta as certify_delta
    from dpcohort.accounting._events import certify_epsilon as certify_epsilon
    from dpcohort.accounting._risk import AttackRisk as AttackRisk
    from dpcohort.accounting._risk import attack_risk as attack_risk
    from dpcohort.accounting._risk import charged_risk as charged_risk
    from dpcohort.accounting._risk import hull_corners as hull_corners
    from dpcohort.accounting._risk import of_two_clients as of_two_clients
    from dpcohort.accounting._risk import promised_risk as promised_risk
    from dpcohort.accounting._segments import Segment as Segment

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _calibration="calibrate_noise",
    _charges="Charge Paid",
    _closed_forms="gaussian_delta gaussian_mu paper_noise_multiplier",
    _contract="Contract",
    _deployed_noise="CALIBRATION_LIMIT deploy_noise noise_levels",
    _events="Event History affordable_steps calibrate_remaining certify_delta certify_epsilon",
    _risk="AttackRisk attack_risk charged_risk hull_corners of_two_clients promised_risk",
    _segments="Segment",
)
