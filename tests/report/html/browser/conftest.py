# SPDX-License-Identifier: Apache-2.0
"""A real Chromium that opens reports, and what it saw of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dpcohort.plan import Plan
from dpcohort.report.html._page import render

from ..conftest import saved_worth

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
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


@pytest.fixture(scope="session", autouse=True)
def _there_is_a_browser():
    pytest.importorskip(
        "playwright.sync_api", reason="BROWSER TESTS SKIPPED: playwright is not installed"
    )
    if CHROMIUM is None:
        pytest.skip("BROWSER TESTS SKIPPED: there is no chromium on the PATH")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
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


@pytest.fixture(scope="module")
def own_report(tmp_path_factory):
    """A report about clients of whom many have the same budget."""
    from dpcohort import Population, Training, make_plan, train
    from dpcohort.report.html._page import write_report

    folder = tmp_path_factory.mktemp("own")
    budgets = [0.5] * 4 + [2.0] * 4 + [8.0] * 4
    clients = Population.from_arrays(sizes=[100] * 12, epsilon=budgets, delta=1e-5)
    settings = Training(rounds=4, cohort_size=6, batch_size=50, dimension=650)
    plan = make_plan(clients, settings, seed=0)
    train(plan, "logistic", "digits", device="cpu", out=folder / "run")
    saved_worth(plan, folder / "worth.json")
    write_report([folder / "run"], folder / "page.html", worth=folder / "worth.json")
    return folder / "page.html"
