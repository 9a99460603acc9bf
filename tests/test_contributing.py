# SPDX-License-Identifier: Apache-2.0
"""The table of CONTRIBUTING.md: rows of at most four files that exist, and true for two of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import dpcohort
from dpcohort import Contract, Population, Run, Training, make_plan, train, verify_run
from dpcohort.accounting._composition import LossPair
from dpcohort.accounting._sampler import Sampler
from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.cli import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE = TEXT.split("## I want to add")[1].split("\n## ")[0]
ROWS = dict(re.findall(r"^\| ([a-z][a-z ]+) \| (.*) \|$", TABLE, re.M))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_names_at_most_four_places_and_all_exist(row):
    paths = re.findall(r"`(dpcohort/[\w/]+(?:\.py)?)", row)
    assert len(paths) <= 4
    assert [path for path in paths if not (ROOT / path).exists()] == []


def _files_that_name(*names: str) -> set[str]:
    """Modules of the package with one of these as a string, name or attribute of their code."""
    package, named = Path(dpcohort.__file__).parent, set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            word = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            word = node.id if isinstance(node, ast.Name) else word
            word = node.attr if isinstance(node, ast.Attribute) else word
            if word in names:
                named.add(path.relative_to(package).as_posix())
    return named


def test_a_sampler_is_named_in_its_file_and_in_the_list():
    samplers = {"accounting/_balls_in_bins.py", "accounting/_samplers.py"}
    assert _files_that_name("balls-in-bins", "BallsInBins") <= samplers


def test_a_sampler_of_one_class_plans_trains_and_verifies(tmp_path, monkeypatch):
    class EveryRecord(Sampler):
        """Every record in every batch: no randomness, no amplification."""

        name = "every-record"
        natural_neighbours = "zero-out"

        def losses(self, noise_multiplier, sampling_rate, neighbours):
            shift = 1 / noise_multiplier
            return tuple(LossPair(kind=k, shift=shift, rate=1.0) for k in ("remove", "add"))

        def integrand(self, neighbours):
            return "remove"

        def draw(self, stream, *, size, rate, batch_size):
            return lambda step: np.arange(size, dtype=np.int64)

    monkeypatch.setitem(SAMPLERS, "every-record", EveryRecord())
    clients = Population.from_arrays(sizes=[300, 300], epsilon=[1.0, 4.0], delta=1e-5)
    training = Training(rounds=3, cohort_size=2, sampling_rate=1.0, dimension=650)
    plan = make_plan(clients, training, accountant=Contract(sampler="every-record"), seed=0)
    same = make_plan(clients, training, seed=0)
    np.testing.assert_allclose(plan.noise_multipliers, same.noise_multipliers, rtol=1e-9)
    run = train(plan, "logistic", "digits", out=tmp_path / "run", seed=0, device="cpu")
    assert verify_run(tmp_path / "run").holds
    assert run.test_accuracy > 0.2


def test_a_server_optimiser_is_a_class_that_a_config_names(tmp_path, monkeypatch):
    (tmp_path / "toy_server.py").write_text(
        "import torch\n"
        "class Sign(torch.optim.Optimizer):\n"
        "    def __init__(self, params, lr=0.1):\n"
        "        super().__init__(params, {'lr': lr})\n"
        "    @torch.no_grad()\n"
        "    def step(self, closure=None):\n"
        "        for group in self.param_groups:\n"
        "            for one in group['params']:\n"
        "                one -= group['lr'] * one.grad.sign()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    text = (ROOT / "examples" / "configs" / "digits-fedadam.toml").read_text(encoding="utf-8")
    text = re.sub(r'server = "adam"', 'server = "toy_server:Sign"', text)
    text = re.sub(r"server_settings = .*", "server_settings = { lr = 0.01 }", text)
    (tmp_path / "toy.toml").write_text(re.sub(r"rounds = \d+", "rounds = 2", text))
    command = ["train", "toy.toml", "--out", "run", "--device", "cpu"]
    assert main([*command, "--allow-code", "toy_server"]) == 0
    assert Run.load("run").settings["optimiser"]["server"] == "toy_server:Sign"
