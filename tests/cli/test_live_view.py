# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.live import Live

from dpcohort import Population, Training, make_plan
from dpcohort.accounting import Contract
from dpcohort.cli._train import TrainingView, picture, round_sentence
from dpcohort.round_record import RoundRecord
from dpcohort.runs import train


@pytest.fixture(scope="module")
def run():
    clients = Population.from_arrays(
        ids=[f"[b]site {i}[/b]" for i in range(5)],
        sizes=[250] * 5,
        epsilon=[0.5, 1.0, 2.0, 4.0, float("nan")],
        delta=[1e-5] * 4 + [float("nan")],
        public=[False] * 4 + [True],
    )
    settings = Training(rounds=4, cohort_size=10, sampling_rate=0.1, dimension=650)
    plan = make_plan(clients, settings, selection="unbiased", seed=0)
    return train(plan, "logistic", "digits", device="cpu")


def test_a_picture_of_cohort_noise_and_budgets(run):
    screen = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with Live(console=screen, auto_refresh=False) as live:
        view = TrainingView("softmax regression", live)
        view.on_round(run.history[-1], run)
        live.refresh()
    shown = screen.file.getvalue()
    for words in ("round 4/4", "accuracy", "noise", "budget", "[b]site 0[/b]", "and 2 more"):
        assert words in shown


@pytest.mark.parametrize("width", [44, 60, 120])
def test_every_row_is_one_line_on_a_narrow_screen_too(run, width):
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    screen.print(picture("softmax regression", run.history[-1], run, "3 s left"))
    lines = screen.file.getvalue().splitlines()
    # Title, progress, accuracy; eight draws and what is left; four budgets.
    assert len(lines) == 3 + 9 + 4
    assert max(len(line) for line in lines) <= width
    assert sum("█" in line for line in lines) == 1 + 7 + 4


def test_where_noise_is_distributed_shares_and_weights_are_shown():
    clients = Population.from_arrays(sizes=[250] * 4, epsilon=[0.5, 1.0, 2.0, 4.0], delta=1e-5)
    settings = Training(rounds=2, cohort_size=4, sampling_rate=0.1, dimension=650, clip=0.5)
    plan = make_plan(clients, settings, seed=0, accountant=Contract(trust="distributed"))
    run = train(plan, "logistic", "digits", device="cpu")
    assert f"  shares of noise {plan.noise.pool.share / 2:.3g}  " in round_sentence(
        run.history[0], run
    )
    screen = Console(file=io.StringIO(), width=100, color_system=None)
    screen.print(picture("x", run.history[0], run))
    shown = screen.file.getvalue()
    assert all(f"weight {weight:.3g}" in shown for weight in plan.noise.weights)
    assert "noise" not in shown


def test_a_lost_round_is_said(run):
    line = RoundRecord(round=1, clients=(0,), noise_stds=(0.1,), seconds=0.0, lost=True)
    assert "lost in a crash" in round_sentence(line, run)
