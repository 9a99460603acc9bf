# SPDX-License-Identifier: Apache-2.0
"""Reports of other things than a comparison: broken, large, reproduced and adaptive runs."""

from __future__ import annotations

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


def test_an_adaptive_run_shows_shares_of_draws(browser, adaptive, tmp_path):
    write_report([adaptive], tmp_path / "adaptive.html")
    with Reader(browser, tmp_path / "adaptive.html") as reader:
        page = reader.page
        assert "every promise verified" in page.locator("h1").text_content()
        assert "Share" in page.locator("#chart-scatter .cbtitle").text_content()
        assert page.locator("#chart-noise .traces").count() == 1
        assert "drawn" in page.locator("#client-words").text_content()
        reader.keep("adaptive")
