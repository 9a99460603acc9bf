# SPDX-License-Identifier: Apache-2.0
"""The configuration file: what people write, checked key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.config.problems import ConfigProblem, Lines, error_of, key_lines, words_of
    from dpcohort.config.settings import Config, config_for_clients, load_config, loads_config
    from dpcohort.config.template import EXAMPLES, commented_config

__all__ = [
    "EXAMPLES",
    "Config",
    "ConfigProblem",
    "Lines",
    "commented_config",
    "config_for_clients",
    "error_of",
    "key_lines",
    "load_config",
    "loads_config",
    "words_of",
]

_HOMES = {
    "Config": "settings",
    "ConfigProblem": "problems",
    "EXAMPLES": "template",
    "Lines": "problems",
    "commented_config": "template",
    "config_for_clients": "settings",
    "error_of": "problems",
    "key_lines": "problems",
    "load_config": "settings",
    "loads_config": "settings",
    "words_of": "problems",
}

__getattr__ = names_on_use(__name__, _HOMES)
