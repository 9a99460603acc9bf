# SPDX-License-Identifier: Apache-2.0
"""Signatures of clients' guards over their own draws, checked against the ledger of a run.

``signatures.jsonl`` has a line for each draw or report that came, a `DrawSignature`. ``run.json``
names the keys of the clients under ``members``. Where noise is distributed, the members' cards in
``client-ledgers.json`` (their keys for masked sums) are signed by the same keys.

A signature is the word of the client's own guard that it released this and nothing else for the
draw; what it computed is not proved by it. A counted draw that is not signed may have been lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpcohort.adaptive._rule import REPORT_DRAW
from dpcohort.errors import InputError
from dpcohort.plain_text import counted, one_line
from dpcohort.plan import Plan
from dpcohort.runs._folder import CHARGES, CLIENT_LEDGERS, SIGNATURES, read_json, read_log
from dpcohort.signatures import Card, DrawSignature


@dataclass(kw_only=True)
class DrawSignatures:
    """Outcome of checking the signatures of a run.

    Attributes:
        signers: clients with a valid signature.
        wrong: what is wrong, one message for each line or client.
        summary: who signed how much, in words; empty where nobody signs.
    """

    signers: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    summary: str = ""


def check_signatures(
    folder: Path,
    plan: Plan,
    cohorts: Mapping[int, list[int]],
    reports: Mapping[int, Collection[int]],
    settings: Mapping[str, Any],
    evaluated: Mapping[str, str] = MappingProxyType({}),
) -> DrawSignatures:
    """Check every signature in a run folder against the counted draws and the members' keys.

    Args:
        folder: of the run.
        plan: its plan.
        cohorts: counted draws of each round, as positions of clients.
        reports: clients whose reports of each round are counted.
        settings: content of its ``run.json``.
        evaluated: hash of the sum that each client released for the evaluation; empty of one that
            may have been lost.

    Raises:
        FileFormatError: the file cannot be read.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> people = Population.from_arrays(sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> plan = make_plan(people, Training(rounds=2, cohort_size=1, batch_size=9), seed=0)
        >>> check_signatures(Path("no-such-run"), plan, {0: [0]}, {}, {}).summary
        ''
    """
    result = DrawSignatures()
    members = settings.get("members")
    keys: dict[str, Any] = dict(members) if isinstance(members, Mapping) else {}
    is_there = (folder / SIGNATURES).exists()
    if not keys and not is_there:
        return result
    names = plan.population.ids
    last = plan.training.rounds  # the round after the last one, in which the model is evaluated
    allowed = {
        *((last, 0, name) for name in evaluated),
        *((round, REPORT_DRAW, names[k]) for round, asked in reports.items() for k in asked),
        *(
            (round, cohort[:place].count(k), names[k])
            for round, cohort in cohorts.items()
            for place, k in enumerate(cohort)
        ),
    }
    run, released = str(settings.get("run", "")), dict[tuple[int, int, str], str]()
    for number, line in enumerate(read_log(folder / SIGNATURES) if is_there else [], start=1):
        try:
            one = DrawSignature.from_line(line)
        except InputError as error:
            result.wrong.append(f"line {number}: {error}")
            continue
        draw, who = (one.round, one.draw, one.client), one_line(one.client)
        what = "report" if one.draw == REPORT_DRAW else f"draw {one.draw}"
        if draw not in allowed:
            fault = f"the ledger counts no {what} of {who!r} in round {one.round}."
        elif keys.setdefault(one.client, one.key) != one.key:
            fault = f"{who!r} signed with another key than its own."
        elif not one.is_of(run, plan.sha256):
            fault = f"{who!r} has not signed {what} of round {one.round}."
        elif released.setdefault(draw, one.released) != one.released:
            fault = f"{who!r} released two different answers for {what} of round {one.round}."
        else:
            result.signers.add(one.client)
            continue
        result.wrong.append(f"line {number}: {fault}")
    for name, digest in evaluated.items():
        if digest and released.get((last, 0, name)) != digest:
            words = f"the sum of {one_line(name)!r} is not what its guard has signed."
            result.wrong.append(f"{CHARGES}: {words}")
    cards = _check_cards(folder, run, plan, keys, result)
    signed = sum(t < last and number != REPORT_DRAW for t, number, _ in released)
    drawn = {names[k] for cohort in cohorts.values() for k in cohort}
    unsigned = sum(map(len, cohorts.values())) - signed
    result.summary = (
        f"signed by {len(result.signers)} of {counted(len(drawn), 'client')}, by the word of "
        f"their guards; {counted(unsigned, 'draw')} not signed{cards}"
    )
    return result


def _check_cards(
    folder: Path, run: str, plan: Plan, keys: Mapping[str, Any], result: DrawSignatures
) -> str:
    """Check members' cards: keys of masked sums are those that the members signed for this run.

    How many there are, in words; nothing where none is kept.
    """
    stored = read_json(folder / CLIENT_LEDGERS) if (folder / CLIENT_LEDGERS).exists() else {}
    said = {client: one for client, one in stored.items() if isinstance(one, Mapping)}
    cards = {client: one["card"] for client, one in said.items() if "card" in one}
    for client, given in cards.items():
        try:
            card = Card(**given)
            if card.member != client:
                raise InputError.because(f"{client} gave a card of {card.member}.")
            card.check(keys, run=run, plan=plan.sha256)
        except (TypeError, InputError) as error:
            result.wrong.append(f"{CLIENT_LEDGERS}: card of {one_line(client)}: {error}")
    missing = {plan.population.ids[k] for k in plan.drawn.nonzero()[0].tolist()} - set(cards)
    if cards and missing & result.signers:
        names = ", ".join(map(one_line, sorted(missing & result.signers)))
        result.wrong.append(f"{CLIENT_LEDGERS}: no card of {names}, who masked with others.")
    return f"; {counted(len(cards), 'card')} of members checked" if cards else ""
