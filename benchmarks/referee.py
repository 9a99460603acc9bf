# SPDX-License-Identifier: Apache-2.0
"""Other people's privacy mechanisms, refereed: what each claims beside what is found.

::

    python benchmarks/referee.py                       # all that are installed; minutes
    python benchmarks/referee.py --only opacus,flower
    cd benchmarks && dpcohort audit --step referee:opacus_step --simulation

Needs, of whatever is asked for: ``pip install opacus==1.6.0 flwr==1.41.0 nvflare==2.9.0
appfl==1.12.0``. What is not installed is left out and named. docs/research/referee.md has the
table with what it means.

Three ways to find something, from the weakest assumption to the strongest:

- **The audit** (docs/reference/audit.md) of a step, which sees single faults.
- **A measured bound**: the mechanism is run many times on two neighbouring inputs, one half of the
  outputs chooses a threshold, and the other half gives a lower bound on epsilon that holds with
  99 % confidence whatever the mechanism is. It cannot exceed about the logarithm of the runs.
- **The accountant**, where the law of the noise is known: exact for one Gaussian release.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from dpcohort.accounting._events import gaussian_epsilon
from dpcohort.accounting._samplers import sampler_of
from dpcohort.audit import Claim, StepUnderTest, audit_training

Array = NDArray[Any]
DELTA = 1e-5
_LEVEL = 0.01
_RUNS = 4000
_SLOW_RUNS = 1000  # of a whole local training


def measured_epsilon(one: Array, other: Array, *, delta: float = 0.0) -> float:
    """A lower bound on epsilon from the scores of two neighbouring worlds, with 99 % confidence.

    The first half of the runs chooses a threshold and a direction, the second half is counted: by
    Clopper and Pearson's bounds P[one] is at least p and P[other] at most q, and (epsilon, delta)
    implies p <= e^epsilon q + delta.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> 0.6 < measured_epsilon(rng.laplace(1, 1, 4000), rng.laplace(0, 1, 4000)) < 1
        True
    """
    one, other = (np.nan_to_num(np.asarray(w, dtype=np.float64)) for w in (one, other))
    half = len(one) // 2

    def bound(first: Array, second: Array, threshold: float) -> float:
        hits, misses = int((first >= threshold).sum()), int((second >= threshold).sum())
        p = stats.beta.ppf(_LEVEL / 2, hits, len(first) - hits + 1) if hits else 0.0
        q = 1.0
        if misses < len(second):
            q = stats.beta.ppf(1 - _LEVEL / 2, misses + 1, len(second) - misses)
        return math.log((p - delta) / q) if p > delta else -math.inf

    ways = [(one, other), (other, one), (-one, -other), (-other, -one)]
    tried = [
        (bound(first[:half], second[:half], threshold), way, threshold)
        for way, (first, second) in enumerate(ways)
        for threshold in np.quantile(np.concatenate([first[:half], second[:half]]), _QUANTILES)
    ]
    _, way, threshold = max(tried)
    first, second = ways[way]
    return max(0.0, bound(first[half:], second[half:], threshold))


_QUANTILES = np.linspace(0.02, 0.98, 49)


def most_measurable(runs: int) -> float:
    """What a mechanism without any privacy comes to in so many runs.

    Example:
        >>> round(most_measurable(4000), 1)
        5.9
    """
    return measured_epsilon(np.ones(runs), np.zeros(runs))


# --- Opacus ---------------------------------------------------------------------------------------


def opacus_step(
    gradients: Array, *, clip: float, noise_multiplier: float, batch_size: int, rng_seed: int
) -> Array:
    """One step of Opacus' DPOptimizer on a batch of its own Poisson sampler, by a seed."""
    generator = torch.Generator().manual_seed(rng_seed)
    batch = _poisson(gradients, batch_size, generator)
    return _opacus(batch, clip, noise_multiplier, batch_size, generator)


def opacus_finite_step(
    gradients: Array, *, clip: float, noise_multiplier: float, batch_size: int, rng_seed: int
) -> Array:
    """The same where the caller has made every record that is not finite zero before."""
    generator = torch.Generator().manual_seed(rng_seed)
    batch = _poisson(_finite(gradients), batch_size, generator)
    return _opacus(batch, clip, noise_multiplier, batch_size, generator)


def opacus_deployed_step(
    gradients: Array, *, clip: float, noise_multiplier: float, batch_size: int, rng_seed: int
) -> Array:
    """The same without a seed, by torch's own generator, as ``make_private`` sets it up."""
    batch = _poisson(_finite(gradients), batch_size, None)
    return _opacus(batch, clip, noise_multiplier, batch_size, None)


def opacus_shuffled_step(
    gradients: Array, *, clip: float, noise_multiplier: float, batch_size: int, rng_seed: int
) -> Array:
    """Finite records with ``poisson_sampling=False``: a batch of torch's shuffled loader."""
    generator = torch.Generator().manual_seed(rng_seed)
    chosen = torch.randperm(len(gradients), generator=generator)[:batch_size].numpy()
    return _opacus(_finite(gradients)[chosen], clip, noise_multiplier, batch_size, generator)


def _finite(gradients: Array) -> Array:
    with np.errstate(over="ignore"):
        finite = np.asarray(np.isfinite(gradients.astype(np.float32)).all(axis=1))
    return np.where(finite[:, None], gradients, 0.0)


def _poisson(gradients: Array, batch_size: int, generator: torch.Generator | None) -> Array:
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    size = len(gradients)
    (chosen,) = UniformWithReplacementSampler(
        num_samples=size, sample_rate=batch_size / size, generator=generator, steps=1
    )
    batch: Array = gradients[chosen]
    return batch


def _opacus(
    rows: Array,
    clip: float,
    noise_multiplier: float,
    batch_size: int,
    generator: torch.Generator | None,
) -> Array:
    from opacus.optimizers import DPOptimizer

    parameter: Any = torch.nn.Parameter(torch.zeros(rows.shape[1]))
    optimizer = DPOptimizer(
        torch.optim.SGD([parameter], lr=1.0),
        noise_multiplier=noise_multiplier,
        max_grad_norm=clip,
        expected_batch_size=batch_size,
        generator=generator,
    )
    parameter.grad_sample = torch.from_numpy(rows).float()  # as its hooks leave them
    optimizer.step()
    moved: Array = -parameter.detach().numpy()
    return moved


def opacus_rows() -> Iterator[tuple[str, str, str]]:
    for name, step, private in (
        ("DPOptimizer, Poisson batches, in a simulation", opacus_step, False),
        ("the same, records made finite before", opacus_finite_step, False),
        ("the same, in a deployment (secure_mode off)", opacus_deployed_step, True),
        ("the same, poisson_sampling=False, in a simulation", opacus_shuffled_step, False),
    ):
        claim = Claim(sampler=sampler_of("poisson"), noise_multiplier=1.0, private=private)
        findings = audit_training(StepUnderTest(step), claim)
        refuted = [finding for finding in findings if not finding.passed]
        one_run = next(finding for finding in findings if finding.test.startswith("K"))
        found = "; ".join(f"{finding.test}: {finding.detail}" for finding in refuted)
        yield name, "noise z C, Poisson batches", found or f"nothing refuted ({one_run.detail})"


# --- Flower ---------------------------------------------------------------------------------------


def flower_release(update: Array, *, clip: float, sensitivity: float, epsilon: float) -> Array:
    """What Flower's LocalDpMod sends of a client whose training moved the model by ``update``."""
    from flwr.app import Array as FlowerArray
    from flwr.app import ArrayRecord, RecordDict
    from flwr.clientapp.mod import LocalDpMod

    def message(vector: Array) -> Any:
        record = ArrayRecord({"w": FlowerArray(vector.astype(np.float32))})
        content = RecordDict({"arrays": record})
        return SimpleNamespace(content=content, has_error=lambda: False)

    mod: Any = LocalDpMod(clip, sensitivity, epsilon, DELTA)
    sent = mod(message(np.zeros(len(update))), None, lambda *_: message(update))
    vector: Array = sent.content["arrays"]["w"].numpy()
    return vector


def flower_rows() -> Iterator[tuple[str, str, str]]:
    factor = math.sqrt(2 * math.log(1.25 / DELTA))
    ones, length = np.eye(8), 8
    asked: dict[str, Any] = {"clip": 1.0, "sensitivity": 1.0, "epsilon": 1.0}
    rows = [flower_release(ones[0] * 5, **asked) for _ in range(_RUNS)]
    spread = np.std(np.stack(rows)[:, 1:])
    yield (
        "LocalDpMod, noise",
        f"standard deviation {factor:.4f} at epsilon 1",
        f"{spread:.4f} from {_RUNS * (length - 1)} numbers: holds",
    )
    for epsilon in (1.0, 10.0):
        for sensitivity in (2.0, 1.0):
            sigma = sensitivity * factor / epsilon
            exact = gaussian_epsilon(2.0 / sigma, DELTA)
            yield (
                f"LocalDpMod, sensitivity = {sensitivity:g} x clipping_norm",
                f"epsilon {epsilon:g} a message",
                f"exactly {exact:.2f} between two updates (accountant), "
                f"{gaussian_epsilon(20.0 / sigma, DELTA):.1f} after 100 messages",
            )
    broken = 1000 * ones[0] + np.where(np.arange(length) == 1, np.nan, 0.0)
    other = -1000 * ones[0] + np.where(np.arange(length) == 1, np.nan, 0.0)
    seen = [
        [flower_release(update, **asked)[0] for _ in range(_RUNS)] for update in (broken, other)
    ]
    yield (
        "LocalDpMod, an update with one NaN",
        "clipped to norm 1, epsilon 1",
        f"epsilon >= {measured_epsilon(*map(np.asarray, seen), delta=DELTA):.2f} measured: the "
        f"other coordinates leave unclipped (mean {np.mean(seen[0]):.0f} of 1000)",
    )
    try:
        flower_release(np.zeros(length), **asked)
        found = "noise alone is sent: holds"
    except ZeroDivisionError as error:
        found = f"{type(error).__name__}: no answer is sent, which tells that it was zero"
    yield "LocalDpMod, an update of zeros", "epsilon 1", found


# --- NVFLARE --------------------------------------------------------------------------------------


def nvflare_release(kind: str, weights: dict[str, Array], **settings: Any) -> tuple[Any, Any]:
    """The filter, and what it lets out of a weight difference."""
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    made = {"svt": SVTPrivacy, "percentile": PercentilePrivacy}[kind](**settings)
    dxo = DXO(DataKind.WEIGHT_DIFF, data={name: one.copy() for name, one in weights.items()})
    return made, made.process_dxo(dxo, Shareable(), FLContext()).data


def nvflare_rows() -> Iterator[tuple[str, str, str]]:
    gamma, size, fraction = 1.0, 200, 0.005
    settings = {"fraction": fraction, "epsilon": 2.0, "epsilon_release": 2.0, "gamma": gamma}
    marked = np.arange(size) < size // 4
    worlds = (np.where(marked, gamma, 0.0), np.where(marked, 0.0, -gamma))
    c = math.ceil(size * fraction)
    scale = 2 * gamma * c / settings["epsilon_release"]

    def score(vector: Array) -> float:
        """The logarithm of the likelihood ratio, near enough."""
        chosen = vector != 0
        values = np.abs(vector - worlds[1]) - np.abs(vector - worlds[0])
        query = 1.2 / c  # what one choice tells at most, at this epsilon
        picked = np.where(marked, query, -query)
        return float((values / scale + picked)[chosen].sum())

    seen = [
        np.array(
            [score(nvflare_release("svt", {"w": w}, **settings)[1]["w"]) for _ in range(_RUNS)]
        )
        for w in worlds
    ]
    made, _ = nvflare_release("svt", {"w": worlds[0]}, **settings)
    yield (
        "SVTPrivacy, epsilon = 2, epsilon_release = 2",
        f"epsilon {made.get_privacy_spent():g}, delta 0, a call (its own ledger)",
        f"epsilon >= {measured_epsilon(*seen):.2f} measured: not refuted",
    )
    parameters = 824_874
    made, out = nvflare_release("svt", {"w": np.full(parameters, 1e-5, dtype=np.float32)})
    kept = out["w"][out["w"] != 0]
    yield (
        f"SVTPrivacy, its defaults, {parameters:,} parameters",
        f"epsilon {made.get_privacy_spent():,.1f} a round (its own ledger; epsilon = 0.1 is the "
        "selection's)",
        f"as claimed; the values it keeps have noise of {np.std(kept) / 1e-5:.0f} gamma",
    )
    scalar = {"w": np.full(20, 0.5), "temperature": np.array(0.125)}
    _, out = nvflare_release("svt", scalar, **settings)
    yield (
        "SVTPrivacy, a parameter without dimensions",
        "its ledger notes that such parameters are not protected",
        "leaves as it is: no epsilon"
        if out["temperature"] == 0.125
        else "leaves with noise: holds",
    )
    first = [nvflare_release("percentile", {"w": w})[1]["w"].sum() for w in worlds]
    again = [nvflare_release("percentile", {"w": w})[1]["w"].sum() for w in worlds]
    bound = measured_epsilon(*(np.full(_RUNS, one) for one in first))
    yield (
        "PercentilePrivacy",
        "no epsilon: the largest changes, cut off at gamma",
        f"epsilon >= {bound:.2f}, the most that {_RUNS} runs can show: "
        + ("the same output every time, no noise" if first == again else "random"),
    )


# --- APPFL ----------------------------------------------------------------------------------------


class _First(torch.nn.Module):
    """A model of one parameter whose loss has the record as its gradient, and a buffer."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen.copy_(inputs.mean())  # as BatchNorm keeps a mean of its records
        return inputs * self.weight


@functools.cache
def _appfl_trainer(record: float, steps: int, mechanism: str, clip_grad: bool) -> Any:
    from appfl.algorithm.trainer.vanilla_trainer import VanillaTrainer
    from omegaconf import OmegaConf

    settings = {
        "mode": "step",
        "num_local_steps": steps,
        "optim": "SGD",
        "optim_args": {"lr": 0.1},
        "use_dp": True,
        "dp_mechanism": mechanism,
        "epsilon": 1.0,
        "clip_grad": clip_grad,
        "clip_value": 1,
        "clip_norm": 1,
        "train_batch_size": 1,
        "optimize_memory": False,
    }
    quiet = dict.fromkeys(("log_title", "set_title", "log_content"), lambda *_: None)
    return VanillaTrainer(
        model=_First(),
        loss_fn=lambda output, target: output.mean(),
        metric=lambda *_: 0.0,
        train_dataset=torch.utils.data.TensorDataset(torch.tensor([[record]]), torch.zeros(1)),
        train_configs=OmegaConf.create(settings),
        logger=SimpleNamespace(**quiet),
    )


def appfl_release(
    record: float, *, steps: int, mechanism: str, clip_grad: bool = True
) -> dict[str, Any]:
    """What APPFL's VanillaTrainer sends after so many steps on one record, at epsilon 1."""
    trainer = _appfl_trainer(record, steps, mechanism, clip_grad)
    torch.nn.init.zeros_(trainer.model.weight)
    trainer.train()
    found: dict[str, Any] = trainer.model_state
    return found


def appfl_rows() -> Iterator[tuple[str, str, str]]:
    factor = math.sqrt(2 * math.log(1.25 / DELTA))
    for mechanism, steps, clip_grad in (
        ("laplace", 1, True),
        ("laplace", 10, True),
        ("gaussian", 1, True),
        ("gaussian", 10, True),
        ("laplace", 1, False),
    ):
        seen = [
            np.array(
                [
                    float(
                        appfl_release(
                            record, steps=steps, mechanism=mechanism, clip_grad=clip_grad
                        )["weight"]
                    )
                    for _ in range(_SLOW_RUNS)
                ]
            )
            for record in (1000.0, -1000.0)
        ]
        delta = DELTA if mechanism == "gaussian" else 0.0
        found = f"epsilon >= {measured_epsilon(*seen, delta=delta):.2f} measured"
        if mechanism == "gaussian":
            found += f", exactly {gaussian_epsilon(steps / factor, DELTA):.2f} (accountant)"
        elif clip_grad:
            found += f", exactly {steps} (Laplace noise of known scale)"
        yield (
            f"VanillaTrainer, {mechanism}, {steps} local step{'s' if steps > 1 else ''}"
            + ("" if clip_grad else ", clip_grad at its default (off)"),
            "epsilon 1 a round" + (", delta 1e-5" if delta else ""),
            found,
        )
    sent = appfl_release(0.25, steps=1, mechanism="laplace")
    yield (
        "VanillaTrainer, buffers (BatchNorm's means and variances)",
        "epsilon 1 a round",
        "leave as they are: no epsilon" if float(sent["seen"]) == 0.25 else "leave with noise",
    )


# --- the table ------------------------------------------------------------------------------------

REFEREED: dict[str, tuple[Sequence[str], Callable[[], Iterator[tuple[str, str, str]]]]] = {
    "opacus": (("opacus",), opacus_rows),
    "flower": (("flwr",), flower_rows),
    "nvflare": (("nvflare",), nvflare_rows),
    "appfl": (("appfl", "omegaconf", "wandb"), appfl_rows),
}


@functools.cache
def version(package: str) -> str | None:
    """Its version, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of what is installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(REFEREED), help="names, with commas")
    wanted = parser.parse_args(arguments).only.split(",")
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    print(
        f"{_RUNS} runs in each world ({_SLOW_RUNS} of APPFL's): no bound can exceed "
        f"{most_measurable(_RUNS):.2f} ({most_measurable(_SLOW_RUNS):.2f}).\n"
    )
    for name in wanted:
        packages, rows = REFEREED[name]
        missing = [package for package in packages if version(package) is None]
        if missing:
            print(f"{name}: not installed (pip install {' '.join(missing)}); left out\n")
            continue
        begun = time.process_time()
        np.random.seed(0)  # the generators that they use, so that the table repeats
        torch.manual_seed(0)
        print(f"{packages[0]} {version(packages[0])}")
        for what, claims, found in rows():
            print(f"  {what}\n    claims  {claims}\n    found   {found}", flush=True)
        print(f"  ({time.process_time() - begun:.0f} s)\n")


if __name__ == "__main__":
    main()
