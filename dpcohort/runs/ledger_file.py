# SPDX-License-Identifier: Apache-2.0
"""The file of a ledger: a first line that names the plan, and below it what was counted.

Both kinds of ledger keep their lines here. A line is on disk when ``append`` returns, so whoever
counts calls it first and computes afterwards. What a line means, and whether it may stand where it
stands, is the ledger's own affair: it is asked line by line when a file is taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpcohort.adaptive.plan_file import AnyPlan
from dpcohort.errors import VerificationError
from dpcohort.runs.append_log import AppendLog, read_log

__all__ = ["Accept", "LedgerFile", "first_line", "read_ledger_file"]

#: Takes over one line that was counted before; raises VerificationError for one that cannot be.
Accept = Callable[[dict[str, Any]], None]


def first_line(plan: AnyPlan, *, format: str) -> dict[str, Any]:
    """What the lines below it count: draws of which plan, under which sampler and neighbours.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=2, cohort_size=3, batch_size=9), seed=0)
        >>> list(first_line(plan, format="dpcohort ledger"))
        ['format', 'schema', 'plan', 'local_steps', 'sampler', 'neighbours']
    """
    return {
        "format": format,
        "schema": 1,
        "plan": plan.sha256,
        "local_steps": plan.training.local_steps,
        "sampler": plan.contract.sampler,
        "neighbours": plan.contract.neighbours,
    }


class LedgerFile:
    """A ledger's file, open for counting and closed to every other process.

    Args:
        path: the file; None keeps nothing, for a ledger in memory.
        first: its first line; that of a file found there must be the same.
        accept: asked for each line found below it.

    Raises:
        InputError: another process is counting in the file, or it cannot be written.
        VerificationError: it is the ledger of another plan, or a line is refused.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "ledger.jsonl"
        >>> file = LedgerFile(path, {"plan": "ab"}, print)
        >>> file.append({"round": 0})
        >>> file.close()
        >>> LedgerFile(path, {"plan": "ab"}, print).close()
        {'round': 0}
    """

    def __init__(self, path: Path | None, first: Mapping[str, Any], accept: Accept) -> None:
        self._log: AppendLog | None = None
        if path is not None:
            # Two processes that count the same round would each compute it.
            self._log = AppendLog(path, exclusive=True)
            try:
                if found := read_log(path):
                    _take_over(path, found, first, accept)
                else:
                    self._log.append(first)
            except BaseException:
                self.close()
                raise

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line; when this returns it is on disk."""
        if self._log is not None:
            self._log.append(entry)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self._log is not None:
            self._log.close()


def read_ledger_file(path: Path, first: Mapping[str, Any], accept: Accept) -> None:
    """Give each line of a ledger's file to ``accept``; the file is only looked at.

    Raises:
        DataMissingError: there is no such file.
        VerificationError: it is empty or the ledger of another plan, or a line is refused.
    """
    found = read_log(path)
    if not found:
        raise VerificationError(f"{path} has no first line: it is not a whole ledger.")
    _take_over(path, found, first, accept)


def _take_over(
    path: Path, found: list[dict[str, Any]], first: Mapping[str, Any], accept: Accept
) -> None:
    if found[0] != first:
        raise VerificationError(
            f"{path} is the ledger of another plan ({str(found[0].get('plan'))[:16]}... "
            f"instead of {str(first['plan'])[:16]}...). Resume with the plan of the run."
        )
    for line, entry in enumerate(found[1:], start=2):
        try:
            accept(entry)
        except VerificationError as error:
            raise VerificationError(f"{path}, line {line}: {error} See: dpcohort verify") from None
