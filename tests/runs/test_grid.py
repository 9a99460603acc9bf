# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace

import pytest

from dpcohort.config import commented_config, loads_config
from dpcohort.errors import FileFormatError, InputError
from dpcohort.runs import folder_name
from dpcohort.runs._training import train_grid


@pytest.fixture
def config():
    changes = ["training.rounds=3", "training.cohort_size=2", "run.evaluate_every=3"]
    return loads_config(commented_config("digits")).with_overrides(changes)


def test_every_combination_with_the_same_seeds_and_kept_when_asked(config, tmp_path):
    told = []
    groups = train_grid(
        config,
        seeds=2,
        out=tmp_path,
        device="cpu",
        callbacks=[SimpleNamespace(on_round=lambda record, run: told.append(run))],
    )
    assert list(groups) == ["unbiased", "privacy-aware"]
    assert [run.seed for run in groups["unbiased"]] == [0, 1]
    assert groups["unbiased"][0].partition.sha256 == groups["privacy-aware"][0].partition.sha256
    assert [run.settings["label"] for run in told] == ["unbiased"] * 6 + ["privacy-aware"] * 6
    assert (tmp_path / "privacy-aware" / "seed-1" / "result.json").exists()
    again = train_grid(config, seeds=2, out=tmp_path, device="cpu")
    for name, runs in groups.items():
        assert [r.test_accuracy for r in again[name]] == [r.test_accuracy for r in runs]


def test_a_folder_with_other_runs_is_refused(config, tmp_path):
    train_grid(config, seeds=1, out=tmp_path, device="cpu")
    with pytest.raises(InputError, match="another folder"):
        train_grid(
            config.with_overrides(["training.clip=0.5"]), seeds=1, out=tmp_path, device="cpu"
        )


def test_a_grid_of_a_setting_that_does_not_exist(config):
    with pytest.raises((InputError, FileFormatError), match="roundz"):
        train_grid(config.with_overrides(["grid.training={ roundz = [1] }"]), device="cpu")


def test_a_pair_that_cannot_be_is_found_before_any_is_trained(config, tmp_path):
    grid = ["grid.selection={ rule = ['unbiased', 'best-threshold'] }", "selection.eta=1e6",
            "aggregation.rule=importance-compensated"]  # fmt: skip
    with pytest.raises(InputError, match="never drawn"):
        train_grid(config.with_overrides(grid), seeds=1, out=tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_a_name_without_a_letter_or_digit_makes_no_folder():
    with pytest.raises(InputError, match="a letter or digit"):
        folder_name("?!")
