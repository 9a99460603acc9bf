# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.data import load_dataset
from dpcohort.plan import Plan
from dpcohort.runs import train

ROUNDS = 6


def small_plan(**changes: object) -> Plan:
    """Eight clients of the digits, one of them public, six rounds of softmax regression."""
    clients = Population.from_arrays(
        sizes=[150] * 8,
        epsilon=[0.3, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, float("nan")],
        delta=[1e-5] * 7 + [float("nan")],
        public=[False] * 7 + [True],
    )
    settings = {"rounds": ROUNDS, "cohort_size": 4, "sampling_rate": 0.2, "dimension": 650}
    settings |= {key: changes.pop(key) for key in list(changes) if key in settings}
    options = {"selection": "unbiased", "seed": 3, **changes}
    return make_plan(clients, Training(**settings), **options)


def adaptive_plan(rule: str = "rpow-d", **options: object) -> Plan:
    """The same clients and rounds, each cohort chosen by a rule."""
    planned = small_plan()
    options = {"seed": 3, **options}
    return make_adaptive_plan(planned.population, planned.training, rule=rule, **options)


@pytest.fixture(scope="session")
def digits():
    return load_dataset("digits")


@pytest.fixture(scope="session")
def secret(digits):
    """The digits as if they were not public: a training on them is private."""
    return replace(digits, public=False)


@pytest.fixture(scope="session")
def plan() -> Plan:
    return small_plan()


@pytest.fixture(scope="session")
def _finished(plan, digits, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    train(
        plan,
        "logistic",
        digits,
        out=folder,
        device="cpu",
        seed=5,
        evaluate_every=2,
        checkpoint_every=2,
    )
    return folder


@pytest.fixture
def finished(_finished, tmp_path) -> Path:
    """A finished run folder of one's own."""
    return Path(shutil.copytree(_finished, tmp_path / "finished"))
