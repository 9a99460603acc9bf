# SPDX-License-Identifier: Apache-2.0
"""Words of others made safe to show: what would steer a terminal or hide is written out.

A client's refusal, a name in a plan that came by mail, the message of a remote program: they end up
on an operator's screen and in logs. There an escape sequence paints what it likes, a mark that
turns the direction of text shows a name backwards, and a character of no width hides in one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["LONGEST_WORDS", "counted", "html_table", "json_visible", "one_line", "some", "visible"]

#: Characters of somebody else's message that are shown; the rest is counted.
LONGEST_WORDS = 500
#: Names that are shown of a list of them.
_NAMES = 5

#: Control characters but tab and line end, marks of direction and of no width, line separators,
#: annotations, tags, and halves of surrogate pairs.
_HIDDEN_CLASS = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_HIDDEN = f"[{_HIDDEN_CLASS}]"
_HIDDEN_OR_BREAK = f"[\t\n{_HIDDEN_CLASS}]"


def visible(text: str) -> str:
    r"""The text with every character that steers a terminal or does not show written as an escape.

    Line ends and tabs stay: use :func:`one_line` for words of others inside a sentence of ours.

    Example:
        >>> print(visible("north\x1b[2J\u202e"))
        north\x1b[2J\u202e
    """
    # Nearly every text is innocent, and asking for that is ten times faster than replacing.
    return text if text.strip("\n").isprintable() else re.sub(_HIDDEN, _escape, text)


def one_line(text: object, at_most: int = LONGEST_WORDS) -> str:
    r"""Words of somebody else in one line of bounded length, safe to show.

    Args:
        text: the words; anything else is shown as Python would.
        at_most: characters to keep; how many there were is said where some are left out.

    Example:
        >>> print(one_line("no\n\x1b[32mall promises hold"))
        no\n\x1b[32mall promises hold
        >>> one_line("a" * 10_000, at_most=8)
        'aaaaaaaa... (10,000 characters)'
    """
    words = text if isinstance(text, str) else repr(text)
    shown = words[:at_most]
    if not shown.isprintable():
        shown = re.sub(_HIDDEN_OR_BREAK, _escape, shown)[:at_most]
    return shown if len(words) <= at_most else f"{shown}... ({len(words):,} characters)"


def counted(number: int, noun: str) -> str:
    """A number of things in words.

    Example:
        >>> counted(1, "client"), counted(2000, "draw")
        ('1 client', '2,000 draws')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def first_of(words: Sequence[str], most: int = 5) -> str:
    """The first of some words, and how many more there are.

    Example:
        >>> first_of(["a", "b", "c"], 2), first_of(["a"], 2)
        ('a, b and 1 more', 'a')
    """
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def html_table(title: str, rows: Mapping[str, str]) -> str:
    """Names and words as a small table for a notebook; all of it is text, no markup of others.

    Example:
        >>> html_table("Run", {"rule": "<b>"})
        '<table><caption>Run</caption><tr><th>rule</th><td>&lt;b&gt;</td></tr></table>'
    """
    lines = "".join(
        f"<tr><th>{escape(one_line(name))}</th><td>{escape(one_line(words))}</td></tr>"
        for name, words in rows.items()
    )
    return f"<table><caption>{escape(one_line(title))}</caption>{lines}</table>"


def json_visible(text: str) -> str:
    r"""JSON that a terminal cannot be steered by, with the same values in it.

    Example:
        >>> print(json_visible('["\x9b2J"]'))
        ["\u009b2J"]
    """
    return re.sub(_HIDDEN, _json_escape, text)


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or _hexadecimal(ord(found[0]))


_ESCAPES = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def _hexadecimal(code: int) -> str:
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _json_escape(found: re.Match[str]) -> str:
    # JSON has no escape beyond four digits; two halves stand for the rest.
    halves = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{halves[i : i + 2].hex()}" for i in range(0, len(halves), 2))


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are.

    Example:
        >>> some(["a", "b", "c", "d", "e", "f"])
        'a, b, c, d, e and 1 more'
    """
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(map(one_line, names[:_NAMES])) + more
