# SPDX-License-Identifier: Apache-2.0
"""Privacy schemes of the field: each with its own accountant, receipt and stated unit of privacy.

Listing schemes needs no torch; training one does. A scheme trains a ``Simulation`` (the same data,
model and budgets for all) and answers with a ``SchemeResult``: accuracy, noise really added, and
for each client what was promised, claimed by the published formula, and certified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.lab.schemes.last_iterate import LastIterate as LastIterate
    from dpcohort.lab.schemes.named import SCHEMES as SCHEMES
    from dpcohort.lab.schemes.named import make_scheme as make_scheme
    from dpcohort.lab.schemes.named import scheme_cards as scheme_cards
    from dpcohort.lab.schemes.scheme import Scheme as Scheme
    from dpcohort.lab.schemes.scheme import SchemeResult as SchemeResult
    from dpcohort.lab.schemes.simulation import Simulation as Simulation

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    last_iterate="LastIterate",
    named="SCHEMES make_scheme scheme_cards",
    scheme="Scheme SchemeResult",
    simulation="Simulation",
)
