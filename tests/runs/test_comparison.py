# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace

import pytest

from dpcohort.errors import DataMissingError, InputError
from dpcohort.metrics import METRICS
from dpcohort.runs import compare_runs, load_group


def runs(label: str, accuracies: dict[int, float], data: str = "digits") -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            settings={"label": label, "data": {"name": data}},
            seed=seed,
            test=SimpleNamespace(score=value),
            metric=METRICS["accuracy"],
            check=None,
        )
        for seed, value in accuracies.items()
    ]


def test_differences_are_paired_by_seed():
    # Seeds differ widely, the difference hardly at all: pairing sees what means do not.
    ours = runs("new", {0: 0.30, 1: 0.60, 2: 0.901})
    theirs = runs("old", {2: 0.80, 1: 0.50, 0: 0.20, 9: 0.1})
    found = compare_runs(ours, theirs)
    assert found.seeds == (0, 1, 2)
    assert found.difference.mean == pytest.approx(10.0333, abs=1e-3)
    assert found.sentence == "new better than old by 10.0 points, 95 % CI 9.9 to 10.2 (3 seeds)."


def test_what_cannot_be_compared():
    with pytest.raises(InputError, match="no seed"):
        compare_runs(runs("a", {0: 0.1}), runs("b", {1: 0.1}))
    with pytest.raises(InputError, match="different data"):
        compare_runs(runs("a", {0: 0.1}), runs("b", {0: 0.1}, data="mnist"))
    with pytest.raises(InputError, match="twice"):
        compare_runs(runs("a", {0: 0.1}) * 2, runs("b", {0: 0.1}))
    with pytest.raises(InputError, match="at least one"):
        compare_runs([], runs("b", {0: 0.1}))


def test_groups_are_a_run_or_a_folder_of_seeds(finished, tmp_path):
    assert len(load_group(finished)) == 1
    group = tmp_path / "group"
    group.mkdir()
    finished.rename(group / "seed-5")
    assert load_group(group)[0].seed == 5
    (group / "seed-5" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="not finished"):
        load_group(group)
    with pytest.raises(DataMissingError, match="there is no run at"):
        load_group(tmp_path / "nothing")


def test_runs_that_are_alike_are_not_called_better():
    same = compare_runs(runs("a", {0: 0.5, 1: 0.7}), runs("b", {0: 0.5, 1: 0.7}))
    assert same.sentence == "a and b have the same accuracy (2 seeds)."
    one = compare_runs(runs("a", {0: 0.5}), runs("b", {0: 0.5}))
    assert one.sentence == "a and b have the same accuracy (1 seed)."
    hardly = compare_runs(runs("a", {0: 0.5001, 1: 0.7002}), runs("b", {0: 0.5, 1: 0.7}))
    assert "better than b by less than 0.1 points" in hardly.sentence
    opposed = compare_runs(runs("a", {0: 0.5, 1: 0.7}), runs("b", {0: 0.7, 1: 0.5}))
    assert opposed.sentence.startswith("no clear difference")
