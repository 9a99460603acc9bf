# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpcohort.errors import DataMissingError, InputError
from dpcohort.report import Section, fill_template
from dpcohort.report._sections import added_sections
from dpcohort.report.html._page import data_block, render, write_report


@pytest.fixture(scope="module")
def page(comparison_report):
    return render(comparison_report)


def added(plan, folder):
    """A section of another distribution."""
    if len(plan.population) > 8:
        raise InputError.because("there are <too> many clients.")
    ids = list(plan.population.ids)
    markup = fill_template("<p id='added'>{{ ids[0] }}</p>", ids=ids)
    return Section(name="mine", title="Mine", markup=markup, data=ids, scripts=("var mine = 1;",))


def test_an_installed_distribution_adds_a_section(monkeypatch, tmp_path, plan, many, run_folder):
    info = tmp_path / "sections_of_this_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sections-of-this-test\n")
    (info / "entry_points.txt").write_text("[dpcohort.report]\nmine = section_of_this_test:added\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("dpcohort.report.html._page.added_sections", added_sections)
    monkeypatch.setitem(sys.modules, "section_of_this_test", SimpleNamespace(added=added))
    write_report([run_folder(plan, tmp_path / "run")], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert '<a href="#mine">Mine</a>' in page
    assert "<p id='added'>&lt;/script&gt;" in page
    allowed = base64.b64encode(hashlib.sha256(b"var mine = 1;").digest()).decode()
    assert f"'sha256-{allowed}'".replace("'", "&#39;") in page
    block = re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL).group(1)
    assert json.loads(block)["sections"]["mine"] == list(plan.population.ids)
    write_report([run_folder(many(9), tmp_path / "nine")], tmp_path / "page.html")
    assert "Not shown: there are &lt;too&gt; many clients." in (tmp_path / "page.html").read_text()


def test_the_page_names_no_address_and_allows_only_its_own_scripts(page):
    head = page[: page.index("<body>")]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', head).group(1)
    policy = policy.replace("&#39;", "'")
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    hashes = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert hashes == set(re.findall(r"'sha256-([^']*)'", policy))
    ours = page.replace(max(scripts, key=len), "")
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", ours)


def test_names_are_text_in_the_markup_and_in_the_data(page):
    assert "<script>window.attacked" not in page
    assert "<img src=x" not in page
    assert "{{ 7 * 7 }}" in page
    block = re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL).group(1)
    assert "<" not in block
    assert json.loads(block)["points"][0]["name"].startswith("</script>")


def test_the_page_is_small_enough_for_mail(page):
    assert len(page.encode()) < 8_000_000


def test_what_json_cannot_hold_becomes_null():
    assert data_block({"a": float("inf"), "b": "&"}) == '{"a":null,"b":"\\u0026"}'


def test_findings_are_on_the_page(finished, tmp_path):
    lines = (finished / "ledger.jsonl").read_text().splitlines()
    (finished / "ledger.jsonl").write_text("\n".join([*lines, lines[-1]]) + "\n")
    report = write_report([finished], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert report.headline.tone == "bad"
    assert "counted twice" in text
    assert "NOT every promise could be confirmed" in text


def test_nothing_is_written_for_what_is_no_run(tmp_path, trained):
    out = tmp_path / "report.html"
    result = tmp_path / "result.json"
    result.write_text("{}")
    for sources in ([], [result], [result, trained / "unbiased"]):
        with pytest.raises(InputError):
            write_report(sources, out)
    with pytest.raises(InputError, match="--worth goes with a run"):
        write_report([result], out, worth=tmp_path / "worth.json")
    with pytest.raises(DataMissingError, match="is not a run folder"):
        write_report([tmp_path], out)
    with pytest.raises(InputError, match="method"):
        write_report([trained / "unbiased"], out, method="trust")
    assert not out.exists()
    with pytest.raises(InputError, match="no folder"):
        write_report([trained / "unbiased"], tmp_path / "gone" / "report.html")


def test_characters_that_hide_are_shown(comparison_report):
    words = "north\u202e\u200b\x9b"
    hidden = replace(comparison_report, title=words, receipts={words: words})
    page = render(hidden)
    assert "\u202e" not in page.replace("\u200b", "")
    assert r"<title>north\u202e\u200b\x9b" in page
    assert data_block({words: [words]}) == data_block(
        {r"north\u202e\u200b\x9b": [r"north\u202e\u200b\x9b"]}
    )
