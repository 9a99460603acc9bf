# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import typing

from dpcohort.config.schema import (
    AggregationSection,
    ConfigFile,
    Draws,
    Guard,
    SelectionSection,
    TrainingSection,
    config_keys,
)
from dpcohort.schedule import Draws as ScheduleDraws
from dpcohort.training import Training


def test_training_takes_every_field_of_training():
    hints = typing.get_type_hints(Training)
    assert list(TrainingSection.model_fields) == [f.name for f in dataclasses.fields(Training)]
    for name, field in TrainingSection.model_fields.items():
        assert field.annotation == typing.Optional[hints[name]]  # noqa: UP045


def test_a_rules_table_takes_any_setting_and_leaves_it_to_the_rule():
    section = SelectionSection(rule="privacy-aware", eta="auto", anything=[1, 2])
    assert section.settings == {"eta": "auto", "anything": [1, 2]}
    assert AggregationSection().settings == {}
    assert (AggregationSection().rule, SelectionSection().rule) == ("mean", "privacy-aware")


def test_words_are_those_of_the_rooms_that_use_them():
    from dpcohort.accounting.deployed_noise import Guard as DeployedGuard

    assert typing.get_args(Draws) == typing.get_args(ScheduleDraws)
    assert typing.get_args(Guard) == typing.get_args(DeployedGuard)


def test_keys_are_listed_for_every_section():
    keys = config_keys()
    assert keys[""] == list(ConfigFile.model_fields)
    assert set(keys) - {"", "population.public"} == set(keys[""])
    assert keys["population.public"] == ["size", "count"]
