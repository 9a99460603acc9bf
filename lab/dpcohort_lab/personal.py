# SPDX-License-Identifier: Apache-2.0
"""Personal models: each client's own, made by the client of the common model and its own records.

The common model carries its noise and is all that others learn of a client; it is paid for. What a
client does with it on its own records needs no noise and spends nothing, as long as nothing of it
leaves: not the personal model, not how good it is, not what was chosen. SENSITIVE: everything that
is made here tells of single records exactly.

A pulled model is the least of F_k(w) + pull/2 |w - common|², F_k the mean loss of the client's
own records. That is the personal objective of MR-MTL (Liu et al. 2022), and for a common model that
is trained by itself it is Ditto (Li et al. 2021), whose name it has here: in MR-MTL the common
model is the mean of the personal ones, which then have to leave their clients, with noise.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from dpcohort.data import Dataset
from dpcohort.engine import FlatLayout, Loss, can_be_mapped
from dpcohort.errors import InputError
from dpcohort.metrics import main_metric, main_value
from dpcohort.models import split_features
from dpcohort.runs import Job, Run, network_of, records_for
from dpcohort_lab.checks import FloatArray, choice, whole_number
from dpcohort_lab.service import SIMULATION_ONLY

__all__ = ["WITHHELD", "check_personal_data", "personal_model", "personal_results"]

Method = Literal["ditto", "fine-tune"]

#: More would be a mistake: a step goes over all records of a client.
_MOST_STEPS = 100_000

#: What a client tries, beside the common model itself (an endless pull).
_PULLS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
#: Each record is left out once in each repetition, with a fifth of the others; with many records
#: it makes no difference which these are.
_FOLDS = 5
_REPETITIONS = 3
_MANY_RECORDS = 500
#: How often records are drawn anew to see which model loses least.
_DRAWS = 200
#: What Newton's method neither sees nor can divide by.
_FAINT = 1e-7
#: A loss that is not finite counts as this.
_ENDLESS = 1e300
#: Linear models of up to so many parameters are fitted to the end, by Newton's method.
_SMALL = 128
_NEWTON_STEPS = 20
#: Numbers of records times parameters of models that are fitted at a time.
_AT_A_TIME = 1 << 26

#: Losses [models, records] of models that are the rows of a matrix. SENSITIVE.
_Losses = Callable[[Tensor], Tensor]
#: Models [n, D], from an anchor, the part that may change, the pulls and the records kept.
_Fit = Callable[[Tensor, Tensor, list[float], Tensor], Tensor]


def personal_model(
    run: Run,
    inputs: ArrayLike,
    labels: ArrayLike,
    *,
    method: Method = "ditto",
    pull: float | Literal["auto"] = "auto",
    steps: int = 100,
    model: nn.Module | None = None,
) -> dict[str, NDArray[Any]]:
    """A client's own model, from the model of a finished run and the client's own records.

    SENSITIVE: it was trained without noise. It stays with the client whose records these are.

    Args:
        run: the training that the client took part in, or not; read from its folder, or in memory.
        inputs: the client's records as the data set holds them, before they are scaled.
        labels: of these records, as a data set is given them.
        method: ``ditto`` (all parameters) or ``fine-tune`` (the last layer).
        pull: how strongly it is held at the common model: 0 not at all, ``math.inf`` is the common
            model itself, ``auto`` is the mean of several, and of models made alone where the
            model is linear, each counted as often as it would be best on records left out.
        steps: of the descent; small linear models are fitted to the end.
        model: the network of a run that was read from its folder, where that has no name.

    Returns:
        Parameters by name, as in ``model.safetensors``.

    Raises:
        InputError: the run is not finished, or records or settings do not fit.

    Example:
        >>> from dpcohort import Population, Training, load_dataset, make_plan, train
        >>> clients = Population.from_arrays(sizes=[400] * 3, epsilon=[2, 4, 8], delta=1e-5)
        >>> settings = Training(rounds=3, cohort_size=2, batch_size=40, dimension=650)
        >>> run = train(make_plan(clients, settings, seed=0), "logistic", "digits", device="cpu")
        >>> digits = load_dataset("digits")
        >>> own = slice(60)  # what the client holds
        >>> mine = personal_model(run, digits.train_inputs[own], digits.train_labels[own], steps=9)
        >>> mine["1.weight"].shape
        (10, 64)
    """
    _check(method, pull, steps)
    data = records_for(run, inputs, labels)
    network = network_of(run, model, tokens=data.train_inputs.dtype == np.int64)
    head, prepared = split_features(network, data)
    common, x, y = FlatLayout(head).flatten(head), *_records(prepared, slice(None), "cpu")
    client = _client(head, run.task.loss_on("cpu"), x, y, steps)
    zero, part = torch.zeros_like(common), _part(head, method)
    alone = client.tried("alone", zero, part) if pull == "auto" and client.linear else None
    found, _ = client.personal(common, part, pull, alone)
    FlatLayout(network).assign(network, found)
    return {name: value.numpy().copy() for name, value in network.state_dict().items()}


def personal_results(
    job: Job,
    run: Run,
    *,
    method: Method = "ditto",
    pull: float | Literal["auto"] = "auto",
    steps: int = 100,
) -> dict[str, Any]:
    """How much better clients' own models are, in a simulation that holds all of their records.

    Each client's model, the common one, and one that the client makes alone in the same way, pulled
    to where the training began instead: all judged on the client's own test records, which choose
    nothing. Where the data set does not say whose its test records are, each class of them counts
    as it does among the client's own records.

    Args:
        job: the training.
        run: what became of it, finished.
        method: as in `personal_model`.
        pull: as in `personal_model`.
        steps: as in `personal_model`.

    Returns:
        The settings, ``metric``, the ``median`` and ``quartiles`` over clients of each kind of
        model, for each of the ``clients`` its results and the shares of which its model was
        mixed, and the ``stamp``: for simulations only.

    Raises:
        InputError: the run is private, or the data say nothing of single clients.

    Example:
        >>> from dpcohort.config import commented_config, loads_config
        >>> from dpcohort.runs import configured_job, train_side_by_side
        >>> config = loads_config(commented_config("heart-disease"))
        >>> job = configured_job(config.with_overrides(["training.rounds=5"]), device="cpu")
        >>> found = personal_results(job, train_side_by_side([job])[0], steps=20)
        >>> found["personal"]["median"] > 0.5, list(found["clients"])
        (True, ['cleveland', 'hungarian', 'switzerland', 'va'])
    """
    _check(method, pull, steps)
    if job.private or run.settings.get("randomness") != "seeded":
        raise InputError.because(WITHHELD)
    check_personal_data(job.data)
    head, data = split_features(job.model, job.data, device=job.device)
    head = copy.deepcopy(head).to(job.device).eval()
    layout, task = FlatLayout(head), job.task
    weights = [run.scored_weights[name] for name in FlatLayout(job.model).places]
    common = torch.cat([torch.from_numpy(np.array(one)).reshape(-1) for one in weights])
    common = common.to(job.device)
    start, part = job.initial().to(job.device), _part(head, method).to(job.device)
    score = _judge(job, data, head, layout)
    clients: dict[str, dict[str, Any]] = {}
    for k, name in enumerate(job.plan.population.ids):
        own = np.asarray(job.partition.client(k))
        if (scored := score(common, k)) is None:
            continue
        x, y = _records(data, own, job.device)
        client = _client(head, job.loss, x, y, steps)
        alone = client.tried("alone", start, torch.ones_like(start))
        mine, shares = client.personal(common, part, pull, alone if client.linear else None)
        clients[name] = {
            "records": len(own),
            "common": scored,
            "alone": score(client.mixed(alone)[0], k),
            "personal": score(mine, k),
            "shares": shares,
        }
    return {
        "stamp": SIMULATION_ONLY,
        "method": method,
        "pull": "inf" if pull == math.inf else pull,
        "steps": steps,
        "metric": main_metric(task).name,
        **{kind: _over(clients, kind) for kind in ("common", "alone", "personal")},
        "clients": clients,
    }


#: Why a private run says nothing of personal models.
WITHHELD = (
    "this run is private, and a personal model is trained on a client's records without noise: "
    "neither it nor how good it is may leave the client, so none is made here. Each client makes "
    "its own of model.safetensors: dpcohort_lab.personal.personal_model."
)


def _check(method: str, pull: object, steps: int) -> None:
    """Refuse settings that cannot be used."""
    choice("method", method, get_args(Method))
    whole_number("steps", steps, at_least=1, at_most=_MOST_STEPS)
    is_number = isinstance(pull, int | float) and not isinstance(pull, bool)
    if pull != "auto" and not (is_number and pull >= 0):  # type: ignore[operator]
        allowed = '"auto", or a number from 0 (not held at all) to inf (the common model itself)'
        raise InputError("pull", given=pull, allowed=allowed)


def check_personal_data(data: Dataset) -> None:
    """Refuse data by which no single client's model can be judged; before anything is trained.

    Example:
        >>> from dpcohort import load_dataset
        >>> check_personal_data(load_dataset("heart-disease"))
    """
    if data.test_clients is None and not data.task.predicts_classes:
        raise InputError.because(
            f"personal models are judged on each client's own test records, and {data.name} does "
            "not say whose they are. Use a table with a column of clients (data.client), or a "
            "function that returns a Dataset with test_clients."
        )


def _over(clients: Mapping[str, Mapping[str, Any]], kind: str) -> dict[str, Any]:
    values = [client[kind] for client in clients.values()]
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": median, "quartiles": [low, high]}


def _records(data: Dataset, which: Any, device: str) -> tuple[Tensor, Tensor]:
    """Some training records as the model sees them."""
    rows = data.rows_of(which)
    x = np.array(data.normalised(data.train_inputs[rows]))
    y = np.array(data.train_labels[rows])
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


def _judge(
    job: Job, data: Dataset, head: nn.Module, layout: FlatLayout
) -> Callable[[Tensor, int], float | None]:
    """What a model scores on a client's own test records; None where it has none."""
    inputs = torch.from_numpy(np.array(data.normalised(data.test_inputs))).to(job.device)
    labels, task, ids = data.test_labels, job.task, job.plan.population.ids

    def score(vector: Tensor, k: int) -> float | None:
        if data.test_clients is None:
            mine = np.arange(len(labels))
        elif not (mine := np.flatnonzero(data.test_clients == ids[k])).size:
            return None
        with torch.no_grad():
            outputs = functional_call(head, layout.unflatten(vector), (inputs[mine],))
        found = outputs.cpu().numpy()
        if data.test_clients is not None:
            return main_value(task, found, labels[mine])
        rows = data.rows_of(job.partition.client(k))
        own = np.bincount(data.train_labels[rows], minlength=task.outputs)
        there = np.bincount(labels, minlength=task.outputs)
        weights: FloatArray = (own / np.maximum(there, 1))[labels]
        hits = task.predictions(found) == labels
        return float((weights * hits).sum() / weights.sum()) if weights.any() else None

    return score


def _part(model: nn.Module, method: str) -> Tensor:
    """1 for the parameters that become a client's own, 0 for those that stay common."""
    places = FlatLayout(model).places
    last = list(places)[-1].rpartition(".")[0]
    own = [method == "ditto" or name.rpartition(".")[0] == last for name in places]
    sizes = [place.stop - place.start for place, _ in places.values()]
    return torch.cat([torch.full((n,), float(one)) for n, one in zip(sizes, own, strict=True)])


def _client(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, steps: int) -> _Client:
    layout = FlatLayout(model)

    def outputs(vector: Tensor) -> Tensor:
        found: Tensor = functional_call(model, layout.unflatten(vector), (x,))
        return found

    def one(vector: Tensor) -> Tensor:
        return loss(outputs(vector), y)

    mappable = can_be_mapped(model, loss, x[:2], y[:2])
    losses: _Losses = vmap(one) if mappable else lambda rows: torch.stack([one(r) for r in rows])
    size = sum(place.stop - place.start for place, _ in layout.places.values())
    layers = [part for part in model.modules() if [*part.parameters(recurse=False)]]
    linear = len(layers) == 1 and isinstance(layers[0], nn.Linear) and _is_linear(outputs, x, size)
    fit: _Fit = partial(_fitted, losses, steps=steps)
    if mappable and linear and size <= _SMALL:
        slopes = jacrev(outputs)(torch.zeros(size, device=x.device, dtype=x.dtype)).double()
        fit = partial(_least, slopes, vmap(loss, in_dims=(0, None)), y)
    return _Client(losses, len(y), linear, fit)


def _is_linear(outputs: Callable[[Tensor], Tensor], x: Tensor, size: int) -> bool:
    """Whether outputs are linear in the parameters: no softmax after the layer, no frozen bias."""
    vector = torch.linspace(-1, 1, size, device=x.device, dtype=x.dtype)
    with torch.no_grad():
        once, twice, back = outputs(vector), outputs(2 * vector), outputs(-vector)
    return torch.allclose(2 * once, twice, atol=1e-4) and torch.allclose(-once, back, atol=1e-4)


@dataclass(frozen=True)
class _Tried:
    """Models that a client may have: pulled to an anchor, each more or less.

    Attributes:
        kind: of the anchor, in a word.
        models: [n, D], of all records.
        left_out: [n, records], what such a model loses on a record that it was fitted without.
    """

    kind: str
    models: Tensor
    left_out: Tensor


@dataclass(frozen=True)
class _Client:
    """Where a client makes its own model. SENSITIVE: all that comes of it tells of its records."""

    losses: _Losses
    records: int
    linear: bool  # a mean of two models then puts out the mean of what they put out
    fit: _Fit

    def personal(
        self,
        common: Tensor,
        part: Tensor,
        pull: float | Literal["auto"],
        alone: _Tried | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """The personal model, and of what it was mixed."""
        with torch.no_grad():
            as_it_is = _Tried("common", common[None], self.losses(common[None]))
        if pull == math.inf or (pull == "auto" and self.records < 2):
            return self.mixed(as_it_is)
        if pull != "auto":
            everything = torch.ones(1, self.records)
            return self.fit(common, part, [pull], everything)[0], {"pulled": 1.0}
        others = [] if alone is None else [alone]
        return self.mixed(as_it_is, self.tried("pulled", common, part), *others)

    def tried(self, kind: str, anchor: Tensor, part: Tensor) -> _Tried:
        """Models pulled to an anchor; of a client with one record, the one pulled most."""
        dice, folds = np.random.default_rng(0), min(_FOLDS, self.records)
        pulls = _PULLS if folds > 1 else _PULLS[:1]
        repetitions = 1 if self.records >= _MANY_RECORDS else _REPETITIONS if folds > 1 else 0
        fold = [dice.permutation(self.records) % folds for _ in range(repetitions)]
        out = [one == k for one in fold for k in range(folds)]
        # Of each pull one model of all records, then those that some of them are left out of.
        kept = torch.ones(1 + len(out), self.records)
        for row, without in zip(kept[1:], out, strict=True):
            row[torch.from_numpy(without)] = 0
        each = [pull for pull in pulls for _ in kept]
        kept_by = kept.repeat(len(pulls), 1)
        at_a_time = max(1, _AT_A_TIME // (anchor.numel() * self.records))
        slices = [slice(i, i + at_a_time) for i in range(0, len(each), at_a_time)]
        found = torch.cat([self.fit(anchor, part, each[s], kept_by[s]) for s in slices])
        with torch.no_grad():
            lost = self.losses(found).view(len(pulls), len(kept), -1)
        left_out = (lost * (1 - kept.to(lost.device))).sum(1) / max(1, repetitions)
        return _Tried(kind, found.view(len(pulls), len(kept), -1)[:, 0], left_out)

    def mixed(self, *families: _Tried) -> tuple[Tensor, dict[str, float]]:
        """The mean of all models tried, each counted as often as it would have been the best.

        That is: as often as it loses least on records left out, when the records are drawn anew.
        The single best one would hang on a few records.
        """
        models = torch.cat([family.models for family in families])
        left_out = torch.cat([family.left_out for family in families]).double().cpu()
        counts = np.random.default_rng(0).exponential(size=(self.records, _DRAWS))
        lost = torch.nan_to_num(left_out, nan=_ENDLESS, posinf=_ENDLESS) @ torch.from_numpy(counts)
        shares = np.bincount(lost.argmin(0).numpy(), minlength=len(models)) / _DRAWS
        used = np.flatnonzero(shares)
        weights = torch.from_numpy(shares[used]).to(models)
        ends = np.cumsum([len(family.models) for family in families])[:-1]
        of_kinds = [float(part.sum()) for part in np.split(shares, ends)]
        kinds = [family.kind for family in families]
        return weights @ models[used], dict(zip(kinds, of_kinds, strict=True))


def _fitted(
    losses: _Losses, anchor: Tensor, part: Tensor, pulls: list[float], kept: Tensor, steps: int
) -> Tensor:
    """Models [n, D] that fit the records that each keeps, held at the anchor.

    Proximal gradient steps: along the gradient of the loss, then back towards the anchor, which
    is stable however strong the pull. A step that makes things worse is not taken and the next is
    half as long, so that no step size need be chosen.

    Args:
        losses: of each record.
        anchor: [D], where they begin and what they are pulled to.
        part: [D], 1 for what may change.
        pulls: [n].
        kept: [n, records], 1 for the records that a model learns from.
        steps: how many.
    """
    pull = torch.tensor(pulls, device=anchor.device)[:, None]
    weights = (kept / kept.sum(1, keepdim=True)).to(anchor.device)

    def at(rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = rows.detach().requires_grad_()
        with torch.enable_grad():
            loss = (losses(rows) * weights).sum(1)
            (gradient,) = torch.autograd.grad(loss.sum(), rows)
        away = (rows.detach() - anchor).square().sum(1)
        return loss.detach() + pull[:, 0] / 2 * away, gradient * part

    models = anchor.repeat(len(pulls), 1)
    size = torch.ones_like(pull)
    value, gradient = at(models)
    for _ in range(steps):
        tried = anchor + (models - size * gradient - anchor) / (1 + size * pull)
        better, (value, gradient, models) = _better((value, gradient, models), (*at(tried), tried))
        size = torch.where(better[:, None], 1.3 * size, size / 2)
    return models


def _better(known: Sequence[Tensor], tried: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Which models are better as they were tried, by the value that comes first, and their best."""
    better = tried[0] <= known[0]  # never where it is not a number
    columns = [better.view(-1, *(1 for _ in one.shape[1:])) for one in known]
    return better, [torch.where(*three) for three in zip(columns, tried, known, strict=True)]


def _least(
    slopes: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    y: Tensor,
    anchor: Tensor,
    part: Tensor,
    pulls: list[float],
    kept: Tensor,
) -> Tensor:
    """What `_fitted` finds after endless steps, for a model that is linear in its parameters.

    Args:
        slopes: [records, outputs, D], how outputs change with parameters.
        loss: of each model and record.
        y: labels.
        anchor: as for `_fitted`; so are all that follow.
        part: all 1, as such a model is one layer.
        pulls: [n].
        kept: [n, records].
    """
    pull = torch.tensor(pulls, device=anchor.device, dtype=slopes.dtype)[:, None]
    weights = (kept / kept.sum(1, keepdim=True)).to(slopes)
    held = torch.diag_embed((pull + _FAINT).expand(-1, anchor.numel()))

    def at(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs = torch.einsum("nkd,rd->rnk", slopes, rows).requires_grad_()
        with torch.enable_grad():
            lost = (loss(outputs, y) * weights).sum(1)
            (slope,) = torch.autograd.grad(lost.sum(), outputs, create_graph=True)
            bends = [
                torch.autograd.grad(slope[..., k].sum(), outputs, retain_graph=True)[0]
                for k in range(slope.shape[2])
            ]
        away = rows - anchor
        value = lost.detach() + pull[:, 0] / 2 * away.square().sum(1)
        gradient = torch.einsum("rnk,nkd->rd", slope.detach(), slopes) + pull * away
        bent = torch.einsum("rnkl,nld->rnkd", torch.stack(bends, 2), slopes)
        return value, gradient, torch.einsum("rnkd,nke->rde", bent, slopes) + held

    models = anchor.to(slopes).repeat(len(pulls), 1)
    size = torch.ones_like(pull)
    value, gradient, bend = at(models)
    for _ in range(_NEWTON_STEPS):
        step = torch.linalg.solve(bend, gradient)
        if float((step * gradient).sum(1).max()) < _FAINT:  # what is left to gain, twice
            break
        tried = models - size * step
        known = value, gradient, bend, models
        better, (value, gradient, bend, models) = _better(known, (*at(tried), tried))
        size = torch.where(better[:, None], torch.ones_like(size), size / 2)
    return models.to(anchor)
