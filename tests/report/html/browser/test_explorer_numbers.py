# SPDX-License-Identifier: Apache-2.0
"""The numbers that the page shows are those of Python, close to them, or larger noise."""

from __future__ import annotations

import numpy as np
import pytest

from dpcohort.accounting import calibrate_noise, paper_noise_multiplier
from dpcohort.explain import Scenario, sweep
from dpcohort.plan import Plan
from dpcohort.report.html._explorer import EPSILON_FACTORS


def scenario(plan: Plan, **rule) -> Scenario:
    return Scenario(
        population=plan.population,
        training=plan.training,
        rule_settings=rule,
        contract=plan.contract,
        noise_model=plan.participation.fixed.noise_model,
    )


def compared(found: dict, expected, k: int, close: float) -> None:
    assert found["probabilities"][k] == pytest.approx(expected["client_probability"], abs=close)
    for name in ("bias", "largest", "smallest"):
        assert found[name] == pytest.approx(expected[name], abs=2 * close)
    assert found["noise_to_clip"] == pytest.approx(expected["noise_to_clip"], rel=5 * close)


#: At the points that Python solved, to the digits that are written; and between them.
AT, BETWEEN = 1e-6, 0.01


def test_sliders_change_the_probabilities_as_python_does(reader, shown):
    page, k = reader.page, 1
    name = shown.population.ids[k]
    page.locator("#changed").select_option(str(k))
    before = reader.outcome()
    planned = pytest.approx(shown.selection.probabilities.tolist(), abs=AT)
    assert before["probabilities"] == planned
    for stop, factor in enumerate(EPSILON_FACTORS):
        reader.set("epsilon", stop)
        epsilon = factor * float(shown.population.epsilon[k])
        [expected] = sweep(scenario(shown), "epsilon", [epsilon], client=name)
        own = reader.outcome()["own"]["probability"]
        assert own == pytest.approx(expected["client_probability"], abs=1e-9)
        assert reader.outcome()["probabilities"] == planned
    reader.set("epsilon", EPSILON_FACTORS.index(1.0))
    for stop, rounds in enumerate(page.evaluate("dpcohortFrame.data.explorer.rounds")):
        reader.set("rounds", stop)
        [expected] = sweep(scenario(shown), "rounds", [rounds], client=name)
        compared(reader.outcome(), expected, k, AT)
        assert reader.outcome()["excluded"] == expected["excluded"]
    reader.set("rounds", page.evaluate("dpcohortFrame.data.explorer.rounds_now"))
    page.locator("input[name=mode][value=eta]").check()
    for stop in (0, 250, 480, 700, 1000):
        reader.set("eta", stop)
        eta = reader.outcome()["eta"]
        [expected] = sweep(scenario(shown), "eta", [eta], client=name)
        compared(reader.outcome(), expected, k, BETWEEN)
    page.locator("input[name=mode][value=bias]").check()
    for cap in (0.0, 0.1, 0.35, 2.0):
        reader.set("bias", cap)
        [expected] = sweep(scenario(shown), "bias_cap", [cap], client=name)
        compared(reader.outcome(), expected, k, BETWEEN)
        assert reader.outcome()["bias"] <= cap + AT
    page.get_by_text("Back to the plan").click()
    page.wait_for_function("() => dpcohortExplorer.outcome.setting.mode === 'auto'")
    assert reader.outcome()["probabilities"] == before["probabilities"]


def test_the_page_never_shows_less_noise_than_is_added(reader, shown):
    page, training = reader.page, shown.training
    rounds = page.evaluate("dpcohortFrame.data.explorer.rounds")
    planned = rounds[page.evaluate("dpcohortFrame.data.explorer.rounds_now")]

    def check(std, k, probability, rounds, factor):
        draws = int(np.ceil(probability * rounds * training.cohort_size - 1e-9))
        if draws == 0:
            return
        budget = {
            "epsilon": factor * float(shown.population.epsilon[k]),
            "delta": float(shown.population.delta[k]),
            "sampling_rate": float(shown.sampling_rates[k]),
            "steps": draws * training.local_steps,
        }
        tight = calibrate_noise(**budget) / shown.batch_sizes[k]
        assert tight <= std["most"] <= 1.25 * tight
        paper = paper_noise_multiplier(**budget) / shown.batch_sizes[k]
        assert std["paper"] == pytest.approx(paper, rel=1e-9)

    page.locator("#changed").select_option("1")
    for stop, factor in ((0, 0), (3, 2), (6, 4), (5, 3)):
        reader.set("rounds", stop)
        reader.set("epsilon", factor)
        found = reader.outcome()
        for k in np.flatnonzero(~shown.population.public).tolist():
            check(found["std"][k], k, found["probabilities"][k], rounds[stop], 1.0)
        own = found["own"]
        check(own, 1, own["probability"], planned, EPSILON_FACTORS[factor])
    page.get_by_text("Back to the plan").click()
