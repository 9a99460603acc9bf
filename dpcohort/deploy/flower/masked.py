# SPDX-License-Identifier: Apache-2.0
"""A round whose noise is pooled, over any transport: the server's part of masked sums.

Two exchanges where nobody vanishes: masked vectors, then shares of the masks. Where some vanish
before the first is over, those who are left are asked in between to agree on who they are. Who is
left depends on who answered, never on what was sent; if fewer are left than the clients' owners
count on, no guard unmasks and the round is passed over. All draws stay counted.

Messages are one frame of the guard's protocol behind a line; the client app carries them as it
carries draws (:mod:`dpcohort.deploy.pooled` has the protocol).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dpcohort._validate import IntArray
from dpcohort.deploy.flower.exchange import Exchange, Heard
from dpcohort.deploy.flower.messages import (
    guard_answered,
    pooled_message,
    read_frames,
    refusal_words,
)
from dpcohort.deploy.guard.protocol import (
    Agreement,
    AgreeRequest,
    CardRequest,
    MaskedRequest,
    MaskedUpdate,
    Message,
    PoolCard,
    Refusal,
    RevealRequest,
    RunReceipt,
    Shares,
)
from dpcohort.deploy.pooled import Card, PooledSum, PoolRound
from dpcohort.errors import DpcohortError, InputError
from dpcohort.plain_text import one_line

Wanted = TypeVar("Wanted", bound=Message)


@dataclass(kw_only=True, eq=False)
class MaskedRound:
    """What came of a round.

    Attributes:
        total: the sum of the integers of those who are left; None if it could not be unmasked.
        left: who they are.
        resent: those whose masked vectors came from their ledgers.
        lost: why there is nothing of a client, or no sum.
        errors: by client, what went wrong on the way.
        receipts: what clients' ledgers said.
    """

    total: IntArray | None = None
    left: list[str] = field(default_factory=list)
    resent: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    receipts: dict[str, RunReceipt] = field(default_factory=dict)


def ask_cards(exchange: Exchange, clients: Sequence[str], run: str) -> dict[str, Card]:
    """The signed keys of clients for a run; of those who answer."""
    requests = {client: CardRequest(run=run) for client in clients}
    found = _ask(exchange, requests, PoolCard, group="cards", into=MaskedRound())
    return {client: Card(**card.to_dict()) for client, card in found.items()}


def masked_round(
    exchange: Exchange, asked: PoolRound, requests: Mapping[str, MaskedRequest]
) -> MaskedRound:
    """Ask a cohort for its masked sum, and unmask it.

    Args:
        exchange: asks clients over a transport.
        asked: the round.
        requests: what each member is asked.
    """
    found, server, group = MaskedRound(), PooledSum(asked), str(asked.round)
    came = _ask(exchange, requests, MaskedUpdate, group=group, into=found)
    for client, update in came.items():
        with _noted(found, client):
            if (update.run, update.round, update.draw) != (asked.run, asked.round, 0):
                raise InputError.because("a masked vector of another draw")
            server.take(asked.unpacked(client, update.signature, update.data))
            if update.resent:
                found.resent.append(client)
    try:
        found.left = server.close()
    except InputError as error:
        found.lost.setdefault("all", str(error))
        return found
    if server.needs_agreement:
        said = {c: AgreeRequest(**_said(server, requests[c])) for c in found.left}
        agreed = _ask(exchange, said, Agreement, group=f"{group}-left", into=found)
        for client, answer in agreed.items():
            with _noted(found, client):
                server.agreed(client, answer.signature)
        if not server.is_agreed:
            found.lost["all"] = "too few agreed on who is left"
            return found
    wanted = {
        client: RevealRequest(
            **_said(server, requests[client]),
            certificate=server.certificate,
            data=server.sealed_for(client),
        )
        for client in found.left
    }
    shares = _ask(exchange, wanted, Shares, group=f"{group}-masks", into=found)
    for client, part in shares.items():
        with _noted(found, client):
            server.take_shares(client, part.data)
    if server.is_open:
        found.total = server.total()
    else:
        found.lost["all"] = "too few gave shares of the masks"
    return found


def _said(server: PooledSum, request: MaskedRequest) -> dict[str, Any]:
    same = request.model_dump(include=set(AgreeRequest.model_fields))
    return {**same, "survivors": list(server.signed), "signed": server.signed}


@contextmanager
def _noted(found: MaskedRound, client: str) -> Iterator[None]:
    """Note what is wrong with a thing that a client sent; it counts as lost."""
    try:
        yield
    except InputError as error:
        found.lost[client] = one_line(str(error))


def _ask(
    exchange: Exchange,
    requests: Mapping[str, Message],
    wanted: type[Wanted],
    *,
    group: str,
    into: MaskedRound,
) -> dict[str, Wanted]:
    """Ask each client one thing; the answers of those who gave one."""
    messages = {client: pooled_message(client, one) for client, one in requests.items()}
    heard = exchange.ask(messages, group=group, satisfied=guard_answered)
    found: dict[str, Wanted] = {}
    for client, answers in heard.items():
        if answers.errors:
            into.errors.setdefault(client, []).extend(answers.errors)
        answer = _answer(answers, wanted, into, client)
        if isinstance(answer, wanted):
            found[client] = answer
        else:
            into.lost[client] = str(answer)
    return found


def _answer(heard: Heard, wanted: type[Wanted], into: MaskedRound, client: str) -> Wanted | str:
    found: Wanted | None = None
    words = heard.reason
    for body in heard.bodies:
        try:
            for frame in read_frames(body):
                if isinstance(frame, wanted):
                    found = frame
                elif isinstance(frame, RunReceipt):
                    into.receipts[client] = frame
                elif isinstance(frame, Refusal):
                    words = refusal_words(frame)
        except DpcohortError as error:
            words = f"the answer cannot be read: {one_line(str(error))}"
    return words if found is None else found
