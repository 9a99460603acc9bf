# SPDX-License-Identifier: Apache-2.0
"""How often intervals of coefficients hold the truth: ``python benchmarks/coefficients.py``.

Tables are drawn from a known law again and again, a model is trained on each with noise for budgets
of ε, 2 ε and 3 ε, and its coefficients are asked for: with other rows of the same law as the
public ones, or with the noised second moments that Newton steps leave. Printed are the share of
95 % intervals that hold the truth, and the mean square of the errors in units of their standard
error, which is 1 where these are right. Some trainings are stopped early.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcohort import Population, Training, make_plan, train
from dpcohort.data import column_partition, dataset_from_table
from dpcohort.engine import Optimiser
from dpcohort.runs._coefficients import coefficients
from dpcohort.tasks import Task

TRUTH = {"age": 0.04, "dose": -0.6, "sex = f": 0.8, "intercept": -2.0}


@dataclass(frozen=True)
class Kind:
    """One kind of model: its task, the step and clip that fit, and how strong the truth is."""

    task: Task
    step: float
    clip: float
    strength: float = 1.0


KINDS = {
    "classes": Kind(Task(outputs=2, names=("no", "yes")), 0.5, 2.9),
    "numbers": Kind(Task(kind="regression", outputs=1, bounds=(-8.0, 8.0)), 0.4, 4.0),
    "counts": Kind(Task(kind="counts", outputs=1), 0.05, 6.0, 0.5),
}


def table(kind: Kind, rng: np.random.Generator, rows: int) -> dict[str, list[Any]]:
    """Rows of the law."""
    age, dose = rng.uniform(20, 80, rows), rng.uniform(0, 4, rows)
    sex = rng.choice(["m", "f"], rows)
    score = TRUTH["age"] * age + TRUTH["dose"] * dose + TRUTH["sex = f"] * (sex == "f")
    score = kind.strength * (score + TRUTH["intercept"])
    if kind.task.predicts_classes:
        label = np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no")
    elif kind.task.loss == "poisson":
        label = rng.poisson(np.exp(score))
    else:
        label = score + rng.normal(0, 1, rows)
    columns = {"age": age, "dose": dose, "sex": sex, "label": label}
    wards = np.resize(["a", "b", "c"], rows)
    return {name: cells.tolist() for name, cells in {**columns, "ward": wards}.items()}


def errors(
    kind: Kind,
    *,
    repeats: int,
    rounds: int,
    epsilon: float,
    newton: bool = False,
    rows: int = 1800,
) -> tuple[np.ndarray, np.ndarray]:
    """Errors of every coefficient in units of its standard error, and the share of noise in it."""
    public = table(kind, np.random.default_rng(10_000), 3999)
    found, noise = [], []
    for seed in range(repeats):
        data = dataset_from_table(
            table(kind, np.random.default_rng(seed), rows),
            label="label",
            labels=list(kind.task.names),
            client="ward",
            features=["age", "dose", "sex"],
            bounds={"age": (0, 100), "dose": (0, 4)},
            categories={"sex": ["m", "f"]},
            task=kind.task,
            test_public=True,
        )
        assert data.clients is not None
        partition = column_partition(data.clients)
        budgets = [epsilon, 2 * epsilon, 3 * epsilon]
        clients = Population.from_arrays(
            ids=partition.names, sizes=partition.sizes, epsilon=budgets, delta=1e-5
        )
        settings = Training(
            rounds=rounds,
            cohort_size=3,
            sampling_rate=1.0,
            clip=kind.clip,
            dimension=6 * kind.task.outputs + 30 * newton,
        )
        run = train(
            make_plan(clients, settings, seed=seed),
            "logistic",
            data,
            partition=partition,
            optimiser=Optimiser(local_step=kind.step, average_decay=0.8),
            model_options={"second_moments": 0.3} if newton else {},
            evaluate_every=rounds,
            seed=seed,
            simulate=seed,
        )
        for one in coefficients(run, None if newton else public).rows:
            found.append((one.estimate - kind.strength * TRUTH[one.name]) / one.error)
            noise.append(one.noise / one.error)
    return np.array(found), np.array(noise)


def main() -> None:
    """Print a line for each kind and length of training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    print("| labels | steps | rounds | ε | of the error, noise | 95 % intervals that hold | z² |")
    print("|---|---|---|---|---|---|---|")
    for name, kind in KINDS.items():
        for newton, rounds, epsilon in ((False, 60, 4.0), (False, 15, 0.7), (True, 10, 6.0)):
            z, noise = errors(kind, repeats=repeats, rounds=rounds, epsilon=epsilon, newton=newton)
            held = f"{100 * np.mean(np.abs(z) < 1.96):.1f} %"
            steps = "Newton" if newton else "plain"
            cells = (
                name,
                steps,
                str(rounds),
                f"{epsilon} to {3 * epsilon:g}",
                f"{100 * noise.mean():.0f} %",
            )
            print(f"| {' | '.join((*cells, held, f'{np.mean(z**2):.2f}'))} |")


if __name__ == "__main__":
    main()
