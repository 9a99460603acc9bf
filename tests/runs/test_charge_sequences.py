# SPDX-License-Identifier: Apache-2.0
"""Random orders of estimate, tuning, training, continuation and evaluation, against own addition.

``DPCOHORT_SEQUENCES=20000 pytest tests/runs/test_charge_sequences.py`` tries more of them.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from dpcohort import Contract, Population, Training, make_plan
from dpcohort.accounting import Charge, History, Segment
from dpcohort.accounting._charges import charge_of
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.plan import Plan
from dpcohort.runs import make_receipts

SEQUENCES = int(os.environ.get("DPCOHORT_SEQUENCES", "300"))
DELTA = 1e-5


def delta_of(epsilon: float, mu: float) -> float:
    """The delta of a μ-Gaussian mechanism, by its formula."""

    def below(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2  # exact in the tail

    return below(mu / 2 - epsilon / mu) - math.exp(epsilon) * below(-mu / 2 - epsilon / mu)


@cache
def least_epsilon(squares: float, delta: float) -> float:
    """What whole-batch Gaussian steps truly spend; ``squares`` is the sum of their (Δ / z)²."""
    low, high = 0.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, squares**0.5) > delta else (low, middle)
    return low


@dataclass
class Story:
    """What really happens to made-up clients: every charge and every step, added up by hand."""

    dice: random.Random
    #: Everybody's whole promise.
    promises: dict[str, float]
    charges: list[Charge] = field(default_factory=list)
    #: Two charges of which neither names the other.
    unproved: bool = False
    segments: list[Segment] = field(default_factory=list)
    #: The sum of (Δ / z)² over the steps of each client, and what it is if all others collude.
    squares: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    plan: Plan | None = None
    draws: Any = None
    reports: Any = None

    def people(self, promises: dict[str, float] | None = None) -> Population:
        """The clients with their whole promises, or with others."""
        wanted = self.promises if promises is None else promises
        ids, epsilon = list(wanted), list(wanted.values())
        return Population.from_arrays(ids=ids, sizes=[90] * len(ids), epsilon=epsilon, delta=DELTA)

    def pay(self, contract: Contract) -> None:
        """An estimate, tuning or evaluation, on a config that may not name all that was paid."""
        known = list(self.charges)
        if known and self.dice.random() < 0.2:
            known = self.dice.sample(known, self.dice.randrange(len(known)))
        share, with_delta = self.dice.uniform(0.01, 0.7), self.dice.random() < 0.5
        paid = charge_of(
            self.people(),
            known,
            lambda epsilon, delta: (share * epsilon, share * delta if with_delta else 0.0),
            what=self.dice.choice(["estimate", "tuning", "evaluation"]),
            private=True,
            contract=contract,
        )
        self.unproved |= len(known) < len(self.charges)
        self.charges.append(paid)

    def train(self, contract: Contract, adaptive: bool) -> None:
        """A run, or one that goes on, with all charges or with one of them forgotten."""
        named = list(self.charges)
        if self.dice.random() < 0.15:
            known = {name for charge in named for name in charge.after}
            named.remove(next(charge for charge in named if charge.id in known))
        promises = dict(self.promises)
        if self.segments:
            factor = self.dice.choice([1.0, 1.5, 3.0])
            promises = {name: factor * whole for name, whole in promises.items()}
            if self.dice.random() < 0.3:
                promises["joins"] = 2.0
        training = Training(rounds=self.dice.choice([2, 3]), cohort_size=2, sampling_rate=1.0)
        given: Any = {"accountant": contract, "guard": "lift", "seed": self.dice.randrange(99)}
        given |= {"before": self.segments, "charges": named}
        if adaptive:
            plan = make_adaptive_plan(self.people(promises), training, **given)
        else:
            plan = make_plan(self.people(promises), training, selection="unbiased", **given)
        assert len(named) == len(self.charges), "a charge was forgotten, and nobody said so"
        assert not self.unproved, "charges of no proved order were planned with"
        self.promises = promises
        # A crash may stop it anywhere; what is counted is spent.
        share = self.dice.choice([0.0, 0.5, 1.0])
        self.plan, self.draws = plan, (share * plan.counts).astype(np.int64)
        self.reports = (share * plan.reports.caps).astype(np.int64) if adaptive else None
        spent = {}
        for k, name in enumerate(plan.population.ids):
            made = 0 if self.reports is None else int(self.reports[k])
            events = plan.events(k, draws=int(self.draws[k]), reports=made).events
            spent[name] = History(tuple(event for event in events if event.steps))
            honest = plan.noise.honest
            for event in spent[name].events:
                assert event.mechanism.sampling_rate == 1.0
                moved = 1 if contract.neighbours == "zero-out" else 2
                square = event.steps * moved**2 / event.mechanism.noise_multiplier**2
                self.squares[name] += square
                self.alone[name] += honest * square
        self.segments.append(
            Segment(
                plan=plan.sha256,
                ledger="",
                rounds=training.rounds,
                source="private",
                spent=spent,
                honest=plan.noise.honest,
            )
        )

    @staticmethod
    def least(squares: float, delta: float) -> Fraction:
        """What steps truly spend, less what the bisection may be off."""
        if squares == 0.0:
            return Fraction(0)
        return Fraction(least_epsilon(squares, delta)) * (1 - Fraction(1, 10**9))

    def check(self) -> int:
        """Receipts of the last run are never below what was really paid; how many were seen."""
        plan = self.plan
        if plan is None:
            return 0
        later = [charge for charge in self.charges if charge not in plan.past.paid.charges]
        made = make_receipts(plan, self.draws, reports=self.reports, later=later, method="pld")
        assert not self.unproved, "charges of no proved order were added up"
        for receipt in made:
            name = receipt.client
            paid = [charge.spent[name] for charge in self.charges if name in charge.spent]
            epsilon, delta = (sum(Fraction(one[i]) for one in paid) for i in (0, 1))
            assert receipt.total_delta >= delta + Fraction(receipt.delta)
            truth = self.least(self.squares[name], receipt.delta)
            assert receipt.total_epsilon >= epsilon + truth
            if plan.noise.only_sums:
                alone = self.least(self.alone[name], receipt.delta)
                assert receipt.total_alone_epsilon >= epsilon + alone
            assert receipt.holds or later, "a plan that breaks a promise by itself"
            whole = receipt.in_all()
            assert (whole.promised_epsilon, whole.delta) == (self.promises[name], DELTA)
            if receipt.holds:
                assert epsilon + truth <= whole.promised_epsilon
                assert delta + Fraction(receipt.delta) <= DELTA
        return len(made)


def test_receipts_are_never_below_what_was_paid_in_any_order():
    seen = Counter()
    contracts = [Contract.of("paper")] * 5 + [Contract.of("tight"), Contract(trust="distributed")]
    for number in range(SEQUENCES):
        dice = random.Random(number)
        contract = dice.choice(contracts)
        adaptive = not contract.is_distributed and dice.random() < 0.8
        story = Story(dice, {name: dice.choice([1.0, 2.0, 8.0]) for name in "ab"})
        runs = 0
        for _ in range(dice.randrange(2, 7)):
            try:
                if dice.random() < 0.3 and runs < 2 and (story.charges or dice.random() < 0.2):
                    story.train(contract, adaptive)
                    runs += 1
                    seen["continuations" if len(story.segments) > 1 else "trainings"] += 1
                else:
                    story.pay(contract)
                    seen["charges"] += 1
                seen["receipts"] += story.check()
            except StopIteration:  # there was none to forget
                continue
            except BudgetExceededError:
                seen["too much"] += 1
            except InputError as error:
                told = "order" in str(error) or "not named" in str(error)
                seen["no order" if told else str(error)] += 1
                if story.unproved:
                    break
    print(dict(seen))
    assert set(seen) == {
        "charges",
        "trainings",
        "continuations",
        "receipts",
        "too much",
        "no order",
    }
    assert min(seen[kind] for kind in ("trainings", "continuations", "receipts", "no order")) > (
        SEQUENCES // 20
    )
