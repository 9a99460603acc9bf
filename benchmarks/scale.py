# SPDX-License-Identifier: Apache-2.0
"""Memory of a simulation with few and with very many clients, on data mapped from a file.

``python benchmarks/scale.py`` trains a few rounds with 1,000 and then with 1,000,000 clients, each
in a process of its own, with the same cohorts, batches, network and data file, and prints what each
process holds in its last round. Own memory is what the operating system cannot take back; pages of
the files that were touched are in the resident memory too, and can be dropped at any time. The
files are taken out of the system's cache before each process: of a file that was just written Linux
maps half a megabyte and more around each record that is read.
``--draws 1000`` for larger cohorts.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WIDTH, RECORDS = 32, 8_000_000


def write_data(folder: Path) -> None:
    """One file of records, written a part at a time: 0.25 GB of bytes."""
    rng = np.random.default_rng(0)
    shapes = {"train_inputs": (RECORDS, WIDTH), "test_inputs": (1000, WIDTH)}
    for name, shape in shapes.items():
        array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, shape)
        for start in range(0, shape[0], 100_000):
            rows = array[start : start + 100_000]
            rows[:] = rng.integers(0, 256, rows.shape, np.uint8)
        del array
        labels = rng.integers(0, 2, shape[0])
        np.save(folder / f"{name.removesuffix('inputs')}labels.npy", labels)
    np.save(folder.with_suffix(".indices.npy"), np.arange(RECORDS))


def leave_cache(folder: Path) -> None:
    """Take the files out of the system's cache."""
    for path in (*folder.iterdir(), folder.with_suffix(".indices.npy")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def held() -> dict[str, float]:
    """Resident memory of this process in MB: in all, its own, and the most there was."""
    status = Path("/proc/self/status").read_text()
    found = {name: int(kb) / 1024 for name, kb in re.findall(r"(\w+):\s+(\d+) kB", status)}
    return {"resident": found["VmRSS"], "own": found["RssAnon"], "peak": found["VmHWM"]}


def train_with(clients: int, draws: int, rounds: int, folder: Path) -> None:
    from dpcohort import Population, Training, make_plan, train
    from dpcohort.data import Partition, load_dataset

    started = time.process_time()
    data = load_dataset(folder)
    size = 8
    indices = np.load(folder.with_suffix(".indices.npy"), mmap_mode="r")[: clients * size]
    offsets = size * np.arange(clients + 1)
    partition = Partition(indices=indices, offsets=offsets, records=len(data))
    population = Population.from_arrays(
        sizes=partition.sizes,
        epsilon=np.random.default_rng(1).uniform(1, 8, clients),
        delta=1e-6,
    )
    training = Training(
        rounds=rounds, cohort_size=draws, batch_size=4, clip=1.0, dimension=2 * (WIDTH + 1)
    )
    plan = make_plan(population, training, seed=0)
    seen: list[dict[str, float]] = []

    class Looking:
        def on_round(self, record: object, run: object) -> None:
            seen.append(held())

    run = train(
        plan,
        "logistic",
        data,
        partition=partition,
        device="cpu",
        evaluate_every=rounds,
        callbacks=[Looking()],
    )
    seconds = time.process_time() - started
    told = ", ".join(f"{name} {mb:.0f} MB" for name, mb in seen[-1].items())
    print(f"{clients:>9,} clients, {draws} draws a round: {told}; {seconds:.1f} s of processor")
    assert run.test_accuracy > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 1_000_000])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.data:
        train_with(given.clients[0], given.draws, given.rounds, given.data)
        return
    own, resident = [], []
    with tempfile.TemporaryDirectory() as outer:
        folder = f"{outer}/data"
        Path(folder).mkdir()
        write_data(Path(folder))
        for clients in given.clients:
            options = ["--clients", str(clients), "--draws", str(given.draws)]
            options += ["--rounds", str(given.rounds), "--data", folder]
            leave_cache(Path(folder))
            command = [sys.executable, __file__, *options]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            print(said, end="", flush=True)
            resident.append(float(re.findall(r"resident (\d+)", said)[0]))
            own.append(float(re.findall(r"own (\d+)", said)[0]))
    print(f"the last against the first: {own[-1] / own[0]:.2f}x own memory,", end=" ")
    print(f"{resident[-1] / resident[0]:.2f}x resident")


if __name__ == "__main__":
    main()
