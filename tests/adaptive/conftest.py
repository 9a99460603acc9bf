# SPDX-License-Identifier: Apache-2.0
"""Small federations for adaptive rules: public facts alone, and eight clients with records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpcohort import Population, Training
from dpcohort.adaptive import RoundView, make_adaptive_plan
from dpcohort.data import Dataset, Partition
from dpcohort.engine import ClientRecords, ConstantStep, Optimiser
from dpcohort.runs._job import make_job

CLIENTS, SIZE, FEATURES, CLASSES = 8, 30, 4, 3


@pytest.fixture
def people():
    epsilon = np.array([1.0, 2.0, 4.0, 8.0, 1.0, 2.0, 4.0, 8.0])
    return Population.from_arrays(sizes=[SIZE] * CLIENTS, epsilon=epsilon, delta=1e-5)


@pytest.fixture
def settings():
    return Training(
        rounds=6, cohort_size=2, batch_size=10, local_steps=2, dimension=FEATURES * CLASSES + 3
    )


@pytest.fixture
def plan_of(people, settings):
    def make(rule="power-of-choice", *, population=None, training=None, **options):
        options.setdefault("seed", 5)
        return make_adaptive_plan(population or people, training or settings, rule=rule, **options)

    return make


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


@pytest.fixture
def store():
    """Inputs and labels of all clients; the classes are not spread evenly."""
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(CLIENTS) % CLASSES, SIZE)
    centres = rng.normal(size=(CLASSES, FEATURES))
    inputs = centres[labels] + 0.5 * rng.normal(size=(CLIENTS * SIZE, FEATURES))
    return inputs.astype(np.float32), labels


@pytest.fixture
def records_of(store):
    def make(inputs=None, labels=None):
        return ClientRecords(
            store[0].copy() if inputs is None else inputs,
            store[1].copy() if labels is None else labels,
            indices=np.arange(CLIENTS * SIZE),
            offsets=np.arange(CLIENTS + 1) * SIZE,
            dtype=torch.float32,
        )

    return make


@pytest.fixture
def job_of(model, store):
    """A training of these clients; those with the records of ``store`` go side by side."""
    labels = store[1]

    def data_of(inputs):
        return Dataset(
            name="eight clients",
            train_inputs=inputs.reshape(-1, FEATURES),
            train_labels=labels,
            test_inputs=store[0][::7],
            test_labels=labels[::7],
            classes=CLASSES,
        )

    common = data_of(store[0])
    held = Partition(
        indices=np.arange(CLIENTS * SIZE),
        offsets=np.arange(CLIENTS + 1) * SIZE,
        records=CLIENTS * SIZE,
        rule={},
    )

    def make(plan, inputs=None, **options):
        options.setdefault("simulate", 0)
        options.setdefault("optimiser", Optimiser(local_step=ConstantStep(0.2)))
        data = common if inputs is None else data_of(inputs)
        return make_job(plan, model, data, partition=held, device="cpu", **options)

    return make


@pytest.fixture
def view_of():
    """A view with as many clients as sizes; everything else has a plain default."""

    def make(sizes, **facts):
        count = len(sizes)
        plain = RoundView(
            round=0,
            cohort_size=2,
            ids=tuple(f"c{k}" for k in range(count)),
            sizes=np.asarray(sizes, dtype=np.int64),
            epsilon=np.ones(count),
            public=np.zeros(count, dtype=np.bool_),
            draws_left=np.full(count, 5),
            reports_left=np.full(count, 5),
            seed=0,
        )
        return replace(plain, **facts)

    return make


@pytest.fixture
def permuted():
    """The same view with its clients listed in another order."""

    def make(view, order):
        place = {old: new for new, old in enumerate(order.tolist())}
        return replace(
            view,
            ids=tuple(view.ids[k] for k in order),
            sizes=view.sizes[order],
            epsilon=view.epsilon[order],
            public=view.public[order],
            draws_left=view.draws_left[order],
            reports_left=view.reports_left[order],
            cohorts=tuple(np.array([place[k] for k in c.tolist()]) for c in view.cohorts),
            reports=tuple(replace(r, client=place[r.client]) for r in view.reports),
            updates={place[k]: update for k, update in view.updates.items()},
        )

    return make
