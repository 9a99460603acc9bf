# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.config import commented_config, loads_config
from dpcohort.selection import PrivacyAware
from dpcohort.tuning import Settings, changes_for, suggested_settings
from dpcohort.tuning._settings import eta_of_lean

CLIENTS = Population.from_arrays(sizes=[300, 200, 100], epsilon=[0.2, 1.0, 8.0], delta=1e-5)
TRAINING = Training(rounds=30, cohort_size=3, sampling_rate=1.0, dimension=20)


def bias(eta):
    plan = make_plan(CLIENTS, TRAINING, selection=PrivacyAware(eta=eta), seed=0)
    return float(np.abs(plan.probabilities - CLIENTS.unbiased).sum())


def test_the_lean_is_the_share_of_the_way_to_the_least_noise():
    most = bias(1e12)
    for lean in (0.0, 0.25, 0.5, 0.9):
        assert bias(eta_of_lean(lean, CLIENTS, TRAINING)) == pytest.approx(lean * most, rel=0.02)


def test_whole_clients_are_suggested_and_unequal_budgets_are_weighed():
    assert suggested_settings(CLIENTS, dimension=20).rate == 1.0
    assert suggested_settings(CLIENTS, dimension=20).lean > 0.5
    equal = Population.from_arrays(sizes=[300, 200], epsilon=[1.0, 1.0], delta=1e-5)
    assert suggested_settings(equal, dimension=20).lean == 0.0
    assert suggested_settings(CLIENTS, dimension=20, rule="unbiased").lean is None
    small, large = (suggested_settings(CLIENTS, dimension=20, inputs=n).path for n in (64, 6400))
    assert large < small


def test_within_public_bounds_the_clip_is_theirs_and_no_step_is_too_long():
    given = {"dimension": 20, "row_bound": 4.0}
    rich = CLIENTS.with_scaled_budgets(80.0)
    calm = suggested_settings(rich, **given)
    assert calm.clip == 4.0
    # The loss of classes bends by half the squared norm of a row at most: a step of 4 / 16.
    assert calm.learning_rate() == 0.25
    steep = suggested_settings(rich, task="regression", **given)
    assert steep.learning_rate() == pytest.approx(0.125, rel=0.05)
    assert suggested_settings(CLIENTS, **given).path < calm.path
    strict = CLIENTS.with_scaled_budgets(0.01)
    assert suggested_settings(strict, **given).path < calm.path / 10
    assert suggested_settings(CLIENTS, task="counts", **given).clip == 1.0


def test_the_path_stays_where_rounds_clip_and_local_steps_change():
    rates = {
        (rounds, clip, steps): Settings(path=60.0, rounds=rounds, clip=clip).learning_rate(
            local_steps=steps
        )
        for rounds in (10, 100)
        for clip in (0.1, 1.0)
        for steps in (1, 2)
    }
    for (rounds, clip, steps), rate in rates.items():
        assert rate * rounds * clip * steps == pytest.approx(60.0, rel=0.05)


def test_changes_fit_the_configuration_they_are_for():
    config = loads_config(commented_config("digits")).with_overrides(
        ["optimiser.step=inverse-time", "optimiser.learning_rate=", "optimiser.beta=2.0"]
    )
    changed = config.with_overrides(changes_for(Settings(lean=0.5), config, config.population()))
    assert changed.optimiser.step == "constant"
    assert changed.rule_settings["eta"] > 0
    own = Population.from_arrays(sizes=[90], epsilon=[1.0], delta=1e-5, batch_sizes=[9])
    assert not any("sampling_rate" in change for change in changes_for(Settings(), config, own))
