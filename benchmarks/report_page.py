# SPDX-License-Identifier: Apache-2.0
"""How large the HTML report is and how long a browser takes to open it.

``python benchmarks/report_page.py`` trains a small model with 1,000 made-up clients, writes the
report and opens it in headless Chromium. Told are the median seconds until something is painted,
until the page is loaded, and until the first chart is drawn.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from dpcohort import Population, Training, make_plan, train
from dpcohort.data import Dataset
from dpcohort.report.html._page import write_report

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-first-run"]  # fmt: skip


def made_up_run(clients: int, folder: Path) -> Path:
    rng = np.random.default_rng(1)
    sizes = rng.choice([100, 200, 400], clients)
    population = Population.from_arrays(
        sizes=sizes, epsilon=rng.choice([0.25, 0.5, 1, 2, 4, 8], clients), delta=1e-5
    )
    inputs = rng.normal(size=(int(sizes.sum()) + 500, 8)).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(np.int64)
    data = Dataset(
        name="made up",
        train_inputs=inputs[500:],
        train_labels=labels[500:],
        test_inputs=inputs[:500],
        test_labels=labels[:500],
        classes=2,
    )
    training = Training(rounds=20, cohort_size=min(50, clients), sampling_rate=0.2, dimension=18)
    train(make_plan(population, training, seed=1), "logistic", data, seed=1, out=folder)
    return folder


def opened(page: Path, times: int) -> dict[str, float]:
    """Median seconds of several openings."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {"first paint": [], "loaded": [], "first chart": []}
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        for _ in range(times):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            began = time.perf_counter()
            tab.goto(page.as_uri(), wait_until="commit")
            tab.locator(".js-plotly-plot .main-svg").first.wait_for()
            found["first chart"].append(time.perf_counter() - began)
            tab.wait_for_load_state("load")
            loaded, painted = tab.evaluate(
                "() => [performance.getEntriesByType('navigation')[0].loadEventEnd,"
                " performance.getEntriesByType('paint')[0].startTime]"
            )
            found["loaded"].append(loaded / 1e3)
            found["first paint"].append(painted / 1e3)
            tab.close()
        browser.close()
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--times", type=int, default=7, help="openings")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = made_up_run(arguments.clients, Path(folder) / "run")
        page = Path(folder) / "report.html"
        began = time.perf_counter()
        write_report([run], page)
        print(f"{arguments.clients} clients: written in {time.perf_counter() - began:.1f} s")
        print(f"size         {page.stat().st_size / 1e6:6.2f} MB")
        for name, seconds in opened(page, arguments.times).items():
            print(f"{name:12} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
