# SPDX-License-Identifier: Apache-2.0
"""What an adaptive rule is: whom to ask before a round, and whom to draw from the answers.

A rule holds its settings and nothing else. It has no memory of its own: all it may know is in the
view, plain numbers without a way to a record, a model or an engine. What it makes of them is
post-processing and costs nothing, and a run that goes on after a crash, or a verification that
repeats the choices, comes to the same cohorts. Its class says which statistic it wants reported;
that is how it is charged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, IntArray, choice, number
from dpcohort.errors import BudgetExceededError, InputError
from dpcohort.plugins import RULES, make_rule, naming_the_rule

#: Names a report where draws have numbers: its noise, its row. No draw has a number so large.
REPORT_DRAW = 1 << 30

Statistic = Literal["loss", "squared-loss"]
ReportMode = Literal["private", "raw"]


@dataclass(frozen=True, kw_only=True)
class ReportTerms:
    """What clients are asked for, and on which terms.

    A report is the mean over a client's records of a statistic g that lies in [0, t], released as::

        t/2 + (Σ_i (g_i − t/2) + z t/2 ξ) / n,        ξ ~ N(0, 1),

    with the public n (or the public batch size B where only a mini-batch is looked at). Each
    centred term lies in [−t/2, t/2], so the sum is a one-dimensional clipped sum with clip t/2: a
    null record moves it by at most t/2 (zero-out), another record by at most t (replace-one),
    exactly as a clipped gradient moves a sum by C or 2C. A report therefore is an ordinary
    accounting event with noise multiplier z, rate 1 for all records or r for a mini-batch, and the
    contract's own pairs apply.

    Attributes:
        statistic: ``loss`` of a record, or ``squared-loss``.
        loss_bound: b, to which each record's loss is clipped.
        mini_batch: look at one batch of the contract's sampler instead of at all records.
        mode: ``private`` reports are noised and charged; ``raw`` ones are neither, and whatever
            uses them is NOT PRIVATE.
        share: of the budget (of µ² of a Gaussian mechanism with the client's epsilon and delta)
            that all reports of a client together may take; 0 for raw reports.

    Example:
        >>> ReportTerms(statistic="squared-loss", loss_bound=3.0).top
        9.0
    """

    statistic: Statistic = "loss"
    loss_bound: float = 5.0
    mini_batch: bool = False
    mode: ReportMode = "private"
    share: float = 0.1

    def __post_init__(self) -> None:
        choice("statistic", self.statistic, get_args(Statistic))
        choice("reports", self.mode, get_args(ReportMode))
        object.__setattr__(self, "loss_bound", number("loss_bound", self.loss_bound, above=0))
        charged = self.mode == "private"
        share = number("report_share", self.share, above=0, below=1) if charged else 0.0
        object.__setattr__(self, "share", share)

    @property
    def top(self) -> float:
        """t, the largest value of the statistic."""
        return self.loss_bound if self.statistic == "loss" else self.loss_bound**2

    @property
    def half_range(self) -> float:
        """Half of t, the clip of the centred statistic."""
        return self.top / 2


@dataclass(frozen=True)
class Report:
    """What one client reported in one round; it carries its noise.

    Attributes:
        round: when it was asked.
        client: position of the client.
        value: the noisy mean.
    """

    round: int
    client: int
    value: float


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundView:
    """What is known before a round.

    Attributes:
        round: its number, from 0.
        cohort_size: draws in each round.
        ids: the clients' names.
        sizes: public numbers of records.
        epsilon: public budgets; NaN for public clients.
        public: clients whose data needs no privacy.
        draws_left: how often each client may still be drawn.
        reports_left: how often each client may still be asked.
        cohorts: the cohorts of all rounds before, oldest first.
        reports: all reports so far, oldest first.
        updates: of clients drawn before, the last noised update (a sketch of it), by position;
            only filled for rules that ask for it.
        report_stds: public noise on each client's report; None where there is none.
        seed: public; the only source of a rule's chance.

    Example:
        >>> view = RoundView(round=0, cohort_size=1, ids=("a", "b"), sizes=np.array([10, 30]),
        ...                  epsilon=np.ones(2), public=np.zeros(2, bool),
        ...                  draws_left=np.array([0, 2]), reports_left=np.array([1, 1]), seed=0)
        >>> view.candidates.tolist()
        [1]
    """

    round: int
    cohort_size: int
    ids: Sequence[str]
    sizes: IntArray
    epsilon: FloatArray
    public: BoolArray
    draws_left: IntArray
    reports_left: IntArray
    seed: int
    cohorts: tuple[IntArray, ...] = ()
    reports: tuple[Report, ...] = ()
    report_stds: FloatArray | None = None
    updates: Mapping[int, FloatArray] = field(default_factory=dict)

    @property
    def candidates(self) -> IntArray:
        """Clients below their participation cap."""
        return np.flatnonzero(self.draws_left > 0)

    @property
    def can_report(self) -> IntArray:
        """Candidates that may still be asked."""
        return np.flatnonzero((self.draws_left > 0) & (self.reports_left > 0))

    def chances(self, purpose: str) -> FloatArray:
        """A uniform number in (0, 1) for each client: the rule's dice, public and repeatable.

        A client's number depends on the seed, the round, the purpose and its id alone, so that
        the order in which clients are listed changes nothing.
        """
        head = f"{self.seed}/{self.round}/{purpose}/".encode()
        words = b"".join(
            hashlib.blake2b(head + name.encode(), digest_size=8).digest() for name in self.ids
        )
        bits = np.frombuffer(words, dtype="<u8") >> np.uint64(11)
        return (bits.astype(np.float64) + 0.5) * 2.0**-53


@runtime_checkable
class AdaptiveRule(Protocol):
    """Chooses each round's cohort from what clients reported.

    Inherit from it to get what most rules have; anything with the same members will do.

    Example:
        >>> import numpy as np
        >>> class Loudest:  # the largest reported loss among all who may be asked
        ...     name, statistic, mini_batch, watches_updates = "loudest", "loss", False, False
        ...     def check(self, clients, cohort_size, public): pass
        ...     def expected_reports(self, clients, rounds, draw_cap): return rounds
        ...     def ask(self, view): return view.can_report
        ...     def choose(self, view, answers):
        ...         return np.array(sorted(answers, key=answers.get)[-view.cohort_size:])
        >>> isinstance(Loudest(), AdaptiveRule)
        True
    """

    @property
    def name(self) -> str:
        """What configurations and receipts call it."""

    @property
    def statistic(self) -> Statistic | None:
        """What it asks clients for; None if it never asks. Every rule says it."""

    @property
    def mini_batch(self) -> bool:
        """Whether a report looks at one mini-batch instead of at all records."""
        return False

    @property
    def watches_updates(self) -> bool:
        """Whether it looks at the noised updates of earlier rounds."""
        return False

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Refuse settings that do not fit the population, before anything is planned."""
        return

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """How many reports to allow each client if no cap is given: one a participation."""
        return min(rounds, draw_cap)

    def ask(self, view: RoundView) -> IntArray:
        """Positions of the clients to be asked, each below its cap on reports: nobody."""
        return np.array([], dtype=np.int64)

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Positions of the clients to be drawn, distinct candidates, at most a cohort.

        Those who were asked, unless said otherwise: their answers serve the rounds to come.

        Args:
            view: the same as ``ask`` got.
            answers: the noisy reports of those who were asked, by position. Where clients are
                asked over a network, some may be missing.
        """
        return np.array(sorted(answers), dtype=np.int64)


def draw_without_replacement(
    view: RoundView, among: IntArray, count: int, *, weights: FloatArray | None = None, purpose: str
) -> IntArray:
    """Clients drawn one after the other, each with probability proportional to its weight.

    The clients with the smallest E_k / w_k, E_k exponential: that is the same law (Efraimidis and
    Spirakis, 2006), and each client's E_k is its own public number.

    Args:
        view: whose dice are used.
        among: positions to draw from.
        count: how many; all of them if there are fewer.
        weights: one for each client of the population, its size if there are none; a weight of 0
            comes last.
        purpose: names the dice.
    """
    waiting = -np.log(view.chances(purpose)[among])
    weight = np.asarray(view.sizes if weights is None else weights, dtype=np.float64)[among]
    with np.errstate(divide="ignore"):
        keys = np.where(weight > 0, waiting / weight, np.inf)
    order = np.lexsort((waiting, keys))
    return np.asarray(among[order[:count]], dtype=np.int64)


def largest(view: RoundView, among: IntArray, count: int, *, scores: FloatArray) -> IntArray:
    """The ``count`` clients of largest score, ties broken by public dice.

    Args:
        view: whose dice break ties.
        among: positions to choose from.
        count: how many.
        scores: one for each entry of ``among``.

    Example:
        >>> view = RoundView(round=0, cohort_size=1, ids=("a", "b", "c"), sizes=np.ones(3, int),
        ...                  epsilon=np.ones(3), public=np.zeros(3, bool),
        ...                  draws_left=np.ones(3, int), reports_left=np.ones(3, int), seed=0)
        >>> largest(view, np.arange(3), 2, scores=np.array([0.1, 3.0, 2.0])).tolist()
        [1, 2]
    """
    order = np.lexsort((view.chances("ties")[among], -np.asarray(scores, dtype=np.float64)))
    return np.asarray(among[order[:count]], dtype=np.int64)


def shrunk(answers: FloatArray, stds: FloatArray) -> FloatArray:
    """Noisy reports drawn towards their mean, the noisier the more.

    ::

        score_k = m + v / (v + s_k²) (a_k − m),

    m the mean weighted by 1/s², v the spread of the true values by DerSimonian and Laird's moment
    estimate (1986). The largest of many noisy numbers is mostly that with the largest noise, which
    here is the client with the strictest budget; a score is the best guess instead. The noise is
    public, so this is post-processing. Where a report has no noise, nothing is changed.

    Example:
        >>> shrunk(np.array([1.0, 2.0, 9.0]), np.array([0.1, 0.1, 8.0])).round(2)
        array([1.01, 1.99, 1.56])
    """
    a, s = np.asarray(answers, dtype=np.float64), np.asarray(stds, dtype=np.float64)
    if a.size < 2 or not (s > 0).all():
        return a
    w = 1 / s**2
    middle = float((w * a).sum() / w.sum())
    excess = float((w * (a - middle) ** 2).sum()) - (a.size - 1)
    spread = max(0.0, excess / float(w.sum() - (w**2).sum() / w.sum()))
    return np.asarray(middle + spread / (spread + s**2) * (a - middle))


def filled_cohort(view: RoundView, chosen: IntArray) -> IntArray:
    """A whole cohort from what a rule chose: the fallback when it chose too few.

    Nothing here depends on data. First, candidates that were not chosen are drawn in proportion
    to their sizes. If there are fewer candidates than draws, clients below their caps are drawn
    again in the same round, as virtual clients with batches and noise of their own: always one
    with the fewest draws in this round and, of these, with the fewest in all rounds. So they are
    heard as evenly as the caps allow; a public client, which has no cap, is heard no more often
    than the others. A plan exists only if all caps together hold all draws, so a cohort can
    always be filled.

    Raises:
        BudgetExceededError: the caps do not hold the cohort.

    Example:
        >>> view = RoundView(round=0, cohort_size=7, ids=("a", "b", "c"), sizes=np.ones(3, int),
        ...                  epsilon=np.array([1, 1, np.nan]), public=np.array([0, 0, 1], bool),
        ...                  draws_left=np.array([1, 9, 90]), reports_left=np.ones(3, int), seed=0)
        >>> np.bincount(filled_cohort(view, np.array([2]))).tolist()
        [1, 3, 3]
    """
    size, left = view.cohort_size, view.draws_left
    if left[view.candidates].sum() < size:
        raise BudgetExceededError(
            f"the clients have {left[view.candidates].sum()} draws left in all, too few for a "
            f"cohort of {size}."
        )
    cohort = np.asarray(chosen[:size], dtype=np.int64)
    rest = np.setdiff1d(view.candidates, cohort)
    more = draw_without_replacement(view, rest, size - cohort.size, purpose="fallback")
    cohort = np.concatenate([cohort, more])
    again: list[int] = []
    if cohort.size < size:  # although every candidate is in it
        clients, dice = len(view.ids), view.chances("again")
        now = np.bincount(cohort, minlength=clients)
        before = np.bincount(np.concatenate([cohort, *view.cohorts]), minlength=clients)
        while cohort.size + len(again) < size:
            free = np.flatnonzero(now < left)
            k = int(free[np.lexsort((dice[free], before[free], now[free]))[0]])
            again.append(k)
            now[k] += 1
    return np.concatenate([cohort, np.asarray(again, dtype=np.int64)])


#: Gets the reports of the given clients, by position.
Ask = Callable[[IntArray], Mapping[int, float]]


def rule_cohort(rule: AdaptiveRule, view: RoundView, ask: Ask) -> IntArray:
    """The cohort of a round: the rule says whom to ask, gets their answers, and chooses.

    Args:
        rule: what decides.
        view: what it sees.
        ask: gets the reports of the given clients; the rule itself never holds it.

    Raises:
        InputError: the rule names somebody who may not be asked or drawn, or fails.
    """
    with naming_the_rule(rule, "ask"):
        wanted = rule.ask(view)
    asked = _checked(f"{rule.name}.ask", wanted, view.can_report)
    if asked.size and rule.statistic is None:
        raise InputError.because(
            f"the rule {rule.name} asks for reports but its class names no statistic."
        )
    answers = ask(asked) if asked.size else {}
    with naming_the_rule(rule, "choose"):
        taken = rule.choose(view, answers)
    chosen = _checked(f"{rule.name}.choose", taken, view.candidates)
    return filled_cohort(view, chosen[: view.cohort_size])


def _checked(field: str, given: object, allowed: IntArray) -> IntArray:
    clients = np.asarray(given)
    if clients.size == 0:
        return np.array([], dtype=np.int64)
    if clients.ndim != 1 or clients.dtype.kind not in "iu":
        raise InputError(field, given=given, allowed="a list of client positions")
    if np.setdiff1d(clients, allowed).size or np.unique(clients).size != clients.size:
        raise InputError(
            field, given=clients.tolist(), allowed="distinct clients, each below its cap"
        )
    return clients.astype(np.int64)


def rule_of_file(values: Mapping[str, Any], terms: ReportTerms | None) -> AdaptiveRule:
    """The rule that a plan's file names: this package's, or a placeholder for a third party's.

    Args:
        values: name and settings of the rule.
        terms: of its reports.
    """
    name = values["rule"]
    if name in RULES["adaptive"]:
        made: AdaptiveRule = make_rule("adaptive", name, values["settings"])
        return made
    return RecordedRule(
        name=name,
        statistic=None if terms is None else terms.statistic,
        mini_batch=terms is not None and terms.mini_batch,
        watches_updates=bool(values["watches_updates"]),
    )


@dataclass(frozen=True, kw_only=True)
class RecordedRule:
    """Placeholder for a third-party rule read from a plan's file; it cannot choose.

    Reading and verifying a run must not run code that a file names.
    """

    name: str
    statistic: Statistic | None = None
    mini_batch: bool = False
    watches_updates: bool = False

    def check(self, clients: int, cohort_size: int, public: int) -> None:
        """Nothing is known about it."""

    def expected_reports(self, clients: int, rounds: int, draw_cap: int) -> int:
        """Not asked: the caps are in the plan."""
        return 0

    def ask(self, view: RoundView) -> IntArray:
        """Refused."""
        raise InputError.because(
            f"the rule {self.name!r} is not part of dpcohort: make the plan again with the rule."
        )

    def choose(self, view: RoundView, answers: Mapping[int, float]) -> IntArray:
        """Refused."""
        return self.ask(view)
