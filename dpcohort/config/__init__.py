# SPDX-License-Identifier: Apache-2.0
"""The configuration file: what people write, checked key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.config._schema import Section as Section
    from dpcohort.config._schema import known_keys as known_keys
    from dpcohort.config._settings import Config as Config
    from dpcohort.config._settings import ConfigProblem as ConfigProblem
    from dpcohort.config._settings import Lines as Lines
    from dpcohort.config._settings import config_for_clients as config_for_clients
    from dpcohort.config._settings import error_of as error_of
    from dpcohort.config._settings import key_lines as key_lines
    from dpcohort.config._settings import load_config as load_config
    from dpcohort.config._settings import loads_config as loads_config
    from dpcohort.config._settings import words_of as words_of
    from dpcohort.config._template import EXAMPLES as EXAMPLES
    from dpcohort.config._template import commented_config as commented_config
    from dpcohort.config._template import table_config as table_config

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _schema="Section known_keys",
    _settings=(
        "Config ConfigProblem Lines config_for_clients error_of key_lines load_config "
        "loads_config words_of"
    ),
    _template="EXAMPLES commented_config table_config",
)
