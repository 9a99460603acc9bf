# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dpcohort.audit import Claim, EngineUnderTest, mean_noise, noise_law, sensitivity
from dpcohort.engine import BatchedEngine, Experiment
from dpcohort.engine import _experiment as experiment
from dpcohort.engine import _randomness as randomness
from dpcohort.engine import _reference as reference

CLAIM = Claim(sampler="poisson", clip=0.7, noise_multiplier=1.3)

#: Ways to train with one noise vector a round: line by line, into sums, several draws a pass.
WAYS: dict[str, dict[str, Any]] = {
    "reference": {"kind": "reference"},
    "partial sums": {"kind": "batched"},
    "rows": {"kind": "batched", "draws_per_pass": 3},
}
Fault = Callable[[pytest.MonkeyPatch], None]


def engine(way: str) -> EngineUnderTest:
    return EngineUnderTest(**WAYS[way], merged_noise=True)


def _missing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(experiment.Experiment, "add_merged_noise_", lambda self, mean, cohort: mean)


def _std(broken: Callable[[Any, float], float]) -> Fault:
    return lambda patch: patch.setattr(experiment, "merged_std", broken)


def _same_in_every_round(patch: pytest.MonkeyPatch) -> None:
    right = experiment.merged_noise_
    patch.setattr(
        experiment,
        "merged_noise_",
        lambda mean, spread, streams, round: right(mean, spread, streams, round=0),
    )


def _also_per_draw(patch: pytest.MonkeyPatch) -> None:
    """Every draw keeps the noise of its last step as well."""
    run = BatchedEngine._run_into_sum

    def fast(self: Any, network: Any, draw: Any, parameters: Any, turn: Any) -> None:
        @contextmanager
        def with_noise() -> Iterator[Any]:
            with turn as row:
                yield row
                streams, last = draw.experiment.streams, self._local_steps - 1
                own = randomness.standard_noise_(
                    row().new_empty(row().shape), streams, **draw.name, step=last
                )
                row().add_(own, alpha=float(draw.cohort.noise_stds[draw.position]))

        run(self, network, draw, parameters, with_noise())

    patch.setattr(BatchedEngine, "_run_into_sum", fast)
    patch.setattr(Experiment, "adds_noise_at", lambda self, step: True)


def _earlier_steps_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Experiment, "adds_noise_at", lambda self, step: not self.merged_noise)
    patch.setattr(reference, "standard_noise_", lambda out, *_, **__: out.zero_())


FAULTS: dict[str, Fault] = {
    "missing": _missing,
    "of one draw": _std(lambda stds, alpha: float(alpha * stds[0] / stds.size)),
    "sum of stds": _std(lambda stds, alpha: float(alpha * stds.sum() / stds.size)),
    "without the root": _std(lambda stds, alpha: float(np.sum((alpha * stds) ** 2) / stds.size)),
    "not divided by the draws": _std(lambda stds, alpha: float(alpha * np.linalg.norm(stds))),
    "same in every round": _same_in_every_round,
    "also per draw": _also_per_draw,
    "earlier steps forgotten": _earlier_steps_forgotten,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_merged_noise_has_the_law_of_the_draws_together(way: str, sampling: str) -> None:
    claim = Claim(sampler=sampling, clip=0.7, noise_multiplier=1.3)
    finding = mean_noise(engine(way), claim, seed=1)
    assert finding.passed, str(finding)


@pytest.mark.parametrize("kind", ["reference", "batched"])
def test_so_has_the_mean_of_noisy_updates(kind: Any) -> None:
    finding = mean_noise(EngineUnderTest(kind), CLAIM, seed=1)
    assert finding.passed, str(finding)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("test", [noise_law, sensitivity])
def test_the_mean_of_one_draw_passes_the_tests_of_updates(way: str, test: Any) -> None:
    claim = Claim(sampler="fixed", clip=0.7, noise_multiplier=0.5)
    merged = engine(way)
    # Without the hostile models that it offers, which have no noise of their own.
    finding = test(lambda *a, **k: merged(*a, **k), claim, seed=1)
    assert finding.passed, str(finding)


#: All of them in sums, where most trainings are; elsewhere those that are not in common code.
CASES = [("partial sums", fault) for fault in FAULTS] + [
    (way, fault)
    for way in ("reference", "rows")
    for fault in ("missing", "also per draw", "earlier steps forgotten")
]


@pytest.mark.parametrize(("way", "fault"), CASES)
def test_broken_ways_are_caught(monkeypatch: pytest.MonkeyPatch, way: str, fault: str) -> None:
    FAULTS[fault](monkeypatch)
    finding = mean_noise(engine(way), CLAIM, seed=1, dimension=3000)
    assert not finding.passed, str(finding)


def test_it_is_calibrated() -> None:
    """At a level of 20 % at most about 20 % of correct trainings fail."""

    def correct(
        gradients: Any, *, claim: Any, batch_size: int, seed: int, cohorts: Any, local_steps: int
    ) -> Any:
        rng = np.random.default_rng([seed, local_steps])
        size = np.sqrt(local_steps) * claim.noise_multiplier * claim.clip / batch_size
        return size * rng.standard_normal((*cohorts.shape, gradients.shape[1]))

    failed = [
        not mean_noise(correct, CLAIM, seed=2 * s, dimension=300, false_alarm_rate=0.2).passed
        for s in range(60)
    ]
    assert 0 < sum(failed) <= 24
