# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import typing

from dpcohort.config.schema import (
    RULE_SETTINGS,
    ConfigFile,
    Draws,
    Guard,
    SelectionSection,
    TrainingSection,
    config_keys,
)
from dpcohort.schedule import Draws as ScheduleDraws
from dpcohort.selection.rules import RULES
from dpcohort.training import Training


def test_training_takes_every_field_of_training():
    hints = typing.get_type_hints(Training)
    assert list(TrainingSection.model_fields) == [f.name for f in dataclasses.fields(Training)]
    for name, field in TrainingSection.model_fields.items():
        assert field.annotation == typing.Optional[hints[name]]  # noqa: UP045


def test_selection_takes_every_setting_of_every_rule():
    settings = {field.name for rule in RULES.values() for field in dataclasses.fields(rule)}
    assert set(RULE_SETTINGS) == settings
    assert set(SelectionSection.model_fields) == settings | {"rule", "noise_model"}


def test_words_are_those_of_the_rooms_that_use_them():
    from dpcohort.accounting.deployed_noise import Guard as DeployedGuard

    assert typing.get_args(Draws) == typing.get_args(ScheduleDraws)
    assert typing.get_args(Guard) == typing.get_args(DeployedGuard)


def test_keys_are_listed_for_every_section():
    keys = config_keys()
    assert keys[""] == list(ConfigFile.model_fields)
    assert set(keys) - {"", "population.public"} == set(keys[""])
    assert keys["population.public"] == ["size", "count"]
