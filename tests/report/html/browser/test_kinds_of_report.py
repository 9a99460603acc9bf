# SPDX-License-Identifier: Apache-2.0
"""Reports of other things than a comparison: broken, large, reproduced and adaptive runs."""

from __future__ import annotations

import json

from dpcohort.report.html._page import write_report

from .conftest import Reader


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
        reader.keep("adaptive")
