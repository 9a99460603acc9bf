# SPDX-License-Identifier: Apache-2.0
"""Trainings broken on purpose, each in one place, so that the tests have something to find.

``FAULTS`` are put into dpcohort's engines; ``BROKEN_STEPS`` are deployments of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from dpcohort.accounting._sampler import Sampler
from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.audit import GradientProbe, StepUnderTest, sensitivity
from dpcohort.audit._under_test import ScoredProbe
from dpcohort.engine import _batched as batched
from dpcohort.engine import _experiment as experiment
from dpcohort.engine import _randomness as randomness
from dpcohort.engine import _reference as reference
from dpcohort.engine._isolated import IsolatedModel
from dpcohort.engine._randomness import standard_noise_
from dpcohort.engine.clipping import _network as network
from dpcohort.engine.clipping import clip_factors

Fault = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _probes_are_written_down_once() -> Iterator[None]:
    """What a probe computes of one record is a fixed list of operations; an audit makes hundreds
    of engines of the same probe, and finding that list is most of their time.
    """
    right, kept = IsolatedModel._gradients_alone, dict[Any, Any]()

    def once(self: IsolatedModel) -> Any:
        model, of = getattr(self._model, "model", self._model), self._blanks[0]
        if not isinstance(model, GradientProbe | ScoredProbe):
            return right(self)
        raw = getattr(model, "_raw", None)
        averaged = getattr(self._loss, "averaged", None)  # of persons
        key = (type(model), model._hostile, raw, self.layout.dimension, averaged, of.dtype,
               of.device, of.shape)  # fmt: skip
        if key not in kept:
            kept[key] = right(self)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IsolatedModel, "_gradients_alone", once)
        yield


def _replace_noise(broken: Callable[..., Any]) -> Fault:
    def apply(patch: pytest.MonkeyPatch) -> None:
        for module in (batched, reference):
            patch.setattr(module, "standard_noise_", broken)

    return apply


def _replace_batches(broken: Callable[..., Any]) -> Fault:
    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(experiment, "draw_batches", broken)

    return apply


def _replace_factors(broken: Callable[..., Any]) -> Fault:
    def rows(gradients: Any, clip: Any) -> Any:
        return broken(gradients.square().sum(1), clip), gradients

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(network, "clip_factors", broken)
        for module in (network, reference):
            patch.setattr(module, "clip_rows", rows)

    return apply


def _noise_under(**fixed: int) -> Fault:
    def reused(out: Any, streams: Any, **name: int) -> Any:
        return standard_noise_(out, streams, **(name | fixed))

    return _replace_noise(reused)


def _noise_at_first_step(out: Any, streams: Any, **name: int) -> Any:
    return standard_noise_(out, streams, **name) if name["step"] == 0 else out.zero_()


def _swapped(streams: Any, sampler: Sampler, **rest: Any) -> Any:
    other = SAMPLERS["fixed" if sampler.name == "poisson" else "poisson"]
    return randomness.draw_batches(streams, other, **rest)


def _shuffled_epochs(streams: Any, sampler: Sampler, **rest: Any) -> Any:
    size, batch, at = rest["size"], rest["batch_size"], 2 * rest["round"] + rest["draw"]
    each = max(1, size // batch)
    order = np.random.default_rng(at // each).permutation(size)
    return lambda step: np.sort(order[(at % each) * batch :][:batch])


def _always_the_first(streams: Any, sampler: Sampler, **rest: Any) -> Any:
    return lambda step: np.arange(rest["batch_size"])


def _batch_once_a_round(streams: Any, sampler: Sampler, **rest: Any) -> Any:
    return randomness.draw_batches(streams, sampler, **(rest | {"draw": 0}))


def _clip_mean(patch: pytest.MonkeyPatch) -> None:
    right = batched.BatchedEngine._add_sums
    patch.setattr(network, "clip_factors", lambda squared, clip: torch.ones_like(squared))

    def clipped(self: Any, net: Any, group: Any, step: int, w: Any, row: Any, **more: Any) -> None:
        right(self, net, group, step, w, row, **more)
        size = float(group[0].cohort.batch_sizes[group[0].position])
        total = row()
        norm = (total / size).norm(dim=1)
        clip = group[0].clip
        total.mul_((clip / norm.clamp(min=1e-300)).clamp(max=1.0)[:, None])

    patch.setattr(batched.BatchedEngine, "_add_sums", clipped)


def _clip_each_layer(patch: pytest.MonkeyPatch) -> None:
    def broken(
        self: Any, w: Any, x: Any, y: Any, clip: Any, scale: Any, mask: Any, total: Any
    ) -> None:
        self._pass(w, x, y)
        for layer in self._layers:
            own = layer.squared_norms.view(x.shape[:2])
            factors = clip_factors(own, clip[:, None])
            layer.add_clipped_sum(factors if mask is None else factors * mask, total())
        self._release()

    patch.setattr(network.ClippedNetwork, "_add_stacked", broken)
    # Left alone, the examination of the model would notice and take the slow path.
    examined = network._disagreement
    patch.setattr(network, "_disagreement", lambda *given: (examined(*given), None)[1])


def _divide_by_realised(patch: pytest.MonkeyPatch) -> None:
    right = batched.BatchedEngine._add_sums

    def broken(self: Any, net: Any, group: Any, step: int, w: Any, row: Any, **more: Any) -> None:
        right(self, net, group, step, w, row, **more)
        size = float(group[0].cohort.batch_sizes[group[0].position])
        row().mul_(size / max(1, group[0].rows(step).size))

    patch.setattr(batched.BatchedEngine, "_add_sums", broken)


def _second_batch_for_free(patch: pytest.MonkeyPatch) -> None:
    right = batched.BatchedEngine._add_sums

    def broken(self: Any, net: Any, group: Any, step: int, *where: Any, **more: Any) -> None:
        right(self, net, group, step, *where, **more)
        right(self, net, group, step + 1000, *where, **more)

    patch.setattr(batched.BatchedEngine, "_add_sums", broken)


def _draws_not_told_apart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        experiment, "draw_numbers", lambda clients: np.zeros(clients.size, dtype=np.int64)
    )


def _skip_empty(patch: pytest.MonkeyPatch) -> None:
    right = batched.BatchedEngine._scale_and_add_noise

    def broken(self: Any, group: Any, step: int, total: Any) -> None:
        if group[0].rows(step).size:
            right(self, group, step, total)

    patch.setattr(batched.BatchedEngine, "_scale_and_add_noise", broken)


#: Name of the fault: how to break the engine, the test that must see it, and the samplers with
#: which it must: both where the test asks other things of each.
FAULTS: dict[str, tuple[Fault, str, tuple[str, ...]]] = {
    "no noise": (_replace_noise(lambda out, *_, **__: out.zero_()), "A", ("poisson",)),
    "no noise, seen from outside": (
        _replace_noise(lambda out, *_, **__: out.zero_()), "C", ("poisson", "fixed"),
    ),
    "half the noise": (
        _replace_noise(lambda *a, **k: standard_noise_(*a, **k).mul_(0.5)),
        "A", ("fixed",),
    ),
    "half the noise, seen from outside": (
        _replace_noise(lambda *a, **k: standard_noise_(*a, **k).mul_(0.5)),
        "C", ("poisson", "fixed"),
    ),
    "noise too small by 2 percent": (
        _replace_noise(lambda *a, **k: standard_noise_(*a, **k).mul_(0.98)),
        "A", ("poisson",),
    ),
    "noise of the wrong shape": (
        _replace_noise(lambda *a, **k: standard_noise_(*a, **k).sign_()), "A", ("poisson",),
    ),
    "no clip": (
        _replace_factors(lambda squared, clip: torch.ones_like(squared)),
        "B", ("poisson",),
    ),
    "no clip, seen from outside": (
        _replace_factors(lambda squared, clip: torch.ones_like(squared)),
        "C", ("poisson", "fixed"),
    ),
    "clip too large by 1 percent": (
        _replace_factors(lambda squared, clip: clip_factors(squared, clip * 1.01)),
        "B", ("fixed",),
    ),
    "clip of the mean": (_clip_mean, "B", ("poisson",)),
    "clip of the mean, seen from outside": (_clip_mean, "C", ("poisson",)),
    "clip of each layer": (_clip_each_layer, "B", ("poisson",)),
    "realised denominator": (_divide_by_realised, "B", ("poisson",)),
    "noise once a round": (_replace_noise(_noise_at_first_step), "D", ("poisson",)),
    "one noise for all steps": (_noise_under(step=0), "D", ("fixed",)),
    "one noise for all draws of a client": (_noise_under(draw=0), "D", ("poisson",)),
    "one noise for all clients": (_noise_under(client=0), "D", ("fixed",)),
    "one noise for all rounds": (_noise_under(round=0), "D", ("poisson",)),
    "wrong sampler": (_replace_batches(_swapped), "E", ("poisson", "fixed")),
    "shuffled epochs": (_replace_batches(_shuffled_epochs), "E", ("poisson", "fixed")),
    "always the same records": (_replace_batches(_always_the_first), "E", ("poisson", "fixed")),
    "one batch for all draws": (_replace_batches(_batch_once_a_round), "E", ("poisson", "fixed")),
    "uncounted virtual draw": (_second_batch_for_free, "E", ("poisson", "fixed")),
    "uncounted virtual draw, by its influence": (_second_batch_for_free, "B", ("poisson",)),
    "virtual draws not told apart": (_draws_not_told_apart, "D", ("poisson",)),
    "skipped empty batch": (_skip_empty, "A", ("poisson",)),
}  # fmt: skip

#: Faults made by exchanging a function that both engines use: one for each test.
BOTH_ENGINES = [
    "noise too small by 2 percent",
    "no clip",
    "half the noise, seen from outside",
    "virtual draws not told apart",
    "wrong sampler",
]

CASES = [
    pytest.param(engine, sampler, name, id=f"{engine}-{sampler}-{name}".replace(" ", "_"))
    for name, (_, _, samplers) in FAULTS.items()
    for sampler in samplers
    for engine in ("batched", "reference")
    if engine == "batched" or (name in BOTH_ENGINES and sampler == samplers[0])
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault_case" in metafunc.fixturenames:
        metafunc.parametrize("fault_case", [p.values for p in CASES], ids=[p.id for p in CASES])


@pytest.fixture
def broken(fault_case: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An engine with one fault in it, and the letter of the test that must find it."""
    engine, sampler, name = fault_case
    fault, letter, _ = FAULTS[name]
    fault(monkeypatch)
    monkeypatch.setitem(sensitivity.__globals__, "_ROUNDS", 15)  # faults this large show in few
    return {"engine": engine, "sampler": sampler, "test": letter}


class Deployment:
    """A correct noisy step: records on a lattice, one by one, and noise that is drawn afresh."""

    def __call__(
        self,
        gradients: Any,
        *,
        clip: float,
        noise_multiplier: float,
        batch_size: int,
        rng_seed: int,
    ) -> Any:
        # Gradients that are not finite are given on purpose.
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            return self.step(gradients, clip, noise_multiplier * clip * 2.0**-24, batch_size)

    def step(self, gradients: Any, clip: float, unit: float, batch_size: int) -> Any:
        chosen = gradients[self.fresh().random(len(gradients)) < batch_size / len(gradients)]
        total = self.total([self.clipped(row, clip, unit) for row in chosen], gradients.shape[1])
        noise = self.on_lattice(2.0**24 * self.normals(gradients.shape[1]))
        return (total + noise) * unit / batch_size

    def fresh(self) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(os.urandom(16), "little"))

    def normals(self, count: int) -> Any:
        return self.fresh().standard_normal(count)

    def norm(self, row: Any) -> Any:
        return np.linalg.norm(row)

    def clipped(self, row: Any, clip: float, unit: float) -> Any:
        size = self.norm(row)
        if not np.isfinite(size):
            return np.zeros(row.size)
        factor = 1.0 if size <= clip else clip * (1 - 1e-9) / size
        return self.on_lattice(row * factor / unit, np.trunc)

    def on_lattice(self, values: Any, cut: Any = np.rint) -> Any:
        return cut(values)

    def total(self, rows: list[Any], dimension: int) -> Any:
        return sum(rows, np.zeros(dimension))


class _Mersenne(Deployment):
    def normals(self, count: int) -> Any:
        generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
        return torch.empty(count, dtype=torch.float64).normal_(generator=generator).numpy()


class _PythonsMersenne(Deployment):
    def normals(self, count: int) -> Any:
        import random

        source = random.Random(os.urandom(16))
        return np.array([source.gauss() for _ in range(count)])


class _CutTail(Deployment):
    """Perfect uniform numbers, of 24 bits."""

    def normals(self, count: int) -> Any:
        first, second = self.fresh().integers(1, 2**24, (2, -(-count // 2)), endpoint=True) / 2**24
        radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).ravel()[:count]


class _CutTailByInversion(Deployment):
    def normals(self, count: int) -> Any:
        from scipy.special import ndtri

        return ndtri((self.fresh().integers(0, 2**24, count) + 0.5) / 2**24)


class _Erasing(Deployment):
    def step(self, gradients: Any, *rest: Any) -> Any:
        finite = np.isfinite((gradients**2).sum())
        return super().step(gradients if finite else np.zeros_like(gradients), *rest)


class _ShortNorm(Deployment):
    def norm(self, row: Any) -> Any:
        return np.sqrt((row.astype(np.float32) ** 2).sum(dtype=np.float32))


class _Floats(Deployment):
    def on_lattice(self, values: Any, cut: Any = np.rint) -> Any:
        return values


class _FloatsUnderNoise(Deployment):
    """Noise on a lattice, records not."""

    def on_lattice(self, values: Any, cut: Any = np.rint) -> Any:
        return values if cut is np.trunc else cut(values)


class _OneStream(Deployment):
    """Noise of one key, kept for all steps."""

    def __init__(self) -> None:
        self._key = int.from_bytes(os.urandom(16), "little")
        self._calls = 0

    def read(self, kept: Any, count: int, call: int) -> Any:
        return kept[:count]

    def normals(self, count: int) -> Any:
        self._calls += 1
        kept = np.random.default_rng(self._key).standard_normal(count + 5000)
        return self.read(kept, count, self._calls)


class _OneStreamFurtherOn(_OneStream):
    def read(self, kept: Any, count: int, call: int) -> Any:
        return kept[37 * (call % 100) :][:count]


class _OneStreamShuffled(_OneStream):
    def read(self, kept: Any, count: int, call: int) -> Any:
        return np.random.default_rng(call).permutation(kept[:count])


#: Name of the fault: the broken deployment and the letter of the test that must see it.
BROKEN_STEPS: dict[str, tuple[Callable[[], Deployment], str]] = {
    "Mersenne noise": (_Mersenne, "H"),
    "Mersenne noise of Python": (_PythonsMersenne, "H"),
    "24-bit tail": (_CutTail, "G"),
    "24-bit tail by inversion": (_CutTailByInversion, "G"),
    "erasing batch": (_Erasing, "J"),
    "float32 norm": (_ShortNorm, "B"),
    "float noise in deployment": (_Floats, "I"),
    "float sums in deployment": (_FloatsUnderNoise, "I"),
    "reused stream": (_OneStream, "D"),
    "reused stream, further on": (_OneStreamFurtherOn, "D"),
    "reused stream, shuffled": (_OneStreamShuffled, "D"),
}


@pytest.fixture
def deployment() -> StepUnderTest:
    """A correct deployment."""
    return StepUnderTest(Deployment())


@pytest.fixture(params=BROKEN_STEPS, ids=lambda name: name.replace(" ", "_"))
def broken_step(request: pytest.FixtureRequest) -> tuple[StepUnderTest, str]:
    """A deployment with one fault in it, and the letter of the test that must find it."""
    make, letter = BROKEN_STEPS[request.param]
    return StepUnderTest(make()), letter
