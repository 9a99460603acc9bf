# SPDX-License-Identifier: Apache-2.0
"""Who is served by a model, by budget: in simulations only, for it needs the clients' labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpcohort.config import load_config
from dpcohort.data import DATASET_NAMES, Dataset, load_dataset
from dpcohort.errors import DpcohortError, InputError
from dpcohort.plan import Plan
from dpcohort.plugins import is_named_function
from dpcohort.report import Section, fill_template
from dpcohort.runs import Run, configured_data, data_section
from dpcohort_lab.checks import FloatArray, IntArray

__all__ = ["SIMULATION_ONLY", "section", "simulated_service"]

SIMULATION_ONLY = (
    "SIMULATION ONLY: computed from the exact labels of the clients, without noise. "
    "Never publish it about real clients."
)

_MARKUP = """
<section id="served" aria-labelledby="served-title">
<h2 id="served-title">Who is served, by budget</h2>
{% if groups %}
<p>Accuracy the model has for records like those of each tenth of the clients, strictest budgets
first.</p>
<div class="scroll"><table><thead><tr><th scope="col">Group</th>
<th scope="col" class="n">Clients</th>
<th scope="col" class="n">Accuracy</th></tr></thead><tbody>
{% for group in groups %}
<tr><th scope="row">{{ group.name }}</th><td class="n">{{ group.clients }}</td>
<td class="n">{{ group.accuracy | percent(1) }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
<p class="note">{{ note }}</p>
</section>
"""


def section(plan: Plan, folder: Path) -> Section:
    """Simulated accuracy by budget, for the page of a run whose data are at hand.

    Args:
        plan: of the run.
        folder: of the run.
    """
    groups, note = _served(plan, folder)
    return Section(
        name="served",
        title="",
        markup=fill_template(_MARKUP, groups=groups, note=note),
        data=groups,
    )


def _served(plan: Plan, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The groups, and why there are none or the stamp that they must bear."""
    try:
        run = Run.load(folder)
        if run.is_private:
            return [], "Accuracy for groups of clients would need their labels, which are private."
        if plan.population.public.all():
            return [], "Every client is public, so there are no budgets to tell groups by."
        if not run.test.class_accuracy:
            return [], "Accuracy by budget is for tasks that predict a class."
        parts = min(10, int((~plan.population.public).sum()))
        return simulated_service(
            run, _data_of(run, folder).record_labels, groups=parts
        ), SIMULATION_ONLY
    except (DpcohortError, ImportError, ValueError, IndexError, KeyError) as error:
        return [], f"Accuracy by budget is not shown: {str(error).splitlines()[0]}"


def _data_of(run: Run, folder: Path) -> Dataset:
    """The data set of a run, by its configuration or else its name; no code of others is run.

    Raises:
        DpcohortError: it is not at hand, or comes from a function.
    """
    own = "See dpcohort_lab.service.simulated_service."
    config = folder / "config.toml"
    if config.exists():
        read = load_config(config, allow_code=None)
        if is_named_function(data_section(read).name):
            raise InputError.because(f"a function makes its data, and a report runs none. {own}")
        return configured_data(read, run.plan.population.ids)
    name = str(run.settings["data"]["name"])
    if name not in DATASET_NAMES:
        raise InputError.because(f"the run does not say where {name!r} lies. {own}")
    return load_dataset(name)


def simulated_service(
    run: Run, labels: IntArray, *, by: str = "budget", groups: int = 10
) -> list[dict[str, Any]]:
    """Who is served by the model, by budget or by how unlike the others a client's labels are.

    SENSITIVE: uses the clients' labels. Results are for simulations: no run folder holds them, and
    whoever shows them must show the stamp.

    Args:
        run: a finished, seeded run with its partition.
        labels: of all training records of its data set.
        by: ``budget`` (strictest first) or ``similarity``: total variation distance between a
            client's mix of labels and everyone's, most similar first.
        groups: how many groups of equally many clients.

    Returns:
        For each group its ``name``, how many ``clients`` it has, the ``accuracy`` by class on test
        data weighted with their own mixes of labels, ``heard``: their share of draws over their
        share of records, and the ``stamp`` that this is for simulation only.

    Raises:
        InputError: the run is private, or has no partition.
    """
    if run.is_private:
        raise InputError.because(
            "this run drew its noise from entropy, as with real clients: their labels are private. "
            "who_was_heard needs public information only."
        )
    if not run.task.predicts_classes:
        raise InputError.because("who is served is told by classes, and this run predicts none.")
    if run.partition is None or by not in ("budget", "similarity"):
        raise InputError("by", given=by, allowed="'budget' or 'similarity', for a run with data")
    accuracy = np.array(run.test.class_accuracy, dtype=np.float64)
    counts = run.partition.label_counts(labels, accuracy.size).astype(np.float64)
    mixes = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # A class without test records says nothing; the others stand for it.
    known = np.isfinite(accuracy)
    weights = mixes[:, known] / np.maximum(mixes[:, known].sum(axis=1, keepdims=True), 1e-12)
    served = weights @ accuracy[known]
    population = run.plan.population
    if by == "budget":
        members = np.flatnonzero(~population.public)
        key: FloatArray = population.epsilon[members]
    else:
        members = np.arange(len(population))
        key = 0.5 * np.abs(mixes - counts.sum(axis=0) / counts.sum()).sum(axis=1)
    order = members[np.argsort(key, kind="stable")]
    draws = run.ledger.draws
    found = []
    for group, part in enumerate(np.array_split(order, groups), start=1):
        if part.size:
            records = population.sizes[part].sum() / population.total_size
            found.append(
                {
                    "name": f"{by} {group}",
                    "clients": int(part.size),
                    "accuracy": float(np.average(served[part], weights=population.sizes[part])),
                    "heard": float(draws[part].sum() / max(1, draws.sum()) / records),
                    "stamp": SIMULATION_ONLY,
                }
            )
    return found
