# SPDX-License-Identifier: Apache-2.0
"""The clients on the page: names are text, points answer the mouse, receipts open."""

from __future__ import annotations


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
