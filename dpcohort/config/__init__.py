# SPDX-License-Identifier: Apache-2.0
"""The configuration file: what people write, checked key by key."""

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
