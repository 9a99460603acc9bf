# SPDX-License-Identifier: Apache-2.0
"""``dpcohort personal``: each client's own model beside the common one of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
from typer import Argument, Option

from dpcohort.atomic_file import write_text
from dpcohort.cli import DataDirOption, DeviceOption, JsonOption, data_changes, print_json, say
from dpcohort.errors import InputError
from dpcohort.text_files import finite_json

if TYPE_CHECKING:
    from dpcohort.runs import Job, Run
    from dpcohort_lab.personal import Method

#: How good clients' own models are, in a simulation; nothing of it leaves a real client.
RESULT = "personal.json"


def personal(
    source: Annotated[
        Path, Argument(metavar="RUN", help="A run folder (or a folder of seeds), finished.")
    ],
    method: Annotated[
        str, Option(help="ditto (pulled to the common model), or fine-tune: the last layer only.")
    ] = "ditto",
    pull: Annotated[
        str,
        Option(
            help="auto: each client's own mix, by its own records; or a number for all, or inf."
        ),
    ] = "auto",
    steps: Annotated[
        int, Option(help="Steps of each client; small linear models are fitted to the end.")
    ] = 100,
    device: DeviceOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make each client's own model of a run's common one; say how good it is.

    It costs nothing, as it never leaves. For simulations, in which one machine has all records: of
    a private run nothing is told. RUN/personal.json has what comes out; no other file changes.
    """
    # torch is loaded only now.
    import json

    from dpcohort.runs import load_group
    from dpcohort_lab.personal import personal_results

    held = float(pull) if _is_number(pull) else pull
    runs = load_group(source)
    results = []
    for run in runs:
        job = _job_of(run, device, data_dir)
        found = personal_results(
            job, run, method=cast("Method", method), pull=cast(Any, held), steps=steps
        )
        text = json.dumps(finite_json(found), indent=2, ensure_ascii=False)
        write_text(Path(cast(str, run.path)) / RESULT, text + "\n")
        results.append(found)
    if as_json:
        print_json({"personal": results})
    else:
        say(in_words(results))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _job_of(run: Run, device: str | None, data_dir: Path | None) -> Job:
    """The training that a folder is of, with its plan and its partition."""
    from dpcohort.config import load_config
    from dpcohort.data import load_partition
    from dpcohort.runs import configured_job

    folder = Path(cast(str, run.path))
    if not (folder / "config.toml").exists():
        raise InputError.because(
            f"{folder} has no config.toml, so nothing says where its data are: it was trained from "
            "Python or by clients of a federation. There, use "
            "dpcohort_lab.personal.personal_results."
        )
    config = load_config(folder / "config.toml").with_overrides(data_changes(None, data_dir))
    return configured_job(
        config,
        plan=run.plan,
        partition=load_partition(folder / "partition.npz"),
        shift=run.seed - config.run.seed,
        device=device,
    )


def in_words(found: Sequence[Mapping[str, Any]]) -> str:
    """Personal models beside the common one and each client alone; means over the seeds."""
    from dpcohort.metrics import METRICS

    metric, clients = METRICS[found[0]["metric"]], len(found[0]["clients"])

    def words(kind: str) -> str:
        mean = [[one[kind]["median"], *one[kind]["quartiles"]] for one in found]
        median, low, high = (metric.text(float(value)) for value in np.mean(mean, axis=0))
        return f"{median} ({low} to {high})"

    seeds = f", {len(found)} seeds" if len(found) > 1 else ""
    return (
        f"Personal models ({found[0]['method']}{seeds}), {metric.words} of the median of {clients} "
        f"clients (and quartiles), each on its own test records:\n"
        f"  common model {words('common')}\n  each alone, no noise {words('alone')}\n"
        f"  personal {words('personal')}\n{found[0]['stamp']}"
    )
