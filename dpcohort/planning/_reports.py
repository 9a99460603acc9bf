# SPDX-License-Identifier: Apache-2.0
"""Reports of a plan: statistics that clients are asked for beside their updates, and their noise.

``NoReports`` asks nobody and composes like any other: its caps, noise and charges are zero. Noised
reports (``PrivateReports``) are charged; raw ones (``RawReports``) are bounded by nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting._segments import Source
from dpcohort.adaptive import ReportTerms
from dpcohort.errors import InputError

#: Where the noise of what leaves a client comes from, the least private first.
Origin = Literal["raw reports"] | Source

#: What raw reports make of every run.
_UNBOUNDED = (
    "NOT PRIVATE: reports are raw. Clients tell their losses without noise, so no epsilon holds; "
    "use it to reproduce papers only."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reports:
    """Statistics that clients report before a round: terms, caps and noise.

    Attributes:
        caps: reports of each client, at most.
        multipliers: noise multiplier of a report; 0 for public clients, and for all where reports
            are raw or there are none.

    Example:
        >>> Reports.none(2).mode, Reports.none(2).caps.tolist()
        ('none', [0, 0])
    """

    #: Word for it in files.
    mode: ClassVar[Literal["none", "private", "raw"]]
    #: Whether they decide who is drawn.
    decide: ClassVar[bool] = True
    #: What the title of a run says of it.
    title: ClassVar[tuple[str, ...]] = ()
    #: What a figure calls the noise of a plan with them.
    deployed: ClassVar[str] = "deployed and certified"
    #: Why a verification cannot make the choices again; empty where it can.
    unrepeatable: ClassVar[str] = ""
    #: What a verification says of every run with them.
    broken: ClassVar[tuple[str, ...]] = ()

    caps: IntArray
    multipliers: FloatArray

    @staticmethod
    def none(clients: int) -> NoReports:
        """Nobody is asked for anything."""
        return NoReports(caps=np.zeros(clients, dtype=np.int64), multipliers=np.zeros(clients))

    @staticmethod
    def of(terms: ReportTerms | None, caps: IntArray, multipliers: FloatArray) -> Reports:
        """Reports on these terms, or none."""
        if terms is None:
            return NoReports(caps=caps, multipliers=multipliers)
        kind = RawReports if terms.mode == "raw" else PrivateReports
        return kind(caps=caps, multipliers=multipliers, terms=terms)

    def __post_init__(self) -> None:
        for column in (self.caps, self.multipliers):
            column.setflags(write=False)

    if TYPE_CHECKING:  # a field or a property

        @property
        def terms(self) -> ReportTerms:
            """Statistic, bound and share of the budgets.

            Raises:
                InputError: there are no reports.
            """

    @property
    def half_range(self) -> float:
        """Half of the largest value of the statistic."""
        return 0.0

    @property
    def planned(self) -> IntArray:
        """Reports of each client that its certificate covers."""
        return np.zeros_like(self.caps)

    def check(self, held: BoolArray) -> BoolArray:
        """Clients that would report without the noise they need.

        Args:
            held: those with a budget that take part.
        """
        return np.zeros_like(held)

    def releases(self, rates: FloatArray, count: int) -> list[tuple[FloatArray, FloatArray, int]]:
        """Noise multipliers, rates and number of the releases that a client's reports are.

        Args:
            rates: share of each client's records that a report looks at.
            count: how often it reported.
        """
        return []

    def unbounded(self, counts: IntArray) -> BoolArray:
        """Where no epsilon bounds what these numbers of reports told."""
        return np.zeros(counts.shape, dtype=np.bool_)

    def rates(self, sampling_rates: FloatArray) -> FloatArray:
        """Share of each client's records that a report looks at."""
        return np.ones(self.caps.size)

    def stds(self, records: FloatArray) -> FloatArray:
        """Noise on each client's reported mean over these numbers of records, z t / (2 n)."""
        return self.multipliers * self.half_range / records

    def keep(self, write: Callable[[], None], remember: Callable[[], None]) -> None:
        """Write answers down; raw ones stay in memory, for they carry no noise."""
        write()

    def source(self, of_run: Source) -> Origin:
        """The least private source of noise in a run with them.

        Args:
            of_run: of everything else in the run.
        """
        return of_run

    def refuse_resume(self) -> None:
        """Refuse to resume a run whose reports were never written down."""
        return

    def refuse_guards(self, rule: str) -> None:
        """Refuse reports that no guard gives."""
        return

    def settings(self) -> dict[str, Any]:
        """Settings with which another plan asks for the same."""
        return {}

    def plain(self) -> dict[str, Any] | None:
        """Terms in plain values; None where nobody is asked."""
        return None

    def asked_of(self, k: int) -> dict[str, Any]:
        """What a guard is asked to accept for one client; nothing where nobody is asked."""
        return {}

    def receipt(self, k: int, counts: IntArray, std: float, rate: float) -> dict[str, Any] | None:
        """What a receipt says about the reports of one client.

        Args:
            k: its position.
            counts: how often each client reported.
            std: of the noise on its reported mean.
            rate: share of its records that a report looked at.
        """
        return None

    def sentences(self) -> list[str]:
        """What a summary says about what a report is."""
        return []

    def cap_words(self, k: int) -> str:
        """How often a client may be asked, in a sentence about its draws."""
        return ""

    def made_words(self, k: int, count: int) -> str:
        """How often a client reported, in a sentence about its draws."""
        return ""

    def epsilon(self, certified: float) -> float | None:
        """A certified epsilon, where reports leave it bounded."""
        return certified

    def explain(self, k: int, std: float, *, public: bool) -> dict[str, Any]:
        """Numbers about the reports of one client.

        Args:
            k: its position.
            std: of the noise on its reported mean.
            public: whether it has no budget.
        """
        names = ("report_cap", "statistic", "report_std", "report_share")
        return {**dict.fromkeys(names), "raw_reports": False}

    def cells(self, k: int, std: float) -> tuple[str, str]:
        """Cap and noise of one client's reports, in a table."""
        return "-", "-"


@dataclass(frozen=True, kw_only=True, eq=False)
class NoReports(Reports):
    """Nobody is asked for anything."""

    mode = "none"
    decide = False

    @property
    def terms(self) -> ReportTerms:
        """There are none.

        Raises:
            InputError: always.
        """
        raise InputError.because("the rule of this plan has no reports.")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Asked(Reports):
    """Reports on terms, whatever their noise."""

    terms: ReportTerms

    @property
    def half_range(self) -> float:
        """Half of the largest value of the statistic."""
        return self.terms.half_range

    def rates(self, sampling_rates: FloatArray) -> FloatArray:
        """Share of each client's records that a report looks at."""
        return sampling_rates if self.terms.mini_batch else super().rates(sampling_rates)

    def settings(self) -> dict[str, Any]:
        """Settings with which another plan asks for the same."""
        return {
            "report_share": self.terms.share,
            "loss_bound": self.terms.loss_bound,
            "reports": self.mode,
        }

    def plain(self) -> dict[str, Any] | None:
        """Terms in plain values."""
        return asdict(self.terms)

    def asked_of(self, k: int) -> dict[str, Any]:
        """What a guard is asked to accept for one client."""
        return {
            "count": int(self.caps[k]),
            "statistic": self.terms.statistic,
            "loss_bound": self.terms.loss_bound,
            "least_noise_multiplier": float(self.multipliers[k]),
            "mini_batch": self.terms.mini_batch,
        }

    def receipt(self, k: int, counts: IntArray, std: float, rate: float) -> dict[str, Any] | None:
        """What a receipt says about the reports of one client."""
        return {
            "statistic": self.terms.statistic,
            "top": self.terms.top,
            "mode": self.mode,
            "planned": int(self.caps[k]),
            "spent": int(counts[k]),
            "noise_multiplier": float(self.multipliers[k]),
            "noise_std": std,
            "sampling_rate": rate,
        }

    def cap_words(self, k: int) -> str:
        """How often a client may be asked, in a sentence about its draws."""
        return f" and asked at most {self.caps[k]} times"

    def made_words(self, k: int, count: int) -> str:
        """How often a client reported, in a sentence about its draws."""
        return f", and reported {often(count)}, at most {self.caps[k]} allowed"

    def explain(self, k: int, std: float, *, public: bool) -> dict[str, Any]:
        """Numbers about the reports of one client."""
        return {
            **super().explain(k, std, public=public),
            "report_cap": int(self.caps[k]),
            "statistic": f"mean {self.terms.statistic}",
        }

    def cells(self, k: int, std: float) -> tuple[str, str]:
        """Cap and noise of one client's reports, in a table."""
        return str(int(self.caps[k])), "-"


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateReports(_Asked):
    """Reports with noise, charged to the ledgers of the clients."""

    mode = "private"

    @property
    def planned(self) -> IntArray:
        """Reports of each client that its certificate covers."""
        return self.caps

    def check(self, held: BoolArray) -> BoolArray:
        """Clients that would report without the noise they need."""
        return held & ~(self.multipliers > 0)

    def releases(self, rates: FloatArray, count: int) -> list[tuple[FloatArray, FloatArray, int]]:
        """Noise multipliers, rates and number of the releases that a client's reports are."""
        return [(self.multipliers, rates, count)]

    def sentences(self) -> list[str]:
        """What a summary says about what a report is."""
        where = "one mini-batch" if self.terms.mini_batch else "all records"
        return [
            f"A report is the mean {self.terms.statistic} on {where}, clipped at "
            f"{self.terms.top:g}, with noise; all reports together take "
            f"{self.terms.share:.0%} of a budget.".replace("%", " %")
        ]

    def explain(self, k: int, std: float, *, public: bool) -> dict[str, Any]:
        """Numbers about the reports of one client."""
        noise = {} if public else {"report_std": std, "report_share": float(self.terms.share)}
        return {**super().explain(k, std, public=public), **noise}

    def cells(self, k: int, std: float) -> tuple[str, str]:
        """Cap and noise of one client's reports, in a table."""
        return str(int(self.caps[k])), f"{std:.3g}"


@dataclass(frozen=True, kw_only=True, eq=False)
class RawReports(_Asked):
    """Reports without noise: nothing bounds what they tell, so no run with them is private."""

    mode = "raw"
    title: ClassVar[tuple[str, ...]] = ("raw reports, NOT PRIVATE",)
    deployed: ClassVar[str] = "deployed"
    unrepeatable: ClassVar[str] = (
        "raw reports are not written down, so the choices could not be made again."
    )
    broken: ClassVar[tuple[str, ...]] = (
        "cohorts were chosen from raw reports, which carry no noise: NOT PRIVATE, no promise of "
        "any client that reported is kept.",
    )

    def unbounded(self, counts: IntArray) -> BoolArray:
        """Where no epsilon bounds what these numbers of reports told."""
        return np.asarray(counts > 0)

    def keep(self, write: Callable[[], None], remember: Callable[[], None]) -> None:
        """Keep answers in memory only, for they carry no noise."""
        remember()

    def source(self, of_run: Source) -> Origin:
        """They carry no noise at all."""
        return "raw reports"

    def refuse_resume(self) -> None:
        """Refuse to resume a run whose reports were never written down."""
        raise InputError.because(
            "a run with raw reports cannot go on: what clients reported was never written down. "
            "Begin it again in another folder."
        )

    def refuse_guards(self, rule: str) -> None:
        """Refuse reports that no guard gives."""
        raise InputError.because(
            f"the rule {rule} chooses from raw reports of clients, and guards give none without "
            "noise."
        )

    def sentences(self) -> list[str]:
        """What a summary says about what a report is."""
        return [_UNBOUNDED]

    def epsilon(self, certified: float) -> float | None:
        """None: nothing bounds what raw reports tell."""
        return None

    def explain(self, k: int, std: float, *, public: bool) -> dict[str, Any]:
        """Numbers about the reports of one client."""
        return {**super().explain(k, std, public=public), "raw_reports": True}


def often(count: int) -> str:
    """How often, in words."""
    return "once" if count == 1 else f"{count} times"
