# SPDX-License-Identifier: Apache-2.0
"""How long a client's ledger takes to count and to store, beside the same disk's own fsync.

``python benchmarks/ledger.py [--folder DIR]``. A reserve waits for the disk once, for the ledger's
row: a draw is counted before it is computed. A release waits twice, for the stored update and for
the counter: both are on disk before an output leaves. So the times are the disk's; how many plain
writes with fdatasync in the same folder they amount to is the ledger's own figure.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from dpcohort._validate import FloatArray
from dpcohort.accounting import Event
from dpcohort.deploy.ledger import ClientLedger, DrawKey, LifetimeCap, RunTerms

#: Without subsampling the composition has a closed form: what is measured is the disk.
_NOISE = 400.0


def measure(folder: Path, draws: int, size: int) -> dict[str, FloatArray]:
    """Milliseconds of each reserve, release and bare fdatasync, in turns on the same disk."""
    terms = RunTerms(
        epsilon=4.0,
        delta=1e-5,
        clip=1.0,
        sampling_rate=1.0,
        local_steps=1,
        rounds=draws,
        draws=draws,
        least_noise_multiplier=_NOISE,
    )
    step = Event.of(noise_multiplier=_NOISE, sampling_rate=1.0, steps=1)
    times: dict[str, list[float]] = {"reserve": [], "release": [], "fdatasync": []}
    bare = os.open(folder / "bare", os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(bare, bytes(4096), 0)
    os.fsync(bare)

    def plain_write() -> None:
        os.pwrite(bare, os.urandom(200), 0)
        os.fdatasync(bare)

    with ClientLedger.create(folder / "bench.ledger") as ledger:
        ledger.register("bench", LifetimeCap(epsilon=4.0, delta=1e-5))
        ledger.accept("bench", "run", terms)
        for round in range(draws):
            key, update = _key(round), os.urandom(size)
            started = time.perf_counter()
            ledger.reserve(key, step, clip=1.0)
            reserved = time.perf_counter()
            ledger.release(key, update)
            released = time.perf_counter()
            plain_write()
            times["reserve"].append(1000 * (reserved - started))
            times["release"].append(1000 * (released - reserved))
            times["fdatasync"].append(1000 * (time.perf_counter() - released))
    os.close(bare)
    return {name: np.array(values) for name, values in times.items()}


def _key(round: int) -> DrawKey:
    return DrawKey(dataset="bench", run="run", round=round, draw=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--size", type=int, default=4096, help="bytes of an update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        times = measure(Path(folder), options.draws, options.size)
    print(f"{options.draws} draws, updates of {options.size} bytes, milliseconds")
    print(f"{'':10} {'p50':>8} {'p99':>8}   p50 and p99 in fdatasyncs of this disk")
    base = np.percentile(times["fdatasync"], [50, 99])
    for name, values in times.items():
        p50, p99 = np.percentile(values, [50, 99])
        print(f"{name:10} {p50:8.2f} {p99:8.2f}   {p50 / base[0]:.1f} and {p99 / base[1]:.1f}")


if __name__ == "__main__":
    main()
