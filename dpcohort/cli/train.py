# SPDX-License-Identifier: Apache-2.0
"""``dpcohort train``: execute a configuration's plan and write the run down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpcohort.cli.live_view import watching
from dpcohort.cli.output import console, print_json, sparkline
from dpcohort.cli.source import JsonOption, SetOption
from dpcohort.config import load_config
from dpcohort.errors import InputError

if TYPE_CHECKING:
    from dpcohort.runs.run import Callback, Run

__all__ = ["DataDirOption", "DeviceOption", "command", "data_changes", "summary_of"]

DeviceOption = Annotated[
    str | None,
    typer.Option(help="auto, cpu or cuda; the config's if not given.", show_default=False),
]

DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where to look for the data first.", show_default=False),
]


def data_changes(changes: list[str] | None, data_dir: Path | None) -> list[str]:
    """The settings to change, with the folder of the data among them.

    Example:
        >>> data_changes(["run.seed=3"], None)
        ['run.seed=3']
    """
    found = list(changes or [])
    if data_dir is not None:
        # A path in a config starts from the config's folder, one on the command line from here.
        found.append(f"data.dir={json.dumps(str(data_dir.resolve()))}")
    return found


def command(
    source: Annotated[Path, typer.Argument(metavar="CONFIG", help="A config with data (.toml).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder to write.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in that folder.")
    ] = False,
    changes: SetOption = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many runs, with seeds one after the other.")
    ] = 1,
    device: DeviceOption = None,
    data_dir: DataDirOption = None,
    private_entropy: Annotated[
        bool,
        typer.Option(
            "--private-entropy",
            help="Batches and noise from the operating system's entropy; cannot be reproduced.",
        ),
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write TensorBoard events here.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train; the ledger is written before every round, so a crash never hides spending."""
    config = load_config(source).with_overrides(data_changes(changes, data_dir))
    if private_entropy and seeds > 1:
        raise InputError.because(
            "--private-entropy releases models, and each release spends every budget again: "
            "several seeds would spend it several times. Use one seed."
        )
    if seeds > 1 and (out / "run.json").exists():
        raise InputError.because(
            f"{out} holds one run; several seeds need a folder of their own. Choose another --out."
        )
    from dpcohort.runs.configured import configured_job
    from dpcohort.runs.configured_plan import configured_data
    from dpcohort.runs.training import train_job

    data = configured_data(config)
    runs: list[Run] = []
    for shift in range(seeds):
        job = configured_job(
            config, data=data, shift=shift, device=device, private_entropy=private_entropy
        )
        place = out if seeds == 1 else out / f"seed-{job.seed}"
        title = f"{job.title}: {job.model_name} on {data.name}"
        with watching(f"{title}, seed {job.seed}", quiet=as_json) as callbacks:
            listeners = [*callbacks, *_events(tensorboard, job.seed)]
            run = train_job(job, out=place, resume=resume, callbacks=listeners)
        for words in run.warnings:
            if not as_json:
                console.print(f"note: {words}", markup=False)
        runs.append(run)
    if as_json:
        print_json(summary_of(runs, out))
        return
    _print(runs, out)


def _events(folder: Path | None, seed: int) -> list[Callback]:
    if folder is None:
        return []
    from dpcohort.runs.tensorboard import TensorBoardLog

    return [TensorBoardLog(folder / f"seed-{seed}")]


def summary_of(runs: Sequence[Run], out: Path) -> dict[str, Any]:
    """What a program wants to know about finished runs."""
    from dpcohort.runs.evaluation import summarise_seeds, who_was_heard

    first = runs[0]
    receipts = [receipt for run in runs for receipt in run.receipts()]
    return {
        "out": str(out),
        "plan": first.plan.sha256,
        "result": summarise_seeds(runs).to_dict(),
        "heard": [group.to_dict() for group in who_was_heard(first.plan, first.ledger.draws)],
        "receipts": len(receipts),
        "promises_hold": all(receipt.holds for receipt in receipts),
        "private": first.is_private,
        "stamp": receipts[0].stamp if receipts else "",
        "warnings": [words for run in runs for words in run.warnings],
        "runs": [
            {"seed": run.seed, "path": str(run.path), "test_accuracy": run.test_accuracy}
            for run in runs
        ],
    }


def _print(runs: Sequence[Run], out: Path) -> None:
    found = summary_of(runs, out)
    accuracy = found["result"]["accuracy"]
    spread = ""
    if len(runs) > 1:
        spread = f" (95 % CI {100 * accuracy['low']:.1f} to {100 * accuracy['high']:.1f})"
    curve = runs[0].curve()
    console.print(f"accuracy {sparkline(curve.accuracy.tolist())}", markup=False)
    seeds = f"{len(runs)} seeds, " if len(runs) > 1 else ""
    console.print(
        f"Test accuracy {100 * accuracy['mean']:.1f} %{spread}: {seeds}"
        f"{runs[0].plan.training.rounds} rounds.",
        markup=False,
    )
    kept = "all promises hold" if found["promises_hold"] else "NOT ALL PROMISES HOLD"
    receipts = "1 receipt" if found["receipts"] == 1 else f"{found['receipts']} receipts"
    console.print(f"{receipts}, {kept}. {found['stamp']}", markup=False)
    console.print(
        f"Run: {out}   Next: dpcohort verify {out}, dpcohort report {out}",
        markup=False,
        soft_wrap=True,
    )
