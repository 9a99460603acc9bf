# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from dpcohort.cli.terminal import plan_from, read_config
from dpcohort.errors import InputError


def test_clients_replace_a_configs_own(config, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("id,size,epsilon,delta\nonly,500,1,1e-5\n")
    changed = read_config(config, other)
    assert changed.population().ids == ("only",)
    assert changed.training.rounds == 20


def test_two_lists_of_clients_are_one_too_many(clients):
    with pytest.raises(InputError, match="two lists"):
        read_config(clients, clients)


def test_a_plan_is_read_not_made(config, tmp_path):
    plan = plan_from(config)
    plan.save(tmp_path / "plan.json")
    assert plan_from(tmp_path / "plan.json") == plan
    with pytest.raises(InputError, match="finished plan"):
        plan_from(tmp_path / "plan.json", None, ["training.rounds=3"])
