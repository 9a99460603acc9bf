# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
import unicodedata

from dpcohort.plain_text import json_visible, one_line, visible

#: Every character a terminal obeys or does not show, by Unicode's own classes.
CONTROLS = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in ("Cc", "Zl", "Zp")]
MARKS = "\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"


def test_no_control_or_direction_mark_is_left():
    text = "".join(CONTROLS) + MARKS + "\U000e0041\ud800"
    assert re.fullmatch(r"[\t\n -~]*", visible(text))
    assert re.fullmatch(r"[ -~]*", one_line(text, at_most=10_000))


def test_what_is_harmless_stays():
    text = "Zürich \u5317\u4eac ε ≤ 1 [bold] C:\\x1b \U0001f600"
    assert visible(text) is text
    assert one_line(text) == text


def test_words_of_others_are_one_bounded_line():
    words = one_line("no\r\nall promises hold\x1b[2J" + "A" * 10**6)
    assert words.startswith(r"no\r\nall promises hold\x1b[2J")
    assert "\n" not in words
    assert len(words) < 600
    assert words.endswith("(1,000,025 characters)")
    assert one_line(["\x1b"]) == r"['\x1b']"


def test_json_keeps_its_values():
    values = {"a\u202e": "\x7f\x9b2J\U000e0041", "b": "ü\x1b"}
    shown = json_visible(json.dumps(values, ensure_ascii=False))
    assert json.loads(shown) == values
    assert "ü" in shown
    assert re.fullmatch(r"[ -~ü]*", shown)
