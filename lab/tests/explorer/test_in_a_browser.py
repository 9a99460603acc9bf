# SPDX-License-Identifier: Apache-2.0
"""The numbers that the page shows are those of Python, close to them, or larger noise."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from dpcohort import train
from dpcohort.accounting import calibrate_noise, paper_noise_multiplier
from dpcohort.explain import Scenario, sweep
from dpcohort.plan import Plan
from dpcohort_lab.explorer import EPSILON_FACTORS

from .conftest import small_plan


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


ROUNDS = "dpcohortFrame.data.sections['what-if'].rounds"
NOW = "dpcohortFrame.data.sections['what-if'].rounds_now"


class Reader:
    """The report of a run, opened in Chromium, with everything that went wrong in it."""

    def __init__(self, page) -> None:
        self.page, self.complaints = page, []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def set(self, slider: str, value: object) -> None:
        self.page.evaluate(
            """([id, value]) => {
                const input = document.getElementById(id);
                input.value = value;
                input.dispatchEvent(new Event("input", { bubbles: true }));
            }""",
            [slider, str(value)],
        )

    def outcome(self) -> dict:
        return self.page.evaluate("() => ({ ...dpcohortExplorer.outcome })")


@pytest.fixture(scope="module")
def shown() -> Plan:
    return small_plan()


@pytest.fixture(scope="module")
def reader(shown, tmp_path_factory):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no chromium on the PATH")
    folder = tmp_path_factory.mktemp("explored")
    run = train(shown, "logistic", "digits", out=folder / "run", device="cpu", seed=0)
    page = run.report(folder / "page.html")
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        reader = Reader(browser.new_page(viewport={"width": 1280, "height": 900}))
        reader.page.goto(page.as_uri())
        reader.page.wait_for_selector("html[data-ready=true]")
        reader.page.evaluate("dpcohortFrame.drawAll()")
        yield reader
        assert reader.complaints == []
        browser.close()


def test_it_is_a_section_within_reach_of_the_keys(reader):
    page = reader.page
    page.locator("header nav a[href='#what-if']").click()
    page.locator("#chart-what-if .main-svg").first.wait_for()
    page.locator("#rounds").focus()
    before = page.locator("#rounds-out").text_content()
    page.keyboard.press("ArrowRight")
    assert page.locator("#rounds-out").text_content() != before
    page.get_by_text("Back to the plan").click()
    assert page.evaluate("window.attacked") is None


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
    for stop, rounds in enumerate(page.evaluate(ROUNDS)):
        reader.set("rounds", stop)
        [expected] = sweep(scenario(shown), "rounds", [rounds], client=name)
        compared(reader.outcome(), expected, k, AT)
        assert reader.outcome()["excluded"] == expected["excluded"]
    reader.set("rounds", page.evaluate(NOW))
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
    rounds = page.evaluate(ROUNDS)
    planned = rounds[page.evaluate(NOW)]

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
