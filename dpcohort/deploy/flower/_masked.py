# SPDX-License-Identifier: Apache-2.0
"""A round whose noise is distributed, over any transport: the server's part of masked sums.

Two exchanges where nobody vanishes: masked vectors, then shares of the masks. Where some vanish
before the first is over, those who are left are asked in between to agree on who they are. Who is
left depends on who answered, never on what was sent; if fewer are left than the clients' owners
count on, no guard unmasks and the round is passed over. All draws stay counted.

Messages are one frame of the guard's protocol behind a line; the client app carries them as it
carries draws (:mod:`dpcohort.deploy.secure_aggregation` has the protocol).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from dpcohort._validate import IntArray
from dpcohort.deploy.flower._exchange import Exchange
from dpcohort.deploy.flower._messages import (
    Signers,
    distributed_message,
    guard_answered,
    longest_sum,
    read_frames,
    refusal_words,
)
from dpcohort.deploy.guard._protocol import (
    Agreement,
    AgreeRequest,
    CardRequest,
    MaskedRequest,
    MaskedUpdate,
    MemberCard,
    Message,
    Refusal,
    RevealRequest,
    RunReceipt,
    Shares,
)
from dpcohort.deploy.ledger._terms import AcceptedGroup
from dpcohort.deploy.secure_aggregation import MaskedRound, MaskedSum
from dpcohort.errors import DpcohortError, InputError
from dpcohort.plain_text import one_line
from dpcohort.signatures import Card, DrawSignature

Wanted = TypeVar("Wanted", bound=Message)


#: A line of ``exchange.jsonl`` that is being written.
Line = dict[str, Any]


def ask_cards(
    exchange: Exchange,
    clients: Sequence[str],
    pool: AcceptedGroup,
    *,
    run: str,
    plan: str,
    line: Line,
) -> dict[str, Card]:
    """The signed keys of clients for a run; of those who answer with their own.

    Args:
        exchange: asks clients over a transport.
        clients: whose.
        pool: who they are.
        run: name of the run.
        plan: SHA-256 of its plan.
        line: told why there is no key of a client (``lost``).
    """
    requests = {client: CardRequest(run=run) for client in clients}
    came = _ask(exchange, requests, MemberCard, "cards", line, {})
    found: dict[str, Card] = {}
    for client, answer in came.items():
        with _noted(line, client):
            found[client] = checked_card(client, answer.to_dict(), pool, run=run, plan=plan)
    return found


def checked_card(client: str, said: object, pool: AcceptedGroup, *, run: str, plan: str) -> Card:
    """A member's key, if it is its own for this run and plan.

    Raises:
        InputError: it is no card, of another member, or not signed by this one.
    """
    if not isinstance(said, Mapping):
        raise InputError.because("this is no card.")
    card = Card(**MemberCard(**said).to_dict())
    if card.member != client:
        raise InputError("member", given=card.member, allowed=client)
    card.check(pool.members, run=run, plan=plan)
    return card


def masked_round(
    exchange: Exchange,
    asked: MaskedRound,
    requests: Mapping[str, MaskedRequest],
    records: Mapping[str, int],
    line: Line,
    receipts: dict[str, RunReceipt],
    signers: Signers,
    signatures: list[DrawSignature],
) -> IntArray | None:
    """Ask a cohort for its masked sum, and unmask it.

    Args:
        exchange: asks clients over a transport.
        asked: the round.
        requests: what each member is asked.
        records: each member's size.
        line: told how many ``came`` into the sum and were ``resent``, whether the round is
            ``passed_over``, why there is nothing of a client, or no sum (``lost``), and what went
            wrong on the way (``errors``).
        receipts: told what clients' ledgers said.
        signers: whose keys sign masked vectors.
        signatures: told the signatures of accepted ones.

    Returns:
        The sum of the integers of those who are left; None if it could not be unmasked.
    """
    server, group = MaskedSum(asked), str(asked.round)
    came = _ask(exchange, requests, MaskedUpdate, group, line, receipts)
    for client, update in came.items():
        with _noted(line, client):
            if (update.run, update.round, update.draw) != (asked.run, asked.round, 0):
                raise InputError.because("a masked vector of another draw")
            signature = update.statement(client)
            fault = signers.fault(signature)
            if fault is not None:
                raise InputError.because(fault)
            server.take(asked.unpacked(client, update.masked, update.data))
            signatures.append(signature)
            line["resent"] += update.resent
    try:
        left = server.close()
    except InputError as error:
        line["lost"].setdefault("all", {0: str(error)})
        return None
    if server.needs_agreement:
        said = {c: AgreeRequest(**_said(server, requests[c])) for c in left}
        agreed = _ask(exchange, said, Agreement, f"{group}-left", line, receipts)
        for client, answer in agreed.items():
            with _noted(line, client):
                server.agreed(client, answer.signature)
        if not server.is_agreed:
            line["lost"]["all"] = {0: "too few agreed on who is left"}
            return None
    wanted = {
        client: RevealRequest(
            **_said(server, requests[client]),
            certificate=server.certificate,
            data=server.sealed_for(client),
        )
        for client in left
    }
    shares = _ask(exchange, wanted, Shares, f"{group}-masks", line, receipts)
    for client, part in shares.items():
        with _noted(line, client):
            server.take_shares(client, part.data)
    if not server.is_open:
        line["lost"]["all"] = {0: "too few gave shares of the masks"}
        return None
    try:
        total = server.total()
    except InputError as error:
        line["lost"]["all"] = {0: str(error)}
        return None
    honest = asked.pool.honest
    if np.linalg.norm(total.astype(np.float64)) > longest_sum(
        [requests[client] for client in left], [records[client] for client in left], honest=honest
    ):
        line["lost"]["all"] = {0: "the sum is longer than any that these members can give"}
        return None
    line["came"], line["passed_over"] = len(left), False
    return total


def _said(server: MaskedSum, request: MaskedRequest) -> dict[str, Any]:
    same = request.model_dump(include=set(AgreeRequest.model_fields))
    return {**same, "survivors": list(server.signed), "signed": server.signed}


@contextmanager
def _noted(line: Line, client: str) -> Iterator[None]:
    """Note what is wrong with a thing that a client sent; it counts as lost."""
    try:
        yield
    except InputError as error:
        line["lost"][client] = {0: one_line(str(error))}


def _ask(
    exchange: Exchange,
    requests: Mapping[str, Message],
    wanted: type[Wanted],
    group: str,
    line: Line,
    receipts: dict[str, RunReceipt],
) -> dict[str, Wanted]:
    """Ask each client one thing; the answers of those who gave one."""
    messages = {client: distributed_message(client, one) for client, one in requests.items()}
    heard = exchange.ask(messages, group=group, satisfied=guard_answered)
    found: dict[str, Wanted] = {}
    for client, answers in heard.items():
        if answers.errors:
            line["errors"].setdefault(client, []).extend(answers.errors)
        words = answers.reason
        for body in answers.bodies:
            try:
                for frame in read_frames(body):
                    if isinstance(frame, wanted):
                        found[client] = frame
                    elif isinstance(frame, RunReceipt):
                        receipts[client] = frame
                    elif isinstance(frame, Refusal):
                        words = refusal_words(frame)
            except DpcohortError as error:
                words = f"the answer cannot be read: {one_line(str(error))}"
        if client not in found:
            line["lost"][client] = {0: words}
    return found
