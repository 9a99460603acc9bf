# SPDX-License-Identifier: Apache-2.0
"""Privacy schemes of the field: each with its own accountant, receipt and stated unit of privacy.

Listing schemes needs no torch; training one does. A scheme trains a
:class:`~dpcohort_lab.schemes.simulation.Simulation` (the same data, model and budgets for all) and
answers with a ``SchemeResult``: accuracy, noise really added, and for each client what was
promised, claimed by the published formula, and certified.
"""

from __future__ import annotations

from dpcohort_lab.schemes.last_iterate import LastIterate
from dpcohort_lab.schemes.named import SCHEMES, make_scheme, scheme_cards
from dpcohort_lab.schemes.scheme import Scheme, SchemeResult

__all__ = ["SCHEMES", "LastIterate", "Scheme", "SchemeResult", "make_scheme", "scheme_cards"]
