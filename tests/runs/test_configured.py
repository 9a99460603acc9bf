# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from dpcohort.config import commented_config, load_config, loads_config
from dpcohort.engine import ConstantStep, InverseRootStep, InverseTimeStep
from dpcohort.errors import FileFormatError, InputError
from dpcohort.runs import configured_data, configured_job
from dpcohort.runs._configured import combinations


@pytest.fixture
def config():
    return loads_config(commented_config("digits")).with_overrides(["training.rounds=4"])


def test_seeds_shift_everything_but_a_fixed_partition(config, digits):
    first, second = (configured_job(config, data=digits, shift=s, device="cpu") for s in (0, 1))
    assert (first.seed, second.seed) == (0, 1)
    assert first.plan.schedule != second.plan.schedule
    assert first.plan.population == second.plan.population
    assert first.partition.sha256 != second.partition.sha256
    fixed = config.with_overrides(["data.seed=3"])
    same = {
        configured_job(fixed, data=digits, shift=s, device="cpu").partition.sha256 for s in (0, 1)
    }
    assert len(same) == 1


def test_rules_of_partition(config, digits):
    sorted_ = config.with_overrides(["data.similarity=0"])
    mixed = config.with_overrides(
        ["data.partition=dirichlet", "data.alpha=0.05", "data.similarity="]
    )
    classes = []
    for changed in (config, mixed, sorted_):
        job = configured_job(changed, data=digits, device="cpu")
        counts = job.partition.label_counts(digits.train_labels, 10)
        classes.append(float((counts > 0).sum(axis=1).mean()))
    assert classes[0] > 9
    assert classes[1] < 6
    assert classes[2] < 3


@pytest.fixture
def by_column(config, digits, tmp_path):
    names = np.array(["west", "east"])[np.arange(len(digits)) % 2]
    np.save(tmp_path / "where.npy", names)
    (tmp_path / "clients.csv").write_text(
        "id,size,epsilon,delta\nwest,721,1,1e-5\neast,721,4,1e-5\n"
    )
    path = tmp_path / "config.toml"
    path.write_text(
        '[population]\nclients = "clients.csv"\n[training]\nrounds = 2\ncohort_size = 1\n'
        'dimension = 650\n[data]\npartition = "column"\ncolumn = "where.npy"\n'
    )
    return path


def test_clients_by_a_column_are_in_the_order_of_the_list(by_column, digits):
    job = configured_job(load_config(by_column), data=digits, device="cpu")
    assert job.partition.names == ("west", "east")
    assert job.partition.client(0)[0] == 0
    assert job.partition.client(1)[0] == 1


def test_a_column_that_does_not_fit(by_column, digits, tmp_path):
    config = load_config(by_column)
    (tmp_path / "clients.csv").write_text("id,size,epsilon,delta\nnorth,721,1,1e-5\n")
    with pytest.raises(InputError, match="'north' is in the clients but not"):
        configured_job(config, data=digits, device="cpu")
    np.save(tmp_path / "where.npy", np.arange(3))
    with pytest.raises(FileFormatError, match="1442 records"):
        configured_job(config, data=digits, device="cpu")


@pytest.mark.parametrize("what", ["text", "archive", "objects", "nothing"])
def test_a_column_that_is_no_array(by_column, digits, tmp_path, what):
    place = tmp_path / "where.npy"
    if what == "nothing":
        place.unlink()
    elif what == "objects":
        np.save(place, np.array([object()], dtype=object), allow_pickle=True)
    elif what == "archive":
        with open(place, "wb") as file:
            np.savez(file, a=[1])
    else:
        place.write_bytes(b"not an array")
    with pytest.raises(FileFormatError, match=r"where\.npy"):
        configured_job(load_config(by_column), data=digits, device="cpu")


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        (["optimiser.learning_rate="], ConstantStep(0.1)),
        (
            ["optimiser.learning_rate=", "optimiser.step=inverse-time", "optimiser.beta=2.0"],
            InverseTimeStep(2.0, 1.0),
        ),
        (
            [
                "optimiser.learning_rate=",
                "optimiser.step=inverse-root",
                "optimiser.gradient_bound=3.0",
                "training.clip=0.5",
            ],
            InverseRootStep(3.0, 0.5),
        ),
    ],
)
def test_step_sizes(config, digits, changes, step):
    job = configured_job(config.with_overrides(changes), data=digits, device="cpu")
    assert job.optimiser.local_step == step


def test_ones_own_arrays_next_to_the_config(by_column, digits, tmp_path):
    np.savez(
        tmp_path / "own.npz",
        train_inputs=digits.train_inputs,
        train_labels=digits.train_labels,
        test_inputs=digits.test_inputs,
        test_labels=digits.test_labels,
    )
    config = load_config(by_column).with_overrides(["data.name=own.npz"])
    assert len(configured_data(config)) == len(digits)


def test_the_grid_is_every_combination(config):
    changed = config.with_overrides(["grid.training={ clip = [0.5, 1.0] }"])
    found = dict(combinations(changed))
    assert list(found) == [
        "unbiased, clip 0.5",
        "unbiased, clip 1.0",
        "privacy-aware, clip 0.5",
        "privacy-aware, clip 1.0",
    ]
    assert found["unbiased, clip 0.5"].training.clip == 0.5
    assert found["privacy-aware, clip 1.0"].rule == "privacy-aware"
    with pytest.raises(InputError, match="no \\[grid\\]"):
        list(combinations(config.with_overrides(["grid="])))
