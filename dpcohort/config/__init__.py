# SPDX-License-Identifier: Apache-2.0
"""The configuration file: what people write, checked key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.config.settings import Config, config_for_clients, load_config, loads_config
    from dpcohort.config.template import EXAMPLES, commented_config

__all__ = [
    "EXAMPLES",
    "Config",
    "commented_config",
    "config_for_clients",
    "load_config",
    "loads_config",
]

_HOMES = {
    "EXAMPLES": "template",
    "Config": "settings",
    "commented_config": "template",
    "config_for_clients": "settings",
    "load_config": "settings",
    "loads_config": "settings",
}

__getattr__ = names_on_use(__name__, _HOMES)
