# SPDX-License-Identifier: Apache-2.0
"""What a privacy scheme says of itself before it trains: unit, neighbours, trust, source.

Two epsilons can be compared only if they protect the same unit against the same observer. The card
of a scheme states both, so that a table of schemes cannot hide the difference.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

from dpcohort._validate import choice

__all__ = ["Card", "Mode", "Source", "Unit"]

#: ``honest``: noise by an accountant of ours. ``formula``: noise as published, certified beside it.
Mode = Literal["honest", "formula"]

#: ``record``: one record of a client. ``client``: everything a client holds. ``local record``: one
#: record, against whoever receives its own report.
Unit = Literal["record", "client", "local record"]

#: How well the published scheme is known here.
Source = Literal["read", "authors' code read", "abstract only", "derived here"]


@dataclass(frozen=True, kw_only=True)
class Card:
    """A scheme in a few words.

    Attributes:
        name: what it is called on the command line.
        title: what it does, in one line.
        unit: what one unit of privacy is.
        neighbours: which two worlds the promise cannot tell apart.
        sees: what the observer sees from whom the unit is protected.
        accountant: what counts its privacy.
        needs: what it takes to run it.
        reference: authors, title, venue.
        source: how well the published scheme is known here.
        formula: what the ``formula`` mode does; empty if no published formula could be read.

    Example:
        >>> Card(name="x", title="t", unit="record", neighbours="zero-out", sees="each update",
        ...      accountant="PLD", needs="nothing", reference="nobody", source="read").has_formula
        False
    """

    name: str
    title: str
    unit: Unit
    neighbours: str
    sees: str
    accountant: str
    needs: str
    reference: str
    source: Source
    formula: str = ""

    def __post_init__(self) -> None:
        choice("unit", self.unit, get_args(Unit))
        choice("source", self.source, get_args(Source))

    @property
    def has_formula(self) -> bool:
        """Whether noise can be added as published."""
        return bool(self.formula)

    def to_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return asdict(self)
