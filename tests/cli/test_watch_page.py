# SPDX-License-Identifier: Apache-2.0
"""The live page in a real browser: read-only, behind a token, and nothing asked of elsewhere."""

from __future__ import annotations

import socket
import urllib.request
from urllib.error import HTTPError

import pytest

from dpcohort import Population, Training, make_plan
from dpcohort.cli._page import picture_of, serve_page
from dpcohort.errors import InputError
from dpcohort.runs import train
from dpcohort.runs._status import ASKED, Status

from ..report.html.browser.conftest import ARGUMENTS, CHROMIUM

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    clients = Population.from_arrays(
        ids=["north", HOSTILE, "south"], sizes=[300] * 3, epsilon=[1.0, 4.0, 8.0], delta=1e-5
    )
    settings = Training(rounds=4, cohort_size=2, batch_size=30, dimension=650)
    out = tmp_path_factory.mktemp("watched") / "run"

    class Stop:
        def on_round(self, record, run):
            if run.rounds_done == 3:
                raise KeyboardInterrupt

    plan = make_plan(clients, settings, seed=0)
    with pytest.raises(KeyboardInterrupt):
        train(plan, "logistic", "digits", device="cpu", out=out, callbacks=[Stop()])
    return out


def test_what_is_told_is_what_the_folder_and_the_status_say(run):
    with Status(run, rounds=4, clock=lambda: 1e9) as status:
        status.asks("3", {"south": "its node is not online", "north": ASKED}, [HOSTILE])
        told = picture_of(run)
    assert told["doing"] == "round 4 of 4: waiting for south (its node is not online)"
    assert (told["done"], len(told["curve"])) == (3, 3)
    by_name = {row["cells"][0]: row for row in told["clients"]}
    assert by_name["south"]["missing"]
    assert by_name["south"]["cells"][1].startswith("missing since 09 Sep")
    assert [by_name[name]["cells"][1] for name in ("north", HOSTILE)] == ["asked", "answered"]
    assert told["clients"][0] is not by_name["north"]  # who is missing comes first


def test_it_answers_readers_with_the_token_alone(run):
    link = serve_page(run, "127.0.0.1:0")
    place, _, token = link.partition("?token=")
    with urllib.request.urlopen(link) as answer:
        assert "script-src 'sha256-" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Referrer-Policy"] == "no-referrer"
    asked = [place, f"{place}events", f"{place}?token={token[:-1]}", f"{place}x?token={token}"]
    for url in (*asked, urllib.request.Request(link, data=b"x", method="POST")):
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(url)
        refused.value.close()
        assert refused.value.code in (403, 404, 501)


def test_a_port_in_use_is_one_clear_message(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"--serve 127.0.0.1:{port}: nothing can listen"):
            serve_page(run, f"127.0.0.1:{port}")
    for odd in ("8765", "127.0.0.1:x", ":1", "127.0.0.1:99999"):
        with pytest.raises(InputError, match=r"host and port, as 127.0.0.1:8765"):
            serve_page(run, odd)


def test_in_a_browser(run, tmp_path):
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on the PATH")
    asked, complaints = [], []
    link = serve_page(run, "127.0.0.1:0")
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 360, "height": 780})
        page.on("request", lambda one: asked.append(one.url))
        page.on("console", lambda one: complaints.append(one.text))
        page.on("pageerror", lambda one: complaints.append(str(one)))
        page.on("dialog", lambda one: complaints.append(one.message))
        with Status(run, rounds=4) as status:
            status.asks("3", {"south": "its node is not online"}, ["north"])
            page.goto(link)
            page.get_by_text("3 of 4 rounds done").wait_for()
            page.get_by_text("waiting for south").wait_for()
            assert page.locator("tbody th").all_inner_texts()[0] == "south"
            assert HOSTILE in page.locator("tbody").inner_text()
            wide = page.evaluate("document.documentElement.scrollWidth")
            page.screenshot(path=tmp_path / "missing.png", full_page=True)
            assert wide <= 360  # the table scrolls by itself on a telephone
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Clients"
            status.asks("3", {}, ["north", "south"])  # it changes by itself
            page.get_by_text("waiting for south").wait_for(state="hidden")
            page.screenshot(path=tmp_path / "page.png", full_page=True)
        browser.close()
    assert not complaints
    assert all(url.startswith(link.partition("?")[0]) for url in asked)
    assert len(asked) == 2  # the page, and its events
