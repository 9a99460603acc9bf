# SPDX-License-Identifier: Apache-2.0
"""Milliseconds per client step: our engines, plain SGD without privacy, and Opacus.

A client step is one local step of one draw: gather a batch, clip every example's gradient, add
noise, move the weights. Rounds of ten clients with batches of 128 are timed; every method goes
through batches of the same size from the same data. Methods take turns, and the median over turns
is told. Wall times mean something on a quiet machine only; ``--cpu-time`` counts the processor time
of this process instead, which other load distorts less (use it with ``--threads 1``).

"Private" rows are what protects people: Poisson batches and noise from a cryptographic stream;
"seeded" rows are a simulation. Opacus draws Poisson batches too, gathered at once like ours, and by
its own loader; its ``secure_mode`` needs torchcsprng and takes part where that is installed.
"Merged noise" draws the noise of a round as one vector on the mean, of the same law as a vector for
each draw: a switch for simulations. "Distributed noise" is merged by nature: secure aggregation,
with a weight for each draw.

    python benchmarks/engine.py                 # all networks and methods, on the CPU
    python benchmarks/engine.py --quick         # fewer turns and methods
    python benchmarks/engine.py --quick --private --sampler poisson     # what protects, and Opacus
    python benchmarks/engine.py --quick --opacus-modes ghost    # one peer only, to repeat quickly
    python benchmarks/engine.py --device cuda --stack 32
    python benchmarks/engine.py --without all --turns 40 --threads 1 --cpu-time
    python benchmarks/engine.py --scaling       # the engine on 1, 2, 4, ... cores, in turns
    python benchmarks/engine.py --profile       # what a round's time is made of

``--without`` measures what a special way of the engine is worth by itself: the engine with it and
without it take turns, and the median of the ratios of neighbouring turns is told.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

CLIENTS, RECORDS, COHORT, BATCH, CLIP = 20, 600, 10, 128, 1.0
STEP_SIZE, NOISE_MULTIPLIER = 0.05, 1.0
WARM_UP = 5  # turns before the clock counts: GPUs compile, tune themselves and record passes
MOST_SHOWN = 25  # of what a round is made of
FLOOR_SECONDS = 0.5  # of each measurement of the machine itself
WARM_UP_ALONE = 9  # of one worker, who records passes later
PAUSE = 0.02  # seconds between turns: threads of the last one's pool spin for a while
OPACUS_MODES = ("hooks", "ew", "ghost")
Turn = Callable[[], int]  # does some client steps and says how many


def mnist_small() -> nn.Module:
    """The 26,010-parameter network of the paper."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def mnist_large() -> nn.Module:
    """The 824,874-parameter reading of the same description."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 512), nn.ReLU(), nn.Linear(512, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip


def cifar() -> nn.Module:
    """The tanh network of Tramer and Boneh, 550,570 parameters."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10)]
    return nn.Sequential(*layers)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mnist-26k": (mnist_small, (1, 28, 28)),
    "mnist-825k": (mnist_large, (1, 28, 28)),
    "cifar-551k": (cifar, (3, 32, 32)),
}


def make_plan(rounds: int, seed: int, *, sampler: str, distributed: bool = False) -> Any:
    from dpcohort.accounting._samplers import sampler_of
    from dpcohort.planning._noise import DistributedNoise, LocalNoise

    rng, everybody = np.random.default_rng(seed), np.ones(CLIENTS)
    cohorts = rng.integers(0, CLIENTS, (rounds, COHORT))
    noise: Any = {"multipliers": NOISE_MULTIPLIER * everybody, "lifted": everybody < 0}
    if distributed:  # nobody twice in a cohort; each of ten brings a share of the noise
        cohorts = rng.random((rounds, CLIENTS)).argsort(axis=1)[:, :COHORT]
        share = everybody * NOISE_MULTIPLIER / BATCH / np.sqrt(COHORT)
        noise["pool"] = SimpleNamespace(weights=everybody, shares=share, share=share, honest=COHORT)
    return SimpleNamespace(
        noise=DistributedNoise(**noise) if distributed else LocalNoise(**noise),
        training=SimpleNamespace(rounds=rounds, cohort_size=COHORT, local_steps=1, clip=CLIP),
        schedule=SimpleNamespace(cohorts=cohorts),
        contract=SimpleNamespace(sampler=sampler_of(sampler)),
        population=SimpleNamespace(
            sizes=np.full(CLIENTS, RECORDS),
            epsilon=everybody,
            ids=[f"client-{k}" for k in range(CLIENTS)],
        ),
        noise_multipliers=NOISE_MULTIPLIER * everybody,
        batch_sizes=np.full(CLIENTS, BATCH),
        sampling_rates=np.full(CLIENTS, BATCH / RECORDS),
    )


def make_records(shape: tuple[int, ...], device: str) -> Any:
    from dpcohort.engine import ClientRecords

    rng = np.random.default_rng(0)
    rows = CLIENTS * RECORDS
    return ClientRecords(
        rng.standard_normal((rows, *shape), dtype=np.float32),
        rng.integers(0, 10, rows),
        indices=np.arange(rows),
        offsets=np.arange(CLIENTS + 1) * RECORDS,
        device=device,
        dtype=torch.float32,
    )


def our_turn(
    model: nn.Module, records: Any, *, engine: str = "batched", stack: int = 1,
    merged: bool = False, distributed: bool = False, workers: int | None = None,
    micro_batch: int | None = None, sampler: str = "poisson", private: bool = False,
) -> Turn:  # fmt: skip
    """One round of ``stack`` experiments; the engine is built once, outside of the clock."""
    from dpcohort.engine import (
        BatchedEngine,
        ConstantStep,
        Experiment,
        Optimiser,
        ReferenceEngine,
        Streams,
    )

    optimiser = Optimiser(local_step=ConstantStep(STEP_SIZE))
    if engine == "reference":
        slow = ReferenceEngine(
            model,
            [
                Experiment(
                    plan=make_plan(10000, 0, sampler=sampler),
                    records=records,
                    streams=Streams.seeded(0),
                    optimiser=optimiser,
                )
            ],
        )
        rounds = slow.rounds(slow.initial_states())

        def turn() -> int:
            next(rounds)
            return COHORT

        return turn
    experiments = [
        Experiment(
            plan=make_plan(10_000, seed, sampler=sampler, distributed=distributed),
            records=records,
            streams=Streams.from_entropy() if private else Streams.seeded(seed),
            optimiser=optimiser,
            merged_noise=merged,
        )
        for seed in range(stack)
    ]
    fast = BatchedEngine(model, experiments, workers=workers, micro_batch=micro_batch)
    stacked = fast.rounds(fast.initial_states())

    def stacked_turn() -> int:
        next(stacked)
        return COHORT * stack

    return stacked_turn


def random_batch(
    records: Any, rng: np.random.Generator, *, poisson: bool = False
) -> tuple[Tensor, Tensor]:
    """A batch of one of the clients, gathered at once."""
    client = int(rng.integers(CLIENTS))
    positions = rng.permutation(RECORDS)[:BATCH]
    if poisson:
        positions = np.flatnonzero(rng.random(RECORDS) < BATCH / RECORDS)
    inputs, targets = records.gather(records.rows(client, positions))
    return inputs, targets


def plain_turn(model: nn.Module, records: Any, *, channels_last: bool) -> Turn:
    """SGD without clipping or noise, the floor."""
    memory = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=memory)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=STEP_SIZE)
    rng = np.random.default_rng(0)

    def turn() -> int:
        for _ in range(COHORT):
            inputs, targets = random_batch(records, rng)
            optimiser.zero_grad()
            loss = F.cross_entropy(model(inputs.contiguous(memory_format=memory)), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return COHORT

    return turn


def opacus_turn(
    model: nn.Module, records: Any, *, mode: str, batches: str = "poisson", secure: bool = False
) -> Turn:
    """Opacus through its own privacy engine.

    Args:
        model: it is changed.
        records: of all clients.
        mode: ``hooks``, ``ew`` or ``ghost``.
        batches: ``fixed`` or ``poisson``, gathered at once as ours are; ``loader`` for Poisson
            batches by Opacus' own loader, one record after the other.
        secure: its noise from a cryptographic generator.
    """
    from opacus import PrivacyEngine
    from opacus.data_loader import DPDataLoader

    optimiser = torch.optim.SGD(model.parameters(), lr=STEP_SIZE)
    one = torch.utils.data.TensorDataset(torch.zeros(RECORDS, 1))
    loader = torch.utils.data.DataLoader(one, batch_size=BATCH)
    options = {
        "module": model, "optimizer": optimiser, "data_loader": loader,
        "noise_multiplier": NOISE_MULTIPLIER, "max_grad_norm": CLIP, "poisson_sampling": False,
        "grad_sample_mode": mode,
    }  # fmt: skip
    criterion: Any = nn.CrossEntropyLoss()
    guard = PrivacyEngine(secure_mode=secure)
    if mode == "ghost":
        model, optimiser, criterion, _ = guard.make_private(**options, criterion=criterion)
    else:
        model, optimiser, _ = guard.make_private(**options)
    rng = np.random.default_rng(0)
    loaders = []
    for client in range(CLIENTS if batches == "loader" else 0):
        own = torch.utils.data.TensorDataset(
            *records.gather(records.rows(client, np.arange(RECORDS)))
        )
        loaders.append(DPDataLoader(own, sample_rate=BATCH / RECORDS))

    def turn() -> int:
        for _ in range(COHORT):
            if loaders:
                inputs, targets = next(iter(loaders[int(rng.integers(CLIENTS))]))
            else:
                inputs, targets = random_batch(records, rng, poisson=batches == "poisson")
            optimiser.zero_grad()
            criterion(model(inputs.contiguous()), targets).backward()
            optimiser.step()
        return COHORT

    return turn


def methods(arguments: argparse.Namespace) -> dict[str, Callable[[nn.Module, Any], Turn]]:
    chosen: dict[str, Callable[[nn.Module, Any], Turn]] = {}
    ways: dict[str, dict[str, Any]] = {"": {}}
    if not arguments.quick:
        ways |= {", distributed noise": {"distributed": True}}
    for sampler in arguments.sampler:
        for title, how in ways.items():
            chosen[f"dpcohort private, {sampler}{title}"] = functools.partial(
                our_turn, sampler=sampler, private=True, **how
            )
    if not arguments.quick:
        ways |= {", merged noise": {"merged": True}, ", reference": {"engine": "reference"}}
    if arguments.stack > 1:
        ways |= {f", {arguments.stack} stacked": {"stack": arguments.stack}}
    for sampler in () if arguments.private else arguments.sampler:
        for title, how in ways.items():
            chosen[f"dpcohort seeded, {sampler}{title}"] = functools.partial(
                our_turn, sampler=sampler, **how
            )
    if not arguments.private:
        chosen["plain SGD"] = lambda m, r: plain_turn(m, r, channels_last=False)
        chosen["plain SGD, channels last"] = lambda m, r: plain_turn(m, r, channels_last=True)
    if not arguments.opacus_modes:
        return chosen
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import opacus  # noqa: F401
    except ImportError:
        print("opacus is not installed here: its rows are left out.")
        return chosen
    for mode in arguments.opacus_modes:
        for batches in arguments.sampler:
            chosen[f"Opacus {mode}, {batches}"] = functools.partial(
                opacus_turn, mode=mode, batches=batches
            )
    if "poisson" in arguments.sampler:
        chosen["Opacus hooks, its Poisson loader"] = functools.partial(
            opacus_turn, mode="hooks", batches="loader"
        )
    try:
        import torchcsprng  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        print("torchcsprng is not installed here: Opacus' secure_mode cannot run.")
        return chosen
    chosen["Opacus hooks, secure_mode"] = functools.partial(opacus_turn, mode="hooks", secure=True)
    return chosen


def measure(
    build: Callable[[], nn.Module], shape: tuple[int, ...], arguments: argparse.Namespace
) -> dict[str, float]:
    """Median milliseconds per client step of each method, the methods taking turns."""
    records = make_records(shape, arguments.device)
    turns: dict[str, Turn] = {}
    for name, prepare in methods(arguments).items():
        torch.manual_seed(0)
        turns[name] = prepare(build().to(arguments.device), records)
    times: dict[str, list[float]] = {name: [] for name in turns}
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    for repeat in range(WARM_UP + arguments.turns):
        for name, turn in turns.items():
            synchronise(arguments.device)
            if arguments.device == "cpu":
                time.sleep(PAUSE)
            started = clock()
            steps = turn()
            synchronise(arguments.device)
            if repeat >= WARM_UP:
                times[name].append(1e3 * (clock() - started) / steps)
    return {name: statistics.median(values) for name, values in times.items()}


#: What to put in the place of what, to do without a special way of the engine.
SPECIAL_WAYS: dict[str, tuple[str, Any]] = {
    "commuting": ("dpcohort.engine.clipping._network.pool_before_relu", lambda model: None),
    "recording": ("dpcohort.engine.clipping._network._OFTEN", 10**9),
}


def without(name: str | None) -> AbstractContextManager[Any]:
    """The engine without one of its special ways meanwhile."""
    return nullcontext() if name is None else mock.patch(*SPECIAL_WAYS[name])


def compare(
    name: str, build: Callable[[], nn.Module], shape: tuple[int, ...],
    arguments: argparse.Namespace, *, merged: bool,
) -> tuple[float, float]:  # fmt: skip
    """Milliseconds of a client step with a special way, and how many times as many without."""
    records = make_records(shape, arguments.device)
    turns: dict[str | None, Turn] = {}
    for side in (None, name):
        torch.manual_seed(0)
        with without(side):
            turns[side] = our_turn(build(), records, merged=merged, sampler="fixed")
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    times: dict[str | None, list[float]] = {None: [], name: []}
    for repeat in range(WARM_UP + arguments.turns):
        for side, turn in list(turns.items())[:: 1 if repeat % 2 else -1]:
            with without(side):
                started = clock()
                steps = turn()
                if repeat >= WARM_UP:
                    times[side].append(1e3 * (clock() - started) / steps)
    ratios = [slow / fast for fast, slow in zip(times[None], times[name], strict=True)]
    return statistics.median(times[None]), statistics.median(ratios)


def show_special_ways(arguments: argparse.Namespace) -> None:
    names = list(SPECIAL_WAYS) if "all" in arguments.without else arguments.without
    print(f"{'without':20} {'network':12} {'noise':8} {'ms with':>8} {'without / with':>15}")
    for name in names:
        for network in arguments.networks:
            for merged in (False, True):
                ms, ratio = compare(name, *NETWORKS[network], arguments, merged=merged)
                noise = "merged" if merged else "default"
                print(f"{name:20} {network:12} {noise:8} {ms:8.3f} {ratio:15.3f}", flush=True)


def show_scaling(arguments: argparse.Namespace) -> None:
    """The engine with 1, 2, 4, ... workers, in turns; the result must be the same to the bit.

    A task is a client step, or a part of one. "alone" is the share of a round's time in which no
    worker has a task: the host's part. "busy" is how many tasks there are at a time, on average;
    workers that help with one are not counted. Where a task takes longer with more workers, though
    it is not cut, they are in each other's way: in memory, in Python's lock, or as two threads of
    one core.
    """
    most = arguments.threads or os.cpu_count() or 1
    counts = sorted({2, *(arguments.workers or (most, *(2**i for i in range(most.bit_length()))))})
    print(f"{os.cpu_count()} threads on {physical_cores()} cores")
    show_floor(counts)
    print(
        f"{'network':12} {'noise':8} {'workers':>7} {'ms a step':>10} {'against 2':>10} "
        f"{'alone':>6} {'busy':>5} {'task ms':>8} {'longest':>8} "
        f"{'processor ms':>13} {'system ms':>10} {'switches':>9} {'page faults':>12}"
    )
    for network in arguments.networks:
        build, shape = NETWORKS[network]
        records = make_records(shape, arguments.device)
        for merged in (False, True):
            turns = {}
            for workers in counts:
                torch.manual_seed(0)
                turns[workers] = our_turn(
                    build(), records, merged=merged, workers=workers,
                    micro_batch=arguments.micro_batch, sampler="fixed",
                )  # fmt: skip
            seen: dict[int, list[list[float]]] = {workers: [] for workers in counts}
            for repeat in range(WARM_UP_ALONE + arguments.turns):
                for workers, turn in turns.items():
                    with watched_tasks() as tasks:
                        before = usage()
                        steps = turn()
                        after = usage()
                    if repeat >= WARM_UP_ALONE:
                        used = [(b - a) / steps for a, b in zip(before, after, strict=True)]
                        seen[workers].append([*used, *shares(tasks, after[0] - before[0])])
            medians = {
                workers: [statistics.median(column) for column in zip(*rows, strict=True)]
                for workers, rows in seen.items()
            }
            for workers, found in medians.items():
                wall, user, system, switches, faults, alone, busy, task, longest = found
                print(
                    f"{network:12} {'merged' if merged else 'default':8} {workers:7} {wall:10.3f} "
                    f"{medians[2][0] / wall:9.2f}x {alone:6.1%} {busy:5.1f} {task:8.2f} "
                    f"{longest:8.2f} {user:13.3f} {system:10.3f} {switches:9.1f} {faults:12.1f}",
                    flush=True,
                )


def show_profile(arguments: argparse.Namespace) -> None:
    """What a round's time is made of: a GPU's kernels, or operations of one worker."""
    on_gpu = arguments.device != "cpu"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    for network in arguments.networks:
        build, shape = NETWORKS[network]
        torch.manual_seed(0)
        records = make_records(shape, arguments.device)
        turn = our_turn(
            build(), records, stack=arguments.stack, workers=None if on_gpu else 1,
            sampler=arguments.sampler[0], private=arguments.private,
        )  # fmt: skip
        for _ in range(WARM_UP_ALONE):
            turn()
        started = time.perf_counter()
        for _ in range(arguments.turns):
            turn()
        wall = 1e3 * (time.perf_counter() - started) / arguments.turns
        with profile(activities=[activity]) as found:
            for _ in range(arguments.turns):
                turn()
        spent = [
            ((row.self_device_time_total if on_gpu else row.self_cpu_time_total), row)
            for row in found.key_averages()
        ]
        unit = 1e3 * arguments.turns  # from microseconds of all turns to milliseconds of one
        busy = sum(used for used, _ in spent) / unit
        print(f"\n{network}, {arguments.stack} side by side: a round takes {wall:.2f} ms, "
              f"its parts together {busy:.2f} ms as they are watched")  # fmt: skip
        for used, row in sorted(spent, key=lambda pair: -pair[0])[:MOST_SHOWN]:
            print(f"  {used / unit:9.3f} ms  {row.count / arguments.turns:6.1f} x  {row.key[:90]}")


def show_floor(counts: Sequence[int]) -> None:
    """What the machine itself gains by more threads that share nothing: products, and copies."""
    factors, pages = torch.randn(2, 384, 384), torch.zeros(2, 1 << 23)

    def work(copies: bool, until: float) -> int:
        torch.set_num_threads(1)
        done, out = 0, torch.empty_like(pages[0] if copies else factors[0])
        while time.perf_counter() < until:
            if copies:
                out.copy_(pages[0])
            else:
                torch.mm(factors[0], factors[1], out=out)
            done += 1
        return done

    for copies, name in ((False, "products"), (True, "copies")):
        rates = {}
        for workers in counts:
            with ThreadPoolExecutor(workers) as pool:
                until = time.perf_counter() + FLOOR_SECONDS
                rates[workers] = sum(pool.map(work, [copies] * workers, [until] * workers))
        each = 8 * pages[0].numel() / 1e9 if copies else 2 * 384**3 / 1e9
        told = ", ".join(
            f"{n}: {each * rate / FLOOR_SECONDS:.0f} {'GB' if copies else 'GFLOP'}/s "
            f"({rate / rates[2]:.2f}x)"
            for n, rate in rates.items()
        )
        print(f"threads that do {name} only, {told}", flush=True)


@contextmanager
def watched_tasks() -> Iterator[list[tuple[float, float]]]:
    """When each task of the engine begins and ends meanwhile, in milliseconds."""
    from dpcohort.engine import BatchedEngine

    times: list[tuple[float, float]] = []

    def watched(name: str) -> Any:
        task = getattr(BatchedEngine, name)

        def run(*given: Any) -> None:
            started = time.perf_counter()
            task(*given)
            times.append((1e3 * started, 1e3 * time.perf_counter()))

        return mock.patch.object(BatchedEngine, name, run)

    with watched("_run"), watched("_run_into_sum"):
        yield times


def shares(tasks: list[tuple[float, float]], wall: float) -> tuple[float, float, float, float]:
    """Share of a time without a task, tasks at a time, and the mean and the longest of them."""
    covered, until = 0.0, -math.inf
    for begun, ended in sorted(tasks):
        covered += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    lengths = [ended - begun for begun, ended in tasks]
    busy = sum(lengths) / wall
    return 1 - covered / wall, busy, statistics.mean(lengths), max(lengths)


def physical_cores() -> int | str:
    """How many cores there are, where a core may have several threads; ? if nobody says."""
    places = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({place.read_text() for place in places}) or "?"


def usage() -> tuple[float, ...]:
    """Milliseconds on the clock and on processors, and what kept threads waiting."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    times = 1e3 * time.perf_counter(), 1e3 * used.ru_utime, 1e3 * used.ru_stime
    return *times, float(used.ru_nvcsw), float(used.ru_minflt)


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def show(
    name: str, parameters: int, results: dict[str, float], arguments: argparse.Namespace
) -> None:
    peers = [ms for method, ms in results.items() if method.startswith("Opacus")]
    best = min(peers) if peers else arguments.opacus_ms
    floor = min((ms for method, ms in results.items() if method.startswith("plain")), default=None)
    print(f"\n{name}: {parameters:,} parameters, batches of {BATCH}, {COHORT} clients a round")
    print(f"  {'method':40} {'ms per client step':>19} {'vs best Opacus':>15} {'vs plain':>9}")
    for method, ms in sorted(results.items(), key=lambda item: item[1]):
        ratio = f"{best / ms:.2f}x" if best else "-"
        plain = f"{ms / floor:8.2f}x" if floor else "       -"
        print(f"  {method:40} {ms:19.3f} {ratio:>15} {plain}")
    poisson = {m: ms for m, ms in results.items() if m.startswith("Opacus") and "fixed" not in m}
    pairs = {
        "Poisson over fixed, seeded": ("dpcohort seeded, poisson", "dpcohort seeded, fixed"),
        "private over seeded, Poisson": ("dpcohort private, poisson", "dpcohort seeded, poisson"),
        "private over seeded, fixed": ("dpcohort private, fixed", "dpcohort seeded, fixed"),
        "Opacus' best Poisson batches over private": (
            min(poisson, key=poisson.__getitem__, default=""), "dpcohort private, poisson"
        ),
    }  # fmt: skip
    for title, (one, other) in pairs.items():
        if one in results and other in results:
            print(f"  {title}: {results[one] / results[other]:.2f}")
    if arguments.device != "cpu":
        rate = bandwidth()
        gradients = 8.0 * COHORT * BATCH * parameters  # of 4 bytes, written and read once
        print(
            f"  memory moves {rate / 1e12:.2f} TB/s: to write and read {COHORT * BATCH:,} "
            f"gradients takes {1e3 * gradients / rate:.2f} ms a round, "
            f"{1e3 * gradients / rate / COHORT:.3f} a client step"
        )


def bandwidth() -> float:
    """Bytes that a copy on the GPU reads and writes in a second."""
    given = torch.empty(1 << 29, device="cuda").normal_()
    copy, best = torch.empty_like(given), math.inf
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        copy.copy_(given)
        end.record()
        torch.cuda.synchronize()
        best = min(best, 1e-3 * begin.elapsed_time(end))
    return 8.0 * given.numel() / best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns, no reference engine")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--sampler", nargs="+", choices=("poisson", "fixed"), default=["poisson", "fixed"],
        help="how batches are drawn",
    )  # fmt: skip
    parser.add_argument("--private", action="store_true", help="private rows alone, and Opacus")
    parser.add_argument("--stack", type=int, default=1, help="experiments side by side")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument(
        "--opacus-modes", nargs="*", default=list(OPACUS_MODES), choices=OPACUS_MODES,
        help="which modes of Opacus take part",
    )  # fmt: skip
    parser.add_argument("--turns", type=int, default=None, help="timed rounds of each method")
    parser.add_argument("--cpu-time", action="store_true", help="processor instead of wall time")
    parser.add_argument(
        "--without", nargs="+", choices=["all", *SPECIAL_WAYS], metavar="NAME",
        help=f"measure what these are worth alone: {', '.join(SPECIAL_WAYS)}, or all",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=None, help="torch threads")
    parser.add_argument(
        "--workers", type=int, nargs="+", help="with --scaling: how many, beside two"
    )
    parser.add_argument(
        "--micro-batch", type=int, help="with --scaling: records in one pass at most"
    )
    parser.add_argument(
        "--scaling", action="store_true", help="the engine on 1, 2, 4, ... cores, in one run"
    )
    parser.add_argument("--profile", action="store_true", help="what a round's time is made of")
    parser.add_argument(
        "--opacus-ms", type=float, default=None,
        help="Opacus' milliseconds on this machine, where it cannot be measured here",
    )  # fmt: skip
    arguments = parser.parse_args()
    from dpcohort.engine.clipping import _network as network

    network._OFTEN = 1  # a long training has recorded its passes; here the first turns do
    if arguments.turns is None:
        arguments.turns = 3 if arguments.quick else 7
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    torch.backends.cudnn.benchmark = True
    device = "CUDA" if arguments.device != "cpu" else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {device}, {os.cpu_count()} cores")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if arguments.without:
            show_special_ways(arguments)
            return
        if arguments.scaling:
            show_scaling(arguments)
            return
        if arguments.profile:
            show_profile(arguments)
            return
        for name in arguments.networks:
            build, shape = NETWORKS[name]
            parameters = sum(p.numel() for p in build().parameters())
            show(name, parameters, measure(build, shape, arguments), arguments)


if __name__ == "__main__":
    main()
