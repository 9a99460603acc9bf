# SPDX-License-Identifier: Apache-2.0
"""Receipt of a privacy scheme: what its published formula claims, and what is proved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dpcohort.runs import ClientReceipt
from dpcohort.text_files import finite_json

_KEYS = (
    *("client", "scheme", "mode", "unit", "neighbours", "sees", "promised_epsilon", "delta"),
    *("claimed_epsilon", "certified_epsilon", "noise_multiplier", "uses", "assumptions"),
    *("stamp", "holds"),
)


@dataclass(frozen=True, kw_only=True)
class SchemeReceipt(ClientReceipt):
    """What one client was promised and has spent by a scheme.

    Attributes:
        scheme: its name.
        mode: ``honest`` or ``formula``.
        sees: the observer of the promise.
        claimed_epsilon: by the published formula; None where there is none.
        noise_multiplier: in units of how far one unit can move what is released; None if it adds no
            Gaussian noise.
        uses: noisy releases in which the client took part.
        assumptions: what the certified number rests on.
    """

    scheme: str
    mode: str
    sees: str
    claimed_epsilon: float | None = None
    noise_multiplier: float | None = None
    uses: int = 0
    assumptions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {**asdict(self), "holds": self.holds}
        return dict(finite_json({key: values[key] for key in _KEYS}))

    def rows(self) -> list[tuple[str, Any]]:
        """Its numbers for a table."""
        return list(self.to_dict().items())

    def text(self) -> str:
        """The receipt in words."""
        if self.public:
            return f"{self.client}: public data, no budget.\n  {self.stamp}"
        return "\n".join(
            [
                f"{self.client} ({self.scheme}, {self.mode})",
                f"  promised   epsilon {_shown(self.promised_epsilon)} at delta "
                f"{_shown(self.delta)}, for one {self.unit} ({self.neighbours}), against who sees "
                f"{self.sees}",
                f"  spent      {self.uses} releases, noise multiplier "
                f"{_shown(self.noise_multiplier)}",
                f"  claimed    epsilon {_shown(self.claimed_epsilon)} by the published formula",
                f"  certified  epsilon {_shown(self.certified_epsilon)}. "
                f"{self.verdict('NOT CERTIFIED')}",
                *(f"  assumes    {words}" for words in self.assumptions),
                f"  {self.stamp}",
            ]
        )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"
