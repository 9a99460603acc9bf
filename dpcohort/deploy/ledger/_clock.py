# SPDX-License-Identifier: Apache-2.0
"""Monotone clock of a ledger: time in it only moves forward, whatever a machine's clock is set to.

Two kinds of time. *Latest* is the latest date that any row has seen; a machine that shows an
earlier one was set back. *Age* is the time that surely has passed: within one start of the machine
what its uptime says, which nobody can set; over a restart the step between dates. So a date that is
set forward while the machine runs makes nothing older.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from dpcohort.errors import BudgetExceededError, InputError

#: A clock that was corrected by this many seconds was not set back.
_CORRECTION = 60
#: Seconds that whole numbers of dates and uptimes can be ahead of the truth over a restart.
_PARTS = 2
_THIS_PROCESS = secrets.token_hex(8)


@dataclass(frozen=True)
class ClockReading:
    """What a machine's clocks say at one moment; every row of a ledger has one.

    Attributes:
        date: seconds since 1970, UTC; anybody with the right may set it.
        boot: which start of the machine.
        uptime: seconds since then, asleep or not.

    Example:
        >>> ClockReading.of({"at": "2026-11-19T00:00:00+00:00", "boot": "5f", "up": 7})
        ClockReading(date=1795046400, boot='5f', uptime=7)
    """

    date: int
    boot: str
    uptime: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> ClockReading:
        """The reading in the body of a row.

        Raises:
            InputError: there is none.
        """
        try:
            when = datetime.fromisoformat(row["at"])
            return cls(int(when.timestamp()), str(row["boot"]), int(row["up"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise InputError.because("the row does not say when it was written.") from None

    def to_dict(self) -> dict[str, Any]:
        """As a row has it."""
        return {"at": iso_time(self.date), "boot": self.boot, "up": self.uptime}


@dataclass(frozen=True)
class MonotoneClock:
    """The time of a ledger after some row.

    Attributes:
        age: seconds that surely passed before; differences count.
        latest: the latest date seen, in seconds since 1970.
        boot: which start of the machine was seen last.
        uptime: its uptime then.

    Example:
        >>> morning = MonotoneClock().after(ClockReading(1000, "a", 5))
        >>> year = morning.after(ClockReading(1000 + 365 * 86400, "a", 65))  # set, not waited for
        >>> year.age - morning.age
        60
    """

    age: int = 0
    latest: int = 0
    boot: str = ""
    uptime: int = 0

    def after(self, reading: ClockReading) -> MonotoneClock:
        """The time at a further reading."""
        latest = max(self.latest, reading.date)
        passed = reading.uptime - self.uptime
        if reading.boot != self.boot:
            passed = latest - self.latest - _PARTS
        return MonotoneClock(self.age + max(0, passed), latest, reading.boot, reading.uptime)

    @property
    def day(self) -> date:
        """The latest day seen, UTC."""
        return datetime.fromtimestamp(self.latest, UTC).date()

    def check_not_behind(self, reading: ClockReading, what: str) -> None:
        """Refuse to spend by a clock that was set back.

        Args:
            reading: of the machine's clocks.
            what: would be spent.

        Raises:
            BudgetExceededError: the ledger has seen a later date.
        """
        if reading.date < self.latest - _CORRECTION:
            raise BudgetExceededError(
                f"{what}: this machine's clock was set back. It says {iso_time(reading.date)}, and "
                f"the ledger has seen {iso_time(self.latest)}. Caps and permits that end in time "
                "spend nothing until the clock has passed that again. Nothing was spent."
            )


def machine_clock() -> ClockReading:
    """The clocks of this machine, now."""
    boot, clock = _THIS_PROCESS, time.CLOCK_MONOTONIC
    with suppress(OSError, AttributeError):  # elsewhere than on Linux: since this process began
        found = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        clock = time.CLOCK_BOOTTIME
        boot = hashlib.sha256(found).hexdigest()[:16]
    return ClockReading(int(time.time()), boot, int(time.clock_gettime(clock)))


def iso_time(seconds: int) -> str:
    """Seconds since 1970 as a date and time, UTC.

    Example:
        >>> iso_time(0)
        '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat()
