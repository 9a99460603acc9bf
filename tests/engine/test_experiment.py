# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import torch

from dpcohort.aggregation import Mean
from dpcohort.engine.experiment import Experiment
from dpcohort.engine.randomness import Streams


def test_defaults_are_the_papers(make_plan: Any, make_records: Any) -> None:
    experiment = Experiment(
        plan=make_plan([4], [[0]]),
        records=make_records(torch.zeros(4, 2), [4]),
        streams=Streams.seeded(0),
    )
    assert isinstance(experiment.aggregation, Mean)
    assert experiment.optimiser.server_learning_rate == 1.0
    assert experiment.initial is None
