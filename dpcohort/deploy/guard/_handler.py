# SPDX-License-Identifier: Apache-2.0
"""The guard's decision about one request: within the owner's terms or not, and then in this order.

Check, count, compute, store, answer. A draw is on disk as spent before a record is looked at; its
update is on disk before it leaves; asked for again it is what is on disk. A draw that was counted
and has no update is lost and is not computed again. Nothing a request says is taken as true: rate,
batch and records are the owner's, the noise is checked against terms whose (ε, δ) the guard has
computed itself. A report is a draw of one step on clipped losses and goes the same way, where the
owner has accepted reports.

So does a draw whose noise is distributed. Its noise is a share of what its promise needs, so it
leaves under masks only (:mod:`dpcohort.deploy.secure_aggregation`); for which set of members they
are taken off is in the ledger before a share of a mask leaves, and is never another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from dpcohort._version import __version__
from dpcohort.accounting import Event
from dpcohort.accounting._samplers import sampler_of
from dpcohort.adaptive._rule import REPORT_DRAW
from dpcohort.deploy.guard._protocol import (
    PROTOCOL,
    Agreement,
    AgreeRequest,
    CardRequest,
    DrawRequest,
    DrawUpdate,
    EvaluationRequest,
    Hello,
    HelloRequest,
    MaskedRequest,
    MaskedUpdate,
    MemberCard,
    Message,
    ReceiptRequest,
    Refusal,
    Released,
    ReportRequest,
    RevealRequest,
    RunReceipt,
    Shares,
)
from dpcohort.deploy.guard._terms import GuardTerms, ModelTerms
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.deploy.ledger import ClientLedger, DrawKey, RunTerms
from dpcohort.deploy.ledger._terms import Purpose, evaluation_of
from dpcohort.deploy.secure_aggregation import Identity, MaskedRound, Member
from dpcohort.deploy.secure_aggregation._protocol import sealed_bytes
from dpcohort.engine import Lattice
from dpcohort.engine._lattice import LARGEST_NOISE, SMALLEST_NOISE, delta_of_sampling
from dpcohort.errors import BudgetExceededError, DpcohortError, InputError
from dpcohort.runs._noised_metrics import questions_of
from dpcohort.signatures import Card

#: A server's step sizes; larger ones help nobody and overflow.
_LARGEST_STEP = 1e6
#: Rates are quotients of whole numbers; two ways to write one differ by less than this.
#: Bytes of a request's hash; and of that of a masked vector with its signature.
_DIGEST, _SIGNATURE = 32, 96


class RefusedError(Exception):
    """Carries a refusal to where the answer is made."""

    def __init__(
        self, code: str, message: str, *, counted: bool = False, cause: str | None = None
    ) -> None:
        super().__init__(message)
        self.refusal = Refusal(code=code, message=message, counted=counted)
        self.cause = cause  # for the owner's log, not for the server


@contextmanager
def within_terms(*, counted: bool = False) -> Iterator[None]:
    """What is not as the client's owner has accepted it is refused, in the words of the check."""
    try:
        yield
    except (InputError, BudgetExceededError) as error:
        raise RefusedError("terms", str(error), counted=counted) from None


def check_with_sampling(terms: RunTerms, dimension: int) -> None:
    """Refuse terms that keep their (ε, δ) only if the noise were drawn without any error.

    Raises:
        BudgetExceededError: see :func:`~dpcohort.engine._lattice.delta_of_sampling`.

    Example:
        >>> terms = RunTerms(epsilon=2.0, delta=1e-5, clip=1.0, sampling_rate=0.1, local_steps=1,
        ...                  rounds=60, draws=60, least_noise_multiplier=2.0)
        >>> check_with_sampling(terms, 26_010)
    """
    draws, reports = terms.most
    spent = terms.history(draws, reports).delta(terms.epsilon)
    # Of a report one number is drawn.
    # The noise of every member is drawn with that error.
    drawn = (dimension * draws * terms.local_steps + reports) * terms.trust.cohort_size
    if not spent + delta_of_sampling(terms.epsilon, drawn, 1) <= terms.delta:
        raise BudgetExceededError(
            f"{terms.draws} draws of {terms.local_steps} steps at noise multiplier "
            f"{terms.least_noise_multiplier:g} do not certify epsilon {terms.epsilon:g} at delta "
            f"{terms.delta:g}, the noise being drawn with an error of 2^-130. Ask for more noise "
            "or fewer draws, or, above epsilon 60, for a smaller epsilon."
        )


def numbers_of(terms: RunTerms, model: ModelTerms, dimension: int) -> int:
    """How many numbers an answer has: those of an update, or of the sums of an evaluation.

    Args:
        terms: of the run.
        model: that is trained.
        dimension: of the model.
    """
    if terms.purpose == "training":
        return dimension
    return len(questions_of(model.predicts).weights)


class GuardHandler:
    """Answers requests, one at a time.

    Args:
        terms: what the owner says.
        records: number of the owner's records.
        ledger: the owner's ledger, with the data set registered.
        trainer: computes updates.
        identity: signs what is released; who the client is in cohorts with distributed noise.
        tested: number of records that are held out for tests.
        log: told, for the owner, why the ledger or the training failed.
    """

    def __init__(
        self,
        terms: GuardTerms,
        *,
        records: int,
        ledger: ClientLedger,
        trainer: LocalTraining,
        identity: Identity,
        tested: int = 0,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.terms, self.records, self.tested, self._log = terms, records, tested, log
        self._identity = identity
        self._ledger, self._trainer = ledger, trainer
        self._plans = {one.run: one.plan for one in terms.runs}
        self._model = terms.model.sha256()
        self._certified: set[str] = set()
        self._spent: tuple[object, list[dict[str, Any]]] = (None, [])

    @property
    def key(self) -> str:
        """Ed25519 public key by which what it releases is signed."""
        return self._identity.public

    @property
    def largest_payload(self) -> int:
        """Bytes of the model's parameters, or of a cohort's sealed shares; no request is longer."""
        groups = [group for run in self.terms.runs for group in run.trust.groups]
        sealed = (sealed_bytes(group.cohort_size) for group in groups)
        return max([4 * self._trainer.dimension, *sealed])

    def answer(self, message: Any) -> Message:
        """The answer to a request; a refusal says why and holds nothing of a record."""
        try:
            if isinstance(message, HelloRequest):
                return self._hello(message)
            if isinstance(message, ReceiptRequest):
                return self._receipt(message)
            if isinstance(message, DrawRequest):
                return self._draw(message)
            if isinstance(message, CardRequest):
                member = self._member(message.run, self._accepted(message.run))
                return MemberCard(**member.card._asdict())
            if isinstance(message, AgreeRequest):
                return self._unmask(message)
        except RefusedError as refused:
            if refused.cause is not None:
                self._log(refused.cause)
            return refused.refusal
        return Refusal(code="malformed", message="this is not a request")

    def _hello(self, message: HelloRequest) -> Hello:
        if message.protocol != PROTOCOL:
            raise RefusedError("malformed", f"this guard speaks protocol {PROTOCOL}")
        accepted, counted = None, 0
        with _ledger_in_use():
            decision = self._ledger.decided(self.terms.dataset).get(message.run)
        try:
            terms = self._accepted(message.run)
        except RefusedError as refused:
            if refused.refusal.code != "not-accepted":
                raise
        else:
            said = {**terms.to_dict(), **terms.trust.greeting()}
            accepted = {**said, "batch_size": self._batch_size(terms)}
            with suppress(RefusedError):
                evaluation = self._evaluation(message.run)
                said = {**evaluation.to_dict(), **evaluation.trust.greeting()}
                accepted["evaluation"] = said
            spending = self._spending(message.run)[0]
            counted = spending["counted_draws"] + spending.get("reports", {}).get("counted", 0)
        return Hello(
            dpcohort=__version__,
            dataset=self.terms.dataset,
            records=self.records,
            persons=None if self.terms.persons is None else asdict(self.terms.persons),
            tested=self.tested,
            dimension=self._trainer.dimension,
            model=self._model,
            layout=self._trainer.layout,
            accepted=accepted,
            refused=None if decision is None or decision.accepted else decision.reason,
            plan=self._plans.get(message.run),
            counted=counted,
            key=self.key,
        )

    def _receipt(self, message: ReceiptRequest) -> RunReceipt:
        self._accepted(message.run)
        spending, whole = self._spending(message.run)
        return RunReceipt(
            dataset=whole.client,
            spending=spending,
            entries=whole.entries,
            head=whole.head,
            ledger=whole.ledger,
        )

    def spent(self) -> list[dict[str, Any]]:
        """What each run has spent, for the owner; asked again only where more was counted."""
        head = self._ledger.head
        if head != self._spent[0]:
            self._spent = head, list(self._ledger.receipt(self.terms.dataset).runs)
        return self._spent[1]

    def _spending(self, run: str) -> tuple[dict[str, Any], Any]:
        """The run's part of the receipt only: other runs are no business of this server."""
        with _ledger_in_use():
            whole = self._ledger.receipt(self.terms.dataset)
        runs = {one["run"]: one for one in whole.runs}
        evaluation = runs.get(evaluation_of(run))
        return runs[run] | ({} if evaluation is None else {"evaluation": evaluation}), whole

    @within_terms()
    def _member(self, run: str, accepted: RunTerms) -> Member:
        group, plan = accepted.trust.group(), self._plans.get(run)
        if plan is None:
            raise RefusedError("terms", "the client's owner has accepted no plan of this run")
        name, ledger = self.terms.dataset, self._ledger.id
        return Member(name, self._identity, group, run=run, plan=plan, ledger=ledger)

    @within_terms()
    def _round(
        self, request: MaskedRequest | AgreeRequest, accepted: RunTerms
    ) -> tuple[Member, MaskedRound]:
        """The member that the client is, and the round it is asked for, if it may take part."""
        accepted, _ = self._counted_as(request, accepted)
        member = self._member(request.run, accepted)
        if request.plan != member.plan:
            raise RefusedError("terms", f"the client's owner has accepted the plan {member.plan}")
        if not all(len(card) == 3 for card in request.cards):
            raise RefusedError("terms", "a card is a name, a key and a signature")
        said = request.model_dump(include={"run", "plan", "round", "exponent", "modulus_bits"})
        cards = [Card(*one) for one in request.cards]
        asked = MaskedRound(member.pool, cards, coordinates=self._numbers(accepted), **said)
        member.check(asked)
        return member, asked

    def _unmask(self, request: AgreeRequest) -> Agreement | Shares:
        """A signature on who is left, or shares of their masks; for one set in a round, ever."""
        accepted = self._accepted(request.run)
        member, asked = self._round(request, accepted)
        where: dict[str, Any] = {"run": request.run, "round": request.round}
        _, key = self._counted_as(request, accepted)
        with _ledger_in_use(counted=True):
            if self._ledger.fate(key) != "released":
                raise RefusedError("terms", "this client has not masked in that round")

        def commit(round: int, left: str) -> str:
            with _ledger_in_use(counted=True):
                return self._ledger.unmask(key, left)

        said = (asked, request.survivors, request.signed)
        with within_terms(counted=True):
            if isinstance(request, RevealRequest):
                data = member.reveal(*said, request.certificate, request.data, commit)
                return Shares(**where, data=data)
            return Agreement(**where, signature=member.agree(*said, commit))

    def _draw(self, request: DrawRequest) -> Released:
        accepted = self._accepted(request.run)
        key, event, lattice = self._checked(request, accepted)
        stored = self._stored(key, request)
        if stored is not None:
            return self._released(request, stored, resent=True)
        self._reserve(key, event, request.clip)
        try:
            output = self._computed(request, accepted, lattice)
        except Exception as error:  # whatever it says may be about a record
            raise RefusedError(
                "failed",
                f"the {key.what} could not be computed; it stays counted",
                counted=True,
                cause=f"training failed: {type(error).__name__}",
            ) from None
        with _ledger_in_use(counted=True):
            self._ledger.release(key, bytes.fromhex(request.sha256()) + output)
        return self._released(request, output, resent=False)

    def _released(self, request: DrawRequest, output: bytes, *, resent: bool) -> Released:
        """The stored bytes of a draw as its answer, signed."""
        named: Any = {**request.model_dump(include={"run", "round", "draw"}), "resent": resent}
        answer: Released
        if isinstance(request, MaskedRequest):
            masked, data = output[:_SIGNATURE].hex(), output[_SIGNATURE:]
            answer = MaskedUpdate(**named, masked=masked, data=data)
        else:
            vector = np.frombuffer(output, dtype="<f4").astype(np.float32)
            answer = DrawUpdate(**named, vector=vector)
        client, sign = self.terms.dataset, self._identity.sign_bytes
        return answer.signed(client, request.plan, key=self.key, sign=sign)

    def _computed(self, request: DrawRequest, accepted: RunTerms, lattice: Lattice) -> bytes:
        """What may leave: an update with all of its noise, or a share of it under masks."""
        terms, _ = self._counted_as(request, accepted)
        sampler = sampler_of(terms.sampler)
        sampling = (sampler, terms.sampling_rate, self._batch_size(terms))
        if isinstance(request, ReportRequest):
            asked = accepted.reporting.asked
            return self._trainer.report(request.vector, lattice, sampling, asked).tobytes()
        if isinstance(request, EvaluationRequest):
            noisy = self._trainer.evaluation(request.vector, lattice)
        elif isinstance(request, MaskedRequest):
            noisy = self._trainer.noisy_sum(request.vector, lattice, sampling)
        if isinstance(request, MaskedRequest):
            member, distributed = self._round(request, accepted)
            masked = member.mask(distributed, noisy)
            vector = masked.vector.astype("<u8").tobytes()
            return bytes.fromhex(masked.signature) + vector + masked.sealed
        if isinstance(request, EvaluationRequest):
            return (lattice.unit * noisy).astype("<f4").tobytes()
        steps = request.step_sizes
        return self._trainer.update(request.vector, lattice, sampling, steps).tobytes()

    def _accepted(self, run: str, purpose: Purpose = "training") -> RunTerms:
        if run in self.terms.closed_runs:
            raise RefusedError("not-accepted", "the client's owner has closed this run")
        with _ledger_in_use():
            terms = self._ledger.accepted(self.terms.dataset).get(run)
        if terms is None or terms.purpose != purpose:
            what = "this run" if purpose == "training" else "an evaluation of this run's model"
            raise RefusedError("not-accepted", f"the client's owner has not accepted {what}")
        if run not in self._certified:
            with within_terms():
                check_with_sampling(terms, self._numbers(terms))
            self._certified.add(run)
        return terms

    def _evaluation(self, run: str) -> RunTerms:
        """What the owner has accepted for the evaluation of a run's model."""
        return self._accepted(evaluation_of(run), "evaluation")

    def _numbers(self, terms: RunTerms) -> int:
        return numbers_of(terms, self.terms.model, self._trainer.dimension)

    def _counted_as(
        self, request: DrawRequest | AgreeRequest, accepted: RunTerms
    ) -> tuple[RunTerms, DrawKey]:
        """What a request must keep to, and the draw as which the ledger counts it.

        What is asked of the round after the last one is about the evaluation.
        """
        dataset, terms = self.terms.dataset, accepted
        if request.round == accepted.rounds:
            run = evaluation_of(request.run)
            with suppress(RefusedError):
                terms = self._evaluation(request.run)
                return terms, DrawKey(dataset=dataset, run=run, round=0, draw=0)
        if isinstance(request, ReportRequest):
            terms = accepted.of_reports()
        draw = request.draw if isinstance(request, DrawRequest) else 0
        return terms, DrawKey(dataset=dataset, run=request.run, round=request.round, draw=draw)

    def _batch_size(self, terms: RunTerms) -> int:
        """B of a run: the rate times the records, which must be a whole number."""
        size = sampler_of(terms.sampler).batch_size(terms.sampling_rate, self.records)
        if size is None:
            raise RefusedError(
                "terms",
                f"the accepted rate {terms.sampling_rate:.12g} is no whole number of this "
                "client's records; the terms are for other data",
            )
        return size

    @within_terms()
    def _checked(self, request: DrawRequest, accepted: RunTerms) -> tuple[DrawKey, Event, Lattice]:
        """The request as a draw, its event and its lattice, if all of it is within the terms."""
        terms, key = self._counted_as(request, accepted)
        is_evaluation = terms.purpose == "evaluation"
        if is_evaluation != isinstance(request, EvaluationRequest):
            raise RefusedError("terms", "a model is evaluated after the last round, where accepted")
        batch_size = 1 if is_evaluation else self._batch_size(terms)
        plan = self._plans.get(request.run)
        exactly: list[tuple[str, Any, Any]] = [
            ("plan", request.plan, plan or request.plan),
            ("model", request.model, self._model),
            ("layout", request.layout, self._trainer.layout),
            ("batch_size", request.batch_size, batch_size),
            ("local_steps", request.local_steps, terms.local_steps),
            ("number of parameters", request.vector.size, self._trainer.dimension),
            ("number of step sizes", len(request.step_sizes), terms.local_steps),
        ]
        if isinstance(request, ReportRequest):
            exactly += [
                ("draw", request.draw, REPORT_DRAW),
                ("statistic", request.statistic, accepted.reporting.statistic),
                ("clip", request.clip, terms.clip),  # losses are cut at the owner's bound
            ]
        elif isinstance(request, EvaluationRequest):
            exactly += [
                ("draw", request.draw, 0),
                ("tested", request.tested, self.tested),
                ("answers", request.answers, self._numbers(terms)),
                ("clip", request.clip, terms.clip),  # the length of a row, which nobody changes
            ]
            if not self.tested and not terms.trust.groups:
                raise RefusedError("terms", "this client has no test records")
        elif request.draw == REPORT_DRAW:
            raise RefusedError("terms", f"draw {REPORT_DRAW} is a report, not a draw")
        if isinstance(request, MaskedRequest):
            self._round(request, accepted)  # who is in it
            exactly += [
                ("draw", request.draw, 0),  # the one of a round: its masks are used once
                ("noise_multiplier", request.noise_multiplier, terms.least_noise_multiplier),
                ("clip", request.clip, terms.clip),
            ]
        else:
            terms.trust.refuse_single_updates()
        for field, asked, allowed in exactly:
            if asked != allowed:
                words = f"{allowed!r}, as the client's owner has accepted"
                next_step = "A server cannot change it."
                raise InputError(field, given=asked, allowed=words, next_step=next_step)
        if not np.isfinite(request.vector).all():
            raise RefusedError("terms", "the parameters hold numbers that are not finite")
        if not all(abs(alpha) <= _LARGEST_STEP for alpha in request.step_sizes):
            raise RefusedError("terms", f"step sizes must be at most {_LARGEST_STEP:g}")
        if not SMALLEST_NOISE <= request.noise_multiplier <= LARGEST_NOISE:
            message = f"noise_multiplier must be {SMALLEST_NOISE:g} to {LARGEST_NOISE:g}"
            raise RefusedError("terms", message)
        said = {"noise_multiplier", "sampling_rate", "sampler", "neighbours"}
        numbers = request.model_dump(include=said)
        sampler = sampler_of(numbers.pop("sampler")).over(request.local_steps)
        event = Event.of(**numbers, sampler=sampler, steps=request.local_steps)
        terms.check_request(event, clip=request.clip, round=key.round)
        return key, event, _lattice(request, terms)

    def _stored(self, key: DrawKey, request: DrawRequest) -> bytes | None:
        """The update of a draw done before, if this is the request it was done for."""
        with _ledger_in_use(counted=True):
            fate = self._ledger.fate(key)
            if fate == "new":
                return None
            if fate == "lost":
                raise RefusedError(
                    "lost",
                    f"this {key.what} was counted and its update was lost; it is not computed "
                    "again",
                    counted=True,
                )
            stored = self._ledger.output(key)
        if stored[:_DIGEST] != bytes.fromhex(request.sha256()):
            raise RefusedError(
                "other-request", f"this {key.what} was done for another request", counted=True
            )
        return stored[_DIGEST:]

    def _reserve(self, key: DrawKey, event: Event, clip: float) -> None:
        try:
            self._ledger.reserve(key, event, clip=clip)
        except BudgetExceededError as error:
            # Without the ledger's numbers: they would tell of the client's other runs.
            raise RefusedError(
                "exhausted",
                f"the {key.what}s accepted for this run, or the client's budget, are used up; "
                "nothing was spent",
                cause=str(error),
            ) from None
        except DpcohortError as error:
            # The row may be there although its counter is not: then the draw is counted.
            counted = True
            with suppress(DpcohortError):
                counted = self._ledger.fate(key) != "new"
            raise _ledger_trouble(error, counted=counted) from None


def _lattice(request: DrawRequest, terms: RunTerms) -> Lattice:
    """The integers of a draw: with all of its noise, or its share on the cohort's lattice."""
    own = request.noise_multiplier / math.sqrt(terms.trust.honest)
    return Lattice(own, request.clip, terms.trust.exponent)


@contextmanager
def _ledger_in_use(*, counted: bool = False) -> Iterator[None]:
    """What the ledger cannot do is told to its owner; the server learns that it failed."""
    try:
        yield
    except DpcohortError as error:
        raise _ledger_trouble(error, counted=counted) from None


def _ledger_trouble(error: Exception, *, counted: bool = False) -> RefusedError:
    state = "the draw stays counted" if counted else "nothing was spent"
    message = f"the client's ledger cannot be used now; {state}. Its owner's log says why"
    return RefusedError("ledger", message, counted=counted, cause=str(error))
