# SPDX-License-Identifier: Apache-2.0
"""What real trackers write of a training: points, and times that lie within it.

    pip install 'dpcohort[tensorboard,mlflow,wandb]'
    python benchmarks/trackers.py

The suite has stand-ins for the three packages; this runs the packages themselves, offline. Of a
private training no time may be told; W&B is refused there and gets the finished run.
"""

from __future__ import annotations

import importlib.metadata
import re
import sqlite3
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dpcohort import Population, Training, make_plan, train
from dpcohort.errors import InputError
from dpcohort.runs import MLflowLog, Run, TensorBoardLog, WandbLog

ROUNDS = 20


def tensorboard_times(folder: Path) -> list[float]:
    loader = import_module("tensorboard.backend.event_processing.event_file_loader")
    (path,) = folder.glob("events*")
    return [event.wall_time for event in loader.LegacyEventFileLoader(str(path)).Load()][1:]


def mlflow_times(folder: Path) -> list[float]:
    """Of all tables, whatever could be milliseconds since 1970."""
    found: list[float] = []
    with sqlite3.connect(folder / "mlflow.db") as base:
        metrics = [when for (when,) in base.execute("select timestamp from metrics")]
        for (table,) in base.execute("select name from sqlite_master where type = 'table'"):
            for row in base.execute(f"select * from {table}"):
                found += [v / 1000 for v in row if isinstance(v, int) and v > 10**12]
    return [*(when / 1000 for when in metrics if when < 10**12), *found]


def wandb_times(folder: Path) -> list[float]:
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    return [float(text) for text in re.findall(rb"\d{10}\.\d+|1\.\d+e\+0?9", path.read_bytes())]


#: Each tracker: its package, its callback, and how its times are read.
TRACKERS: dict[str, tuple[str, Callable[[Path], Any], Callable[[Path], list[float]]]] = {
    "TensorBoard": ("tensorboard", TensorBoardLog, tensorboard_times),
    "MLflow": ("mlflow", MLflowLog, mlflow_times),
    "Weights & Biases": ("wandb", WandbLog, wandb_times),
}


def tried(name: str, folder: Path, *, private: bool) -> str:
    """Train with a tracker and count the times in what it wrote."""
    clients = Population.from_arrays(sizes=[400] * 3, epsilon=[2, 4, 8], delta=1e-5)
    settings = Training(rounds=ROUNDS, cohort_size=2, batch_size=40, dimension=650)
    plan = make_plan(clients, settings, seed=0)
    _, listens, read = TRACKERS[name]
    log, told = listens(folder / "tracked"), ""
    options: dict[str, Any] = {"device": "cpu", "private_entropy": private, "out": folder / "run"}
    began = time.time()
    try:
        train(plan, "logistic", "digits", callbacks=[log], **options)
    except InputError:
        told = "refused; of the finished run: "
        train(plan, "logistic", "digits", **options)
    ended = time.time()
    if told:
        run = Run.load(folder / "run")
        for record in run.history:
            log.on_round(record, run)
    if hasattr(log, "close"):
        log.close()
    times = read(folder / "tracked")
    within = [when for when in times if began <= when <= ended]
    return f"{told}{len(times)} times written, {len(within)} of the training"


def main() -> None:
    print("| | version | a simulation | a private training |\n|---|---|---|---|")
    for name, (package, *_) in TRACKERS.items():
        cells = []
        for private in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                cells.append(tried(name, Path(folder), private=private))
        print(f"| {name} | {importlib.metadata.version(package)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
