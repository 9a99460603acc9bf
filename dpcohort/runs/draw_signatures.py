# SPDX-License-Identifier: Apache-2.0
"""Signatures of clients' guards over their own draws, as a run folder keeps them.

``signatures.jsonl`` has a line for each draw that a guard has answered: ``round``, ``draw`` (how
many draws of the round its client had before), ``client``, ``key`` (Ed25519, hexadecimal),
``signature`` (hexadecimal), and whatever else the guard vouches for, such as ``steps`` and
``update`` (SHA-256 of what it sent). Signed is the canonical JSON of the line without ``key`` and
``signature``, with ``run``, the SHA-256 of the plan. ``run.json`` names the keys of the clients
under ``members``.

A signature is the word of the client's own guard that it took part; whether it did what it says
is not proved by it. A draw that is counted and not signed may have been lost on the way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpcohort.plain_text import counted, one_line
from dpcohort.plan import Plan
from dpcohort.runs.folder import SIGNATURES, read_log
from dpcohort.signatures import is_signed


def signed_bytes(plan: str, entry: Mapping[str, Any]) -> bytes:
    """The bytes that a guard signs for a draw.

    Args:
        plan: SHA-256 of the plan.
        entry: the line of the draw; ``key`` and ``signature`` in it are not signed.

    Example:
        >>> signed_bytes("f00", {"round": 0, "draw": 1, "client": "a", "key": "..."})
        b'{"client":"a","draw":1,"round":0,"run":"f00"}'
    """
    signed = {key: value for key, value in entry.items() if key not in ("key", "signature")}
    return json.dumps({**signed, "run": plan}, sort_keys=True, separators=(",", ":")).encode()


@dataclass(kw_only=True)
class DrawSignatures:
    """Outcome of checking the signatures of a run.

    Attributes:
        signers: clients with at least one valid signature, and none that is wrong.
        wrong: what is wrong, one message for each line or client.
        unsigned: counted draws without a signature.
        summary: who signed how much, in words; empty where nobody signs.
    """

    signers: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    unsigned: int = 0
    summary: str = ""


def check_signatures(
    folder: Path, plan: Plan, cohorts: Mapping[int, list[int]], settings: Mapping[str, Any]
) -> DrawSignatures:
    """Check every signature in a run folder against the counted draws and the members' keys.

    Args:
        folder: of the run.
        plan: its plan.
        cohorts: the counted draws of each round, as positions of clients.
        settings: content of its ``run.json``.

    Raises:
        FileFormatError: the file cannot be read.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> people = Population.from_arrays(sizes=[90], epsilon=[1.0], delta=1e-5)
        >>> plan = make_plan(people, Training(rounds=2, cohort_size=1, batch_size=9), seed=0)
        >>> check_signatures(Path("no-such-run"), plan, {0: [0]}, {}).summary
        ''
    """
    result = DrawSignatures()
    members = settings.get("members")
    keys: dict[str, Any] = dict(members) if isinstance(members, Mapping) else {}
    is_there = (folder / SIGNATURES).exists()
    if not keys and not is_there:
        return result
    signed: set[tuple[int, int, str]] = set()
    failed: set[str] = set()
    for number, entry in enumerate(read_log(folder / SIGNATURES) if is_there else [], start=1):
        fault = _fault(entry, plan, cohorts, keys, signed)
        if fault:
            result.wrong.append(f"line {number}: {fault}")
            failed.add(str(entry.get("client")))
        else:
            signed.add((entry["round"], entry["draw"], entry["client"]))
    result.signers = {client for *_, client in signed} - failed
    result.unsigned = sum(map(len, cohorts.values())) - len(signed)
    drawn = {plan.population.ids[k] for cohort in cohorts.values() for k in cohort}
    result.summary = (
        f"signed by {len(result.signers)} of {counted(len(drawn), 'drawn client')}, each for its "
        f"own draws: their guards' word that they took part; {counted(result.unsigned, 'draw')} "
        "not signed"
    )
    return result


def _fault(
    entry: Mapping[str, Any],
    plan: Plan,
    cohorts: Mapping[int, list[int]],
    keys: dict[str, Any],
    signed: Set[tuple[int, int, str]],
) -> str:
    """What is wrong with one line; empty if its signature holds. A new client's key is noted."""
    round, draw, client = (entry.get(name) for name in ("round", "draw", "client"))
    key, signature = entry.get("key"), entry.get("signature")
    # Not isinstance: JSON's true is an int to Python, but not the number of a round.
    if type(round) is not int or type(draw) is not int or not isinstance(client, str):
        return "it names no draw."
    names = [plan.population.ids[k] for k in cohorts.get(round, [])]
    if not 0 <= draw < names.count(client):
        return f"the ledger counts no draw {draw} of {one_line(client)!r} in round {round}."
    if (round, draw, client) in signed:
        return f"draw {draw} of {one_line(client)!r} in round {round} is signed twice."
    if keys.setdefault(client, key) != key:
        return f"{one_line(client)!r} signed with another key than its own."
    if not is_signed(str(key), str(signature), signed_bytes(plan.sha256, entry)):
        return f"{one_line(client)!r} has not signed draw {draw} of round {round}."
    return ""
