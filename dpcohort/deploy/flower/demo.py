# SPDX-License-Identifier: Apache-2.0
"""The demo: a federation of three clients on the loopback address, from plan to receipts."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort.clients import Population
from dpcohort.data import Dataset, Partition, load_dataset, paper_partition
from dpcohort.deploy.flower.adapter import flower_version
from dpcohort.deploy.flower.kit import KitSettings, write_kit
from dpcohort.deploy.flower.processes import Processes, free_ports
from dpcohort.deploy.flower.trial import Records, Trial, write_client_data
from dpcohort.deploy.guard.terms import ModelTerms
from dpcohort.errors import InputError, VerificationError
from dpcohort.plain_text import one_line
from dpcohort.plan import Plan, make_plan
from dpcohort.runs.folder import read_json, read_log
from dpcohort.runs.verification import Verification, verify_run
from dpcohort.training import Training

__all__ = [
    "DEMO_CLIENTS",
    "DemoResult",
    "demo_partition",
    "demo_records",
    "demo_settings",
    "run_demo",
    "start_all",
    "trial",
]

#: Name and epsilon of each client; all have the same delta.
DEMO_CLIENTS = {"north": 2.0, "east": 4.0, "south": 8.0}
_SEED = 5
_RUN = "demo"
#: One client after the other starts its programs, so that a small machine keeps up.
_SAY = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo showed.

    Attributes:
        out: the run folder.
        accuracy: on the public test set, after the last round.
        draws: by client: planned, and counted by the client's own ledger.
        verification: of the run folder.
        seconds: how long all of it took.
    """

    out: Path
    accuracy: float
    draws: dict[str, tuple[int, int]]
    verification: Verification
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "out": str(self.out),
            "accuracy": self.accuracy,
            "draws": {c: {"planned": p, "counted": n} for c, (p, n) in self.draws.items()},
            "verification": self.verification.to_dict(),
            "seconds": self.seconds,
        }


def demo_settings(
    *, rounds: int = 3, gate_port: int = 9443, superlink_port: int = 8000, timeout: float = 120.0
) -> tuple[KitSettings, dict[str, Records]]:
    """The kit of the demo, and each client's records: a third of the digits each.

    Example:
        >>> settings, records = demo_settings(rounds=2)
        >>> sorted(records), settings.plan.training.rounds
        (['east', 'north', 'south'], 2)
    """
    data = load_dataset("digits")
    names = list(DEMO_CLIENTS)
    sizes = np.full(len(names), len(data) // len(names))
    population = Population.from_arrays(
        ids=names, sizes=sizes, epsilon=list(DEMO_CLIENTS.values()), delta=1e-5
    )
    training = Training(
        rounds=rounds, cohort_size=4, local_steps=4, sampling_rate=0.25, clip=1.0, dimension=650
    )
    plan = make_plan(population, training, seed=_SEED)
    settings = KitSettings(
        plan=plan,
        model=ModelTerms(name="logistic", input_shape=data.input_shape, classes=data.classes),
        run=_RUN,
        optimiser={"learning_rate": 2.0},
        normalisation=data.normalisation,
        test="digits",
        gate_port=gate_port,
        superlink_port=superlink_port,
        timeout=timeout,
        trial=True,
    )
    return settings, demo_records(plan, data)


def demo_partition(plan: Plan, data: Dataset) -> Partition:
    """Who holds which records: shared out at random, the same in every run of the demo."""
    rng = np.random.default_rng([_SEED, 1])
    return paper_partition(data.train_labels, sizes=plan.population.sizes, rng=rng)


def demo_records(plan: Plan, data: Dataset) -> dict[str, Records]:
    """The records of each client of a plan."""
    partition = demo_partition(plan, data)
    return {
        client: (data.train_inputs[partition.client(k)], data.train_labels[partition.client(k)])
        for k, client in enumerate(plan.population.ids)
    }


@contextlib.contextmanager
def trial(settings: KitSettings, records: dict[str, Records], folder: Path) -> Iterator[Trial]:
    """A kit written and its processes ready to be started; all of them end with the block.

    Args:
        settings: of the kit, with free ports.
        records: of each client.
        folder: where the kit and the logs go; its path must be short.
    """
    kit = write_kit(folder / "kit", settings)
    write_client_data(kit, records)
    sockets = folder / "sockets"
    sockets.mkdir(mode=0o755)
    plan = settings.plan
    clients = [plan.population.ids[k] for k in plan.drawn.nonzero()[0].tolist()]
    ports = dict(zip(clients, free_ports(len(clients)), strict=True))
    with Processes(folder / "logs") as processes:
        yield Trial(
            kit=kit,
            processes=processes,
            sockets=sockets,
            superlink_port=settings.superlink_port,
            gate_port=settings.gate_port,
            node_ports=ports,
        )


def start_all(federation: Trial, say: _SAY) -> None:
    """Start guards, SuperLink, gate and SuperNodes, in the order in which they need each other."""
    for client in federation.clients:
        federation.start_guard(client, new_ledger=True)
    federation.start_server()
    say(f"SuperLink on 127.0.0.1:{federation.superlink_port}, gate on port {federation.gate_port}")
    federation.register()
    say("three public keys registered")
    for client in federation.clients:
        federation.await_guard(client)
        federation.start_supernode(client)
    say("three guards listen; three SuperNodes start, with TLS and their own keys")


def run_demo(
    out: Path, *, rounds: int = 3, say: _SAY = lambda words: None, keep: Path | None = None
) -> DemoResult:
    """Run the demo; nothing it started is left when it returns or fails.

    Args:
        out: the run folder.
        rounds: how many.
        say: told how far it is, a line at a time.
        keep: where to keep kit and logs; otherwise they go when all is well.

    Raises:
        InputError: no Flower, or the folder is in use.
        DpcohortError: something failed; logs are kept and named.
    """
    began = time.monotonic()
    version = flower_version()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError.because(f"{out} exists and is not empty. Choose another --out.")
    superlink, gate = free_ports(2)
    settings, records = demo_settings(rounds=rounds, gate_port=gate, superlink_port=superlink)
    plan = settings.plan
    say(
        f"plan for {len(plan.population)} clients, {rounds} rounds of {plan.training.cohort_size} "
        f"draws (Flower {version})"
    )
    folder = Path(tempfile.mkdtemp(prefix="dpcohort-"))
    try:
        with trial(settings, records, folder) as federation:
            start_all(federation, say)
            federation.start_run(out)
            say("run started; every guard is asked for its owner's terms before the first draw")
            with _rounds_told(out, plan, say):
                federation.await_run(out, seconds=120 + 60 * rounds)
            counted = _counted(federation, out, settings)
    except BaseException:
        say(f"kit and logs are kept in {folder}")
        raise
    verification = verify_run(out)
    if keep is not None:
        shutil.move(folder, keep)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if not verification.holds:
        found = "; ".join(f.message for f in verification.findings if f.kind != "note")
        raise VerificationError(f"the run does not verify: {found}")
    return DemoResult(
        out=out,
        accuracy=float(read_json(out / "result.json")["test"]["accuracy"]),
        draws=counted,
        verification=verification,
        seconds=time.monotonic() - began,
    )


@contextlib.contextmanager
def _rounds_told(out: Path, plan: Plan, say: _SAY) -> Iterator[None]:
    """Tell of each round when the server has written it down."""
    done = threading.Event()

    def watch() -> None:
        told = 0
        while True:
            last = done.is_set()
            with contextlib.suppress(Exception):
                entries = read_log(out / "rounds.jsonl")
                for entry in entries[told:]:
                    accuracy = 100 * entry["test"]["accuracy"]
                    total = plan.training.rounds
                    say(f"round {entry['round'] + 1} of {total}: test accuracy {accuracy:.1f} %")
                    told += 1
            if last:
                return
            done.wait(0.3)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join(timeout=5)


def _counted(federation: Trial, out: Path, settings: KitSettings) -> dict[str, tuple[int, int]]:
    """Draws planned, and counted by each client's own ledger."""
    from dpcohort.deploy.ledger import read_state

    plan, found = settings.plan, {}
    for client in federation.clients:
        planned = int(plan.schedule.counts[plan.population.index_of(client)])
        state = read_state(federation.kit.client(client) / "client.ledger")
        accounts = next(iter(state.accounts.values()))
        found[client] = (planned, len(accounts[settings.run].draws))
    told = read_json(out / "client-ledgers.json")
    for client, (_, counted) in found.items():
        if told[client]["spending"]["counted_draws"] != counted:
            raise VerificationError(
                f"{one_line(client)}: the server was told another count than {counted}."
            )
    return found
