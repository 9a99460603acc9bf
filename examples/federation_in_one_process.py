# SPDX-License-Identifier: Apache-2.0
"""A whole federation in one process: a kit, two guards, the server's rounds, the receipts."""

import tempfile
from pathlib import Path

from dpcohort import Population, Training, make_plan
from dpcohort.data import load_dataset
from dpcohort.deploy.flower import Federation, federate, write_kit
from dpcohort.deploy.flower._trial import write_client_data
from dpcohort.deploy.flower.client_app import LocalGuards
from dpcohort.deploy.guard import ModelTerms
from dpcohort.deploy.ledger import read_state
from dpcohort.runs import verify_run

digits = load_dataset("digits")
clients = Population.from_arrays(
    ids=["north", "south"], sizes=[700, 700], epsilon=[2.0, 8.0], delta=1e-5
)
training = Training(rounds=4, cohort_size=2, local_steps=4, batch_size=140, dimension=650)
plan = make_plan(clients, training, seed=1)

with tempfile.TemporaryDirectory() as place:
    # The operator writes a kit; each owner gets a folder with terms, puts its data there.
    kit = write_kit(
        Path(place) / "kit",
        plan=plan,
        model=ModelTerms(name="logistic", input_shape=digits.input_shape, classes=10),
        run="spring",
        optimiser={"learning_rate": 2.0},
        normalisation=digits.normalisation,
        test="digits",
        trial=True,
    )
    halves = {"north": slice(0, 700), "south": slice(700, 1400)}
    records = {c: (digits.train_inputs[h], digits.train_labels[h]) for c, h in halves.items()}
    write_client_data(kit, records)

    # Guards hold data, ledger and noise; the server sees noisy updates. On real machines, Flower
    # carries the same messages (dpcohort flower demo).
    federation = Federation.load(kit / "server" / "federation.toml")
    with LocalGuards(kit / "clients") as guards:
        run = federate(federation, guards.transport(federation), out=Path(place) / "run", poll=0.0)

    print(f"test accuracy {run.test_accuracy:.2f} after {run.rounds_done} rounds")
    for client in clients.ids:
        ledger = read_state(kit / "clients" / client / "client.ledger")
        counted = len(ledger.accounts[client]["spring"].draws)
        print(f"{client}: its own ledger counts {counted} draws; {run.receipt(client).holds = }")
    print("the run verifies:", verify_run(Path(place) / "run").holds)
