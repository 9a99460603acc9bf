# SPDX-License-Identifier: Apache-2.0
"""What private noise costs beside the generators of simulation, and how far its tail reaches.

``python benchmarks/private_noise.py [--device cuda] [--normals 1e9] [--json FILE]``. Both sides of
a ratio are timed in turns in one run. The tail is counted: so many normals, how many of them beyond
5.768 (where 24-bit uniforms end), 6, 6.5 and 7 standard deviations, and how many there should be.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch.profiler import ProfilerActivity, profile

from dpcohort.engine import Streams
from dpcohort.engine._counter_noise import add_noise_
from dpcohort.engine._lattice import KEY_BYTES, release

_EXPONENT = 22
_TAILS = (5.768, 6.0, 6.5, 7.0)


def seconds(first: Callable[[], object], second: Callable[[], object], device: str) -> list[float]:
    """Best times of both, taken in turns; on a CPU, where one thread works, its own time."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    best = [float("inf")] * 2
    for _ in range(15):
        for side, action in enumerate((first, second)):
            started = clock()
            action()
            if device == "cuda":
                torch.cuda.synchronize()
            best[side] = min(best[side], clock() - started)
    return best


def gpu_seconds(action: Callable[[], object], repeats: int = 10) -> float:
    """How long the GPU is busy with it."""
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        for _ in range(repeats):
            action()
        torch.cuda.synchronize()
    busy = sum(event.self_device_time_total for event in watched.key_averages())
    return float(busy) / repeats


def cost(device: str, rows: int, count: int) -> float:
    """Time of private noise over that of a simulation's: so many draws of so many coordinates."""
    streams = Streams.seeded(0)
    out = torch.zeros(rows, count, device=device)
    totals = torch.zeros(rows, count, dtype=torch.int64, device=device)
    one = torch.ones(rows, dtype=torch.float64, device=device)
    names = torch.arange(2 * rows, device=device).view(rows, 2)

    def simulated() -> None:
        if device == "cuda":
            add_noise_(out, out, names, scale=one, spread=one, accumulate=False)
            return
        for row in range(rows):
            streams.normal_(out[row], round=0, client=row)

    def private() -> None:
        keys = [os.urandom(KEY_BYTES) for _ in range(rows)]
        release(totals, [_EXPONENT] * rows, keys, factors=[1.0] * rows, dtype=torch.float32)

    for action in (simulated, private):
        action()
    fast, secure = seconds(simulated, private, device)
    if device == "cuda":  # the work of the GPU alone; the host's part is the same for every size
        busy = [gpu_seconds(action) for action in (simulated, private)]
        print(f"{rows} x {count:,} coordinates: time on the GPU, ratio {busy[1] / busy[0]:.2f}")
    each = 1e9 / (rows * count)
    print(
        f"{device}, {rows} x {count:,} coordinates: simulation {each * fast:.4f} ns each, private "
        f"{each * secure:.4f} ns each, ratio {secure / fast:.2f}"
    )
    return secure / fast


def tails(device: str, normals: int) -> list[dict[str, float]]:
    """Counts beyond the limits, with what the law expects."""
    chunk = min(normals, 1 << (26 if device == "cuda" else 20))
    limits = [int(t * 2**_EXPONENT) for t in _TAILS]
    counts = np.zeros(len(limits), dtype=np.int64)
    drawn = 0
    while drawn < normals:
        totals = torch.zeros(1, chunk, dtype=torch.int64, device=device)
        key = os.urandom(KEY_BYTES)
        sizes = release(totals, [_EXPONENT], [key], factors=[1.0], dtype=torch.float64).abs_()
        counts += [int((sizes > limit).sum()) for limit in limits]
        drawn += chunk
    rows = []
    for t, limit, count in zip(_TAILS, limits, counts.tolist(), strict=True):
        expected = drawn * 2 * stats.norm.sf((limit + 0.5) / 2**_EXPONENT)
        away = (count - expected) / np.sqrt(expected)
        rows.append({"sigma": t, "count": count, "expected": expected, "sd_away": away})
        print(f"beyond {t} sigma: {count} of {drawn:,}, expected {expected:.2f} ({away:+.2f} sd)")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--normals", type=float, default=1e7, help="how many for the tail")
    parser.add_argument("--json", type=Path, default=None, help="write the results there too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = platform.processor() or platform.machine()
    if options.device == "cuda":
        machine = torch.cuda.get_device_name()
    print(f"{machine}, torch {torch.__version__}")
    small, large = [(1, 26_010), (1, 1_000_000)], [(10, 1_000_000), (1, 1 << 26), (1, 1 << 28)]
    sizes = small if options.device == "cpu" else large
    ratios = {f"{rows} x {count}": cost(options.device, rows, count) for rows, count in sizes}
    started = time.perf_counter()
    found = tails(options.device, int(options.normals))
    print(f"{options.normals:.0e} normals in {time.perf_counter() - started:.1f} s")
    if options.json is not None:
        result = {"machine": machine, "ratios": ratios, "normals": options.normals, "tails": found}
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
