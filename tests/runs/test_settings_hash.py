# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

from dpcohort.runs._folder import fixed_settings, settings_sha256

SETTINGS = {
    "seed": 3,
    "optimiser": {"step": 0.1, "sizes": (1, 2)},
    "label": "a",
    "evaluate_every": 5,
}


def test_what_a_file_gives_back_has_the_same_hash():
    assert settings_sha256(json.loads(json.dumps(SETTINGS))) == settings_sha256(SETTINGS)


def test_what_may_change_does_not_count():
    assert settings_sha256({**SETTINGS, "label": "b", "evaluate_every": 9}) == settings_sha256(
        SETTINGS
    )
    assert set(fixed_settings(SETTINGS)) == {"seed", "optimiser"}


def test_what_makes_the_run_counts():
    other = {**SETTINGS, "optimiser": {"step": 0.2, "sizes": (1, 2)}}
    assert settings_sha256(other) != settings_sha256(SETTINGS)
