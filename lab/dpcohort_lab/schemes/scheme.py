# SPDX-License-Identifier: Apache-2.0
"""What a privacy scheme is: what its card says before it trains, and its receipts afterwards.

Two epsilons can be compared only if they protect the same unit against the same observer. The card
of a scheme states both, so that a table of schemes cannot hide the difference. On a receipt,
``claimed`` is the epsilon by the scheme's published formula, ``certified`` an upper bound that is
proved for what was really done. Schemes are trained from a seed, for comparison only, so every
receipt says NOT PRIVATE.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpcohort.clients import Population
from dpcohort.runs import NOT_PRIVATE
from dpcohort.text_files import finite_json
from dpcohort_lab.checks import FloatArray, IntArray
from dpcohort_lab.schemes.receipt import SchemeReceipt

if TYPE_CHECKING:
    from torch import Tensor

    from dpcohort_lab.schemes.simulation import Simulation

#: ``honest``: noise by an accountant of ours. ``formula``: noise as published, certified beside it.
Mode = Literal["honest", "formula"]

#: (round, model) -> (update to subtract, noise std in it per coordinate); None ends the training.
RoundUpdate = Callable[[int, "Tensor"], "tuple[Tensor, float] | None"]

#: (round, client, model) -> (its noisy update, noise std in it per coordinate).
ClientUpdate = Callable[[int, int, "Tensor"], "tuple[Tensor, float]"]

#: Asked after the training, when it is known what was spent: the columns of ``Scheme.receipts``,
#: and where there are any, ``notes`` that a reader should know.
Account = Callable[[], dict[str, Any]]

#: What a scheme releases in a round, counted before its noise is drawn, and its account.
Prepare = Callable[["Simulation", Mode], tuple[RoundUpdate, Account]]


#: What a card says of a scheme, all of it text: what it is called on the command line, what it does
#: in one line, what one unit of privacy is, which two worlds the promise cannot tell apart, what
#: the observer sees from whom the unit is protected, what counts its privacy, what it takes to run
#: it, authors and venue, how well the published scheme is known here, and what the ``formula``
#: mode does, empty if no published formula could be read.
CARD = (
    *("name", "title", "unit", "neighbours", "sees", "accountant", "needs", "reference", "source"),
    "formula",
)
Card = dict[str, str]


@lru_cache(maxsize=1)
def _cards() -> dict[str, Card]:
    """What cards.toml says of each scheme."""
    return tomllib.loads((Path(__file__).parent / "cards.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class SchemeResult:
    """One scheme, trained.

    Attributes:
        card: the scheme.
        mode: ``honest`` or ``formula``.
        accuracy: on public test data.
        loss: on public test data.
        rounds: rounds done.
        noise_std: noise really added to the global model in a round, per coordinate, root mean
            square over the rounds.
        receipts: one a client.
        notes: what a reader should know.
        seconds: wall time of the training.
    """

    card: Card
    mode: Mode
    accuracy: float
    loss: float
    rounds: int
    noise_std: float
    receipts: tuple[SchemeReceipt, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def broken(self) -> int:
        """How many clients' promises are not certified."""
        return sum(not receipt.holds for receipt in self.receipts)

    @property
    def largest_share(self) -> float:
        """Largest certified epsilon in units of the promised one, over the clients."""
        return max((_share(receipt) for receipt in self.receipts if not receipt.public), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        same = ("mode", "accuracy", "loss", "rounds", "noise_std", "seconds")
        values = {
            "scheme": self.card,
            **{name: getattr(self, name) for name in same},
            "broken_promises": self.broken,
            "largest_share": self.largest_share,
            "notes": list(self.notes),
            "stamp": NOT_PRIVATE,
            "receipts": [receipt.to_dict() for receipt in self.receipts],
        }
        return dict(finite_json(values))


def _share(receipt: SchemeReceipt) -> float:
    if receipt.certified_epsilon is None or receipt.promised_epsilon is None:
        return math.inf
    return receipt.certified_epsilon / receipt.promised_epsilon


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A way to train under a promise of its own, and to account for it.

    Attributes:
        name: what it is called on the command line.
        mode: ``honest``, or ``formula`` for what was published, certified beside it.
        prepare: what it does in that mode on a simulation.
    """

    name: str
    mode: Mode = "honest"
    prepare: Prepare

    @property
    def card(self) -> Card:
        """The scheme in words; published batches may have neighbours of their own."""
        words = {"name": self.name, "formula": "", **_cards()[self.name]}
        if self.mode == "formula":
            words["neighbours"] = words.get("formula_neighbours", words["neighbours"])
        return {key: words[key] for key in CARD}

    def run(self, simulation: Simulation) -> SchemeResult:
        """Train, and account for it."""
        from dpcohort_lab.schemes.simulation import train_scheme  # torch: listing needs none

        return train_scheme(self, simulation, *self.prepare(simulation, self.mode))

    def receipts(
        self,
        population: Population,
        *,
        certified: FloatArray,
        uses: IntArray,
        assumptions: Sequence[str],
        claimed: FloatArray | None = None,
        noise: FloatArray | None = None,
    ) -> list[SchemeReceipt]:
        """Receipts of all clients from columns; NaN stands for "there is none".

        Args:
            population: ids and budgets.
            certified: proved epsilon of each client.
            uses: noisy releases of each client.
            assumptions: what the certified numbers rest on.
            claimed: epsilon by the published formula; none if not given.
            noise: noise multiplier of each client; none if not given.
        """
        card = self.card
        return [
            SchemeReceipt(
                client=population.ids[k],
                scheme=card["name"],
                mode=self.mode,
                public=public,
                unit=card["unit"],
                neighbours=card["neighbours"],
                sees=card["sees"],
                promised_epsilon=None if public else float(population.epsilon[k]),
                delta=None if public else float(population.delta[k]),
                claimed_epsilon=None if public else _known(claimed, k),
                certified_epsilon=None if public else _known(certified, k),
                noise_multiplier=_known(noise, k),
                uses=int(uses[k]),
                assumptions=tuple(assumptions),
                stamp=NOT_PRIVATE,
            )
            for k, public in enumerate(population.public.tolist())
        ]


def _known(column: FloatArray | None, k: int) -> float | None:
    return None if column is None or np.isnan(column[k]) else float(column[k])


def mean_of_cohort(
    cohorts: Sequence[IntArray], update: ClientUpdate, uses: IntArray
) -> RoundUpdate:
    """A round in which the server sees each cohort member's noisy update and takes their mean.

    Args:
        cohorts: of every round.
        update: one client's.
        uses: how often each client was asked; counted here, before its noise is drawn.
    """

    def combined(t: int, weights: Tensor) -> tuple[Tensor, float]:
        total, square = weights.new_zeros(weights.shape), 0.0
        for k in cohorts[t].tolist():
            uses[k] += 1
            released, std = update(t, k, weights)
            total += released
            square += std**2
        count = max(cohorts[t].size, 1)
        return total / count, math.sqrt(square) / count

    return combined


def budget_of(population: Population, k: int) -> dict[str, float]:
    """The epsilon and the delta of a client."""
    return {"epsilon": float(population.epsilon[k]), "delta": float(population.delta[k])}


def participations(cohorts: Sequence[IntArray], clients: int) -> IntArray:
    """How often each client is in a cohort.

    Example:
        >>> participations([np.array([0, 2]), np.array([2])], 3).tolist()
        [1, 0, 2]
    """
    together = np.concatenate([np.empty(0, dtype=np.int64), *cohorts])
    return np.bincount(together, minlength=clients).astype(np.int64)
