# SPDX-License-Identifier: Apache-2.0
"""The configuration file: what people write, checked key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.config.settings import Config as Config
    from dpcohort.config.settings import config_for_clients as config_for_clients
    from dpcohort.config.settings import load_config as load_config
    from dpcohort.config.settings import loads_config as loads_config
    from dpcohort.config.template import EXAMPLES as EXAMPLES
    from dpcohort.config.template import commented_config as commented_config

_HOMES = {
    "EXAMPLES": "template",
    "Config": "settings",
    "commented_config": "template",
    "config_for_clients": "settings",
    "load_config": "settings",
    "loads_config": "settings",
}

__all__ = list(_HOMES)

__getattr__ = names_on_use(__name__, _HOMES)
