# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.config import commented_config, loads_config
from dpcohort.errors import InputError
from dpcohort.runs import configured_data, configured_job, configured_population, data_section
from dpcohort.runs._configured import configured_plan


@pytest.fixture
def digits():
    return loads_config(commented_config("digits"))


def test_the_plan_looked_at_is_the_plan_trained_with(digits):
    assert configured_plan(digits) == configured_job(digits, device="cpu").plan


def test_the_data_say_how_many_records_there_are(digits):
    unsaid = digits.with_overrides(["population.total_size="])
    data = configured_data(unsaid)
    assert configured_population(unsaid).total_size == len(data)
    assert configured_plan(unsaid, data) == configured_plan(unsaid)


def test_a_stated_total_that_leaves_nothing_for_the_public_client_is_named(digits):
    with pytest.raises(InputError, match=r"population\.total_size = 1442 .*at most 1298.*--set"):
        configured_population(digits.with_overrides(["data.public_share=0.1"]))


def test_without_data_nothing_is_loaded_and_nothing_can_be_trained():
    config = loads_config(commented_config("hospitals"))
    assert len(configured_population(config)) == 61
    with pytest.raises(InputError, match="nothing to train on"):
        data_section(config)
