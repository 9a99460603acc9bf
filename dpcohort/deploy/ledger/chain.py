# SPDX-License-Identifier: Apache-2.0
"""One row of the ledger, and the hash that ties it to all rows before it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpcohort.errors import VerificationError

__all__ = ["FIRST_LINK", "Entry", "canonical_json"]

#: What the first row links to.
FIRST_LINK = "0" * 64


def canonical_json(value: Any) -> str:
    """The value as the one JSON text that is hashed: sorted keys, no spaces, ASCII.

    Example:
        >>> canonical_json({"b": 1, "a": 0.1})
        '{"a":0.1,"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row: what happened, linked to what happened before.

    Attributes:
        seq: 1, 2, 3, ... without a gap.
        kind: ``opened``, ``dataset``, ``accept``, ``reserve``, ``release`` or ``discard``.
        dataset: the data set, where there is one.
        run: the run, where there is one.
        round: the round, where there is one.
        draw: the draw, where there is one.
        body: everything else, as canonical JSON.
        previous: hash of the row before.
        hash: SHA-256 over all of the above.

    Example:
        >>> first = Entry.following(None, "opened", {"ledger": "ab"})
        >>> first.is_whole(), first.previous == FIRST_LINK
        (True, True)
    """

    seq: int
    kind: str
    dataset: str | None = None
    run: str | None = None
    round: int | None = None
    draw: int | None = None
    body: str
    previous: str
    hash: str

    @classmethod
    def following(
        cls,
        last: tuple[int, str] | None,
        kind: str,
        body: Mapping[str, Any],
        *,
        dataset: str | None = None,
        run: str | None = None,
        round: int | None = None,
        draw: int | None = None,
    ) -> Entry:
        """The next row after one with this (seq, hash)."""
        seq, previous = (last[0] + 1, last[1]) if last else (1, FIRST_LINK)
        text = canonical_json(dict(body))
        digest = _digest(seq, kind, dataset, run, round, draw, text, previous)
        return cls(
            seq=seq,
            kind=kind,
            dataset=dataset,
            run=run,
            round=round,
            draw=draw,
            body=text,
            previous=previous,
            hash=digest,
        )

    def is_whole(self) -> bool:
        """Whether the row's hash is the hash of its content."""
        return self.hash == _digest(
            self.seq,
            self.kind,
            self.dataset,
            self.run,
            self.round,
            self.draw,
            self.body,
            self.previous,
        )

    def content(self) -> dict[str, Any]:
        """The body as values.

        Raises:
            VerificationError: it is not a JSON object.
        """
        try:
            found = json.loads(self.body)
        except (TypeError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise VerificationError(f"entry {self.seq} has a body that is not a JSON object.")
        return found


def _digest(*fields: object) -> str:
    # A row edited by hand may hold any type; it must differ, not crash.
    text = json.dumps(fields, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
