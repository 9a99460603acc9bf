# SPDX-License-Identifier: Apache-2.0
"""Participation of clients: cohorts fixed before training, or a rule that chooses within caps.

Both answer the same questions: how often each client is drawn (at most), which draws and reports an
accountant charges, and what a plan's file and hash have of them. ``Reports`` is what clients are
asked for beside their updates; ``Reports.none`` asks nobody and composes like any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting.contract import NoiseModel
from dpcohort.errors import InputError
from dpcohort.schedule import Schedule
from dpcohort.selection.problem import Selection, check_selection

if TYPE_CHECKING:
    from dpcohort.adaptive.rule import AdaptiveRule, ReportTerms
    from dpcohort.clients import Population
    from dpcohort.training import Training

#: What a file says of a selection beside its probabilities, rule and settings.
_CERTIFICATE = ("eta", "objective", "lower_bound", "gap")


@dataclass(frozen=True, kw_only=True, eq=False)
class Reports:
    """Noisy statistics that clients report before a round: terms, caps and noise.

    Attributes:
        caps: reports of each client, at most.
        multipliers: noise multiplier of a report; 0 for public clients, and for all where reports
            are raw or there are none.
        terms: statistic, bound and share of the budgets; None where nobody is asked.

    Example:
        >>> Reports.none(2).mode, Reports.none(2).caps.tolist()
        ('none', [0, 0])
    """

    caps: IntArray
    multipliers: FloatArray
    terms: ReportTerms | None = None

    @classmethod
    def none(cls, clients: int) -> Reports:
        """Nobody is asked for anything."""
        return cls(caps=np.zeros(clients, dtype=np.int64), multipliers=np.zeros(clients))

    def __post_init__(self) -> None:
        for column in (self.caps, self.multipliers):
            column.setflags(write=False)

    @property
    def mode(self) -> Literal["none", "private", "raw"]:
        """``private`` (noised and charged), ``raw`` (neither) or ``none``."""
        return "none" if self.terms is None else self.terms.mode

    @property
    def are_private(self) -> bool:
        """Whether clients report, with noise and charged."""
        return self.mode == "private"

    @property
    def are_raw(self) -> bool:
        """Whether clients report without noise: nothing made with the plan is private."""
        return self.mode == "raw"

    def rates(self, sampling_rates: FloatArray) -> FloatArray:
        """Share of each client's records that a report looks at."""
        mini_batch = self.terms is not None and self.terms.mini_batch
        return sampling_rates if mini_batch else np.ones(self.caps.size)

    def stds(self, records: FloatArray) -> FloatArray:
        """Noise on each client's reported mean over these numbers of records, z t / (2 n)."""
        half = 0.0 if self.terms is None else self.terms.half_range
        return self.multipliers * half / records


class Participation(ABC):
    """Who takes part when, and how often at most."""

    #: Word for it in a plan's file.
    kind: ClassVar[str]
    #: Whether all cohorts are known before the training.
    is_known: ClassVar[bool]
    #: What noise is calibrated to.
    bounds: ClassVar[str]

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

    @property
    @abstractmethod
    def depends_on_outputs(self) -> bool:
        """Whether who is drawn follows from what clients gave out, so that caps are charged."""

    @abstractmethod
    def cohort(self, round: int) -> IntArray | None:
        """Positions of the clients drawn in a round; None where a rule chooses them then."""

    @abstractmethod
    def check(self, population: Population, training: Training) -> None:
        """Refuse what is of other clients, rounds or cohorts."""

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
    is_known: ClassVar[bool] = True
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
    def depends_on_outputs(self) -> bool:
        """No: cohorts were drawn before anybody gave anything out."""
        return False

    def cohort(self, round: int) -> IntArray | None:
        """Positions of the clients drawn in a round."""
        cohort: IntArray = self.schedule.cohorts[round]
        return cohort

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
    is_known: ClassVar[bool] = False
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

    @property
    def depends_on_outputs(self) -> bool:
        """Whether the rule looks at reports or updates."""
        return self.reports.mode != "none" or self.rule.watches_updates

    def cohort(self, round: int) -> IntArray | None:
        """None: the rule chooses it then."""
        return None

    def check(self, population: Population, training: Training) -> None:
        """Refuse what is of other clients."""
        _check_clients("caps are", self.counts.size, len(population))
        _check_clients("reports are", self.reports.caps.size, len(population))

    def mean_per_draw(self, column: FloatArray) -> float:
        """Mean over clients of a number that each has, as if all were drawn alike."""
        return float(np.mean(column))

    def plain(self) -> dict[str, Any]:
        """Settings in plain values."""
        terms = self.reports.terms
        return {
            "rule": self.rule_name,
            "settings": dict(self.settings),
            "watches_updates": self.rule.watches_updates,
            "reports": None if terms is None else asdict(terms),
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
