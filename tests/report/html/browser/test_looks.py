# SPDX-License-Identifier: Apache-2.0
"""What a reader sees: colours, screens, charts in time, and all of it within reach of the keys."""

from __future__ import annotations

import pytest

from .conftest import SCREEN, TELEPHONE, Reader


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
    point = page.locator("#chart-scatter .points path.point").nth(5)
    point.scroll_into_view_if_needed()
    page.wait_for_timeout(1000)  # charts above it are drawn anew as well, and move it
    point.click(force=True)
    page.wait_for_function(
        "name => document.getElementById('client-words').textContent.startsWith(name)",
        arg=shown.population.ids[5],
    )


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


def test_on_paper_every_chart_and_column_is_whole(browser, own_report):
    """As wide as A4 less its margins, whatever the width of the screen it was opened on."""
    with Reader(browser, own_report) as reader:
        reader.page.emulate_media(media="print")
        reader.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        paper = 186 / 25.4 * 96 + 1
        widths = reader.page.evaluate(
            """() => [...document.querySelectorAll(".chart, .chart .main-svg, table, pre, dl")]
              .filter((part) => part.offsetParent !== null || part.closest("svg"))
              .map((part) => [part.id || part.className, part.getBoundingClientRect().right])"""
        )
        cut = [(name, right) for name, right in widths if right > paper]
        assert cut == []
        assert [n for n, _ in widths if n in ("chart-worth", "gains")] == ["chart-worth", "gains"]
        reader.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
