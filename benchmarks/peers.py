# SPDX-License-Identifier: Apache-2.0
"""A round of ten draws beside what people would use: Flower's simulation engine, pfl-research.

    python benchmarks/peers.py --environments ../peers    # makes the peers' environments at first
    python benchmarks/peers.py --environments ../peers --peers pfl

Every side trains the 26,010-parameter MNIST network on 20 clients of 600 made-up records: ten a
round, one local step on 128 records each, every record's gradient clipped and noise added, the mean
taken. Nobody evaluates or writes. What is compared:

- dpcohort: ``train`` as users call it, its one loop with noise in every draw (not merged).
- flower: ``run_simulation`` (Ray, a core a client) with ``FedAvg``; clients step with Opacus in its
  default mode. Data and private model stay in Ray's processes between rounds.
- flower-empty: the same with clients that send back what they got: what Flower itself costs.
- pfl: ``SimulatedBackend`` with ``FederatedAveraging``. Its own privacy is that of whole users,
  another promise, so the step is a user's own: ``vmap(grad)`` in ``do_multiple_epochs_of``.
- pfl-one-thread: the same with one thread of torch, which is the faster one on a busy machine.

Each side has its own environment and process, and all cores. They take turns of some rounds while
the others wait; the first round, with the start of the process, is told apart. Wall time is the
median of the rounds. Processor time is that of all processes of a side in its turns (grain 10 ms),
which a busy machine distorts less.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib.metadata import version
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine import BATCH, CLIENTS, CLIP, COHORT, NOISE_MULTIPLIER, RECORDS, STEP_SIZE, mnist_small
from torch.nn import functional as F  # noqa: N812

HERE = Path(__file__).resolve().parent
#: What pip puts into the peers' environments; ours is the one this runs in.
PACKAGES = {
    "dpcohort": ("torch",),
    "flower": ("flwr[simulation]", "ray", "opacus", "torch"),
    "pfl": ("pfl", "torch"),
}
PATIENCE = 180  # seconds for one round, the first with the start of its process
Turn = Callable[[], None]  # called after a round: says so, and waits for the next turn


@functools.cache
def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = CLIENTS * RECORDS
    return rng.standard_normal((rows, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, rows)


def some_of(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of one client's records."""
    chosen = client * RECORDS + np.random.permutation(RECORDS)[:BATCH]
    inputs, labels = records()
    return torch.from_numpy(inputs[chosen]), torch.from_numpy(labels[chosen])


def dpcohort_rounds(turn: Turn, rounds: int) -> None:
    from dpcohort import Population, Training, make_plan, train
    from dpcohort.accounting import Contract
    from dpcohort.data import Dataset
    from dpcohort.engine import Optimiser

    inputs, labels = records()
    data = Dataset(
        name="made up", train_inputs=inputs, train_labels=labels, test_inputs=inputs[:10],
        test_labels=labels[:10], classes=10,
    )  # fmt: skip
    plan = make_plan(
        Population.from_arrays(sizes=np.full(CLIENTS, RECORDS), epsilon=8.0, delta=1e-5),
        Training(rounds=rounds, cohort_size=COHORT, batch_size=BATCH, clip=CLIP),
        accountant=Contract.of("tight", "fixed"),
        selection="uniform",
        seed=0,
    )

    class Turns:
        def on_round(self, record: object, run: object) -> None:
            turn()

    step = Optimiser(local_step=STEP_SIZE)
    train(
        plan, mnist_small(), data, optimiser=step, device="cpu", evaluate_every=rounds,
        callbacks=[Turns()],
    )  # fmt: skip


@functools.cache
def opacus_model() -> tuple[Any, Any, Any]:
    """The network, the same seen through Opacus, and its optimiser: once a process."""
    from opacus import PrivacyEngine

    network = mnist_small()
    one = torch.utils.data.TensorDataset(torch.zeros(BATCH, 1))  # Opacus divides by its batch
    private, optimiser, _ = PrivacyEngine().make_private(
        module=network, optimizer=torch.optim.SGD(network.parameters(), lr=STEP_SIZE),
        data_loader=torch.utils.data.DataLoader(one, batch_size=BATCH), max_grad_norm=CLIP,
        noise_multiplier=NOISE_MULTIPLIER, poisson_sampling=False,
    )  # fmt: skip
    return network, private, optimiser


def flower_client(message: Any, context: Any, *, empty: bool) -> Any:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    arrays = message.content["arrays"]
    if not empty:
        network, private, optimiser = opacus_model()
        network.load_state_dict(arrays.to_torch_state_dict())
        inputs, labels = some_of(int(context.node_config["partition-id"]))
        optimiser.zero_grad()
        F.cross_entropy(private(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        arrays = ArrayRecord(network.state_dict())
    told = {"arrays": arrays, "metrics": MetricRecord({"num-examples": BATCH})}
    return Message(content=RecordDict(told), reply_to=message)


def flower_rounds(turn: Turn, rounds: int, *, empty: bool = False) -> None:
    from flwr.app import ArrayRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    class InTurns(FedAvg):
        def configure_train(self, server_round: int, *others: Any, **named: Any) -> Any:
            if server_round > 1:
                turn()
            return super().configure_train(server_round, *others, **named)

    client, server = ClientApp(), ServerApp()
    client.train()(functools.partial(flower_client, empty=empty))

    @server.main()
    def main(grid: Any, context: Any) -> None:
        chosen = InTurns(
            fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS
        )
        chosen.start(grid, ArrayRecord(mnist_small().state_dict()), num_rounds=rounds + 1)

    one_core = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(server, client, CLIENTS, backend_config=one_core)  # type: ignore[arg-type]


def private_step(model: Any, optimiser: Any, batch: Any, *_: Any) -> None:
    """A step of pfl's local training with every record's gradient clipped, and noise."""

    def loss(weights: Any, one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        output = torch.func.functional_call(model, weights, one[None])
        return F.cross_entropy(output, label[None])

    weights = {name: one.detach() for name, one in model.named_parameters()}
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, *batch)
    squares = sum(one.flatten(1).square().sum(1) for one in gradients.values())
    factors = (CLIP / squares.sqrt()).clamp(max=1.0)
    for name, one in model.named_parameters():
        noise = NOISE_MULTIPLIER * CLIP * torch.randn_like(one)
        one.grad = (torch.tensordot(factors, gradients[name], 1) + noise) / BATCH
    optimiser.step()


def pfl_rounds(turn: Turn, rounds: int, *, threads: int | None = None) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Private(FederatedAveraging):  # type: ignore[misc]
        def train_one_user(self, before: Any, model: Any, data: Any, central: Any) -> Any:
            model.do_multiple_epochs_of(data, central.model_train_params, private_step)
            return model.get_model_difference(before), Metrics()

    class Turns(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **named: Any) -> Any:
            turn()
            return False, Metrics()

    torch.set_num_threads(threads or torch.get_num_threads())
    network: Any = mnist_small()  # pfl asks a network for its loss, and evaluates before round 1
    network.loss = lambda inputs, labels: F.cross_entropy(network(inputs), labels)
    network.metrics = lambda *batch: {"loss": Weighted(network.loss(*batch).item(), 1)}
    users = FederatedDataset(
        lambda user: Dataset(some_of(user)), get_user_sampler("random", list(range(CLIENTS)))
    )
    Private().run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**9,
            train_cohort_size=COHORT, val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        PyTorchModel(
            network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)
        ),
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=STEP_SIZE, local_batch_size=BATCH
        ),
        callbacks=[Turns()],
    )  # fmt: skip


#: Each in the environment that its name begins with.
SIDES: dict[str, Callable[[Turn, int], None]] = {
    "dpcohort": dpcohort_rounds,
    "flower": flower_rounds,
    "flower-empty": functools.partial(flower_rounds, empty=True),
    "pfl": pfl_rounds,
    "pfl-one-thread": functools.partial(pfl_rounds, threads=1),
}


def work(side: str, number: int, rounds: int) -> None:
    """In a side's own process: its versions first, then a message after every round."""
    os.set_inheritable(number, False)
    channel = Connection(number)
    packages = [name.partition("[")[0] for name in PACKAGES[side.partition("-")[0]]]
    channel.send(", ".join(f"{name} {version(name)}" for name in packages))

    def turn() -> None:
        channel.send(None)
        channel.recv()

    SIDES[side](turn, rounds)


@functools.cache
def environment(folder: Path, name: str) -> str | None:
    """The Python of an environment, which is made if it is not there; None if it cannot be."""
    if name == "dpcohort":
        return sys.executable
    python, ready = folder / name / "bin" / "python", folder / name / "ready"
    if not ready.exists():
        print(f"{name}: installing {', '.join(PACKAGES[name])}", flush=True)
        venv.create(folder / name, with_pip=True)
        asked = ["--quiet", "-c", str(HERE.parent / "constraints.txt"), *PACKAGES[name]]
        pip = [str(python), "-m", "pip", "install", *asked]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name} cannot be installed here and is left out:\n{done.stderr.strip()[-800:]}")
            return None
        ready.touch()
    return str(python.absolute())


def session(leader: int) -> dict[int, int]:
    """The processes of a session, and the ticks of a processor that each has used."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                found[int(entry.name)] = int(fields[11]) + int(fields[12])
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """End a side and what it started; Ray's agents outlive it otherwise."""
    for pid in session(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def compare(pythons: dict[str, str], *, turns: int, rounds: int) -> None:
    env = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    env["RAY_worker_niceness"] = "0"  # Ray's 15 would let a busy machine starve Flower's clients
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent)])
    started: dict[str, tuple[int, Any]] = {}
    wall: dict[str, list[float]] = {side: [] for side in pythons}
    used: dict[str, list[float]] = {side: [] for side in pythons}

    def answer(side: str) -> Any:
        """What a side says next."""
        with suppress(EOFError, OSError):
            if started[side][1].poll(PATIENCE):
                return started[side][1].recv()
        said = (folder / side).read_text(errors="replace").strip()[-800:]
        sys.exit(f"{side} stopped, or took more than {PATIENCE} s:\n{said}")

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        env["FLWR_HOME"] = str(folder)
        for side, python in pythons.items():
            here, there = Pipe()
            call = f"import peers; peers.work({side!r}, {there.fileno()}, {turns * rounds + 1})"
            log = stack.enter_context(open(folder / side, "wb"))
            began = time.perf_counter()
            process = subprocess.Popen(
                [python, "-W", "ignore", "-c", call], env=env, pass_fds=[there.fileno()],
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            stack.callback(end, process)
            there.close()
            started[side] = process.pid, here
            print(f"{side:15} {answer(side)};", end=" ", flush=True)
            answer(side)
            print(f"start and first round {time.perf_counter() - began:.1f} s", flush=True)
        for _ in range(turns):
            for side, (leader, channel) in started.items():
                before = session(leader)
                for _ in range(rounds):
                    began = time.perf_counter()
                    channel.send(None)
                    answer(side)
                    wall[side].append(1e3 * (time.perf_counter() - began))
                ticks = sum(n - before.get(pid, 0) for pid, n in session(leader).items())
                used[side].append(1e3 * ticks / os.sysconf("SC_CLK_TCK") / rounds)
    print(f"\n{'ms a round':15} {'wall':>8} {'processor':>10} {'against dpcohort':>18}")
    for side in started:
        (ms, ours), (busy, ours_busy) = (
            [statistics.median(times[one]) for one in (side, "dpcohort")] for times in (wall, used)
        )
        print(f"{side:15} {ms:8.1f} {busy:10.0f} {ms / ours:10.2f}x {busy / ours_busy:6.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--environments", type=Path, required=True, help="the peers' packages")
    parser.add_argument("--peers", nargs="*", choices=list(SIDES)[1:], default=list(SIDES)[1:])
    parser.add_argument("--turns", type=int, default=4, help="of each side")
    parser.add_argument("--rounds", type=int, default=5, help="in a turn")
    given = parser.parse_args()
    sides = {side: side.partition("-")[0] for side in ("dpcohort", *given.peers)}
    found = {side: environment(given.environments, name) for side, name in sides.items()}
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"{COHORT} of {CLIENTS} clients a round, one private step on {BATCH} records each")
    print("flower: Opacus' hooks in Ray's processes; flower-empty: no step at all")
    print("pfl: a user's vmap(grad), since its own privacy is that of whole users")
    print(
        f"{cores} cores, load {load:.1f}; {given.turns} turns of {given.rounds} rounds", flush=True
    )
    pythons = {side: python for side, python in found.items() if python}
    compare(pythons, turns=given.turns, rounds=given.rounds)


if __name__ == "__main__":
    main()
