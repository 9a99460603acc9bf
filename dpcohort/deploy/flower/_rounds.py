# SPDX-License-Identifier: Apache-2.0
"""The server's rounds: a plan executed by clients over any transport.

The loop is that of every training (:mod:`dpcohort.runs._training`); here is its trainer: send each
drawn client one message with all its draws, and check what comes. A draw that is lost is lost:
nobody is drawn in its place, because the plan's noise was calibrated for exactly these draws. What
came is combined as a smaller cohort; if less than the quorum came, the model stays as it was. Both
depend on who answered, never on what an update contains.

The reports from which an adaptive rule chooses are asked for in the same way, and guards answer
them as they answer draws. Where noise is distributed, a round is a masked sum (:mod:`masked`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpcohort._validate import FloatArray, IntArray
from dpcohort.adaptive._rule import REPORT_DRAW
from dpcohort.aggregation import Cohort
from dpcohort.atomic_file import owner_only
from dpcohort.deploy.flower._exchange import Exchange, Heard, Tell, Transport
from dpcohort.deploy.flower._federation import Federation, check_agreements, disagreements
from dpcohort.deploy.flower._masked import ask_cards, checked_card, masked_round
from dpcohort.deploy.flower._messages import (
    Reply,
    Signers,
    draw_message,
    guard_answered,
    hello_message,
    read_draws,
    read_hello,
)
from dpcohort.deploy.flower._record import (
    FederatedJob,
    read_said,
    read_signatures,
    write_exchange,
    write_said,
    write_signatures,
)
from dpcohort.deploy.guard._protocol import (
    DrawRequest,
    EvaluationRequest,
    Hello,
    MaskedEvaluationRequest,
    MaskedRequest,
    ReportRequest,
    RunReceipt,
)
from dpcohort.deploy.guard._terms import evaluation_group
from dpcohort.deploy.ledger._terms import AcceptedGroup
from dpcohort.deploy.secure_aggregation import MaskedRound
from dpcohort.engine import CohortUpdates, EngineState
from dpcohort.errors import InputError, VerificationError
from dpcohort.runs import Callback, Run
from dpcohort.runs._folder import SIGNATURES
from dpcohort.runs._paid_evaluation import EvaluationTerms, Group
from dpcohort.runs._recorder import Recorder, closing
from dpcohort.runs._training import run_rounds
from dpcohort.signatures import Card, DrawSignature


def federate(
    federation: Federation,
    transport: Transport,
    *,
    out: str | Path,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    poll: float = 0.5,
    by_place: bool = False,
    after: str | Path | None = None,
    tell: Tell = lambda group, waiting, answered: None,
) -> Run:
    """Execute a plan with the clients behind a transport.

    Args:
        federation: plan, model, clients and their keys.
        transport: reaches the clients' nodes.
        out: the run folder.
        resume: go on with the run in ``out``. Rounds that were asked for and not kept are asked for
            again by the same names; guards send their stored updates.
        callbacks: told about every round.
        poll: seconds between looks for answers, at most.
        by_place: in a simulation, where nodes have no keys: any node serves any client.
        after: folder of the run that the plan goes on from, if it does.
        tell: told who is waited for.

    Returns:
        The finished run.

    Raises:
        InputError: a client is not there at the start, or its terms do not cover the plan; nothing
            is spent then.
    """
    keys = federation.fingerprints
    if by_place:
        places = max(1, len(transport.nodes()))
        keys = {client: str(i % places) for i, client in enumerate(federation.drawn)}
    limits: Any = {"timeout": federation.timeout, "attempts": federation.attempts}
    limits["revoked"] = federation.revoked
    exchange = Exchange(transport, keys, **limits, poll=poll, tell=tell)
    job, folder = FederatedJob.of(federation, after), Path(out)
    evaluator = job.evaluator()
    trainer, step = GuardTrainer(job, exchange), (job.aggregation, job.optimiser)
    with owner_only():
        trainer.check_terms(resume=resume and (folder / "run.json").exists())
        _ = trainer.job.evaluation  # refused before anything is spent
        with trainer.recorded(folder, resume=resume) as part:
            run_rounds([part], trainer, [step], evaluator=evaluator, callbacks=tuple(callbacks))
    return part.run


class GuardTrainer:
    """The clients of a federation as a trainer: their guards compute a round's updates.

    Args:
        job: the training, with plan, model and clients.
        exchange: asks clients over a transport.
    """

    _run: Run

    def __init__(self, job: FederatedJob, exchange: Exchange) -> None:
        self._federation, self.job, self._plan = job.federation, job, job.plan
        self._exchange = exchange
        self._model, self._layout = job.federation.model.sha256(), job.layout
        self._receipts: dict[str, RunReceipt] = {}
        self._pool, self._cards = job.federation.pool, dict[str, Card]()
        run, plan = job.federation.run, job.plan.sha256
        self._signers = Signers(job.federation.members, run=run, plan=plan)
        self._signed = set[DrawSignature]()
        self._versions: dict[str, str] = {}

    @contextmanager
    def recorded(self, out: Path, *, resume: bool) -> Iterator[Recorder]:
        """The run in its folder, where it begins or goes on; its files are closed with the block.

        Args:
            out: the run folder.
            resume: go on with the run in that folder; without one there, begin it.
        """
        part = Recorder(self.job, out, resume=resume)
        self._run = part.run
        with closing([part]):
            part.begin(EngineState(self.job.initial()))
            if not part.run.is_finished:  # else it is sealed
                write_said(part.run, {c: {"dpcohort": one} for c, one in self._versions.items()})
            for signature in read_signatures(self._run):
                if (fault := self._signers.fault(signature)) is not None:
                    raise VerificationError(f"{self._run.path}/{SIGNATURES}: {fault}.")
                self._signed.add(signature)
            if self._pool is not None:
                self._find_cards(self._pool, self._federation.drawn)
            yield part

    def updates(
        self, parameters: Sequence[torch.Tensor], cohorts: Sequence[Cohort]
    ) -> list[CohortUpdates | None]:
        """The updates that came; None where they are fewer than the quorum.

        Where noise is distributed there is one, of all who are left.
        """
        (vector,), (cohort,) = parameters, cohorts
        if self._pool is not None:
            return [self._distributed(self._pool, vector, cohort)]
        requests, quorum = self._requests(cohort, vector), self._federation.quorum * len(cohort)
        named = list(zip(self._names(cohort), cohort.draws.tolist(), strict=True))
        draws = {client: [draw for name, draw in named if name == client] for client in requests}
        replies, heard = self._ask(
            requests,
            draws,
            group=str(cohort.round),
            enough=lambda answered: sum(len(draws[client]) for client in answered) >= quorum,
        )
        rows = [i for i, (name, draw) in enumerate(named) if draw in replies[name].updates]
        enough = len(rows) >= quorum
        summary = _summary(cohort.round, len(cohort), replies, heard, passed_over=not enough)
        write_exchange(self._run, summary, self._receipts)
        if not enough:
            return [None]
        came = [replies[name].updates[draw] for name, draw in (named[i] for i in rows)]
        return [CohortUpdates(_part(cohort, rows), torch.from_numpy(np.stack(came)))]

    def _distributed(
        self, pool: AcceptedGroup, vector: torch.Tensor, cohort: Cohort
    ) -> CohortUpdates | None:
        """The step of a round whose noise is distributed; None where its sum was not unmasked."""
        plan, requests = self._plan, self._requests(cohort, vector)
        total, line, signatures = self._masked(pool, requests, MaskedRequest, len(cohort))
        write_exchange(self._run, line, self._receipts)
        self._keep(signatures)
        if total is None:
            return None
        # In units of share C / 2^e; of those who are left, as of a smaller cohort.
        unit = math.ldexp(plan.noise.share * plan.training.clip, -pool.exponent)
        alpha = next(iter(requests.values())).step_sizes[0]
        step = torch.from_numpy(total.astype(np.float64) * (alpha * unit / line["came"]))
        return CohortUpdates(_part(cohort, [0]), step.float()[None])

    def _masked(
        self,
        pool: AcceptedGroup,
        requests: Mapping[str, DrawRequest],
        kind: type[MaskedRequest],
        asked: int,
    ) -> tuple[IntArray | None, dict[str, Any], list[DrawSignature]]:
        """The sum of a cohort on its lattice, if it was unmasked; what came to pass; signatures."""
        names, one = list(requests), next(iter(requests.values()))
        lost = self._find_cards(pool, [name for name in names if name not in self._cards])
        signatures: list[DrawSignature] = []
        line = _summary(one.round, asked, {}, {}, passed_over=True)
        line["lost"] = {name: {0: f"no key: {lost[name][0]}"} for name in lost}
        total: IntArray | None = None
        if not line["lost"]:
            cards = [self._cards[name] for name in names]
            said: Any = {"exponent": pool.exponent, "modulus_bits": pool.modulus_bits}
            where: Any = {"run": one.run, "plan": one.plan, "round": one.round}
            masked_sum = MaskedRound(pool, cards, **where, **said, coordinates=one.numbers)
            said["cards"] = [list(card) for card in cards]
            masked = {name: kind(**dict(each), **said) for name, each in requests.items()}
            total = masked_round(
                self._exchange,
                masked_sum,
                masked,
                {name: self._records(name, each) for name, each in requests.items()},
                line,
                self._receipts,
                self._signers,
                signatures,
            )
            # A guard that does not know the key it is asked with may have another one by now.
            for name in [one for one, why in line["lost"].items() if why[0].startswith("terms:")]:
                self._cards.pop(name, None)
        line["lost"] = dict(sorted(line["lost"].items()))
        return total, line, signatures

    def _records(self, client: str, request: DrawRequest) -> int:
        """How many records an answer adds up at most."""
        if isinstance(request, EvaluationRequest):
            return request.tested
        people = self._plan.population
        return int(people.sizes[people.index_of(client)])

    def _keep(self, signatures: Iterable[DrawSignature]) -> None:
        """Write down signatures, but of draws that came before the server was killed."""
        new = [signature for signature in signatures if signature not in self._signed]
        write_signatures(self._run, new)
        self._signed.update(new)

    def _find_cards(self, pool: AcceptedGroup, clients: Sequence[str]) -> dict[str, dict[int, str]]:
        """Ask members for their signed keys; why there is none of some.

        Who gives none has the one that it gave before, also to a server that was killed since.
        """
        if not clients:
            return {}
        where: Any = {"run": self._federation.run, "plan": self._plan.sha256}
        line: Any = {"lost": {}, "errors": {}}
        found = ask_cards(self._exchange, clients, pool, **where, line=line)
        write_said(self._run, {client: {"card": card._asdict()} for client, card in found.items()})
        said = read_said(self._run)
        for client in [one for one in clients if one not in found and one in said]:
            with suppress(InputError):
                found[client] = checked_card(client, said[client].get("card"), pool, **where)
        self._cards |= found
        return {client: why for client, why in line["lost"].items() if client not in found}

    def reports(
        self, round: int, clients: Sequence[int], parameters: torch.Tensor
    ) -> dict[int, float]:
        """The noisy reports that came of these clients on this model, by position.

        Who does not answer has none; one that its guard has counted stays counted.
        """
        plan, terms = self._plan, self._plan.reports.terms
        if terms is None:
            raise InputError.because(f"the rule {plan.rule} has no reports.")
        sizes = plan.batch_sizes if terms.mini_batch else plan.population.sizes
        requests: dict[str, DrawRequest] = {
            plan.population.ids[k]: ReportRequest(
                **self._shared(round, parameters),
                draw=REPORT_DRAW,
                clip=terms.half_range,
                noise_multiplier=float(plan.reports.multipliers[k]),
                sampling_rate=float(plan.report_rates[k]),
                batch_size=int(sizes[k]),
                local_steps=1,
                step_sizes=[1.0],
                statistic=terms.statistic,
            )
            for k in clients
        }
        draws = {client: [REPORT_DRAW] for client in requests}
        replies, heard = self._ask(requests, draws, group=f"{round}-reports")
        summary = {**_summary(round, len(requests), replies, heard), "of_reports": True}
        write_exchange(self._run, summary, self._receipts)
        return {
            plan.population.index_of(client): terms.half_range + float(value)
            for client, reply in replies.items()
            for (value,) in reply.updates.values()
        }

    def noised_sums(
        self, terms: EvaluationTerms, parameters: torch.Tensor
    ) -> dict[Group, FloatArray]:
        """The noised sums over test records of the clients that answer, by their positions."""
        plan, round = self._plan, self._plan.training.rounds
        given: Any = zip(terms.names, terms.records.tolist(), terms.noise.tolist(), strict=True)
        asked = {
            name: EvaluationRequest(
                **self._shared(round, parameters),
                draw=0,
                clip=1.0,
                noise_multiplier=noise,
                sampling_rate=1.0,
                batch_size=1,
                local_steps=1,
                step_sizes=[1.0],
                tested=records,
                answers=len(terms.questions.weights),
            )
            for name, records, noise in given
        }
        found: dict[Group, FloatArray] = {}
        for group in (one for one in terms.groups if len(one) > 1):
            left, total = self._summed([asked[terms.names[i]] for i in group], terms, group)
            if total is not None:
                found[left] = total
        requests: dict[str, DrawRequest] = {
            terms.names[group[0]]: asked[terms.names[group[0]]]
            for group in terms.groups
            if len(group) == 1
        }
        if not requests:
            return found
        replies, heard = self._ask(
            requests, {client: [0] for client in requests}, group=f"{round}-alone"
        )
        summary = {**_summary(round, len(requests), replies, heard), "of_reports": True}
        write_exchange(self._run, summary, self._receipts)
        return found | {
            (plan.population.index_of(client),): value.astype(np.float64)
            for client, reply in replies.items()
            for value in reply.updates.values()
        }

    def _summed(
        self, asked: Sequence[EvaluationRequest], terms: EvaluationTerms, group: Sequence[int]
    ) -> tuple[Group, FloatArray | None]:
        """Who of a group is left in its masked sum, by position, and the sum if there is one."""
        plan, names = self._plan, [terms.names[i] for i in group]
        place = plan.population.index_of
        pool = evaluation_group(plan, self._federation.members, place(names[0]))
        assert pool is not None
        total, line, signatures = self._masked(
            pool, dict(zip(names, asked, strict=True)), MaskedEvaluationRequest, len(names)
        )
        write_exchange(self._run, {**line, "of_reports": True}, self._receipts)
        self._keep(signatures)
        here = {signature.client for signature in signatures}
        left = [i for i in group if terms.names[i] in here]
        if total is None:
            return (), None
        unit = math.ldexp(float(terms.shares[left].min()), -pool.exponent)
        return tuple(terms.clients[left].tolist()), unit * total.astype(np.float64)

    def check_terms(self, *, resume: bool) -> None:
        """Ask every drawn client's guard what its owner accepted; nothing is spent by that."""
        messages = {c: hello_message(c, run=self._federation.run) for c in self._federation.drawn}
        heard = self._exchange.ask(messages, group="terms", satisfied=guard_answered)
        problems: dict[str, list[str]] = {}
        tested: dict[str, int] = {}
        for client, answers in heard.items():
            if answers.bodies:
                hello = read_hello(answers.bodies[-1])
                self._versions[client] = getattr(hello, "dpcohort", "")
                problems[client] = disagreements(self.job, client, hello, resume=resume)
                if isinstance(hello, Hello):
                    tested[client] = hello.tested
            elif not resume:  # a run that goes on may have lost a client
                problems[client] = ["no answer: " + "; ".join(answers.errors[-2:])]
        check_agreements(problems)
        asking: Any = {"ask": self.reports, "evaluate": self.noised_sums}
        self.job = dataclasses.replace(self.job, **asking, tested_at=tested)

    def _requests(self, cohort: Cohort, parameters: torch.Tensor) -> dict[str, DrawRequest]:
        """What each client of a cohort is asked; its draws differ in their number alone."""
        plan = self._plan
        shared, steps = self._shared(cohort.round, parameters), range(plan.training.local_steps)
        alpha = partial(self.job.optimiser.step_size, plan.training, round=cohort.round)
        found: dict[str, DrawRequest] = {}
        for k in sorted(set(cohort.clients.tolist())):
            found[plan.population.ids[k]] = DrawRequest(
                **shared,
                draw=0,
                clip=float(plan.training.clip),
                noise_multiplier=float(plan.noise_multipliers[k]),
                sampling_rate=float(plan.sampling_rates[k]),
                batch_size=int(plan.batch_sizes[k]),
                local_steps=len(steps),
                step_sizes=[float(alpha(step=step)) for step in steps],
            )
        return found

    def _shared(self, round: int, parameters: torch.Tensor) -> dict[str, Any]:
        """What all requests of a round say."""
        return {
            "run": self._federation.run,
            "plan": self._plan.sha256,
            "round": round,
            "sampler": self._plan.contract.sampler.name,
            "neighbours": self._plan.contract.neighbours,
            "model": self._model,
            "layout": self._layout,
            "vector": parameters.detach().cpu().numpy().astype(np.float32),
        }

    def _ask(
        self,
        requests: Mapping[str, DrawRequest],
        draws: Mapping[str, list[int]],
        *,
        group: str,
        enough: Callable[[Collection[str]], bool] = lambda answered: True,
    ) -> tuple[dict[str, Reply], dict[str, Heard]]:
        replies = {client: Reply() for client in requests}

        def read(client: str, body: bytes) -> bool:
            asked: Any = {"draws": draws[client], "earlier": replies[client]}
            records = self._records(client, requests[client])
            asked |= {"signers": self._signers, "client": client, "records": records}
            return not read_draws(body, requests[client], **asked).passing

        messages = {c: draw_message(c, requests[c], draws=draws[c]) for c in requests}
        heard = self._exchange.ask(messages, group=group, satisfied=read, enough=enough)
        for client, reply in replies.items():
            if not heard[client].bodies:
                reply.losses = dict.fromkeys(draws[client], heard[client].reason)
            if reply.receipt is not None:
                self._receipts[client] = reply.receipt
            self._keep(reply.signatures)
        return replies, heard

    def _names(self, cohort: Cohort) -> list[str]:
        """Whose draws they are, in their order."""
        return [self._plan.population.ids[k] for k in cohort.clients.tolist()]


def _part(cohort: Cohort, rows: list[int]) -> Cohort:
    """The draws that came, as a cohort of their own."""
    of_draws = ("clients", "draws", "noise_multipliers", "batch_sizes", "noise_stds")
    return Cohort(round=cohort.round, **{name: getattr(cohort, name)[rows] for name in of_draws})


def _summary(
    t: int,
    asked: int,
    replies: Mapping[str, Reply],
    heard: Mapping[str, Heard],
    *,
    passed_over: bool = False,
) -> dict[str, Any]:
    """What a round's messages came to, as the recorder writes it down."""
    return {
        "round": t,
        "asked": asked,
        "came": sum(len(reply.updates) for reply in replies.values()),
        "resent": sum(len(reply.resent) for reply in replies.values()),
        "passed_over": passed_over,
        "lost": {client: reply.losses for client, reply in replies.items() if reply.losses},
        "errors": {client: found.errors for client, found in heard.items() if found.errors},
    }
