# SPDX-License-Identifier: Apache-2.0
"""A small training on the digits with every aggregation, and with the newer selections."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort import Population, Training, make_plan
from dpcohort.aggregation import for_plan
from dpcohort.clients._distributions import share_out, uniform
from dpcohort.data import load_dataset, paper_partition
from dpcohort.engine import ClientRecords, Experiment, ReferenceEngine, Streams, evaluator_on
from dpcohort.models import build_model
from dpcohort.plugins import rule_names


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


@pytest.fixture(scope="module")
def partition(digits):
    rng = np.random.default_rng(0)
    sizes = share_out(len(digits), uniform(0.5, 1.5)(6, rng))
    return paper_partition(digits.train_labels, sizes=sizes, similarity=100.0, rng=rng)


@pytest.fixture(scope="module")
def train(digits, partition):
    """Final test accuracy of ten rounds with one selection and one aggregation."""
    clients = Population.from_arrays(
        sizes=partition.sizes, epsilon=[2.0, 4.0, 8.0, 8.0, 16.0, 16.0], delta=1e-5
    )
    settings = Training(rounds=10, cohort_size=6, batch_size=60, local_steps=2, dimension=650)
    records = ClientRecords(
        digits.normalised(digits.train_inputs),
        digits.train_labels,
        indices=partition.indices,
        offsets=partition.offsets,
    )
    model = build_model("logistic", input_shape=digits.input_shape, classes=digits.classes, seed=0)
    evaluator = evaluator_on(model, digits.normalised(digits.test_inputs), digits.test_labels)

    def accuracy(selection, aggregation, **options):
        plan = make_plan(clients, settings, selection=selection, seed=1)
        engine = ReferenceEngine(
            model,
            [
                Experiment(
                    plan=plan,
                    records=records,
                    streams=Streams.seeded(0),
                    aggregation=for_plan(aggregation, plan, **options),
                )
            ],
        )
        state = engine.initial_states()[0]
        list(engine.rounds([state]))
        assert bool(torch.isfinite(state.parameters).all())
        return evaluator(state.parameters).accuracy

    return accuracy


@pytest.mark.parametrize("name", rule_names("aggregation"))
def test_every_aggregation_learns(train, name):
    # Ten classes: guessing gives a tenth.
    assert train("unbiased", name, **({"bound": 1.0} if name == "clipped-mean" else {})) > 0.3
