# SPDX-License-Identifier: Apache-2.0
"""One training on embedded data: the run folder, its receipts, an independent verification."""

import tempfile
from pathlib import Path

from dpcohort import Population, Training, make_plan, train, verify_run
from dpcohort.engine import Optimiser

clients = Population.from_arrays(sizes=[240] * 6, epsilon=[0.3, 1, 2, 4, 8, 8], delta=1e-5)
training = Training(rounds=40, cohort_size=4, batch_size=80, dimension=650)
plan = make_plan(clients, training, seed=1)

with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "run"
    optimiser = Optimiser(local_step=0.2, average_decay=0.9)
    run = train(plan, "logistic", "digits", optimiser=optimiser, seed=1, out=out)
    print(f"test accuracy {run.test_accuracy:.1%}")
    print("files:", ", ".join(sorted(path.name for path in out.iterdir())))

    receipt = run.receipt("client-0")
    print(f"client-0 promised {receipt.promised_epsilon}, spent {receipt.certified_epsilon:.4f}")
    print(receipt.stamp)

    checked = verify_run(out)
    print(f"verified: {checked.holds}, {checked.clients} clients, {checked.rounds} rounds")
