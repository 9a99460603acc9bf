# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import torch

from dpcohort.aggregation import Mean
from dpcohort.engine.experiment import Experiment
from dpcohort.engine.randomness import Streams
from dpcohort.errors import InputError


def test_defaults_are_the_papers(make_plan: Any, make_records: Any) -> None:
    experiment = Experiment(
        plan=make_plan([4], [[0]]),
        records=make_records(torch.zeros(4, 2), [4]),
        streams=Streams.seeded(0),
    )
    assert isinstance(experiment.aggregation, Mean)
    assert experiment.optimiser.server_learning_rate == 1.0
    assert experiment.initial is None
    assert not experiment.merged_noise


def test_with_merged_noise_only_the_last_step_has_none_of_its_own(
    make_plan: Any, make_records: Any
) -> None:
    parts: dict[str, Any] = {
        "plan": make_plan([4], [[0]], local_steps=3),
        "records": make_records(torch.zeros(4, 2), [4]),
    }
    plain = Experiment(**parts, streams=Streams.seeded(0))
    assert [plain.adds_noise_at(step) for step in range(3)] == [True] * 3
    merged = Experiment(**parts, streams=Streams.seeded(0), merged_noise=True)
    assert [merged.adds_noise_at(step) for step in range(3)] == [True, True, False]
    assert merged.step_size(0, 2) == 0.1
    with pytest.raises(InputError, match="for simulation"):
        Experiment(**parts, streams=Streams.from_entropy(), merged_noise=True)
