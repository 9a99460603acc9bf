# SPDX-License-Identifier: Apache-2.0
"""What the rows of a ledger add up to, and the rules a further row must keep.

The same rules hold when a row is written and when a stored ledger is read again, so a row that
could not have been written is found even if its hash is right.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dpcohort.accounting import Event
from dpcohort.deploy._formats import checked_name
from dpcohort.deploy.ledger._clock import ClockReading, MonotoneClock, iso_time
from dpcohort.deploy.ledger._spending import Counted, Run, fits_cap, with_one_more
from dpcohort.deploy.ledger._store import FIRST_LINK, Entry
from dpcohort.deploy.ledger._terms import DrawKey, LifetimeCap, Period, RunTerms
from dpcohort.errors import BudgetExceededError, DpcohortError, InputError, VerificationError
from dpcohort.signatures import is_signed

#: What a row can be; for each kind there is a method that checks it.
_KINDS = (
    "opened",
    "dataset",
    "decide",
    "accept",
    "reserve",
    "release",
    "unmask",
    "discard",
    "clock",
)


class Decision(NamedTuple):
    """What an owner decided of a proposed run, signed.

    Attributes:
        accepted: or refused.
        terms: of the proposal, as ``RunTerms.to_dict()``.
        reason: of the owner, for the operator.
        key: Ed25519 public key of the owner's guard, hexadecimal.
        signature: over ledger, data set, run and the above.
    """

    accepted: bool
    terms: dict[str, Any]
    reason: str
    key: str
    signature: str

    @classmethod
    def of(cls, content: dict[str, Any]) -> Decision:
        """From a row's content."""
        return cls(**{name: content[name] for name in cls._fields})

    def content(self, ledger: str, dataset: str, run: str) -> bytes:
        """What is signed."""
        said = [ledger, dataset, run, self.accepted, self.terms, self.reason]
        text = json.dumps(["dpcohort decision 1", *said], sort_keys=True, allow_nan=False)
        return text.encode()


@dataclass
class Account:
    """One accepted run on one data set.

    Attributes:
        terms: what the owner accepted.
        draws: every draw counted, with the row and the SHA-256 of its output if it has one.
        reports: every report counted, likewise.
        unmasked: of draws whose noise is distributed, the hash of the set of members whose sum the
            client has helped to unmask; one for a draw, ever.
        discarded: outputs up to this row are deleted.
        ages: when each draw, and each report, last gave something out (or was reserved), in order,
            by the ledger's monotone clock.
    """

    terms: RunTerms
    draws: dict[DrawKey, tuple[int, str] | None] = field(default_factory=dict)
    reports: dict[DrawKey, tuple[int, str] | None] = field(default_factory=dict)
    unmasked: dict[DrawKey, str] = field(default_factory=dict)
    discarded: int = 0
    ages: tuple[dict[DrawKey, int], dict[DrawKey, int]] = field(default_factory=lambda: ({}, {}))

    def stored(self) -> dict[DrawKey, tuple[int, str]]:
        """The draws and reports whose outputs are still there, with their rows and hashes."""
        both = {**self.draws, **self.reports}
        return {key: one for key, one in both.items() if one and one[0] > self.discarded}

    def of(self, key: DrawKey) -> dict[DrawKey, tuple[int, str] | None]:
        """The reports if this is the name of one, else the draws."""
        return self.reports if key.is_report else self.draws

    def touch(self, key: DrawKey, age: int) -> None:
        """Count a draw or report from this time on."""
        ages = self.ages[key.is_report]
        ages.pop(key, None)
        ages[key] = age

    def within(self, period: Period, now: int) -> Run:
        """The terms, and the draws and reports in the window of this length that ends now."""
        return (self.terms, *(period.within(list(ages.values()), now) for ages in self.ages))


class LedgerState:
    """The sum of all rows so far.

    Attributes:
        ledger: the ledger's id.
        caps: lifetime cap of each data set.
        accounts: for each data set, its accepted runs by name.
        decisions: for each data set, what its owner last decided of a run that was proposed.
        hashes: hash of each row, in order.
        clock: the time, which only moves forward.
    """

    def __init__(self) -> None:
        self.ledger = ""
        self.caps: dict[str, LifetimeCap] = {}
        self.accounts: dict[str, dict[str, Account]] = {}
        self.decisions: dict[str, dict[str, Decision]] = {}
        self.hashes: list[str] = []
        self.clock = MonotoneClock()

    @property
    def head(self) -> tuple[int, str]:
        """Number and hash of the last row."""
        return len(self.hashes), self.hashes[-1] if self.hashes else FIRST_LINK

    @property
    def count(self) -> tuple[int, str, str]:
        """Number and hash of the last row, and the ledger's id: what its counter holds."""
        return *self.head, self.ledger

    @property
    def is_timed(self) -> bool:
        """Whether time counts for any of the data or any permit."""
        accounts = (one for runs in self.accounts.values() for one in runs.values())
        return any(cap.per.is_timed for cap in self.caps.values()) or any(
            one.terms.is_timed for one in accounts
        )

    def account(self, dataset: str, run: str) -> Account:
        """The account of an accepted run.

        Raises:
            InputError: the data set is not registered or the run not accepted.
        """
        self.cap(dataset)
        if run not in self.accounts[dataset]:
            raise InputError(
                "run",
                given=run,
                allowed=f"a run the owner of {dataset!r} has accepted",
                next_step="The owner accepts its terms with: dpcohort ledger accept",
            )
        return self.accounts[dataset][run]

    def cap(self, dataset: str) -> LifetimeCap:
        """The cap of a registered data set."""
        if dataset not in self.caps:
            raise InputError(
                "dataset",
                given=dataset,
                allowed="one of " + (", ".join(sorted(self.caps)) or "none yet"),
                next_step="The owner registers it with: dpcohort ledger init",
            )
        return self.caps[dataset]

    def counted(self, dataset: str) -> Counted:
        """Terms, and draws and reports counted so far, of every accepted run of a data set."""
        return self.counted_within(dataset, Period(), self.clock.age)

    def counted_within(self, dataset: str, period: Period, now: int) -> Counted:
        """The same of what was given out or reserved in the window that ends at this age."""
        return {run: one.within(period, now) for run, one in self.accounts[dataset].items()}

    def windows(self, dataset: str) -> Iterator[Counted]:
        """What each window of the cap's length counts; of windows inside others only the largest.

        One for a lifetime. If these fit the cap, all windows do.
        """
        period = self.cap(dataset).per
        ages = sorted(self._ages(dataset))
        sizes = [period.within(ages, age) for age in ages]
        for age, size, following in zip(ages, sizes, [*sizes, 0][1:], strict=True):
            if following <= size:  # the next one has lost something of this one, or there is none
                yield self.counted_within(dataset, period, age)

    def possible_again(
        self, dataset: str, run: str, clock: MonotoneClock, *, report: bool = False
    ) -> str:
        """The date and time when one more draw, or report, of a run fits the cap.

        Empty if it never will, whatever leaves the window.
        """
        cap, now = self.cap(dataset), clock.age
        later = [age for age in cap.per.leaving(self._ages(dataset)) if age > now]

        def fits(age: int) -> bool:
            counted = self.counted_within(dataset, cap.per, age)
            return fits_cap(cap, with_one_more(counted, run, report=report).values())

        place = bisect.bisect_left(later, True, key=fits)
        return iso_time(clock.latest + later[place] - now) if place < len(later) else ""

    def fewer_after(self, dataset: str, clock: MonotoneClock) -> str:
        """The date and time when the first of what counts now leaves the window, if ever."""
        leaving = self.cap(dataset).per.leaving(self._ages(dataset))
        first = next((age for age in leaving if age > clock.age), None)
        return "" if first is None else iso_time(clock.latest + first - clock.age)

    def _ages(self, dataset: str) -> set[int]:
        accounts = self.accounts[dataset].values()
        return {age for one in accounts for ages in one.ages for age in ages.values()}

    def replay(self, entry: Entry) -> None:
        """Take in a stored row.

        Raises:
            VerificationError: it does not follow, was edited, or breaks a rule.
        """
        seq, last = self.head
        if entry.seq != seq + 1:
            raise VerificationError(f"entry {seq + 1} is missing: entry {entry.seq} comes next.")
        if entry.previous != last or not entry.is_whole():
            raise VerificationError(
                f"entry {entry.seq} was changed, or a row before it was: its hash does not hold."
            )
        try:
            self.check(entry)
        except (DpcohortError, KeyError, TypeError) as error:
            raise VerificationError(f"entry {entry.seq} breaks a rule: {error}") from None
        self.add(entry)

    def check(self, entry: Entry) -> None:
        """Whether the rules allow this row next.

        Raises:
            InputError: it is not within the terms, or something is not registered or accepted.
            BudgetExceededError: it would compute or give out a draw a second time.
        """
        if entry.kind not in _KINDS:
            raise InputError("kind", given=entry.kind, allowed="one of " + ", ".join(_KINDS))
        if entry.kind != "opened" and not self.hashes:
            raise InputError("kind", given=entry.kind, allowed="'opened' in the first row")
        getattr(self, f"_check_{entry.kind}")(entry, entry.content())

    def add(self, entry: Entry) -> None:
        """Count a row that was checked."""
        content, dataset, run = entry.content(), str(entry.dataset), str(entry.run)
        self.clock = self.clock.after(ClockReading.of(content))
        match entry.kind:
            case "opened":
                self.ledger = content["ledger"]
            case "dataset":
                self.caps[dataset] = LifetimeCap(**content["cap"])
                self.accounts[dataset] = {}
            case "decide":
                self.decisions.setdefault(dataset, {})[run] = Decision.of(content)
            case "accept":
                self.accounts[dataset][run] = Account(RunTerms(**content["terms"]))
            case "reserve":
                key = _key(entry)
                self.accounts[dataset][run].of(key)[key] = None
                self.accounts[dataset][run].touch(key, self.clock.age)
            case "release":
                key = _key(entry)
                self.accounts[dataset][run].of(key)[key] = (entry.seq, content["sha256"])
                self.accounts[dataset][run].touch(key, self.clock.age)
            case "unmask":
                key = _key(entry)
                self.accounts[dataset][run].unmasked[key] = content["sha256"]
                self.accounts[dataset][run].touch(key, self.clock.age)
            case "discard":
                self.accounts[dataset][run].discarded = entry.seq
        self.hashes.append(entry.hash)

    def _check_opened(self, entry: Entry, content: dict[str, Any]) -> None:
        if self.hashes or not isinstance(content["ledger"], str):
            raise InputError("kind", given="opened", allowed="the first row only, with an id")

    def _check_dataset(self, entry: Entry, content: dict[str, Any]) -> None:
        dataset = checked_name("dataset", entry.dataset)
        if dataset in self.caps:
            raise InputError(
                "dataset",
                given=dataset,
                allowed="a name not yet registered",
                next_step="A lifetime cap is fixed when the data set is registered.",
            )
        mark = LifetimeCap(**content["cap"]).fingerprint
        for other, cap in self.caps.items():
            if mark is not None and cap.fingerprint == mark:
                raise InputError.because(
                    f"these data are registered already, as {other!r}: the same data under two "
                    "names would have two caps. Use that name."
                )

    def _check_decide(self, entry: Entry, content: dict[str, Any]) -> None:
        dataset = checked_name("dataset", entry.dataset)
        run, decision = checked_name("run", entry.run), Decision.of(content)
        self.cap(dataset)
        if run in self.accounts[dataset]:
            words = "a run that is not accepted; close one with closed_runs in the guard's terms"
            raise InputError("run", given=run, allowed=words)
        said = decision.content(self.ledger, dataset, run)
        if not is_signed(decision.key, decision.signature, said):
            raise InputError.because(f"the decision on {run!r} is not signed by its key.")

    def _check_accept(self, entry: Entry, content: dict[str, Any]) -> None:
        self.cap(checked_name("dataset", entry.dataset))
        run = checked_name("run", entry.run)
        if run in self.accounts[str(entry.dataset)]:
            raise InputError(
                "run",
                given=run,
                allowed="a run not accepted before on this data set",
                next_step="Accepted terms never change; new terms need a new run name.",
            )
        terms = RunTerms(**content["terms"])
        terms.check_closed()
        terms.check_lasts(self._clock_at(content).day, f"{entry.dataset} / {run}")

    def _check_reserve(self, entry: Entry, content: dict[str, Any]) -> None:
        key = _key(entry)
        account = self.account(key.dataset, key.run)
        event = Event.from_dict(content["event"])
        terms = account.terms.of_reports() if key.is_report else account.terms
        terms.check_request(event, clip=content["clip"], round=key.round)
        account.terms.check_lasts(self._clock_at(content).day, str(key))
        counted = account.of(key)
        if key in counted:
            fate = (
                "its output is stored; send that again"
                if counted[key] is not None
                else "its output was lost or is still being computed; it stays counted"
            )
            raise BudgetExceededError(
                f"{key} was reserved before: {fate}. No {key.what} happens twice."
            )
        terms.trust.check_draw(key.draw)
        if len(counted) >= terms.draws:
            raise BudgetExceededError(
                f"{key}: all {terms.draws} {key.what}s accepted for this run are counted; "
                "0 steps still fit. More need a new run, accepted by the client's owner."
            )

    def _check_release(self, entry: Entry, content: dict[str, Any]) -> None:
        key = _key(entry)
        account = self.account(key.dataset, key.run)
        draws = account.of(key)
        if key not in draws:
            raise BudgetExceededError(f"{key} was not reserved: nothing can be given out for it.")
        if draws[key] is not None:
            raise BudgetExceededError(
                f"{key} has an output already, and a draw has only one. The stored bytes can be "
                "sent again."
            )
        self._check_still_counts(account, key, content)
        if not isinstance(content["sha256"], str):
            raise InputError("sha256", given=content["sha256"], allowed="a string")

    def _check_unmask(self, entry: Entry, content: dict[str, Any]) -> None:
        key = _key(entry)
        account = self.account(key.dataset, key.run)
        if account.terms.trust.masked(account.draws.get(key)) is None:
            raise BudgetExceededError(f"{key} has not been masked: there is nothing to unmask.")
        if key in account.unmasked:
            raise BudgetExceededError(f"{key} was unmasked before: there is no second unmasking.")
        self._check_still_counts(account, key, content)
        if not isinstance(content["sha256"], str):
            raise InputError("sha256", given=content["sha256"], allowed="a string")

    def _check_clock(self, entry: Entry, content: dict[str, Any]) -> None:
        """A row that only keeps the time."""

    def _check_still_counts(self, account: Account, key: DrawKey, content: dict[str, Any]) -> None:
        """Refuse to give out what has left its window, or what the permit outlived."""
        clock = self._clock_at(content)
        account.terms.check_lasts(clock.day, str(key))
        since = account.ages[key.is_report][key]
        if not self.cap(key.dataset).per.within([since], clock.age):
            raise BudgetExceededError(
                f"{key} was reserved so long ago that it counts no longer, so nothing is given out "
                "for it: ask for a new draw."
            )

    def _clock_at(self, content: dict[str, Any]) -> MonotoneClock:
        return self.clock.after(ClockReading.of(content))

    def _check_discard(self, entry: Entry, content: dict[str, Any]) -> None:
        self.account(checked_name("dataset", entry.dataset), checked_name("run", entry.run))


def _key(entry: Entry) -> DrawKey:
    # Of the right types, or refused.
    return DrawKey(**{name: getattr(entry, name) for name in ("dataset", "run", "round", "draw")})
