# SPDX-License-Identifier: Apache-2.0
"""How good predictions are: the numbers that fit a task, beside those of the best constant.

Everything here is computed from outputs and labels of test records. Where those are not public,
neither are these numbers.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, xlogy

from dpcohort._validate import FloatArray, IntArray
from dpcohort.plain_text import first_of
from dpcohort.tasks import Task

__all__ = [
    "METRICS",
    "Check",
    "Metric",
    "check_together",
    "check_trivial",
    "main_metric",
    "main_value",
    "measure",
    "prediction_faults",
    "trivial_outputs",
]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that says how good predictions are.

    Attributes:
        name: its key in ``result.json``.
        words: what people call it.
        is_share: shown in per cent, and differences in points.
        higher_is_better: or lower.

    Example:
        >>> METRICS["accuracy"].text(0.8731), METRICS["rmse"].text(3.21987)
        ('87.3 %', '3.22')
        >>> METRICS["rmse"].gain(3.0, 3.5)
        0.5
    """

    name: str
    words: str
    is_share: bool = False
    higher_is_better: bool = False

    @property
    def scale(self) -> float:
        """From the number to what is shown."""
        return 100.0 if self.is_share else 1.0

    @property
    def unit(self) -> str:
        """What a difference is counted in."""
        return " points" if self.is_share else f" in {self.words}"

    def text(self, value: float) -> str:
        """The number as it is shown."""
        if not math.isfinite(value):
            return "not a number"
        return f"{100 * value:.1f} %" if self.is_share else f"{value:.3g}"

    def shown(self, difference: float) -> str:
        """A difference, or the end of an interval, already in shown units."""
        return f"{difference:.1f}" if self.is_share else f"{difference:.3g}"

    def spread(self, mean: float, low: float, high: float) -> str:
        """A mean with its interval, in shown units: ± half of it, or its ends within the range.

        Example:
            >>> METRICS["accuracy"].spread(0.8, 0.75, 0.85), METRICS["accuracy"].spread(0.2, -1, 2)
            ('80.0 ± 5.0', '20.0 (0.0 to 100.0)')
        """
        shown = self.shown(self.scale * mean)
        if self.is_share and (low < 0 or high > 1):
            return f"{shown} ({100 * max(low, 0):.1f} to {100 * min(high, 1):.1f})"
        return f"{shown} ± {self.shown(self.scale * (high - low) / 2)}"

    def gain(self, value: float, other: float) -> float:
        """How much better one is than another, in shown units; below 0 where it is worse."""
        return self.scale * (value - other if self.higher_is_better else other - value)


_SHARE = {"is_share": True, "higher_is_better": True}
#: What runs are judged by, by name.
METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="accuracy", words="accuracy", **_SHARE),
        Metric(name="balanced_accuracy", words="balanced accuracy", **_SHARE),
        Metric(name="rmse", words="RMSE"),
        Metric(name="mae", words="mean absolute error"),
        Metric(name="quantile_loss", words="quantile loss"),
        Metric(name="poisson_deviance", words="Poisson deviance"),
    )
}
_OF_LOSS = {"huber": "mae", "quantile": "quantile_loss"}
_BINS = 15
_MOST_IN_A_MATRIX = 50
_TINY = 1e-12


def main_metric(task: Task) -> Metric:
    """What a task is judged by: accuracy, or what fits its loss.

    With class weights or a rare class, and for several labels, it is the balanced accuracy.

    Example:
        >>> main_metric(Task(outputs=3)).name
        'accuracy'
        >>> main_metric(Task(kind="regression", outputs=1, bounds=(0.0, 9.0), loss="huber")).name
        'mae'
    """
    if task.kind == "classification":
        rare = task.class_weights or task.is_uneven
        return METRICS["balanced_accuracy" if rare else "accuracy"]
    if task.kind == "multi-label":
        return METRICS["balanced_accuracy"]
    if task.kind == "counts":
        return METRICS["poisson_deviance"]
    return METRICS[_OF_LOSS.get(task.loss, "rmse")]


def trivial_outputs(task: Task, labels: NDArray[Any]) -> FloatArray:
    """Outputs of the best predictor that looks at no input, [n, outputs]: the same in every row.

    It is the best constant on these very labels, so it is a little better than one could know.

    Args:
        task: what is predicted.
        labels: as a data set holds them.

    Example:
        >>> ward = Task(kind="regression", outputs=1, bounds=(-1.0, 1.0))
        >>> trivial_outputs(ward, np.array([-1.0, 1.0, 0.75])).tolist()
        [[0.25], [0.25], [0.25]]
    """
    values = np.asarray(labels, np.float64)
    if task.kind == "classification":
        shares = np.bincount(np.asarray(labels), minlength=task.outputs) / len(labels)
        best: Any = np.log(np.maximum(shares * (task.class_weights or 1.0), _TINY))
    elif task.kind == "multi-label":
        shares = np.clip(values.mean(0), _TINY, 1 - _TINY)
        best = np.log(shares / (1 - shares))
    elif task.loss == "poisson":
        best = np.log(max(float(values.mean()), _TINY))
    elif task.loss == "quantile":
        best = np.quantile(values, task.quantile)
    elif task.loss == "huber":
        best = np.median(values)
    else:
        best = values.mean()
    return np.tile(np.atleast_1d(np.asarray(best, np.float64)), (len(labels), 1))


def measure(task: Task, outputs: NDArray[Any], labels: NDArray[Any]) -> dict[str, Any]:
    """All numbers that fit a task; the same keys for every predictor of it. Needs scikit-learn.

    Numbers of a regression are in the units of its bounds. One that cannot be computed (the AUC of
    a class without records, all of outputs that are not finite) is NaN.

    Args:
        task: what is predicted.
        outputs: of a model, [n, outputs].
        labels: as a data set holds them.

    Example:
        >>> found = measure(Task(outputs=2), np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([0, 1]))
        >>> found["accuracy"], found["auc"], found["confusion_matrix"]
        (1.0, 1.0, [[1, 0], [0, 1]])
    """
    found = np.asarray(outputs, np.float64)
    finite = bool(np.isfinite(found).all())
    if not finite:  # the keys stay, the numbers go
        found = np.zeros_like(found)
    of = {"classification": _of_classes, "multi-label": _of_labels}
    values = of.get(task.kind, _of_numbers)(task, found, np.asarray(labels))
    return values if finite else {key: _gone(value) for key, value in values.items()}


def _scikit_learn() -> Any:
    return importlib.import_module("sklearn.metrics")


def _gone(value: Any) -> Any:
    return {key: _gone(one) for key, one in value.items()} if isinstance(value, dict) else math.nan


def _of_classes(task: Task, outputs: FloatArray, labels: IntArray) -> dict[str, Any]:

    predicted, chances = task.predictions(outputs), task.chances(outputs)
    there = np.unique(labels)
    averaged = {} if task.outputs == 2 else {"labels": there, "average": "macro"}
    matrix = None
    if task.outputs <= _MOST_IN_A_MATRIX:
        classes = list(range(task.outputs))
        matrix = _scikit_learn().confusion_matrix(labels, predicted, labels=classes).tolist()
    auc = _mean_auc(task, outputs, labels)
    found = _of_guesses(labels, predicted, chances, auc, **averaged)
    return {**found, "confusion_matrix": matrix}


def _mean_auc(task: Task, outputs: FloatArray, labels: IntArray) -> float:
    """The area under the ROC curve: of the second of two classes, else the mean of all there."""
    # Less the others' summed exponentials an output ranks as the chance of its class does.
    aucs = [
        _auc(labels == c, outputs[:, c] - logsumexp(np.delete(outputs, c, axis=1), axis=1))
        for c in np.unique(labels)
    ]
    return _mean(aucs[1:] if task.outputs == 2 and len(aucs) == 2 else aucs)


def _of_guesses(
    truth: IntArray, guess: IntArray, chances: FloatArray, auc: float, **averaged: Any
) -> dict[str, float]:
    """What guesses of one class out of several are rated by."""
    scores = _scikit_learn()
    recalls = [float((guess[truth == c] == c).mean()) for c in np.unique(truth)]
    classes = list(range(chances.shape[1]))
    return {
        "accuracy": float((guess == truth).mean()),
        "balanced_accuracy": float(np.mean(recalls)),
        "auc": auc,
        "f1": float(scores.f1_score(truth, guess, **averaged, zero_division=0.0)),
        "log_loss": float(scores.log_loss(truth, chances, labels=classes)),
        "calibration_error": _calibration(chances.max(1), chances.argmax(1) == truth),
    }


def _of_labels(task: Task, outputs: FloatArray, labels: NDArray[Any]) -> dict[str, Any]:
    names = [task.called(i) for i in range(task.outputs)]
    truth, predicted = labels.astype(np.int64), (outputs > 0).astype(np.int64)
    chances = task.chances(outputs)
    each: dict[str, dict[str, float]] = {}
    columns = (truth.T, predicted.T, outputs.T, chances.T)
    for name, y, guess, score, chance in zip(names, *columns, strict=True):
        both = np.stack([1 - chance, chance], axis=1)
        each[name] = _of_guesses(y, guess, both, _auc(y == 1, score))
    macro = {key: _mean([one[key] for one in each.values()]) for key in next(iter(each.values()))}
    return {**macro, "labels": each}


def _of_numbers(task: Task, outputs: FloatArray, labels: NDArray[Any]) -> dict[str, Any]:
    scores = _scikit_learn()
    truth = task.unscaled(np.asarray(labels, np.float64))
    predicted = task.predictions(outputs)
    away = truth - predicted
    found = {
        "rmse": float(np.sqrt(np.mean(away**2))),
        "mae": float(np.mean(np.abs(away))),
        "r2": float(scores.r2_score(truth, predicted)) if len(truth) > 1 else math.nan,
    }
    if task.kind == "counts":
        positive = np.maximum(predicted, _TINY)
        return {**found, "poisson_deviance": float(scores.mean_poisson_deviance(truth, positive))}
    return {**found, "quantile_loss": float(np.mean(_pinball(task, away)))}


def _pinball(task: Task, away: FloatArray) -> FloatArray:
    both: FloatArray = np.maximum(task.quantile * away, (task.quantile - 1.0) * away)
    return both


def _auc(is_one: NDArray[np.bool_], scores: FloatArray) -> float:
    if not is_one.any() or is_one.all() or not np.isfinite(scores).all():
        return math.nan
    places = np.unique(scores, return_inverse=True)[1]
    ones, zeros = (np.bincount(places, weights=those) for those in (is_one, ~is_one))
    return float(ones @ (np.cumsum(zeros) - zeros / 2) / (ones.sum() * zeros.sum()))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return float(np.mean(known)) if known else math.nan


def _calibration(confidence: FloatArray, hit: NDArray[np.bool_]) -> float:
    """Expected calibration error: how far confidence is from the share that is right, by bins."""
    bins = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    gap = np.bincount(bins, weights=confidence - hit, minlength=_BINS)
    return float(np.abs(gap).sum() / len(hit))


@dataclass(frozen=True, kw_only=True)
class Check:
    """A model beside the best constant predictor, on the same test records.

    Attributes:
        metric: name of what they are judged by.
        value: of the model.
        trivial: of the best constant.
        says: what the constant predicts, in words.
        gain: how much better the model is, in shown units.
        low: lower end of the gain's 95 % interval over test records; of the worst seed.
        high: upper end.
        records: test records.
        auc: of the model, where a class is rare; else NaN.

    Example:
        >>> found = check_trivial(Task(outputs=2), np.eye(2)[[0, 1, 0, 0]], np.array([0, 1, 0, 0]))
        >>> found.is_better, found.sentence
        (False, 'test accuracy 100.0 % is NOT CLEARLY BETTER than always saying class 0 (75.0 %):
        25.0 points, 95 % CI -17.4 to 67.4 on 4 test records')
    """

    metric: str
    value: float
    trivial: float
    says: str
    gain: float
    low: float
    high: float
    records: int
    auc: float = math.nan

    @property
    def is_better(self) -> bool:
        """Whether the interval of the gain is above 0."""
        return bool(self.low > 0)

    @property
    def sentence(self) -> str:
        """What was found, in words, without a full stop."""
        metric = METRICS[self.metric]
        head = f"test {metric.words} {metric.text(self.value)}{self.auc_in_words}"
        trivial = f"{self.says} ({metric.text(self.trivial)})"
        word = "better"
        if not self.is_better:
            word = "NOT CLEARLY BETTER" if self.gain > 0 else "NOT BETTER"
        if not math.isfinite(self.gain):
            return f"{head}, so it is {word} than {trivial}"
        ends = f"{metric.shown(self.low)} to {metric.shown(self.high)}"
        return (
            f"{head} is {word} than {trivial}: {metric.shown(self.gain)}"
            f"{' points' if metric.is_share else ''}, 95 % CI {ends} on {self.records} test records"
        )

    @property
    def auc_in_words(self) -> str:
        """The AUC in brackets, where it is told beside the metric."""
        return f" (AUC {100 * self.auc:.1f} %)" if math.isfinite(self.auc) else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        kept = {key: value for key, value in asdict(self).items() if key != "auc" or value == value}
        return {**kept, "is_better": self.is_better}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Check:
        """What `to_dict` gave."""
        kept = {key: value for key, value in values.items() if key != "is_better"}
        for key in ("value", "trivial", "gain", "low", "high"):
            kept[key] = math.nan if kept.get(key) is None else float(kept[key])
        return cls(**kept)


def check_trivial(task: Task, outputs: NDArray[Any], labels: NDArray[Any]) -> Check:
    """Set outputs of a model beside the best constant ones, record by record."""
    metric = main_metric(task)
    constant = trivial_outputs(task, labels)
    ours, theirs = (_terms(task, np.asarray(o, np.float64), labels) for o in (outputs, constant))
    value, trivial = (_whole(metric, terms) for terms in (ours, theirs))
    sign = 1.0 if metric.higher_is_better else -1.0
    better = sign * (ours - theirs)
    half = 1.96 * float(better.std()) / math.sqrt(len(better))
    # A root mean square moves with its mean square at this rate, between the two.
    rate = metric.scale if metric.name != "rmse" else 1.0 / max(value + trivial, _TINY)
    gain = metric.gain(value, trivial)
    return Check(
        metric=metric.name,
        value=value,
        trivial=trivial,
        says=_says(task, constant[0]),
        gain=gain,
        low=gain - rate * half,
        high=gain + rate * half,
        records=len(labels),
        auc=_mean_auc(task, np.asarray(outputs, np.float64), labels)
        if task.is_uneven
        else math.nan,
    )


def main_value(task: Task, outputs: NDArray[Any], labels: NDArray[Any]) -> float:
    """The main metric of a task, alone and fast.

    Example:
        >>> ward = Task(kind="regression", outputs=1, bounds=(-10.0, 10.0))
        >>> main_value(ward, np.array([[0.1], [0.3]]), np.array([0.0, 0.0]))
        2.236...
    """
    return _whole(main_metric(task), _terms(task, np.asarray(outputs, np.float64), labels))


def _terms(task: Task, outputs: FloatArray, labels: NDArray[Any]) -> FloatArray:
    """What each record adds to the main metric, whose mean it is (before the root of an RMSE)."""
    if task.kind in ("classification", "multi-label") and not np.isfinite(outputs).all():
        return np.full(len(labels), math.nan)
    if task.kind == "classification":
        hit: FloatArray = np.asarray(task.predictions(outputs) == labels, np.float64)
        if main_metric(task).name == "accuracy":
            return hit
        counts = np.bincount(labels, minlength=task.outputs)
        shares: FloatArray = np.count_nonzero(counts) * counts[labels] / len(labels)
        return np.asarray(hit / shares)
    if task.kind == "multi-label":
        truth = labels.astype(np.int64)
        right = ((outputs > 0) == (truth > 0)).astype(np.float64)
        counts = np.stack([(truth == 0).sum(0), (truth == 1).sum(0)])
        of_label = counts[truth, np.arange(task.outputs)]
        weighted = right * len(truth) / (np.count_nonzero(counts, axis=0) * of_label)
        return np.asarray(weighted.mean(1))
    values = task.unscaled(np.asarray(labels, np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        predicted = task.predictions(outputs)
        away = values - predicted
        name = main_metric(task).name
        if name == "poisson_deviance":
            positive = np.maximum(predicted, _TINY)
            return np.asarray(2 * (xlogy(values, values / positive) - values + positive))
        if name == "quantile_loss":
            return _pinball(task, away)
        return np.asarray(away**2 if name == "rmse" else np.abs(away))


def _whole(metric: Metric, terms: FloatArray) -> float:
    mean = float(terms.mean())
    return math.sqrt(mean) if metric.name == "rmse" and mean >= 0 else mean


def _says(task: Task, constant: FloatArray) -> str:
    if task.kind == "classification":
        return f"always saying {task.called(int(task.predictions(constant[None])[0]))}"
    if task.kind == "multi-label":
        return "always saying the more frequent of each label"
    return f"always saying {float(task.predictions(constant[None])[0]):.3g}"


def check_together(found: Iterable[Check | None]) -> Check | None:
    """The checks of runs that differ in their seed, as one; None without any.

    The means, and an interval that holds those of all seeds: together they are better only if
    each of them is.

    Example:
        >>> a = Check(metric="rmse", value=2.0, trivial=3.0, says="always saying 5", gain=1.0,
        ...           low=0.8, high=1.2, records=50)
        >>> b = Check(metric="rmse", value=3.2, trivial=3.0, says="always saying 5", gain=-0.2,
        ...           low=-0.4, high=0.0, records=50)
        >>> check_together([a, a]).is_better, check_together([a, b]).is_better
        (True, False)
    """
    checks = [check for check in found if check is not None]
    if not checks:
        return None

    def mean(field: str) -> float:
        return float(np.mean([getattr(check, field) for check in checks]))

    return replace(
        checks[0],
        value=mean("value"),
        trivial=mean("trivial"),
        gain=mean("gain"),
        low=min(check.low for check in checks),
        high=max(check.high for check in checks),
        auc=mean("auc"),
    )


def prediction_faults(task: Task, outputs: NDArray[Any], labels: NDArray[Any]) -> list[str]:
    """What is wrong with predictions whatever their score: sentences, none where nothing is.

    Example:
        >>> prediction_faults(Task(outputs=3), np.eye(3)[[0, 0, 0, 0]], np.array([0, 1, 2, 0]))
        ['the model says class 0 for all 4 test records, whatever they hold. Where a class is known
          to be rare, say task.class_shares.']
    """
    found, records = np.asarray(outputs, np.float64), f"{len(labels)} test records"
    if not np.isfinite(found).all():
        return ["the model's outputs on test records are not finite numbers: it has diverged."]
    if task.kind == "classification":
        there, said = np.unique(labels), np.unique(task.predictions(found))
        never = np.setdiff1d(there, said)
        if said.size == 1 and there.size > 1:
            which = task.called(int(said[0]))
            step = " Where a class is known to be rare, say task.class_shares."
            told = f"the model says {which} for all {records}, whatever they hold."
            return [told + (step if not task.is_uneven else "")]
        if not never.size:
            return []
        names, missed = first_of([task.called(int(c)) for c in never]), np.isin(labels, never).sum()
        return [f"the model never says {names}, the truth of {missed} of {records}."]
    if task.kind == "multi-label":
        guesses = found > 0
        same = np.flatnonzero(guesses.all(0) | ~guesses.any(0)).tolist()
        if not same:
            return []
        which = "every label"
        if len(same) < task.outputs:
            which = first_of([task.called(i) for i in same])
        return [f"the model says the same of {which} for all {records}."]
    predicted = task.predictions(found)
    spread = float(np.std(task.unscaled(np.asarray(labels, np.float64))))
    if float(np.std(predicted)) <= 0.01 * spread:
        middle = float(np.mean(predicted))
        return [f"the model says about {middle:.3g} for all {records}, whatever they hold."]
    return []
