# SPDX-License-Identifier: Apache-2.0
"""How long a masked sum takes: each client's part, and the server's.

``python benchmarks/masked_sums.py [--coordinates 1000000] [--cohorts 10 100]``. One member of each
cohort does all of its part: keys, masks, shares, and in the second exchange signatures and shares,
without and with the most members that may vanish. The lattice noise beneath it is timed for
comparison. A tenth of the members may collude, another tenth vanish.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from dpcohort.deploy.ledger._terms import AcceptedGroup
from dpcohort.deploy.secure_aggregation import (
    Identity,
    MaskedRound,
    MaskedSum,
    Member,
    cohort_sha256,
)
from dpcohort.engine._lattice import rounded_gaussian

Found = TypeVar("Found")
_BITS = 48


def timed(action: Callable[[], Found]) -> tuple[Found, float]:
    """What it gives, and the seconds it takes."""
    started = time.perf_counter()
    found = action()
    return found, time.perf_counter() - started


def cohort_of(size: int) -> tuple[AcceptedGroup, list[Member]]:
    """Members with identities of their own."""
    names = [f"client-{i:04d}" for i in range(size)]
    who = {name: Identity(os.urandom(32)) for name in names}
    pool = AcceptedGroup(
        cohort_size=size,
        colluding=size // 10,
        dropouts=size // 10,
        exponent=24,
        modulus_bits=_BITS,
        members={name: one.public for name, one in who.items()},
        cohorts={str(t): cohort_sha256(names) for t in range(2)},
    )
    return pool, [
        Member(name, who[name], pool, run="speed", plan="", ledger=name) for name in names
    ]


def one_round(pool: AcceptedGroup, members: list[Member], gone: int, coordinates: int) -> None:
    """A round in which some vanish before they mask; checks its sum."""

    def asked() -> MaskedRound:
        cards = [one.card for one in members]
        numbers = {"coordinates": coordinates, "exponent": 24, "modulus_bits": _BITS}
        return MaskedRound(pool, cards, run="speed", plan="", round=int(gone > 0), **numbers)

    def commit(round: int, left: str) -> str:
        return left

    server, dice = MaskedSum(asked()), np.random.default_rng(0)
    clear = np.zeros(coordinates, dtype=np.int64)
    masking, agreeing, opening, beside = [], [0.0], [], 0
    for member in members[gone:]:
        values = dice.integers(-(2**30), 2**30, coordinates)
        clear += values
        masked, seconds = timed(partial(member.mask, asked(), values))
        masking.append(seconds)
        server.take(masked)
        beside = len(masked.sealed)
    left = server.close()
    said = (server.asked, left, server.signed)
    for member in members[gone:] if server.needs_agreement else ():
        signature, seconds = timed(partial(member.agree, *said, commit))
        agreeing.append(seconds)
        server.agreed(member.name, signature)
    for member in members[gone:]:
        sealed = (server.certificate, server.sealed_for(member.name))
        shares, seconds = timed(partial(member.reveal, *said, *sealed, commit))
        opening.append(seconds)
        server.take_shares(member.name, shares)
    total, unmasking = timed(server.total)
    assert np.array_equal(total, clear), "the sum is not that in the clear"
    parts = [float(np.median(one)) for one in (masking, agreeing, opening)]
    print(
        f"cohort {len(members):4d}, {gone:2d} vanish: {sum(parts):.3f} s a client (masking "
        f"{parts[0]:.3f}, the rest {parts[1] + parts[2]:.3f}); server {unmasking:.3f} s; "
        f"{beside / 1e3:,.0f} kB of shares beside the vector"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coordinates", type=int, default=1_000_000)
    parser.add_argument("--cohorts", type=int, nargs="*", default=[10, 100])
    given = parser.parse_args()
    _, noise = timed(lambda: rounded_gaussian(given.coordinates, 24))
    print(f"{given.coordinates:,} coordinates; lattice noise alone: {noise:.3f} s")
    for size in given.cohorts:
        pool, members = cohort_of(size)
        for gone in (0, pool.dropouts):
            one_round(pool, members, gone, given.coordinates)


if __name__ == "__main__":
    main()
