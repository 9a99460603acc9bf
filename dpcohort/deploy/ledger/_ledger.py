# SPDX-License-Identifier: Apache-2.0
"""The client's own ledger: what its data have spent in every run, ever, on its own disk.

Reserve, compute, release: a draw is counted on disk before anything is computed for it, has at
most one output ever, and stays counted if that output is lost. This is not the ledger of a local
simulation run (:mod:`dpcohort.runs._journal`), which counts one run of one plan.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

from dpcohort._validate import number
from dpcohort.accounting import Event, History
from dpcohort.deploy.ledger import _clock
from dpcohort.deploy.ledger._clock import ClockReading
from dpcohort.deploy.ledger._counter import (
    advance_counter,
    check_counter,
    counter_path,
    create_counter,
    read_counter,
    rolled_back,
)
from dpcohort.deploy.ledger._reading import lifetime_receipt
from dpcohort.deploy.ledger._receipt import LifetimeReceipt
from dpcohort.deploy.ledger._spending import Certified, check_cap, fitting_steps
from dpcohort.deploy.ledger._state import Decision, LedgerState
from dpcohort.deploy.ledger._store import Entry, LedgerStore
from dpcohort.deploy.ledger._terms import DrawKey, LifetimeCap, RunTerms
from dpcohort.errors import BudgetExceededError, InputError, VerificationError

DrawFate = Literal["new", "lost", "released"]
#: Seconds between two rows that only keep the time: who asks in vain must not fill the disk.
_SELDOM = 3600


class ClientLedger(AbstractContextManager["ClientLedger"]):
    """A client's lifetime ledger; safe for several threads and several processes at once.

    Args:
        path: the ledger, made by :meth:`create`.
        counter: its counter, if not beside it. On another disk it also notices that the whole
            disk was put back.

    Raises:
        InputError: no ledger there, one of a newer version, or it cannot be written.
        VerificationError: it is damaged, edited, or older than its counter.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> ledger = ClientLedger.create(Path(folder.name) / "ward.ledger")
        >>> ledger.register("ward-7", LifetimeCap(epsilon=2.0, delta=1e-5))
        >>> ledger.accept("ward-7", "spring", RunTerms(epsilon=2.0, delta=1e-5, clip=1.0,
        ...     sampling_rate=0.1, local_steps=1, rounds=60, draws=60, least_noise_multiplier=2.0))
        >>> key = DrawKey(dataset="ward-7", run="spring", round=0, draw=0)
        >>> step = Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=1)
        >>> ledger.reserve(key, step, clip=1.0)         # counted on disk; now compute
        >>> ledger.release(key, b"the noisy update")    # stored; now send
        >>> ledger.output(key)                          # send again: the same bytes
        b'the noisy update'
        >>> ledger.close(); folder.cleanup()
    """

    def __init__(self, path: str | Path, *, counter: str | Path | None = None) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        self._counter = counter_path(path, counter)
        self._state = LedgerState()
        self._certified: Certified = {}
        #: Draws this object reserved; only who reserved a draw may release it, so that nobody
        #: computes a draw again after a crash.
        self._in_hand: set[DrawKey] = set()
        #: The counter is known to be on disk at least up to this row.
        self._settled = 0
        #: The row of the transaction under way, if it has written one.
        self._pending: list[Entry] = []
        self._store = LedgerStore(self.path)
        try:
            with self._writing():
                # Of this start of the machine the uptime counts from here on, not the date.
                if self._state.is_timed and self._state.clock.boot != _clock.machine_clock().boot:
                    self._append("clock", {})
            self._advance()
        except BaseException:
            self._store.close()
            raise

    @classmethod
    def create(cls, path: str | Path, *, counter: str | Path | None = None) -> ClientLedger:
        """Make a new, empty ledger and its counter, and open it.

        Raises:
            InputError: something is there already, or nothing can be written there.
        """
        if Path(path).exists():
            raise InputError.because(f"{path} is there already. Nothing was changed.")
        ledger = secrets.token_hex(16)
        create_counter(counter_path(path, counter), ledger)
        opened = {"ledger": ledger, **_clock.machine_clock().to_dict()}
        LedgerStore.create(Path(path), Entry.following(None, "opened", opened))
        return cls(path, counter=counter)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; draws reserved and not released stay counted."""
        with self._lock:
            self._in_hand.clear()
            self._store.close()

    def register(self, dataset: str, cap: LifetimeCap) -> None:
        """Give a data set its lifetime cap, once and for all.

        Raises:
            InputError: the name, or the same data by fingerprint, are registered already.
        """
        with self._writing():
            self._append("dataset", {"cap": cap.to_dict()}, dataset=dataset)
        self._advance()

    def accept(self, dataset: str, run: str, terms: RunTerms) -> None:
        """Accept a run's terms, by the client's owner; the same terms again change nothing.

        Raises:
            InputError: no such data set, or other terms were accepted for this run.
            BudgetExceededError: the terms allow more than the (ε, δ) they state.
        """
        with self._writing():
            known = self._state.accounts.get(dataset, {}).get(run)
            if known is None or known.terms != terms:
                self._append("accept", {"terms": terms.to_dict()}, dataset=dataset, run=run)
        self._advance()

    def decide(
        self,
        dataset: str,
        run: str,
        proposed: Mapping[str, RunTerms],
        *,
        accepted: bool,
        reason: str,
        key: str,
        sign: Callable[[bytes], str],
    ) -> None:
        """Write an owner's signed decision down, and accept the terms if it is for them.

        Args:
            dataset: the registered data set.
            run: that was proposed.
            proposed: its terms by name: the run's, and those of an evaluation.
            accepted: or refused.
            reason: for the operator, who is told.
            key: Ed25519 public key of the owner, hexadecimal.
            sign: signs with it.

        Raises:
            InputError: no such data set, or the run is accepted already.
            BudgetExceededError: the terms allow more than the (ε, δ) they state.
        """
        said = {name: terms.to_dict() for name, terms in proposed.items()}
        decision = Decision(accepted, said, reason, key, "")
        signed = decision._replace(signature=sign(decision.content(self.id, dataset, run)))
        with self._writing():
            self._append("decide", signed._asdict(), dataset=dataset, run=run)
        self._advance()
        for name, terms in proposed.items() if accepted else ():
            self.accept(dataset, name, terms)

    def decided(self, dataset: str) -> dict[str, Decision]:
        """What the owner last decided of each run that was proposed, by its name."""
        with self._writing():
            return dict(self._state.decisions.get(dataset, {}))

    def reserve(self, key: DrawKey, event: Event, *, clip: float) -> None:
        """Count a draw; when this returns it is on disk, and only then may it be computed.

        Args:
            key: which draw.
            event: its noise, rate, steps, sampler and neighbours.
            clip: the clip C it will use.

        Raises:
            InputError: the run was not accepted, or the draw is not within its terms.
            BudgetExceededError: the draw was reserved before, the run's draws are used up, its
                permit has ended, or time counts and the machine's clock was set back.
            LifetimeCapError: it would exceed the data set's cap.
        """
        body = {"event": event.to_dict(), "clip": number("clip", clip, above=0)}
        try:
            with self._writing():
                self._append("reserve", body, **vars(key))
        except BudgetExceededError:
            self._keep_time(key)
            raise
        # The row is on disk. Its counter need not be before the draw's output goes out: `release`
        # waits for it, and a power cut before that loses a draw that nobody has seen.
        self._advance(durable=False)
        # Only now: if the counter could not be written, the draw is counted and nobody's to use.
        with self._lock:
            self._in_hand.add(key)

    def release(self, key: DrawKey, output: bytes) -> None:
        """Store the noisy update of a reserved draw; when this returns it may be sent.

        The same bytes again change nothing.

        Raises:
            BudgetExceededError: the draw has another output, was never reserved, or was reserved
                by a process that is gone (its output is lost).
        """
        if not isinstance(output, bytes):
            raise InputError("output", given=type(output).__name__, allowed="bytes")
        digest = hashlib.sha256(output).hexdigest()
        with self._writing():
            draws = self._state.account(key.dataset, key.run).of(key)
            stored = draws.get(key)
            if stored is not None and stored[1] == digest:
                self._settle(stored[0])
                return
            if key in draws and stored is None and key not in self._in_hand:
                raise BudgetExceededError(
                    f"{key} was reserved elsewhere and never released: its output is lost and "
                    "stays counted. It must not be computed again; ask for a new draw."
                )
            body = {"sha256": digest, "size": len(output)}
            self._append("release", body, output=output, **vars(key))
            self._in_hand.discard(key)
        self._advance()

    def record(
        self,
        dataset: str,
        run: str,
        history: History,
        *,
        clip: float,
        delta: float,
        training: str | None = None,
    ) -> LifetimeReceipt:
        """Count steps that were taken outside of the ledger, such as those of an Opacus training.

        Nobody can refuse what has happened, so the lifetime cap is not asked: a history above it
        is counted all the same, the receipt then does not hold, and nothing can be spent on these
        data from then on. Each event is a run of its own: ``run``, or ``run.1``, ``run.2``, ...

        Args:
            dataset: the registered data set.
            run: a name for what was done, a new one for each training: equal steps may have been
                taken twice, and nothing in a history tells.
            history: the steps.
            clip: to which records were clipped.
            delta: δ at which each event is accepted; it matters under a ``summed`` cap only.
            training: an id of this very training, drawn at random when it began. With it a call
                that failed halfway may be repeated: what is there under this name with this id
                is not counted again.

        Returns:
            The receipt of the data set with these steps in it.

        Raises:
            InputError: no such data set or one whose cap is not for records, no steps, or something
                else has that name.

        Example:
            >>> import tempfile
            >>> folder = tempfile.TemporaryDirectory()
            >>> ledger = ClientLedger.create(Path(folder.name) / "ward.ledger")
            >>> ledger.register("ward-7", LifetimeCap(epsilon=2.0, delta=1e-5))
            >>> done = History((Event.of(noise_multiplier=2.0, sampling_rate=0.1, steps=60),))
            >>> receipt = ledger.record("ward-7", "autumn", done, clip=1.0, delta=1e-5)
            >>> round(receipt.certified_epsilon, 2), receipt.holds
            (1.81, True)
            >>> ledger.close(); folder.cleanup()
        """
        events = [event for event in history.events if event.steps > 0]
        if not events:
            raise InputError("history", given="no steps", allowed="at least one step")
        if (cap := self.cap(dataset)) is not None and cap.unit != "record":
            raise InputError.because(
                f"the cap of {dataset!r} covers a {cap.unit}, and steps taken elsewhere count "
                "for records: they have no total. Nothing was counted; keep these steps under a "
                "name of their own, with a cap for records."
            )
        one = len(events) == 1
        for position, event in enumerate(events, start=1):
            name = run if one else f"{run}.{position}"
            # What went out is elsewhere; what is kept of it is what was told.
            told = json.dumps({"event": event.to_dict(), "training": training}).encode()
            if self._is_counted(DrawKey(dataset=dataset, run=name, round=0, draw=0), told):
                if training is not None:
                    continue
                raise InputError.because(
                    f"a training called {name!r} is counted already, and nothing says that this is "
                    "the same one. Record it under a name of its own; a training that began with "
                    "an id (training=...) may be recorded again under that id."
                )
            self.accept(dataset, name, RunTerms.of_event(event, clip=clip, delta=delta))
            key = DrawKey(dataset=dataset, run=name, round=0, draw=0)
            with self._writing():
                body = {"event": event.to_dict(), "clip": clip}
                self._append("reserve", body, is_done=True, **vars(key))
                self._in_hand.add(key)
            self.release(key, told)
        return self.receipt(dataset)

    def _is_counted(self, key: DrawKey, told: bytes) -> bool:
        """Whether a training is counted under this name, as the one that was told of so.

        Raises:
            InputError: another one has the name, or one of which only the count is left.
        """
        with self._writing():
            account = self._state.accounts.get(key.dataset, {}).get(key.run)
            draws = {} if account is None else account.of(key)
        if key not in draws:
            return False
        stored = draws[key]
        if stored is None or stored[1] != hashlib.sha256(told).hexdigest():
            raise InputError.because(
                f"{key.run!r} is the name of another training that is counted. Record this one "
                "under a name of its own; what is counted twice is safe, what is not counted isn't."
            )
        return True

    def output(self, key: DrawKey) -> bytes:
        """The stored output of a draw, to send it again.

        Raises:
            InputError: the draw was never reserved, or its bytes were discarded.
            BudgetExceededError: it has no output: lost, or still being computed.
            VerificationError: the stored bytes are not those that were released.
        """
        with self._writing():
            account = self._state.account(key.dataset, key.run)
            draws = account.of(key)
            if key not in draws:
                raise InputError("draw", given=str(key), allowed="a draw that was reserved")
            stored = draws[key]
            if stored is None:
                raise BudgetExceededError(
                    f"{key} is counted and has no output: lost, or still being computed."
                )
            row, digest = stored
            found = self._store.output(row)
            self._settle(row)
            is_discarded = row <= account.discarded
        if is_discarded:
            raise InputError.because(f"the bytes of {key} were discarded; only their hash is left.")
        if found is None or hashlib.sha256(found).hexdigest() != digest:
            raise VerificationError(f"the stored bytes of {key} are not those released.")
        return found

    def unmask(self, key: DrawKey, sha256: str) -> str:
        """Fix for which set of members the sum of a masked draw is unmasked, once and for all.

        Args:
            key: the draw, whose masked output is stored.
            sha256: hash of the set.

        Returns:
            The hash of the set that was fixed first; it is on disk, its counter as well.

        Raises:
            BudgetExceededError: the draw has no masked output.
        """
        with self._writing():
            fixed = self._state.account(key.dataset, key.run).unmasked.get(key)
            if fixed is None:
                self._append("unmask", {"sha256": sha256}, **vars(key))
        self._advance()
        return sha256 if fixed is None else fixed

    def discard_outputs(self, dataset: str, run: str) -> int:
        """Delete the stored bytes of a finished run; counts and hashes stay. Returns how many."""
        with self._writing():
            rows = [row for row, _ in self._state.account(dataset, run).stored().values()]
            if rows:
                self._append("discard", {"outputs": len(rows)}, dataset=dataset, run=run)
                self._store.drop_outputs(rows)
        self._advance()
        return len(rows)

    def affordable_draws(self, dataset: str, run: str) -> int:
        """How many more draws of an accepted run fit its terms and the lifetime cap, as of now."""
        with self._writing():
            terms = self._state.account(dataset, run).terms
            cap, account = self._state.cap(dataset), self._state.account(dataset, run)
            clock = self._state.clock.after(_clock.machine_clock())
            counted = self._state.counted_within(dataset, cap.per, clock.age)
        if clock.day > terms.until:
            return 0
        left = terms.draws - len(account.draws)
        return fitting_steps(cap, counted, run, left=left) // terms.local_steps

    def possible_again(self, dataset: str, run: str) -> str:
        """When one more draw of an accepted run fits the cap; empty if it never will."""
        with self._writing():
            clock = self._state.clock.after(_clock.machine_clock())
            return self._state.possible_again(dataset, run, clock)

    def cap(self, dataset: str) -> LifetimeCap | None:
        """The lifetime cap of a data set, None if it is not registered."""
        with self._writing():
            return self._state.caps.get(dataset)

    def terms(self, dataset: str, run: str) -> RunTerms:
        """The terms the owner accepted for a run.

        Raises:
            InputError: the data set is not registered or the run not accepted.
        """
        with self._writing():
            return self._state.account(dataset, run).terms

    def accepted(self, dataset: str) -> dict[str, RunTerms]:
        """The terms of every run that is accepted on a registered data set, by its name.

        Raises:
            InputError: the data set is not registered.
        """
        with self._writing():
            self._state.cap(dataset)
            return {run: terms for run, (terms, *_) in self._state.counted(dataset).items()}

    def fate(self, key: DrawKey) -> DrawFate:
        """What became of a draw of an accepted run.

        ``lost`` is also a draw that another process is computing.
        """
        with self._writing():
            draws = self._state.account(key.dataset, key.run).of(key)
            if key not in draws:
                return "new"
            return "lost" if draws[key] is None else "released"

    def receipt(self, dataset: str) -> LifetimeReceipt:
        """What the data set was promised and has spent, as of now."""
        with self._writing():
            return lifetime_receipt(self._state, dataset)

    @property
    def id(self) -> str:
        """The ledger's own name, drawn when it was made; owners pin it in a guard's terms."""
        return self._state.ledger

    @property
    def head(self) -> tuple[int, str]:
        """Number and hash of the last row; whoever holds an old one can check it is still there."""
        with self._writing():
            return self._state.head

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Alone with the file, and with everything in it taken in and checked."""
        with self._lock:
            self._pending.clear()
            with self._store.transaction():
                self._catch_up()
                yield
            # Taken in only when it is on disk: a failed transaction leaves no trace in memory.
            for entry in self._pending:
                self._state.add(entry)

    def _catch_up(self) -> None:
        seq, digest = self._state.head
        rows = self._store.entries(max(seq, 1))
        if seq > 0:
            mine = next(rows, None)
            if mine is None or mine.hash != digest:
                raise rolled_back(self.path, seq)
        for entry in rows:
            try:
                self._state.replay(entry)
            except VerificationError as error:
                raise VerificationError(
                    f"{self.path}: {error} Nothing can be spent. See: dpcohort ledger verify"
                ) from None
        count = read_counter(self._counter)
        check_counter(self.path, count, ledger=self._state.ledger, hashes=self._state.hashes)

    def _append(
        self,
        kind: str,
        body: dict[str, Any],
        *,
        output: bytes | None = None,
        is_done: bool = False,
        **where: Any,
    ) -> None:
        reading = _clock.machine_clock()
        entry = Entry.following(self._state.head, kind, {**body, **reading.to_dict()}, **where)
        self._state.check(entry)
        if kind == "reserve" and not is_done:
            self._check_cap(DrawKey(**where), reading)
        self._store.append(entry, output)
        self._pending.append(entry)

    def _check_cap(self, key: DrawKey, reading: ClockReading) -> None:
        """Refuse a draw that exceeds the cap in the window that ends now, or by a wrong clock."""
        state, report = self._state, key.is_report
        cap, account = state.cap(key.dataset), state.account(key.dataset, key.run)
        clock = state.clock.after(reading)
        if cap.per.is_timed or account.terms.is_timed:
            state.clock.check_not_behind(reading, str(key))
        check_cap(
            self._certified,
            key.dataset,
            cap,
            state.counted_within(key.dataset, cap.per, clock.age),
            key.run,
            report=report,
            left=account.terms.draws - len(account.draws),
            again=lambda: state.possible_again(key.dataset, key.run, clock, report=report),
        )

    def _keep_time(self, key: DrawKey) -> None:
        """Keep the date at which a draw was refused, so that a clock set back does not allow it."""
        with self._writing():
            cap, account = self._state.cap(key.dataset), self._state.account(key.dataset, key.run)
            known = self._state.clock
            now = known.after(_clock.machine_clock())
            is_news = now.day > known.day or now.latest > known.latest + _SELDOM
            if is_news and (cap.per.is_timed or account.terms.is_timed):
                self._append("clock", {})
        self._advance(durable=False)

    def _settle(self, row: int) -> None:
        """See that the counter is on disk before the output of this row goes out again.

        Inside a transaction. It is not if the disk refused it when the draw was released.
        """
        if row > self._settled:
            advance_counter(self._counter, self._state.count)
            self._settled = self._state.head[0]

    def _advance(self, *, durable: bool = True) -> None:
        """Bring the counter up to the last row, before anybody acts on it.

        After the transaction, not in it: a crash in between leaves the ledger ahead of its
        counter, which is harmless; the other way round it would look rolled back.
        """
        with self._lock, self._store.transaction():
            advance_counter(self._counter, self._state.count, durable=durable)
            if durable:
                self._settled = self._state.head[0]
