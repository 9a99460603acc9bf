# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.data import load_dataset
from dpcohort.explain import Scenario, noise_gains
from dpcohort.plan import Plan
from dpcohort.report.html._page import Report, report_of_runs
from dpcohort.report.html._sources import Group, read_groups
from dpcohort.runs import mean_interval, train
from dpcohort.runs._journal import journal_header, planned_draws
from dpcohort.tuning import Gain, Worth

#: Names that would do something if they were anything but text.
SCRIPTED = [
    "</script><script>window.attacked = 1</script>",
    "<img src=x onerror='window.attacked = 1'>",
    "<a href='javascript:window.attacked = 1'>press</a>",
    "<b>bold</b> & \"quoted\" 'name' %{x} {{ 7 * 7 }}",
    "ward 5",
    "2026-01-01",
    "1e5",
    "open data",
]


def small_plan(rule: str = "privacy-aware", **changes: object) -> Plan:
    """Eight clients with names that are no markup, one of them public; six rounds."""
    clients = Population.from_arrays(
        ids=SCRIPTED,
        sizes=[150, 120, 180, 140, 160, 150, 170, 130],
        epsilon=[0.3, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, float("nan")],
        delta=[1e-5] * 7 + [float("nan")],
        public=[False] * 7 + [True],
    )
    settings = {"rounds": 8, "cohort_size": 4, "sampling_rate": 0.2, "dimension": 650}
    settings |= {key: changes.pop(key) for key in list(changes) if key in settings}
    return make_plan(clients, Training(**settings), selection=rule, seed=3, **changes)


def saved_worth(plan: Plan, path: Path) -> dict:
    """A prediction about the clients of a plan, as ``dpcohort worth -o`` saves it."""
    gains = noise_gains(Scenario.of(plan))
    points = mean_interval([1.0, 2.0])
    found = Worth(
        source="generated data",
        factors=(1.0, 2.0),
        noise=(2.0, 1.0),
        sets=("clear", "clear"),
        scores=((0.5, 0.5), (0.6, 0.8)),
        gains=tuple(
            Gain(**asdict(gain), accuracy=replace(points, low=1.0, high=2.0)) for gain in gains
        ),
        training=plan.training,
    ).to_dict()
    found["sets"]["clear"][0] |= {"low": 0.4, "high": 0.6}
    path.write_text(json.dumps(found))
    return found


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_added():
    """A distribution that is installed beside this one may add a section to each report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpcohort.report.html._page.added_sections", lambda plan, folder: ())
        yield


@pytest.fixture(scope="session")
def plan() -> Plan:
    return small_plan()


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """Two rules with two seeds each, as ``dpcohort compare --out`` leaves them."""
    folder = tmp_path_factory.mktemp("report") / "runs"
    digits = load_dataset("digits")
    for rule in ("privacy-aware", "unbiased"):
        for seed in (0, 1):
            train(
                small_plan(rule),
                "logistic",
                digits,
                out=folder / rule / f"seed-{seed}",
                device="cpu",
                seed=seed,
                evaluate_every=2,
                checkpoint_every=4,
            )
    return folder


@pytest.fixture(scope="session")
def groups(trained) -> list[Group]:
    """Both rules as they are read; privacy-aware first."""
    return read_groups([trained / "privacy-aware", trained / "unbiased"])


@pytest.fixture(scope="module")
def comparison_report(groups) -> Report:
    return report_of_runs(groups)


@pytest.fixture(scope="session")
def adaptive(tmp_path_factory) -> Path:
    """A run whose cohorts were chosen from reports during the training."""
    clients = Population.from_arrays(
        ids=SCRIPTED[:6], sizes=[150] * 6, epsilon=[0.5, 1, 2, 4, 8, 8], delta=1e-5
    )
    settings = Training(rounds=3, cohort_size=3, sampling_rate=0.2, dimension=650)
    plan = make_adaptive_plan(clients, settings, rule_settings={"d": 4}, seed=3)
    folder = tmp_path_factory.mktemp("adaptive") / "run"
    train(plan, "logistic", load_dataset("digits"), out=folder, device="cpu", seed=0)
    return folder


@pytest.fixture
def finished(trained, tmp_path) -> Path:
    """A finished run folder of one's own."""
    return Path(shutil.copytree(trained / "privacy-aware" / "seed-0", tmp_path / "finished"))


def many_clients(count: int) -> Plan:
    """A plan for many clients, made without calibrating each: a few kinds of them repeat."""
    rng = np.random.default_rng(1)
    clients = Population.from_arrays(
        ids=[f"<i>site</i> {k:04d}" for k in range(count)],
        sizes=rng.choice([100, 200, 400], count),
        epsilon=rng.choice([0.25, 0.5, 1.0, 2.0, 4.0, 8.0], count),
        delta=1e-5,
    )
    training = Training(rounds=20, cohort_size=50, sampling_rate=0.2, dimension=650)
    return make_plan(clients, training, seed=1)


def folder_of(plan: Plan, folder: Path) -> Path:
    """What a run leaves of a plan that was counted whole but whose run.json is gone."""
    folder.mkdir(parents=True)
    plan.save(folder / "plan.json")
    lines = [journal_header(plan)]
    lines += [{"round": r, "draws": planned_draws(plan, r)} for r in range(plan.training.rounds)]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def many():
    return many_clients


@pytest.fixture
def small():
    return small_plan


@pytest.fixture
def run_folder():
    return folder_of
