# SPDX-License-Identifier: Apache-2.0
"""The page in a real Chromium: what a reader sees, and the numbers the page computes itself."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpcohort.accounting.paper import paper_noise_multiplier
from dpcohort.accounting.tight import calibrate_noise
from dpcohort.plan import Plan
from dpcohort.report.html.explorer import EPSILON_FACTORS
from dpcohort.report.html.page import render, write_report
from dpcohort.selection.path import SelectionPath
from dpcohort.selection.solver import solve_selection
from dpcohort.what_if import Scenario, sweep

playwright = pytest.importorskip(
    "playwright.sync_api", reason="BROWSER TESTS SKIPPED: playwright is not installed"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="BROWSER TESTS SKIPPED: there is no chromium on the PATH"
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
READY = "html[data-ready=true]"
SCREEN, TELEPHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 780}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Reader:
    """A page that was opened, with everything it said, asked for and threw.

    With ``whole`` every chart is drawn, as for printing; else those near the window.
    """

    def __init__(self, browser, path: Path, *, whole: bool = True, **options) -> None:
        self.context = browser.new_context(**{"viewport": SCREEN, "offline": True, **options})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(READY)
        if whole:
            self.page.evaluate("dpcohortFrame.drawAll()")

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []
        assert len([url for url in self.requests if url.startswith("file:")]) == 1

    def keep(self, name: str) -> None:
        """A screenshot, where DPCOHORT_SCREENSHOTS says that they are wanted."""
        if os.environ.get("DPCOHORT_SCREENSHOTS"):
            folder = Path("out/screenshots")
            folder.mkdir(parents=True, exist_ok=True)
            # A full-page screenshot would make the window one pixel wide for a moment.
            height = self.page.evaluate("document.documentElement.scrollHeight")
            self.page.set_viewport_size({**self.page.viewport_size, "height": height})
            self.page.screenshot(path=folder / f"{name}.png")

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
        return self.page.evaluate(
            "() => { const { std, setting, ...rest } = dpcohortExplorer.outcome; "
            "return { ...rest, std, setting }; }"
        )

    def overflows(self) -> bool:
        return self.page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )


@pytest.fixture(scope="module")
def comparison(comparison_report, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "comparison.html"
    path.write_text(render(comparison_report))
    return path


@pytest.fixture(scope="module")
def shown(trained) -> Plan:
    """The plan whose clients the comparison shows."""
    return Plan.load(trained / "privacy-aware" / "seed-0" / "plan.json")


@pytest.fixture(scope="module")
def opened(browser, comparison):
    """The page, opened once: what a reader does to it is undone in `reader`."""
    with Reader(browser, comparison) as reader:
        yield reader


@pytest.fixture
def reader(opened):
    yield opened
    opened.page.emulate_media(color_scheme="light")
    opened.page.set_viewport_size(SCREEN)
    opened.page.wait_for_selector("html[data-theme=light]")


def looks_right(reader: Reader, name: str) -> None:
    background = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
    shades = [int(part) for part in background.strip("rgb()").split(",")]
    assert (max(shades) < 64) == ("dark" in name)
    assert not reader.overflows()
    drawn = reader.page.locator(".chart .main-svg").count()
    assert drawn >= 7
    assert reader.page.get_by_text("NOT PRIVATE").first.is_visible()
    for text in (".kind", ".stamp", ".card .detail", ".verdict", "summary", "td .good"):
        assert contrast(reader, text) >= 4.5, text
    reader.keep(name)


@pytest.mark.parametrize(
    ("name", "scheme", "screen"),
    [("light", "light", SCREEN), ("dark", "dark", SCREEN), ("phone", "light", TELEPHONE)],
    ids=["light", "dark", "phone"],
)
def test_both_colour_schemes_on_both_screens(reader, name, scheme, screen):
    reader.page.emulate_media(color_scheme=scheme)
    reader.page.set_viewport_size(screen)
    reader.page.wait_for_selector(f"html[data-theme={scheme}]")
    looks_right(reader, name)


def test_opened_in_the_dark_on_a_telephone(browser, comparison):
    with Reader(browser, comparison, viewport=TELEPHONE, color_scheme="dark") as reader:
        looks_right(reader, "phone-dark")


def test_the_switch_changes_the_scheme(reader):
    def colours() -> list[str]:
        return reader.page.evaluate(
            """() => [document.documentElement.dataset.theme,
                      document.querySelector(".chart .xtick text").style.fill]"""
        )

    before = colours()
    reader.page.locator("#theme").press("Enter")
    after = colours()
    assert (before[0], after[0]) == ("light", "dark")
    assert before[1] != after[1]
    reader.page.locator("#theme").press("Enter")
    assert colours() == before


def test_charts_are_drawn_when_they_come_near(browser, comparison):
    with Reader(browser, comparison, whole=False) as reader:
        page, far = reader.page, "#chart-noise .main-svg"
        page.locator("#chart-curves .main-svg").first.wait_for()
        assert page.locator(far).count() == 0
        page.locator("#theme").press("Enter")
        page.locator("header nav a[href='#noise']").click()
        page.locator(far).first.wait_for()
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.locator(".chart:not(:has(.main-svg))").count() == 0


def test_turning_a_telephone_draws_anew(reader, shown):
    page = reader.page
    page.set_viewport_size({"width": 780, "height": 360})
    wide = page.locator("#chart-scatter .colorbar .cbfills").bounding_box()
    page.set_viewport_size(TELEPHONE)
    page.wait_for_function(
        """() => {
            const bar = document.querySelector("#chart-scatter .colorbar .cbfills");
            return bar && bar.getBBox().width > bar.getBBox().height;
        }"""
    )
    assert wide["height"] > wide["width"]
    assert page.locator("#chart-scatter .colorbar").count() == 1
    assert not reader.overflows()
    # What is clicked is still told.
    page.locator("#chart-scatter .points path.point").nth(5).click(force=True)
    page.wait_for_function(
        "name => document.getElementById('client-words').textContent.startsWith(name)",
        arg=shown.population.ids[5],
    )


def test_names_with_markup_are_text(reader, shown):
    page = reader.page
    assert page.evaluate("window.attacked") is None
    assert page.locator("main img, main b, main a[href^=javascript]").count() == 0
    names = page.locator("#receipts tbody th").all_text_contents()
    assert names == list(shown.population.ids)
    for position in range(len(names)):
        page.locator("#client").select_option(str(position))
        assert page.locator("#client-words").text_content().startswith(names[position])
    assert page.evaluate("window.attacked") is None


def test_hovering_shows_the_client(reader, shown):
    page = reader.page
    for position in (0, 2):
        page.evaluate(
            "k => Plotly.Fx.hover('chart-scatter', [{ curveNumber: 0, pointNumber: k }])", position
        )
        # Plotly takes its time between two labels.
        page.wait_for_function(
            """start => document.querySelector("#chart-scatter .hoverlayer")
                .textContent.startsWith(start)""",
            arg=shown.population.ids[position].split()[0],
        )
        label = page.locator("#chart-scatter .hoverlayer").text_content()
        assert "promised epsilon" in label
    assert page.locator("#chart-scatter .hoverlayer a").count() == 0


def test_the_mouse_finds_a_client(reader, shown):
    page = reader.page
    mark = page.locator("#chart-scatter .points path.point").nth(4)
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = page.locator("#chart-scatter .hoverlayer text")
    label.first.wait_for()
    assert shown.population.ids[4] in label.first.text_content()
    page.mouse.down()
    page.mouse.up()
    page.wait_for_function(
        "name => document.getElementById('client-words').textContent.includes(name)",
        arg=shown.population.ids[4],
    )


def test_the_receipt_of_a_client_opens_by_keyboard(reader, shown):
    page = reader.page
    page.locator("#receipts .receipt").last.press("Enter")
    assert page.locator("#receipt").is_visible()
    assert "NOT PRIVATE" in page.locator("#receipt-text").text_content()
    page.keyboard.press("Escape")
    assert not page.locator("#receipt").is_visible()


def test_the_table_is_sorted_and_searched(reader, shown):
    page = reader.page
    page.locator(".sort[data-column='2']").click()
    promised = page.locator("#receipts tbody td:nth-child(3)").all_text_contents()
    numbers = [float(text) for text in promised if text != "–"]
    assert numbers == sorted(numbers)
    page.locator("#filter").fill("WARD")
    assert page.locator("#receipts tbody tr:visible").count() == 1
    page.locator("#filter").fill("")
    page.locator(".sort[data-column='0']").click()


def scenario(plan: Plan, **rule) -> Scenario:
    return Scenario(
        population=plan.population,
        training=plan.training,
        rule_settings=rule,
        contract=plan.contract,
        noise_model=plan.noise_model,
    )


def compared(found: dict, expected, k: int) -> None:
    assert found["probabilities"][k] == pytest.approx(expected.client_probability, abs=1e-9)
    for name in ("noise_to_clip", "bias", "largest", "smallest"):
        assert found[name] == pytest.approx(getattr(expected, name), abs=1e-9)
    assert found["excluded"] == expected.excluded


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


def test_keyboard_reaches_everything_and_charts_have_words(reader):
    page = reader.page
    assert page.locator("main").count() == page.locator("h1").count() == 1
    assert page.locator("header nav a").count() >= 5
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button")].filter((control) =>
            !control.labels?.length && !control.textContent.trim() &&
            !control.getAttribute("aria-label")).map((control) => control.outerHTML)"""
    )
    assert unnamed == []
    for chart in page.locator(".chart").all():
        assert "table" in chart.get_attribute("aria-label").lower()
    page.locator("#eta").evaluate("slider => slider.closest('form').scrollIntoView()")
    page.locator("#rounds").focus()
    before = page.locator("#rounds-out").text_content()
    page.keyboard.press("ArrowRight")
    assert page.locator("#rounds-out").text_content() != before
    page.get_by_text("Back to the plan").click()


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour.strip("rgb()").split(",")[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(reader: Reader, selector: str) -> float:
    """Of a text with what is behind it (WCAG 2)."""
    ink, paper = reader.page.locator(selector).first.evaluate(
        """element => {
            let behind = element;
            while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") {
                behind = behind.parentElement;
            }
            return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
        }"""
    )
    dark, light = sorted((luminance(ink), luminance(paper)))
    return (light + 0.05) / (dark + 0.05)


def test_a_broken_run_is_shown_in_red(browser, finished, tmp_path):
    text = (finished / "plan.json").read_text().replace("0.5", "5.5", 1)
    (finished / "plan.json").write_text(text)
    write_report([finished], tmp_path / "broken.html")
    with Reader(browser, tmp_path / "broken.html") as reader:
        assert reader.page.locator("#findings .kind-broken").count() >= 1
        assert reader.page.locator("#chart-curves .main-svg").count() > 0
        assert "could NOT be verified" in reader.page.locator("h1").text_content()
        reader.keep("broken")


def test_a_thousand_clients(browser, tmp_path, many, run_folder):
    write_report([run_folder(many(1000), tmp_path / "many")], tmp_path / "many.html")
    assert (tmp_path / "many.html").stat().st_size < 8_000_000
    with Reader(browser, tmp_path / "many.html", whole=False) as reader:
        reader.page.locator("#clients").scroll_into_view_if_needed()
        reader.page.locator("#chart-scatter .main-svg").first.wait_for()
        assert reader.page.locator("#receipts tbody tr").count() == 1000
        assert reader.page.locator("#chart-scatter path.point").count() >= 1000
        assert not reader.overflows()
        reader.keep("thousand")


def test_more_clients_are_grouped(browser, tmp_path, many, run_folder):
    write_report([run_folder(many(1200), tmp_path / "many")], tmp_path / "many.html")
    with Reader(browser, tmp_path / "many.html") as reader:
        assert reader.page.locator("#receipts tbody tr").count() == 100
        assert 0 < reader.page.locator("#chart-scatter path.point").count() < 200
        assert "dpcohort what-if" in reader.page.locator("#what-if").text_content()
        reader.keep("grouped")


def test_a_reproduction(browser, tmp_path):
    cell = {"mechanism": "<b>ours</b>", "axes": {"s": 100}, "paper": 68.7, "mean": 70.0}
    cell |= {"half_width": 1.5, "accuracy": [70.0, 70.0], "curve": [[1, 2.0], [2, 70.0]]}
    cell |= {"difference": 1.3, "verdict": "within 2", "promises_hold": True}
    result = {"format": "dpcohort reproduction", "schema": 1, "title": "Table I", "cells": [cell]}
    result |= {"findings": [{"text": "holds", "holds": True}], "promises_hold": True}
    (tmp_path / "result.json").write_text(json.dumps(result))
    write_report([tmp_path / "result.json"], tmp_path / "result.html")
    with Reader(browser, tmp_path / "result.html") as reader:
        assert "<b>ours</b>" in reader.page.locator("#chart-cells .ytick").first.text_content()
        assert "68.7" in reader.page.locator("#reproduction table").first.text_content()
        assert reader.page.locator("#reproduction .chart").count() == 2
        assert reader.page.locator("#reproduction .chart + details table").count() == 2
        assert "every promise certified" in reader.page.locator("h1").text_content()
        reader.keep("reproduction")


def test_an_adaptive_run_shows_shares_of_draws(browser, adaptive, tmp_path):
    write_report([adaptive], tmp_path / "adaptive.html")
    with Reader(browser, tmp_path / "adaptive.html") as reader:
        page = reader.page
        assert "every promise verified" in page.locator("h1").text_content()
        assert "Share" in page.locator("#chart-scatter .cbtitle").text_content()
        assert page.locator("#chart-noise .traces").count() == 1
        assert "drawn" in page.locator("#client-words").text_content()
        assert page.locator("#what-if .note").count() == 1
        reader.keep("adaptive")


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
