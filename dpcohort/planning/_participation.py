# SPDX-License-Identifier: Apache-2.0
"""Participation of clients: cohorts fixed before training, or a rule that chooses within caps.

Both answer the same questions: how often each client is drawn (at most), which draws and reports an
accountant charges, and what a plan's file and hash have of them. ``Reports`` is what clients are
asked for beside their updates; ``Reports.none`` asks nobody and composes like any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting._contract import NoiseModel
from dpcohort.accounting._distributed import adaptive_under_distributed_trust
from dpcohort.adaptive import AdaptiveRule, RoundView
from dpcohort.adaptive._rule import Ask, rule_cohort
from dpcohort.clients import Population
from dpcohort.errors import BudgetExceededError, InputError, VerificationError
from dpcohort.planning._reports import Reports
from dpcohort.schedule import Schedule
from dpcohort.selection import Selection
from dpcohort.selection._problem import check_selection
from dpcohort.training import Training

#: What a file says of a selection beside its probabilities, rule and settings.
_CERTIFICATE = ("eta", "objective", "lower_bound", "gap")


class Participation(ABC):
    """Who takes part when, and how often at most."""

    #: Word for it in a plan's file.
    kind: ClassVar[str]
    #: What noise is calibrated to.
    bounds: ClassVar[str]
    #: Whether a mod of Flower can keep it.
    is_simple: ClassVar[bool] = True

    if TYPE_CHECKING:  # fields or properties

        @property
        def settings(self) -> Mapping[str, object]:
            """Settings of the rule."""

        @property
        def counts(self) -> IntArray:
            """Draws of each client over all rounds; at most, where cohorts are not fixed."""

        @property
        def reports(self) -> Reports:
            """What clients report."""

    @property
    def no_explorer(self) -> str:
        """Why the page of a report cannot solve its selection again; empty where it can."""
        return ""

    @property
    def eta(self) -> float | None:
        """Weight of noise against bias that the selection used; None without one."""
        return None

    @property
    def watches_updates(self) -> bool:
        """Whether the noisy updates of earlier rounds decide who is drawn."""
        return False

    @property
    @abstractmethod
    def rule_name(self) -> str:
        """Name of the selection rule."""

    @property
    @abstractmethod
    def spending(self) -> BoolArray:
        """Clients that spend something if the training goes through."""

    @property
    @abstractmethod
    def probabilities(self) -> FloatArray:
        """p^s, one number per client.

        Raises:
            InputError: cohorts are chosen during the training.
        """

    def charged(
        self, drawn: IntArray, asked: IntArray, clients: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Draws and reports that clients at these positions are charged for: those made."""
        return drawn, asked

    @property
    def fixed(self) -> FixedCohorts:
        """Cohorts, where they are fixed before the training.

        Raises:
            InputError: a rule chooses each cohort.
        """
        raise InputError.because(
            f"the rule {self.rule_name} decides in each round, so the plan has no selection and no "
            "schedule before the training. That goes with planned rules only."
        )

    @property
    def deciding(self) -> tuple[AdaptiveRule, ...]:
        """The rule that chooses cohorts during the training, if one does."""
        return ()

    @property
    def planned(self) -> IntArray:
        """Cohorts that are known before the training, [rounds, K]; none by default."""
        return np.zeros((0, 0), dtype=np.int64)

    @abstractmethod
    def planned_under_sums(self) -> FixedCohorts:
        """Itself, where cohorts are fixed.

        Raises:
            InputError: a rule chooses from what single clients send, which a server of sums lacks.
        """

    @abstractmethod
    def choose(self, round: int, view: Callable[[], RoundView], ask: Ask) -> IntArray:
        """Positions of the clients drawn in a round.

        Args:
            round: the round.
            view: makes what may be known before the round.
            ask: gets the reports of clients.
        """

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """What the first line of a run's ledger says of it."""

    @abstractmethod
    def entry(self, round: int, cohort: IntArray, ids: Sequence[str]) -> dict[str, Any]:
        """A round's draws as a line of the ledger."""

    @abstractmethod
    def cohort_of_entry(self, entry: Mapping[str, Any], place: Callable[[str], int]) -> IntArray:
        """Positions of the clients that a line of the ledger counts draws of.

        Args:
            entry: the line.
            place: position of a client by its id.
        """

    @abstractmethod
    def check_cohort(
        self, round: int, cohort: IntArray, drawn: Callable[[], IntArray], ids: Sequence[str]
    ) -> None:
        """Refuse draws that the noise was not made for.

        Args:
            round: the round.
            cohort: who would be drawn.
            drawn: draws of each client so far.
            ids: of all clients.

        Raises:
            BudgetExceededError: naming what does not fit.
        """
        return

    def check_entry(self, entry: Mapping[str, Any], ids: Sequence[str]) -> None:
        """Refuse a line of a ledger that does not count what is planned.

        Raises:
            VerificationError: it does not.
        """
        return

    def check_counts(
        self, counted: Callable[[], tuple[IntArray, IntArray]], ids: Sequence[str]
    ) -> None:
        """Refuse more draws or reports than there may be.

        Args:
            counted: draws and reports of each client in a ledger.
            ids: of all clients.

        Raises:
            VerificationError: a client is beyond its cap.
        """
        return

    def beyond(self, draws: IntArray, reports: IntArray) -> Iterator[tuple[int, str]]:
        """Clients with more draws or reports than their caps, and how many in words."""
        yield from ()

    def draws_made(self, made: IntArray | None, title: str) -> IntArray:
        """Draws of each client: those of a run, or else those that are planned.

        Args:
            made: draws of a run, if it is one.
            title: of the plan, for a message.

        Raises:
            InputError: nobody knows them before the training.
        """
        return self.counts if made is None else made

    @abstractmethod
    def shares(
        self, made: IntArray | None, unbiased: FloatArray, title: str
    ) -> tuple[dict[str, FloatArray], str]:
        """Panels of a figure of who is drawn how often, and what they show.

        Args:
            made: draws of a run, if it is one.
            unbiased: shares of all records.
            title: of the plan, for a message.
        """

    @abstractmethod
    def facts(self, seed: int) -> dict[str, Any]:
        """Settings and results as a report lists them."""

    @abstractmethod
    def check(self, population: Population, training: Training) -> None:
        """Refuse what is of other clients, rounds or cohorts."""
        return

    @abstractmethod
    def mean_per_draw(self, column: FloatArray) -> float:
        """Mean over all draws of a number that each client has."""

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """Settings in plain values; the hash of a plan covers them."""

    @abstractmethod
    def columns(self) -> dict[str, NDArray[Any]]:
        """Arrays by name; the hash of a plan covers them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedCohorts(Participation):
    """Cohorts drawn before training, from the probabilities of a selection.

    Attributes:
        selection: probabilities, with the certificate of their optimality.
        schedule: all cohorts.
        noise_model: which expected noise the selection weighed.
    """

    kind: ClassVar[str] = "fixed cohorts"
    bounds: ClassVar[str] = "the schedule"

    selection: Selection
    schedule: Schedule
    noise_model: NoiseModel = "exact"

    def __post_init__(self) -> None:
        self.selection.probabilities.setflags(write=False)

    @property
    def rule_name(self) -> str:
        """Name of the selection rule."""
        return self.selection.rule

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings of the rule."""
        return self.selection.settings

    @property
    def counts(self) -> IntArray:
        """T_k, how often each client is drawn."""
        return self.schedule.counts

    @property
    def spending(self) -> BoolArray:
        """Clients with at least one draw."""
        return self.schedule.counts > 0

    @property
    def reports(self) -> Reports:
        """None: the cohorts are known."""
        return Reports.none(self.schedule.clients)

    @property
    def probabilities(self) -> FloatArray:
        """p^s, one number per client."""
        return self.selection.probabilities

    @property
    def fixed(self) -> FixedCohorts:
        """Itself."""
        return self

    def planned_under_sums(self) -> FixedCohorts:
        """Itself."""
        return self

    @property
    def planned(self) -> IntArray:
        """All cohorts."""
        return self.schedule.cohorts

    @property
    def eta(self) -> float | None:
        """Weight of noise against bias that the selection used."""
        return self.selection.eta

    def choose(self, round: int, view: Callable[[], RoundView], ask: Ask) -> IntArray:
        """Positions of the clients that the schedule draws."""
        cohort: IntArray = self.schedule.cohorts[round]
        return cohort

    def header(self) -> dict[str, Any]:
        """What the first line of a run's ledger says of it."""
        return {"format": "dpcohort ledger"}

    def entry(self, round: int, cohort: IntArray, ids: Sequence[str]) -> dict[str, Any]:
        """A round's draws as a line of the ledger: how often each client is drawn."""
        counts = sorted(Counter(cohort.tolist()).items())
        return {"round": round, "draws": {ids[client]: count for client, count in counts}}

    def cohort_of_entry(self, entry: Mapping[str, Any], place: Callable[[str], int]) -> IntArray:
        """The cohort of the schedule, in its order."""
        cohort: IntArray = self.schedule.cohorts[entry["round"]]
        return cohort

    def check_cohort(
        self, round: int, cohort: IntArray, drawn: Callable[[], IntArray], ids: Sequence[str]
    ) -> None:
        """Refuse another cohort than that of the schedule."""
        if not np.array_equal(cohort, self.schedule.cohorts[round]):
            raise BudgetExceededError(f"round {round} of the plan has another cohort.")

    def check_entry(self, entry: Mapping[str, Any], ids: Sequence[str]) -> None:
        """Refuse a line of a ledger that does not count what is planned."""
        round = entry["round"]
        if entry != self.entry(round, self.schedule.cohorts[round], ids):
            raise VerificationError("not what the plan draws in this round.")

    def shares(
        self, made: IntArray | None, unbiased: FloatArray, title: str
    ) -> tuple[dict[str, FloatArray], str]:
        """Probabilities, beside shares of all records."""
        panels = {self.rule_name: self.probabilities, "unbiased": unbiased}
        return panels, "selection probability"

    def facts(self, seed: int) -> dict[str, Any]:
        """Settings and results as a report lists them."""
        return {
            "rule": self.rule_name,
            **self.settings,
            "eta in use": self.selection.eta,
            "noise model": self.noise_model,
            "bias ||p - u||": self.selection.bias,
            "proved optimal to": self.selection.gap,
            "schedule": f"{self.schedule.draws} draws, seed {seed}",
        }

    def check(self, population: Population, training: Training) -> None:
        """Refuse what is of other clients, rounds or cohorts."""
        check_selection(self.selection, len(population))
        _check_clients("schedule is", self.schedule.clients, len(population))
        if self.schedule.cohorts.shape != (training.rounds, training.cohort_size):
            raise InputError.because(
                f"the schedule has {self.schedule.rounds} rounds of {self.schedule.cohort_size} "
                f"draws but training asks for {training.rounds} of {training.cohort_size}."
            )

    def mean_per_draw(self, column: FloatArray) -> float:
        """Mean over all draws of a number that each client has."""
        return float((self.counts * column).sum()) / self.schedule.cohorts.size

    def plain(self) -> dict[str, Any]:
        """Settings in plain values."""
        return {
            "rule": self.rule_name,
            "settings": dict(self.settings),
            "noise_model": self.noise_model,
            **{name: getattr(self.selection, name) for name in _CERTIFICATE},
            "draws": self.schedule.draws,
            "schedule_sha256": self.schedule.sha256,
        }

    def columns(self) -> dict[str, NDArray[Any]]:
        """Probabilities and cohorts."""
        return {
            "probabilities": self.selection.probabilities,
            "cohorts": self.schedule.cohorts,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], population: Population) -> FixedCohorts:
        """From ``plain`` and ``columns`` of a file."""
        return cls(
            selection=Selection(
                probabilities=np.array(values["probabilities"], dtype=np.float64),
                unbiased=population.unbiased,
                **{name: values[name] for name in ("rule", "settings", *_CERTIFICATE)},
            ),
            schedule=Schedule(
                cohorts=np.array(values["cohorts"], dtype=np.int64),
                clients=len(population),
                draws=values["draws"],
            ),
            noise_model=values["noise_model"],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CappedRule(Participation):
    """A rule that chooses each round's cohort, within a cap on the draws of each client.

    Attributes:
        rule: what chooses each cohort.
        settings: of the rule.
        counts: draws of each client, at most.
        reports: what clients report to the rule, within caps of their own.
    """

    kind: ClassVar[str] = "capped rule"
    is_simple: ClassVar[bool] = False
    bounds: ClassVar[str] = "the caps"

    rule: AdaptiveRule
    settings: Mapping[str, object]
    counts: IntArray
    reports: Reports

    def __post_init__(self) -> None:
        self.counts.setflags(write=False)

    @property
    def rule_name(self) -> str:
        """Name of the rule."""
        return self.rule.name

    @property
    def spending(self) -> BoolArray:
        """All: also a client that is never drawn may be asked for a report."""
        return np.ones(self.counts.size, dtype=np.bool_)

    @property
    def probabilities(self) -> FloatArray:
        """There are none before the training.

        Raises:
            InputError: always.
        """
        raise InputError.because(
            f"the rule {self.rule_name} decides in each round and has none before the training: no "
            "probabilities of being drawn. What needs them (the aggregation "
            "importance-compensated, the figure of probabilities) goes with planned rules only."
        )

    def charged(
        self, drawn: IntArray, asked: IntArray, clients: IntArray
    ) -> tuple[IntArray, IntArray]:
        """The caps of clients that took part, where the rule looks at reports or updates."""
        if not (self.reports.decide or self.rule.watches_updates):
            return drawn, asked
        took_part = (drawn > 0) | (asked > 0)
        return (
            np.where(took_part, np.maximum(drawn, self.counts[clients]), 0),
            np.where(took_part, np.maximum(asked, self.reports.caps[clients]), 0),
        )

    @property
    def no_explorer(self) -> str:
        """Why the page of a report cannot solve its selection again."""
        return (
            f"{self.rule_name} chooses the cohorts during the training, so there is no selection "
            "to solve before it."
        )

    @property
    def deciding(self) -> tuple[AdaptiveRule, ...]:
        """The rule that chooses cohorts during the training."""
        return (self.rule,)

    def planned_under_sums(self) -> FixedCohorts:
        """Refused: a server of sums sees no single report or update."""
        raise adaptive_under_distributed_trust(self.rule_name)

    @property
    def watches_updates(self) -> bool:
        """Whether the noisy updates of earlier rounds decide who is drawn."""
        return self.rule.watches_updates

    def choose(self, round: int, view: Callable[[], RoundView], ask: Ask) -> IntArray:
        """Positions of the clients that the rule names, after it asked for reports."""
        return rule_cohort(self.rule, view(), ask)

    def header(self) -> dict[str, Any]:
        """What the first line of a run's ledger says of it."""
        return {"format": "dpcohort adaptive ledger", "reports": self.reports.mode}

    def entry(self, round: int, cohort: IntArray, ids: Sequence[str]) -> dict[str, Any]:
        """A round's draws as a line of the ledger: the cohort in its order."""
        return {"round": round, "cohort": [ids[k] for k in cohort.tolist()]}

    def cohort_of_entry(self, entry: Mapping[str, Any], place: Callable[[str], int]) -> IntArray:
        """The cohort that was counted."""
        cohort = np.array([place(name) for name in entry["cohort"]], dtype=np.int64)
        cohort.setflags(write=False)
        return cohort

    def check_cohort(
        self, round: int, cohort: IntArray, drawn: Callable[[], IntArray], ids: Sequence[str]
    ) -> None:
        """Refuse draws beyond a client's cap."""
        more, before = np.bincount(cohort, minlength=len(ids)), drawn()
        over = np.flatnonzero(more > self.counts - before)
        if over.size:
            k = int(over[0])
            raise BudgetExceededError(
                f"{ids[k]!r} was drawn {int(before[k])} of {int(self.counts[k])} times; "
                f"{int(more[k])} more are not in its noise."
            )

    def check_counts(
        self, counted: Callable[[], tuple[IntArray, IntArray]], ids: Sequence[str]
    ) -> None:
        """Refuse more draws or reports than a client's caps."""
        draws, reports = counted()
        beyond = (draws > self.counts) | (reports > self.reports.caps)
        if beyond.any():
            name = ids[int(np.flatnonzero(beyond)[0])]
            raise VerificationError(f"{name!r} is beyond its cap.")

    def beyond(self, draws: IntArray, reports: IntArray) -> Iterator[tuple[int, str]]:
        """Clients with more draws or reports than their caps, and how many in words."""
        pairs = (("draws", draws, self.counts), ("reports", reports, self.reports.caps))
        for what, made, caps in pairs:
            for k in np.flatnonzero(made > caps).tolist():
                yield k, f"{int(made[k])} {what}, the cap is {int(caps[k])}"

    def draws_made(self, made: IntArray | None, title: str) -> IntArray:
        """Draws of each client in a run."""
        if made is None:
            raise InputError.because(
                f"{self.rule_name} chooses each cohort during the training, so the plan {title} "
                "does not say who is drawn. Draw this figure of the run."
            )
        return made

    def shares(
        self, made: IntArray | None, unbiased: FloatArray, title: str
    ) -> tuple[dict[str, FloatArray], str]:
        """Shares of the draws of a run, beside shares of all records."""
        draws = self.draws_made(made, title)
        panel = f"{self.rule_name}, as drawn"
        return {panel: draws / max(1, int(draws.sum())), "by size": unbiased}, "share of draws"

    def facts(self, seed: int) -> dict[str, Any]:
        """Settings and caps as a report lists them."""
        return {
            "rule": self.rule_name,
            **self.settings,
            "cohorts": f"chosen during the training, seed {seed}",
            "draws of a client, at most": int(self.counts.max()),
            "reports of a client, at most": int(self.reports.caps.max()),
            "reports": self.reports.mode,
        }

    def check(self, population: Population, training: Training) -> None:
        """Refuse what is of other clients."""
        _check_clients("caps are", self.counts.size, len(population))
        _check_clients("reports are", self.reports.caps.size, len(population))

    def mean_per_draw(self, column: FloatArray) -> float:
        """Mean over clients of a number that each has, as if all were drawn alike."""
        return float(np.mean(column))

    def plain(self) -> dict[str, Any]:
        """Settings in plain values."""
        return {
            "rule": self.rule_name,
            "settings": dict(self.settings),
            "watches_updates": self.rule.watches_updates,
            "reports": self.reports.plain(),
        }

    def columns(self) -> dict[str, NDArray[Any]]:
        """Caps, and the noise of reports."""
        return {
            "draw_caps": self.counts,
            "report_caps": self.reports.caps,
            "report_multipliers": self.reports.multipliers,
        }


def _check_clients(words: str, found: int, clients: int) -> None:
    if found != clients:
        raise InputError.because(
            f"the {words} for {found} clients but the population has {clients}."
        )


def refuse_clients(population: Population, broken: BoolArray, words: str) -> None:
    """Refuse a plan in which something is wrong with a client; the first is named.

    Args:
        population: the clients.
        broken: with which of them.
        words: what is wrong, after the client's name.
    """
    if broken.any():
        name = population.ids[int(np.flatnonzero(broken)[0])]
        raise InputError.because(f"client {name!r} {words}; make the plan again.")
