# SPDX-License-Identifier: Apache-2.0
"""The numbers that the page computes itself are those of Python, or larger noise."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting.calibration import calibrate_noise
from dpcohort.accounting.closed_forms import paper_noise_multiplier
from dpcohort.explain import Scenario, sweep
from dpcohort.plan import Plan
from dpcohort.report.html.explorer import EPSILON_FACTORS
from dpcohort.report.html.page import write_report
from dpcohort.selection.solver import SelectionPath, solve_selection

from .conftest import Reader


def scenario(plan: Plan, **rule) -> Scenario:
    return Scenario(
        population=plan.population,
        training=plan.training,
        rule_settings=rule,
        contract=plan.contract,
        noise_model=plan.fixed_cohorts.noise_model,
    )


def compared(found: dict, expected, k: int) -> None:
    assert found["probabilities"][k] == pytest.approx(expected["client_probability"], abs=1e-9)
    for name in ("noise_to_clip", "bias", "largest", "smallest"):
        assert found[name] == pytest.approx(expected[name], abs=1e-9)
    assert found["excluded"] == expected["excluded"]


def test_sliders_change_the_probabilities_as_python_does(reader, shown):
    page, k = reader.page, 1
    name = shown.population.ids[k]
    page.locator("#changed").select_option(str(k))
    before = reader.outcome()
    assert before["probabilities"] == pytest.approx(
        shown.selection.probabilities.tolist(), abs=1e-9
    )
    for stop, factor in enumerate(EPSILON_FACTORS):
        reader.set("epsilon", stop)
        epsilon = factor * float(shown.population.epsilon[k])
        [expected] = sweep(scenario(shown), "epsilon", [epsilon], client=name)
        compared(reader.outcome(), expected, k)
    assert reader.outcome()["probabilities"][k] != before["probabilities"][k]
    reader.set("epsilon", EPSILON_FACTORS.index(1.0))
    for stop, rounds in enumerate(page.evaluate("dpcohortFrame.data.explorer.rounds")):
        reader.set("rounds", stop)
        [expected] = sweep(scenario(shown), "rounds", [rounds], client=name)
        compared(reader.outcome(), expected, k)
    reader.set("rounds", page.evaluate("dpcohortFrame.data.explorer.rounds_now"))
    page.locator("input[name=mode][value=eta]").check()
    for stop in (0, 250, 480, 700, 1000):
        reader.set("eta", stop)
        eta = reader.outcome()["eta"]
        [expected] = sweep(scenario(shown), "eta", [eta], client=name)
        compared(reader.outcome(), expected, k)
    page.locator("input[name=mode][value=bias]").check()
    for cap in (0.0, 0.1, 0.35, 2.0):
        reader.set("bias", cap)
        [expected] = sweep(scenario(shown), "bias_cap", [cap], client=name)
        compared(reader.outcome(), expected, k)
    page.get_by_text("Back to the plan").click()
    page.wait_for_function("() => dpcohortExplorer.outcome.setting.mode === 'auto'")
    assert reader.outcome()["probabilities"] == before["probabilities"]


def test_the_page_never_shows_less_noise_than_is_added(reader, shown):
    page, training = reader.page, shown.training
    rounds = page.evaluate("dpcohortFrame.data.explorer.rounds")
    for stop, factor in ((0, 0), (3, 2), (6, 4), (5, 3)):
        reader.set("rounds", stop)
        page.locator("#changed").select_option("1")
        reader.set("epsilon", factor)
        found = reader.outcome()
        for k in np.flatnonzero(~shown.population.public).tolist():
            draws = int(np.ceil(found["probabilities"][k] * rounds[stop] * training.cohort_size))
            if draws == 0:
                continue
            changed = EPSILON_FACTORS[factor] if k == 1 else 1.0
            budget = {
                "epsilon": changed * float(shown.population.epsilon[k]),
                "delta": float(shown.population.delta[k]),
                "sampling_rate": float(shown.sampling_rates[k]),
                "steps": draws * training.local_steps,
            }
            batch = shown.batch_sizes[k]
            assert found["std"][k]["most"] >= calibrate_noise(**budget) / batch
            assert found["std"][k]["most"] <= 1.25 * calibrate_noise(**budget) / batch
            paper = paper_noise_multiplier(**budget) / batch
            assert found["std"][k]["paper"] == pytest.approx(paper, rel=1e-9)
    page.get_by_text("Back to the plan").click()


def instances() -> list[dict]:
    """Problems of every kind: linear costs, floors and caps, public clients, bias caps."""
    rng = np.random.default_rng(11)
    found = []
    for number in range(120):
        size, kind = int(rng.integers(1, 80)), number % 8
        u = rng.uniform(0.5, 1.5, size)
        u /= u.sum()
        a = size * 10 ** rng.uniform(-2, 5, size)
        problem: dict = {"unbiased": u, "noise": a, "linear": None, "floor": None, "cap": None}
        if kind in (1, 3, 5, 6):
            problem["linear"] = 10 ** rng.uniform(-3, 2, size)
        if kind in (2, 3):
            problem |= {"floor": 0.2 * u, "cap": np.full(size, min(1.0, 3 / size))}
        if kind in (4, 7):
            a[rng.random(size) < 0.2] = 0.0
        if kind == 5:
            a[0] = problem["linear"][0] = 0.0
        gap = float(rng.uniform(0, 1.2)) if kind in (6, 7) else None
        bounds = {key: problem[key] for key in ("floor", "cap")}
        if gap is None:
            solved = solve_selection(u, a, linear_costs=problem["linear"], **bounds)
        else:
            solved = SelectionPath(u, a, linear_costs=problem["linear"], **bounds).at_gap(gap)
        plain = {k: None if v is None else v.tolist() for k, v in problem.items()}
        found.append({**plain, "gap": gap, "expected": solved.probabilities.tolist()})
    return found


def test_the_solver_of_the_page_equals_python(reader):
    worst = reader.page.evaluate(
        """problems => problems.map((problem) => {
            const found = problem.gap === null
                ? dpcohortSolver.select(problem)
                : dpcohortSolver.selectAtBias(problem, problem.gap);
            const p = found.probabilities;
            return Math.max(...problem.expected.map((value, k) => Math.abs(value - p[k])));
        })""",
        instances(),
    )
    assert len(worst) == 120
    assert max(worst) < 1e-9


def test_a_paper_plan_shows_the_larger_noise(browser, tmp_path, small, run_folder, monkeypatch):
    # Numbers only: without the charts the page opens at once.
    monkeypatch.setattr("dpcohort.report.html.page._plotly", lambda: "")
    plan = small(accountant="paper", guard="lift", rounds=6)
    folder = run_folder(plan, tmp_path / "paper")
    write_report([folder], tmp_path / "paper.html")
    with Reader(browser, tmp_path / "paper.html") as reader:
        found = reader.outcome()
        assert found["probabilities"] == pytest.approx(
            plan.selection.probabilities.tolist(), abs=1e-9
        )
        for k in np.flatnonzero(plan.drawn & ~plan.population.public).tolist():
            most = found["std"][k]["most"]
            # The plan's own draws may be one fewer than the expected draws rounded up.
            assert most >= 0.999 * plan.noise_multipliers[k] / plan.batch_sizes[k]
