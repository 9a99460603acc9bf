# SPDX-License-Identifier: Apache-2.0
"""Coefficients of a linear model with standard errors: sampling error and privacy noise together.

Nothing is spent: all of it is computed from the released model and public numbers. How far a
training came in each direction, and what its noise left there, follows from how its loss bends,
and that from the distribution of inputs: public rows of the same columns, or the noised second
moments that a model holds. The training is repeated on such rows without noise to find the
coefficients that would have led to the released ones; the covariance of the noise is carried
through the same steps. So a direction that was hardly learned has a wide interval, not a bias.

What is assumed: the model is right about the mean, records of all clients follow one law, and
gradients were not cut by the clip (`Coefficients.remarks` says where that is known to be wrong).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, ndtri, softmax

from dpcohort._validate import FloatArray, number
from dpcohort.data import TableColumns
from dpcohort.data._tables import columns_of_frame
from dpcohort.engine._preconditioner import LOG_OF_MOST, SPREAD
from dpcohort.errors import InputError
from dpcohort.plain_text import first_of
from dpcohort.runs._run import Run
from dpcohort.tasks import CURVATURES, Task

#: Rows that stand for the distribution of inputs, at most.
_ROWS = 2000
_SEARCH_STEPS = 8
#: What the search may have left of the coefficients.
_FOUND = 0.05
#: Directions that were learned less than this are left out.
_LEAST_LEARNED = 1e-7
_MOST_PARAMETERS = 600
#: Of a coefficient that is told, what may lie in directions that were left out.
_TOLD, _TOLD_BY_MOMENTS = 1e-3, 0.3


@dataclass(frozen=True, kw_only=True)
class Coefficient:
    """One coefficient, in the units of the table.

    Attributes:
        name: what it is of; of a category, against the first one listed.
        of: which class (against the first), label or number it speaks for.
        estimate: the coefficient.
        error: its standard error.
        noise: the part of it that is privacy noise.
        low: lower end of the interval.
        high: upper end.
        ratio: odds ratio (of counts: rate ratio) with its ends; None of numbers.
    """

    name: str
    of: str
    estimate: float
    error: float
    noise: float
    low: float
    high: float
    ratio: tuple[float, float, float] | None


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """All coefficients of a run.

    Attributes:
        rows: of all outputs.
        confidence: of the intervals.
        inputs: where the distribution of inputs was taken from, in words.
        remarks: what makes the intervals wrong, as far as it is known.
    """

    rows: tuple[Coefficient, ...]
    confidence: float
    inputs: str
    remarks: tuple[str, ...]


def coefficients(run: Run, public: Any = None, *, confidence: float = 0.95) -> Coefficients:
    """Coefficients of a finished run of a linear model on a table, with intervals.

    Args:
        run: the run.
        public: a DataFrame or columns of public rows, whose inputs are distributed like the
            clients'; neither label nor client are needed. Not needed of a model that holds noised
            second moments.
        confidence: of the intervals.

    Raises:
        InputError: the run is of another kind, or nothing says how inputs are distributed.
    """
    number("confidence", confidence, above=0, below=1)
    columns = _columns(run)
    inputs, words = _inputs(run, columns, public)
    training = _Training.of(run, np.column_stack([inputs, np.ones(len(inputs))]))
    optimum, noise, sampling, known = training.behind(_released(run))
    contrasts, named = _contrasts(run.task, columns)
    most = (_TOLD if public is not None else _TOLD_BY_MOMENTS) * np.abs(contrasts).max(1)
    told = np.abs(contrasts @ known - contrasts).max(1) <= most
    found = contrasts @ optimum.ravel() + _shift(run.task, named)
    variances = [np.einsum("ij,jk,ik->i", contrasts, part, contrasts) for part in (noise, sampling)]
    times = float(ndtri((1 + confidence) / 2))
    rows, remarks = [], list(_remarks(run, columns))
    untold: dict[str, None] = {}
    every = zip(named, told.tolist(), found.tolist(), *variances, strict=True)
    for (name, of), is_told, value, private, chance in every:
        if not is_told:
            untold.setdefault(name)
            continue
        error = math.sqrt(max(0.0, private) + max(0.0, chance))
        low, high = value - times * error, value + times * error
        has_ratio = run.task.kind != "regression"
        ratio = tuple(math.exp(min(end, 700.0)) for end in (value, low, high))
        rows.append(
            Coefficient(
                name=name,
                of=of,
                estimate=value,
                error=error,
                noise=math.sqrt(max(0.0, private)),
                low=low,
                high=high,
                ratio=ratio if has_ratio else None,  # type: ignore[arg-type]
            )
        )
    if public is None and (hidden := [name for name in untold if name in columns.bounds]):
        raise InputError.because(  # what is left would stand for them too
            f"the noise on the second moments hides how {first_of(hidden)} is distributed. Give a "
            "public table of the same columns: --public TABLE"
        )
    if untold:
        why = "it is the same in all rows, or goes with others"
        remarks.append(f"nothing is told of {first_of(list(untold), 9)}: {why}")
    return Coefficients(
        rows=tuple(rows), confidence=confidence, inputs=words, remarks=tuple(remarks)
    )


def _columns(run: Run) -> TableColumns:
    if "columns" not in run.inputs or not run.scored_weights:
        raise InputError.because(
            "coefficients are of a finished run of a linear model on a table, whose columns have "
            "names."
        )
    model, optimiser, task = run.settings["model"], run.settings["optimiser"], run.task
    plain = (
        model["name"] == "logistic"
        and not set(model["options"]) - {"bias", "second_moments"}
        and not model.get("weights")
        and optimiser["local_step"]["kind"] == "ConstantStep"
        and (optimiser["server_learning_rate"], optimiser["server_momentum"]) == (1.0, 0.0)
        and not {"server", "local"} & set(optimiser)
        and run.settings.get("aggregation", "mean") == "mean"
        and not run.plan.past.rounds
    )
    parameters = run.scored_weights.get("1.weight", np.zeros(0)).size
    if not plain or task.loss not in _LOSSES or not 0 < parameters <= _MOST_PARAMETERS:
        raise InputError.because(
            "intervals are known of the model logistic with its usual losses, trained from its own "
            "start with constant steps and the mean of clients. This run is another."
        )
    return TableColumns(**run.inputs["columns"])


_LOSSES = ("cross-entropy", "binary-cross-entropy", "squared", "poisson")


def _inputs(run: Run, columns: TableColumns, public: Any) -> tuple[FloatArray, str]:
    """Rows that stand for the distribution of inputs, and where they are from."""
    rng = np.random.default_rng(0)
    if public is not None:
        known, _ = columns.encode_inputs(columns_of_frame(public))
        chosen = rng.permutation(len(known))[:_ROWS]
        return known[chosen].astype(np.float64), f"{len(known):,} public rows"
    moments, means = (run.model.get(f"moments.{name}") for name in ("weight", "bias"))
    if moments is None or means is None:
        raise InputError.because(
            "nothing says how inputs are distributed. Give a public table of the same columns "
            "(--public TABLE), or train with second moments, which are noised and paid for."
        )
    # One of a column's values is 1, so that the others' moments are 0 and its own is its mean.
    centre, products, others = means.astype(np.float64), moments.astype(np.float64), []
    at = 0
    for name in columns.features:
        width = len(columns.categories.get(name, ())) + 1
        if name in columns.categories:
            here = slice(at, at + width)
            products[here, here] = np.diag(centre[here])
            others.append((at + width - 1, here))
        at += width if name in columns.categories else 1 + columns.filled(name)[1]
    kept = np.setdiff1d(np.arange(at), [other for other, _ in others])
    around = (products - np.outer(centre, centre))[np.ix_(kept, kept)]
    values, vectors = np.linalg.eigh((around + around.T) / 2)
    plan, scale = run.plan, float(run.settings["model"]["options"]["second_moments"])
    noise = plan.noise_to_clip * plan.training.clip / scale
    noise *= math.sqrt(2 * len(kept) / plan.training.dimension / plan.training.rounds)
    spread = np.sqrt(np.where(values > noise, values, 0.0))
    rows = np.zeros((_ROWS, at))
    rows[:, kept] = centre[kept] + rng.standard_normal((_ROWS, len(kept))) * spread @ vectors.T
    for other, here in others:
        rows[:, other] = 1.0 - rows[:, here].sum(1)
    return rows, "the noised second moments that the model holds"


def _released(run: Run) -> FloatArray:
    """Weights and bias of each output of the model that was scored, [outputs, inputs + 1]."""
    weights = run.scored_weights
    bias = weights.get("1.bias", np.zeros(len(weights["1.weight"])))
    return np.column_stack([weights["1.weight"], bias]).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class _Training:
    """The steps of a training on rows that stand for the clients'.

    Attributes:
        rows: [n, inputs + 1], the last one 1.
        task: what is predicted.
        step: size of the local steps.
        steps: of a round.
        rounds: how many.
        decay: of the average of iterates; 0 for the last one.
        noise: variance of the noise on each coordinate of a step's mean gradient.
        batch: variance of a step's mean gradient by who is in it, over that of one record.
        records: how many the model rests on.
        spread: variance of a number around its mean, scaled.
        has_bias: whether the last row is trained.
        scale: κ of a model that sends second moments; 0 of plain steps.
    """

    rows: FloatArray
    task: Task
    step: float
    steps: int
    rounds: int
    decay: float
    noise: float
    batch: float
    records: float
    spread: float
    has_bias: bool
    scale: float

    @classmethod
    def of(cls, run: Run, rows: FloatArray) -> _Training:
        """That of a run."""
        plan, optimiser = run.plan, run.settings["optimiser"]
        training, weights = plan.training, plan.model_weights
        sizes = np.maximum(plan.population.sizes, 1)
        batches = np.maximum(plan.batch_sizes, 1)
        resting = float((weights**2 / sizes).sum())
        per_step = float((weights / batches).sum()) / training.cohort_size
        return cls(
            rows=rows,
            task=run.task,
            step=float(optimiser["local_step"]["size"]),
            steps=training.local_steps,
            rounds=training.rounds,
            decay=float(optimiser.get("average_decay") or 0.0),
            noise=(plan.noise_to_clip * training.clip) ** 2 / training.dimension,
            batch=max(0.0, per_step - resting),
            records=1.0 / resting,
            spread=_spread(run),
            has_bias="1.bias" in run.scored_weights,
            scale=float(run.settings["model"]["options"].get("second_moments", 0.0)),
        )

    def behind(self, released: FloatArray) -> tuple[FloatArray, ...]:
        """The optimum behind what was released, both covariances of it, and what it tells."""
        optimum = released.copy()
        reached, learned, noise, sampling = self._run(optimum)
        for _ in range(_SEARCH_STEPS):
            inverse = np.linalg.pinv(learned, rcond=_LEAST_LEARNED)
            away = released - reached
            move = (inverse @ away.ravel()).reshape(released.shape)
            for shorter in (1.0, 0.5, 0.25, 0.1):
                tried = self._run(optimum + shorter * move)
                if np.linalg.norm(released - tried[0]) < np.linalg.norm(away):
                    optimum, (reached, learned, noise, sampling) = optimum + shorter * move, tried
                    break
            else:
                break
        inverse = np.linalg.pinv(learned, rcond=_LEAST_LEARNED)
        if np.linalg.norm(inverse @ (released - reached).ravel()) > _FOUND * (
            1 + np.linalg.norm(optimum)
        ):
            raise InputError.because(
                "no coefficients would have led to this model: its noise is too large for it, or "
                "its classes can be told apart without an error, so that they have no end. "
                "Larger budgets, or fewer features."
            )
        known = inverse @ learned
        inverse = inverse + np.eye(len(known)) - known  # what was not learned stays as it came
        noise, sampling = (inverse @ part @ inverse.T for part in (noise, sampling))
        return optimum, noise, sampling, known

    def _run(self, optimum: FloatArray) -> tuple[FloatArray, ...]:
        """What training reaches without noise, how that follows the optimum, and its covariances.

        The first is of the privacy noise, the second of the records: of what each of them, by its
        gradients along the way, moves what is reached by.
        """
        size, many = optimum.size, len(self.rows)
        truth = self.rows @ optimum.T
        targets = _targets(self.task, truth)
        drawn = _drawn(self.task, targets, self.spread, np.random.default_rng(0))
        weights, average = np.zeros_like(optimum), np.zeros_like(optimum)
        follow, of_average, own, both, total = np.zeros((5, size, size))
        moved, moved_average = np.zeros((2, many, size))
        for round in range(self.rounds):
            carried, along = both, self._along(weights, round)
            for _ in range(self.steps):
                outputs = self.rows @ weights.T
                bent, tilted = (
                    along @ self._whole(blocks)
                    for blocks in _blocks(self.task, outputs, targets, truth)
                )
                stay = np.eye(size) - bent
                gradient = _residuals(self.task, outputs, targets).T @ self.rows / many
                residuals = _residuals(self.task, outputs, drawn)
                each = (residuals[:, :, None] * self.rows[:, None, :]).reshape(many, size)
                weights = weights - (along @ gradient.ravel()).reshape(weights.shape)
                follow = stay @ follow + tilted
                moved = moved @ stay.T - (each - each.mean(0)) @ along.T
                added = self.noise * np.eye(size) + self.batch * each.T @ each / many
                own = stay @ own @ stay.T + along @ added @ along.T
                carried = carried @ stay.T
            d = self.decay if round else 0.0
            e = 1.0 - d
            average, of_average = d * average + e * weights, d * of_average + e * follow
            moved_average = d * moved_average + e * moved
            total = d * d * total + d * e * (carried + carried.T) + e * e * own
            both = d * carried + e * own
        return average, of_average, total, moved_average.T @ moved_average / many / self.records

    def _along(self, weights: FloatArray, round: int) -> FloatArray:
        """What takes a round's mean gradient to a step: a length, or Newton's matrix."""
        outputs = len(weights)
        if not self.scale:
            trained = np.ones_like(weights)
            trained[:, -1] = self.has_bias
            return np.diag(self.step * trained.ravel())
        width = weights.shape[1] if self.has_bias else weights.shape[1] - 1
        moments = (self.rows.T @ self.rows / len(self.rows))[:width, :width]
        floor = math.sqrt(self.noise / (round + 1) * 2 * width) / self.scale
        inverse = np.zeros((weights.shape[1],) * 2)
        inverse[:width, :width] = np.linalg.inv(moments + floor * np.eye(width))
        return np.asarray(np.kron(np.eye(outputs), inverse / self._curvature(weights, moments)))

    def _curvature(self, weights: FloatArray, moments: FloatArray) -> float:
        largest = CURVATURES[self.task.kind]
        if self.task.kind != "counts" or not self.has_bias:
            return largest
        mean = float(weights[0] @ moments[-1])
        spread = min(max(float(weights[0] @ moments @ weights[0]) - mean**2, 0.0), SPREAD)
        return max(largest, math.exp(min(mean + spread / 2, LOG_OF_MOST)))

    def _whole(self, blocks: FloatArray) -> FloatArray:
        """A second derivative of the mean loss, from blocks of rows."""
        size = blocks.shape[1] * self.rows.shape[1]
        whole = np.einsum("nkl,ni,nj->kilj", blocks, self.rows, self.rows, optimize=True)
        return np.asarray(whole.reshape(size, size) / len(self.rows))


def _targets(task: Task, truth: FloatArray) -> FloatArray:
    """Expected labels of rows by their true outputs; of classes with their weights."""
    if task.predicts_classes:
        return task.chances(truth) * _factors(task)
    if task.kind == "multi-label":
        return np.asarray(expit(truth))
    return np.exp(truth) if task.loss == "poisson" else truth


def _drawn(task: Task, targets: FloatArray, spread: float, rng: np.random.Generator) -> FloatArray:
    """Labels at random, as `_targets` has them."""
    if task.predicts_classes:
        chances = np.cumsum(targets / _factors(task), axis=1)
        place = (rng.random((len(targets), 1)) * chances[:, -1:] > chances).sum(1)
        found: FloatArray = np.eye(task.outputs)[place] * _factors(task)
        return found
    if task.kind == "multi-label":
        return np.asarray(rng.random(targets.shape) < targets, np.float64)
    if task.loss == "poisson":
        return rng.poisson(targets).astype(np.float64)
    return targets + math.sqrt(spread) * rng.standard_normal(targets.shape)


def _residuals(task: Task, outputs: FloatArray, targets: FloatArray) -> FloatArray:
    """Derivative of each row's loss by its outputs."""
    if task.predicts_classes:
        return np.asarray(targets.sum(1, keepdims=True) * softmax(outputs, axis=1) - targets)
    if task.kind == "multi-label":
        return np.asarray((expit(outputs) - targets) * _factors(task) / task.outputs)
    return (np.exp(outputs) if task.loss == "poisson" else outputs) - targets


def _blocks(
    task: Task, outputs: FloatArray, targets: FloatArray, truth: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """How each row's residuals change with its outputs, and against those with its true ones."""
    eye = np.eye(outputs.shape[1])
    if task.predicts_classes:
        q, p, factors = softmax(outputs, axis=1), task.chances(truth), _factors(task)
        apart, true = (s[:, :, None] * eye - s[:, :, None] * s[:, None, :] for s in (q, p))
        weighted = factors[:, None] * eye - q[:, :, None] * factors
        return targets.sum(1)[:, None, None] * apart, weighted @ true
    if task.kind == "multi-label":
        factor = _factors(task) / task.outputs
        q, p = expit(outputs), expit(truth)
        return (q * (1 - q) * factor)[:, :, None] * eye, (p * (1 - p) * factor)[:, :, None] * eye
    if task.loss == "poisson":
        return np.exp(outputs)[:, :, None], targets[:, :, None]
    ones = np.ones_like(outputs)[:, :, None]
    return ones, ones


def _factors(task: Task) -> FloatArray:
    weights = np.array(task.class_weights or (1.0,) * task.outputs)
    return np.asarray(weights / weights.max())


def _spread(run: Run) -> float:
    """Variance of a number around its mean as the model sees it; NaN where nothing tells it."""
    if run.task.kind != "regression" or run.task.bounds is None:
        return 0.0
    error = (run.judged.get("metrics") or {}).get("rmse")
    if error is None and run.evaluation is not None:
        error = run.evaluation["in_all"]["rmse"]["value"]
    if error is None:
        raise InputError.because(
            "nothing tells how far numbers are from their prediction, which sampling errors go by: "
            "test records are not public, and no evaluation was paid for."
        )
    return float(2 * error / (run.task.bounds[1] - run.task.bounds[0])) ** 2


def _contrasts(task: Task, columns: TableColumns) -> tuple[FloatArray, list[tuple[str, str]]]:
    """What coefficients in the units of the table are of the parameters, and their names."""
    size, half = 1, 1.0
    if task.kind == "regression" and task.bounds is not None:
        half = (task.bounds[1] - task.bounds[0]) / 2
    terms: list[tuple[str, dict[int, float]]] = []
    at_zero: dict[int, float] = {}
    at = 0
    for name in columns.features:
        if name in columns.categories:
            words = columns.words(name)
            at_zero[at] = 1.0
            terms += [(f"{name} = {w}", {at + k: 1.0, at: -1.0}) for k, w in enumerate(words) if k]
            at += len(words) + 1
            continue
        low, high = columns.ends(name)
        terms.append((name, {at: 2 / (high - low)}))
        at_zero[at] = -(low + high) / (high - low)
        at += 1
        if columns.filled(name)[1]:
            terms.append((f"{name} is missing", {at: 1.0}))
            at += 1
    size = at + 1
    terms.append(("intercept", {**at_zero, at: 1.0}))
    rows, named = [], []
    against = [-1] if not task.predicts_classes else [0]
    for output in range(1 if task.predicts_classes else 0, task.outputs):
        for name, parts in terms:
            row = np.zeros((task.outputs, size))
            for place, factor in parts.items():
                row[output, place] += half * factor
                if against[0] >= 0:
                    row[against[0], place] -= half * factor
            rows.append(row.ravel())
            one = task.outputs == 1 or (task.predicts_classes and task.outputs == 2)
            named.append((name, "" if one else task.called(output)))
    return np.array(rows), named


def _shift(task: Task, named: list[tuple[str, str]]) -> FloatArray:
    """What is added to intercepts: class weights taken out, numbers in their own unit."""
    shifts = np.zeros(task.outputs)
    if task.predicts_classes:
        honest = np.log(task.chances(np.zeros((1, task.outputs)))[0])
        shifts = (honest - honest[0])[1:]
    elif task.kind == "regression" and task.bounds is not None:
        shifts = shifts + sum(task.bounds) / 2
    per = len(named) // len(shifts)
    found = np.zeros(len(named))
    found[per - 1 :: per] = shifts
    return found


def _remarks(run: Run, columns: TableColumns) -> Iterator[str]:
    bound = math.sqrt(len(columns.features) + 1) * (1 if run.task.kind != "counts" else math.inf)
    steepest = {"classification": math.sqrt(2.0)}.get(run.task.kind, 1.0)
    if run.task.kind == "regression":
        steepest = 2.0
    if run.plan.training.clip < bound * steepest:
        yield (
            "gradients longer than the clip were cut, if there were any, and then estimates are "
            f"biased: training.clip is {run.plan.training.clip:g}, and what bounds allow is "
            f"{bound * steepest:.3g}"
        )
    if run.plan.training.sampling_rate is not None and len(run.plan.population) > 1:
        yield "clients whose records follow other laws than the others' are not accounted for"
