# SPDX-License-Identifier: Apache-2.0
"""A client's own ledger: count before noise, at most one answer a draw, a cap for its lifetime."""

import tempfile
from pathlib import Path

from dpcohort.accounting import Event
from dpcohort.deploy.ledger import (
    ClientLedger,
    DrawKey,
    LifetimeCap,
    LifetimeCapError,
    RunTerms,
    verify_ledger,
)

terms = RunTerms(
    epsilon=2.0, delta=1e-5, clip=1.0, sampling_rate=0.1, local_steps=5, rounds=100, draws=20,
    least_noise_multiplier=2.5,
)  # fmt: skip
step = Event.of(noise_multiplier=2.5, sampling_rate=0.1, steps=5)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "ward.ledger"
    with ClientLedger.create(path) as ledger:
        ledger.register("ward-7", LifetimeCap(epsilon=3.0, delta=1e-5))
        answered = 0
        try:
            for run in range(100):  # a server that opens run after run under new names
                ledger.accept("ward-7", f"run-{run}", terms)
                for draw in range(terms.draws):
                    key = DrawKey(dataset="ward-7", run=f"run-{run}", round=draw, draw=0)
                    ledger.reserve(key, step, clip=1.0)  # counted on disk: only now compute
                    ledger.release(key, b"noisy update")  # stored: only now send
                    answered += 1
        except LifetimeCapError as refusal:
            print(f"after {answered} answers: {refusal}")
    print("ledger intact:", verify_ledger(path).holds)
