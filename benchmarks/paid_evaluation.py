# SPDX-License-Identifier: Apache-2.0
"""What a share of each budget buys on test records that are not public, and what it costs.

``python benchmarks/paid_evaluation.py coverage [--repeats 1000] [--json FILE]``: how often the 95 %
intervals hold the truth, over fresh test records and noise, and how wide they are.

``python benchmarks/paid_evaluation.py diabetes ZIP FOLDER``: the table of encounters of UCI
"Diabetes 130-US Hospitals" (doi 10.24432/C5230J) as a config, clients and CSV: clients by medical
specialty, epsilon from U(0.05, 1).

``python benchmarks/paid_evaluation.py table CONFIG [--seeds 5] [--share 0.05] [--json FILE]``: a
config with private test records that one may look at, trained with and without the share, as
simulations: the error of the evaluation against the test records themselves, and the score that
the share costs the model.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.accounting import gaussian_mu
from dpcohort.runs._noised_metrics import combined, questions_of, sharpness
from dpcohort.tasks import Task
from dpcohort.text_files import toml_text

Made = tuple[NDArray[Any], NDArray[Any]]

_STAY = Task(kind="regression", outputs=1, bounds=(0.0, 30.0))
_POOL = 300_000


def balanced(rng: np.random.Generator, count: int) -> Made:
    """Two classes, of which the model knows a good deal."""
    return _two(rng, count, share=0.5, apart=1.8)


def rare(rng: np.random.Generator, count: int) -> Made:
    """A class of one in nine, as readmissions are, that the model hardly tells."""
    return _two(rng, count, share=0.11, apart=0.7)


def _two(rng: np.random.Generator, count: int, *, share: float, apart: float) -> Made:
    truth = (rng.random(count) < share).astype(np.int64)
    score = apart * (rng.normal(size=count) + apart * (truth - 0.5))
    score += np.log(share / (1 - share))
    return np.stack([-score / 2, score / 2], axis=1), truth


def ten(rng: np.random.Generator, count: int) -> Made:
    """Ten classes."""
    truth = rng.integers(0, 10, count)
    outputs = rng.normal(size=(count, 10))
    outputs[np.arange(count), truth] += 2.0
    return outputs, truth


def stays(rng: np.random.Generator, count: int) -> Made:
    """Days of a stay between 0 and 30."""
    days = np.clip(rng.gamma(2.0, 4.0, count), 0, 30)
    said = days + rng.normal(0, 4, count)
    return _STAY.scaled(said)[:, None], _STAY.scaled(days)


Cases = dict[str, tuple[Task, Callable[[np.random.Generator, int], Made]]]
CASES: Cases = {
    "two classes": (Task(), balanced),
    "a rare class": (Task(), rare),
    "ten classes": (Task(outputs=10), ten),
    "a number": (_STAY, stays),
}
#: Test records of each client, and its epsilon; delta is 1e-5 and the share a twentieth.
CLIENTS = {
    "one, ε 1": ([20_000], [1.0]),
    "ten, ε 0.5 to 4": ([2000] * 10, np.geomspace(0.5, 4, 10).tolist()),
    "ten, ε 8": ([500] * 10, [8.0] * 10),
}


def coverage(repeats: int, seed: int) -> list[dict[str, Any]]:
    """Of each metric, how often its interval holds the truth and how wide it is."""
    found = []
    for case, (task, made) in CASES.items():
        rng, questions = np.random.default_rng(seed), questions_of(task)
        pool = questions.rows(*made(rng, _POOL))
        true = questions.metrics(pool.mean(0) / questions.weights, 0.0 * questions.weights, 0.0)
        for whose, (sizes, epsilon) in CLIENTS.items():
            records = np.array(sizes)
            noise = 1.0 / gaussian_mu(
                epsilon=0.05 * np.array(epsilon), delta=np.full(len(records), 5e-7)
            )
            rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in true}
            for _ in range(repeats):
                sums = np.stack([pool[rng.integers(0, _POOL, n)].sum(0) for n in sizes])
                sums += noise[:, None] * rng.normal(size=sums.shape)
                for name, one in combined(questions, sums, records, noise)[1].items():
                    if one.value is not None:
                        rows[name].append((one.value, one.low or 0.0, one.high or 0.0))
            for name, several in rows.items():
                if not several:  # too noisy to be told
                    continue
                value, low, high = np.array(several).T
                truth = float(true[name].value or 0.0)
                found.append(
                    {
                        "case": case,
                        "clients": whose,
                        "metric": name,
                        "truth": truth,
                        "told": len(several) / repeats,
                        "coverage": float(((low <= truth) & (truth <= high)).mean()),
                        "half_width": float((high - low).mean() / 2),
                        "error": float(np.abs(value - truth).mean()),
                        "said_before": sharpness(questions, records, noise)
                        if name == questions.headline
                        else None,
                    }
                )
    return found


def table(path: Path, seeds: int, share: float) -> list[dict[str, Any]]:
    """Training with and without the share, and the evaluation beside the test records."""
    from dpcohort.config import load_config
    from dpcohort.runs import configured_data, configured_job, train_side_by_side

    found: list[dict[str, Any]] = []
    config = load_config(path)
    data = configured_data(config)
    for kept in (None, share):
        changes = ["run.simulate=0"]
        changes += ["evaluation.ask=false"] if kept is None else [f"evaluation.share={kept}"]
        here = config.with_overrides(changes)
        jobs = [configured_job(here, data=data, shift=shift) for shift in range(seeds)]
        for job, run in zip(jobs, train_side_by_side(jobs), strict=True):
            one: dict[str, Any] = {"seed": run.seed, "share": kept}
            one["exact"] = {name: run.judged["metrics"].get(name) for name in _COMPARED}
            if run.evaluation is not None and (terms := job.evaluation) is not None:
                told = run.evaluation["in_all"]
                plain = replace(terms, noise=0.0 * terms.noise)
                sums = np.stack(list(job.noised_sums(run, plain).values()))
                heard = combined(terms.questions, sums, terms.records, terms.noise)[1]
                one |= {
                    "said_before": terms.buys,
                    "paid": {name: told[name] for name in _COMPARED if name in told},
                    # The same weights and units, without the noise: what the evaluation is of.
                    "aimed_at": {name: heard[name].value for name in _COMPARED if name in heard},
                }
            found.append(one)
    return found


_COMPARED = ("accuracy", "balanced_accuracy", "auc", "log_loss", "rmse", "mae", "r2")


#: Columns of numbers in the table of encounters, with bounds that are known without it.
_NUMBERS = {
    "time_in_hospital": (1, 14),
    "num_lab_procedures": (0, 120),
    "num_procedures": (0, 6),
    "num_medications": (0, 80),
    "number_outpatient": (0, 5),
    "number_emergency": (0, 5),
    "number_inpatient": (0, 5),
    "number_diagnoses": (1, 16),
    "decade": (0, 9),
}
_FEWEST = 100


def diabetes(archive: Path, folder: Path) -> None:
    """Write the encounters, their clients and a config."""
    with zipfile.ZipFile(archive) as packed:
        (name,) = [one for one in packed.namelist() if one.endswith("diabetic_data.csv")]
        rows = list(csv.DictReader(io.TextIOWrapper(packed.open(name), encoding="utf-8")))
    for row in rows:
        row["decade"] = row["age"][1:].split("0-")[0] or "0"
        row["medical_specialty"] = row["medical_specialty"].replace("?", "unknown")
        row["again"] = "no" if row["readmitted"] == "NO" else "yes"
    sizes = Counter(row["medical_specialty"] for row in rows)
    wards = sorted(ward for ward, size in sizes.items() if size >= _FEWEST)
    columns = [*_NUMBERS, "medical_specialty", "patient_nbr", "again"]
    with (folder / "diabetes.csv").open("w", newline="") as file:
        out = csv.DictWriter(file, columns, extrasaction="ignore")
        out.writeheader()
        out.writerows(row for row in rows if row["medical_specialty"] in wards)
    epsilon = np.random.default_rng(1).uniform(0.05, 1.0, len(wards))
    lines = [f"{ward},{one:.3f},1e-6" for ward, one in zip(wards, epsilon, strict=True)]
    (folder / "clients.csv").write_text("\n".join(["id,epsilon,delta", *lines]) + "\n")
    config = {
        "population": {"clients": "clients.csv"},
        "training": {"rounds": 60, "cohort_size": 10, "sampling_rate": 1.0, "clip": 0.5},
        "data": {
            "name": "diabetes.csv",
            "label": "again",
            "labels": ["no", "yes"],
            "client": "medical_specialty",
            "features": list(_NUMBERS),
            "bounds": {name: list(ends) for name, ends in _NUMBERS.items()},
        },
        "optimiser": {"learning_rate": 1.0, "average_decay": 0.8},
    }
    (folder / "diabetes.toml").write_text(toml_text(config))


def _show_table(found: list[dict[str, Any]]) -> None:
    shared = [one for one in found if one["share"]]
    print(shared[0]["said_before"])
    print(
        "| metric | all records, whole budgets | with the share | its cost | clients as heard |"
        " error of what was told | half of its interval | held |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in _COMPARED:
        plain = np.array([one["exact"][name] for one in found if not one["share"]], np.float64)
        told = [one for one in shared if (one["paid"].get(name) or {}).get("value") is not None]
        if np.isnan(plain).any() or not told:
            continue
        scale = 1.0 if name in ("rmse", "mae", "log_loss") else 100.0
        exact = np.array([one["exact"][name] for one in shared])
        aimed = np.array([one["aimed_at"][name] for one in told])
        value, low, high = (
            np.array([one["paid"][name][key] for one in told]) for key in ("value", "low", "high")
        )
        numbers = [plain.mean(), exact.mean(), plain.mean() - exact.mean(), aimed.mean()]
        numbers += [np.abs(value - aimed).mean(), (high - low).mean() / 2]
        cells = " | ".join(f"{scale * one:.3g}" for one in numbers)
        held = int(((low <= aimed) & (aimed <= high)).sum())
        print(f"| {name} | {cells} | {held} of {len(told)} |")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["coverage", "diabetes", "table"])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if len(given.paths) != {"coverage": 0, "diabetes": 2, "table": 1}[given.what]:
        parser.error("diabetes takes ZIP and FOLDER, table takes CONFIG")
    if given.what == "diabetes":
        diabetes(*given.paths)
        return
    if given.what == "table":
        found = table(given.paths[0], given.seeds, given.share)
        _show_table(found)
    else:
        found = coverage(given.repeats, given.seed)
        print("| case | clients | metric | truth | interval holds it | half of it | mean error |")
        print("|---|---|---|---|---|---|---|")
        for one in found:
            numbers = [one["truth"], one["coverage"], one["half_width"], one["error"]]
            cells = " | ".join(f"{number:.3f}" for number in numbers)
            print(f"| {one['case']} | {one['clients']} | {one['metric']} | {cells} |")
    if given.json is not None:
        given.json.write_text(json.dumps({"what": given.what, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
