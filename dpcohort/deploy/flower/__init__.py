# SPDX-License-Identifier: Apache-2.0
"""A plan executed by real clients over Flower, where no server can overspend a client.

The server's rounds (``rounds``) know no Flower: they speak to a transport, and ``adapter`` is the
only module that imports it. The app on a client's machine (``client_app``) asks the owner's guard
and nothing else. For an app that is there already, ``dropin`` has a strategy and a mod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.deploy.flower._dropin import PrivacyAwareStrategy as PrivacyAwareStrategy
    from dpcohort.deploy.flower._dropin import PrivacyMod as PrivacyMod
    from dpcohort.deploy.flower._dropin import clients_of as clients_of
    from dpcohort.deploy.flower._federation import Federation as Federation
    from dpcohort.deploy.flower._kit import write_kit as write_kit
    from dpcohort.deploy.flower._rounds import federate as federate

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _dropin="PrivacyAwareStrategy PrivacyMod clients_of",
    _federation="Federation",
    _kit="write_kit",
    _rounds="federate",
)
