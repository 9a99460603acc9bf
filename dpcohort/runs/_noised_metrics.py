# SPDX-License-Identifier: Apache-2.0
"""Metrics of a model from noised sums over test records, with intervals that include the noise.

A test record answers public questions about the model's output, each with a number from -1 to 1,
and so is a vector whose parts are the answers times public weights; its length is at most 1. A sum
of such vectors with Gaussian noise is released, and everything here is computed from it and public
numbers: the number of test records is one of them, so that a record that cannot be used adds
nothing and still counts.

Numbers from -1 to 1 make the most of a record: left out, it moves "right or wrong" by 1 where a
count of the right ones, of half the range, would have the same noise. Of two classes the questions
are a Haar basis of the histogram of scores by class, whose first one is "right or wrong" itself:
AUC depends on the fine ones little, and so they have small weights. Numbers come with the products
that their sampling errors need.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from dpcohort._validate import BoolArray, FloatArray, IntArray
from dpcohort.accounting import Contract, gaussian_mu
from dpcohort.clients import Population
from dpcohort.data import Dataset
from dpcohort.errors import InputError
from dpcohort.tasks import RARE, Task

#: Of a normal law, for intervals of 95 %.
_QUANTILE = 1.959964
#: Rows stay this much below length 1, so that clipping a row never changes it.
_LENGTH = 1.0 - 2e-5
#: Share of a delta that pays for the distance of drawn noise from its law. For epsilons up to e^20
#: that is below 2^-94 (``engine._lattice``), less than the share of any delta above 1e-19.
_FOR_SAMPLING, _MOST_EPSILON = 1e-9, 20.0
#: Half of an interval of the accuracy that still tells something.
_WORTH_ASKING = 0.15
#: Standard deviations by which what is divided by must be away from 0.
_CLEAR = 4.0
#: Beyond so many classes, no class is told of by itself.
_MOST_CLASSES = 50
#: Of so few classes each is held against the rest, for this share of a record's squared length.
_FEW_CLASSES, _FOR_EACH_CLASS = 10, 0.2
#: Log-odds of the second of two classes at which its scores are told apart, and their negatives.
_UPPER_EDGES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.3, 2.6, 3.0, 3.5, 4.5)
_EDGES = np.array([*(-edge for edge in reversed(_UPPER_EDGES)), 0.0, *_UPPER_EDGES])


@dataclass(frozen=True)
class Estimate:
    """A metric with its 95 % interval, sampling error and noise together.

    Attributes:
        value: of the metric; None where the noise does not let it be told.
        low: lower end.
        high: upper end.
    """

    value: float | None
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, float | None]:
        """Plain values for JSON."""
        return asdict(self)


_UNKNOWN = Estimate(None, None, None)


def _estimate(value: float, variance: float, low: float, high: float) -> Estimate:
    """A value with its interval, within what the metric can be."""
    half = _QUANTILE * math.sqrt(max(0.0, variance))
    ends = (min(high, max(low, float(end))) for end in (value, value - half, value + half))
    return Estimate(*ends)


class Questions(ABC):
    """What each test record is asked, and the metrics that the noised sums of answers give.

    Attributes:
        weights: [D], of each question; the squares of those that a record can answer at once with
            anything but 0 add up to less than 1.
        headline: the metric whose sharpness is told beforehand.
        class_shares: where noised sums told a rare class, how frequent classes are; else ().
    """

    weights: FloatArray
    headline: str
    class_shares: tuple[float, ...] = ()

    def informed(self, means: FloatArray, noise: FloatArray, spread: float) -> Questions:
        """The same with the threshold that mean answers speak for; of most, the same."""
        return self

    @abstractmethod
    def answers(self, outputs: FloatArray, labels: NDArray[Any]) -> FloatArray:
        """Answers [n, D] of records, each from -1 to 1; all 0 of one without a label."""

    @abstractmethod
    def metrics(self, means: FloatArray, noise: FloatArray, spread: float) -> dict[str, Estimate]:
        """Metrics from mean answers.

        Args:
            means: [D], with noise.
            noise: [D], variance of that noise.
            spread: sum of squared weights of the records, 1/n for a plain mean.
        """

    @abstractmethod
    def half_width(self, noise: FloatArray, spread: float) -> float:
        """The headline's 95 % interval before anything is known, half of it, at its widest."""

    def rows(self, outputs: NDArray[Any], labels: NDArray[Any]) -> FloatArray:
        """Weighted answers [n, D]: what each record adds to the sum. SENSITIVE."""
        with np.errstate(all="ignore"):  # a warning would tell of a record
            return self.answers(np.asarray(outputs, np.float64), labels) * self.weights


class Classes(Questions):
    """Accuracy, balanced accuracy, log loss and confidence; of two classes AUC as well.

    A record is in one cell: of two classes, its class and the bin of its score; of more, its class
    and whether the model is right. The log loss is cut off at 3 above that of a blind guess.

    Example:
        >>> two = Classes(Task(outputs=2))
        >>> rows = two.rows(np.array([[9.0, -9.0], [np.nan, 0.0]]), np.array([0, 1]))
        >>> bool((np.linalg.norm(rows, axis=1) <= 1).all()), len(two.weights)
        (True, 67)
    """

    headline = "accuracy"

    def __init__(self, task: Task) -> None:
        self._task, self._classes = task, (classes := task.outputs)
        self._worst = math.log(classes) + 3.0
        made = _of_two() if classes == 2 else _of_several(classes)
        self._cells, shares, self._right = made
        length = (self._cells**2 * shares[:, None]).sum(0).max()
        # Each number has a question about its square beside it.
        squares = np.concatenate([0.78 * shares / length, [0.10, 0.02, 0.08, 0.02]])
        self.weights = _LENGTH * np.sqrt(squares)

    def answers(self, outputs: FloatArray, labels: NDArray[Any]) -> FloatArray:
        there: BoolArray = (labels >= 0) & (labels < self._classes)
        truth = np.where(there, labels, 0)
        finite = np.asarray(np.isfinite(outputs).all(axis=1))
        known = np.where(finite[:, None], outputs, 0.0)
        chances = self._task.chances(known)
        own = np.log(chances[np.arange(len(truth)), truth])
        likely, sure = chances.argmax(axis=1) == truth, chances.max(axis=1)
        right = (self._task.predictions(known) == truth) & finite
        if self._classes == 2:
            leaning = self._task.leaning
            score = np.diff(known if leaning is None else known - leaning)[:, 0]
            score = np.where(finite, score, np.where(truth == 1, -np.inf, np.inf))
            cell = truth * (len(_EDGES) + 1) + np.searchsorted(_EDGES, score, side="left")
        else:
            cell = 2 * truth + right
        loss = np.where(finite, np.clip(-own / self._worst, 0.0, 1.0), 1.0)
        gap = np.where(finite, sure - likely, 1.0)
        numbers = np.stack([2 * loss - 1, 2 * (2 * loss - 1) ** 2 - 1, gap, 2 * gap**2 - 1], axis=1)
        found: FloatArray = np.concatenate([self._cells.T[cell], numbers], axis=1)
        return found * there.reshape(-1, 1)

    def informed(self, means: FloatArray, noise: FloatArray, spread: float) -> Questions:
        if self._classes != 2 or self._task.class_shares or self._task.class_weights:
            return self
        shares, variance = self._shares(means, noise, spread)
        share, of_one = (
            float(shares[len(_EDGES) + 1 :].sum()),
            np.repeat([0.0, 1.0], len(_EDGES) + 1),
        )
        rare = min(share, 1 - share)
        if not _CLEAR * math.sqrt(variance(of_one)) < rare <= RARE / 2:
            return self
        cut = int(np.abs(_EDGES - logit(share)).argmin())
        found, upper = copy(self), np.arange(len(_EDGES) + 1) > cut
        found._right = np.concatenate([~upper, upper]).astype(float)
        one = float(expit(_EDGES[cut]))
        found.class_shares = (1 - one, one)
        return found

    def _shares(
        self, means: FloatArray, noise: FloatArray, spread: float
    ) -> tuple[FloatArray, Any]:
        """Shares of the cells, and the variance of sums over them."""
        count = len(self._cells)
        solved = self._solution
        shares = solved[:, :-1] @ means[:count] + solved[:, -1]
        noisy = solved[:, :-1] * np.sqrt(noise[:count])

        def variance(gradient: FloatArray) -> float:
            chance = float(gradient**2 @ shares - (gradient @ shares) ** 2)
            return float(((gradient @ noisy) ** 2).sum()) + spread * max(0.0, chance)

        return shares, variance

    def metrics(self, means: FloatArray, noise: FloatArray, spread: float) -> dict[str, Estimate]:
        shares, variance = self._shares(means, noise, spread)
        found = {"accuracy": _share(shares, self._right, variance)}
        per_class = np.repeat(np.eye(self._classes), len(shares) // self._classes, axis=1)
        sizes = per_class @ shares
        found["balanced_accuracy"] = _UNKNOWN
        if self._classes > _MOST_CLASSES:
            return {**found, **self._numbers(means, noise, spread)}
        clear = [s > _CLEAR * math.sqrt(variance(g)) for s, g in zip(sizes, per_class, strict=True)]
        if all(clear):
            hits = per_class @ (self._right * shares)
            of_class = per_class / sizes[:, None]
            gradient = (of_class * self._right - of_class * (hits / sizes)[:, None]).mean(0)
            value = float((hits / sizes).mean())
            found["balanced_accuracy"] = _estimate(value, variance(gradient), 0.0, 1.0)
        if self._classes == 2:
            found["auc"] = _auc(shares, sizes, variance) if all(clear) else _UNKNOWN
        if self._task.is_uneven or self.class_shares:  # being right is easy: it comes last
            found["accuracy"] = found.pop("accuracy")
        return {**found, **self._numbers(means, noise, spread)}

    def _numbers(self, means: FloatArray, noise: FloatArray, spread: float) -> dict[str, Estimate]:
        """Log loss, and how far confidence is above accuracy, each with its square beside it."""
        half, found = self._worst / 2, {}
        for at, name, scale, low in (
            (-4, "log_loss", half, 0.0),
            (-2, "overconfidence", 1.0, -1.0),
        ):
            mean, square = float(means[at]), (1.0 + float(means[at + 1])) / 2.0
            chance = min(max(square - mean**2, 0.0), max(1.0 - mean**2, 0.0))
            variance = scale**2 * (float(noise[at]) + spread * chance)
            value = scale * (mean + 1.0) + low
            found[name] = _estimate(value, variance, low, low + 2 * scale)
        return found

    def half_width(self, noise: FloatArray, spread: float) -> float:
        noisy = self._right @ self._solution[:, :-1] * np.sqrt(noise[: len(self._cells)])
        return _QUANTILE * math.sqrt(float((noisy**2).sum()) + spread / 4.0)

    @cached_property
    def _solution(self) -> FloatArray:
        """Shares of the cells from answers and 1, by least squares: [cells, questions + 1]."""
        weights = self.weights[: len(self._cells)]
        heavy = 1e4  # that the shares add up to 1 is known
        matrix = np.concatenate(
            [weights[:, None] * self._cells, heavy * np.ones((1, self._cells.shape[1]))]
        )
        solved: FloatArray = np.linalg.pinv(matrix) * np.append(weights, heavy)
        return solved


class Labels(Questions):
    """The same of several yes-or-no questions about a record, and means over them.

    Each is asked as one about two classes; intervals of means hold whatever the labels have in
    common.

    Args:
        labels: how many, each with a score of its own.

    Example:
        >>> three = Labels(3)
        >>> rows = three.rows(np.full((2, 3), 9.0), np.array([[1, 0, 1], [0, 0, 0]]))
        >>> bool((np.linalg.norm(rows, axis=1) <= 1).all()), len(three.weights)
        (True, 201)
    """

    headline = "accuracy"

    def __init__(self, labels: int) -> None:
        self._of_one, self._labels = Classes(Task(outputs=2)), labels
        self.weights = np.tile(self._of_one.weights, labels) / math.sqrt(labels)

    def answers(self, outputs: FloatArray, labels: NDArray[Any]) -> FloatArray:
        truths = np.nan_to_num(labels.astype(np.float64), nan=-1.0).astype(np.int64)
        pairs = (np.stack([0.0 * score, score], axis=1) for score in outputs.T)
        asked = zip(pairs, truths.T, strict=True)
        return np.concatenate([self._of_one.answers(*one) for one in asked], axis=1)

    def _each(self, values: FloatArray) -> FloatArray:
        return values.reshape(self._labels, -1)

    def metrics(self, means: FloatArray, noise: FloatArray, spread: float) -> dict[str, Estimate]:
        parts = zip(self._each(means), self._each(noise), strict=True)
        each = [self._of_one.metrics(*part, spread) for part in parts]
        found = {}
        for name in each[0]:
            ends = np.array([tuple(asdict(one[name]).values()) for one in each], np.float64)
            known = not np.isnan(ends).any()
            found[name] = Estimate(*ends.mean(0).tolist()) if known else _UNKNOWN
        return found

    def half_width(self, noise: FloatArray, spread: float) -> float:
        widths = [self._of_one.half_width(one, spread) for one in self._each(noise)]
        return float(np.mean(widths))


class SeveralClasses(Classes):
    """Those of several classes, and the mean AUC of each class against the rest.

    Args:
        task: with a few classes; more are too many to be told apart.

    Example:
        >>> three = SeveralClasses(Task(outputs=3))
        >>> rows = three.rows(np.eye(3) * 9.0, np.array([0, 1, 1]))
        >>> bool((np.linalg.norm(rows, axis=1) <= 1).all()), len(three.weights)
        (True, 212)
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._own, self._rest = len(self.weights), Labels(task.outputs)
        of_both = [
            math.sqrt(1 - _FOR_EACH_CLASS) * self.weights,
            math.sqrt(_FOR_EACH_CLASS) * self._rest.weights,
        ]
        self.weights = np.concatenate(of_both)

    def answers(self, outputs: FloatArray, labels: NDArray[Any]) -> FloatArray:
        finite = np.isfinite(outputs).all(axis=1, keepdims=True)
        chances = self._task.chances(np.where(finite, outputs, 0.0))
        scores = np.where(finite, logit(chances) + math.log(self._classes - 1), np.nan)
        there = (labels >= 0) & (labels < self._classes)
        classes = np.arange(self._classes)
        is_class = np.where(there[:, None], labels[:, None] == classes, -1)
        rest = self._rest.answers(scores, is_class)
        return np.concatenate([super().answers(outputs, labels), rest], axis=1)

    def metrics(self, means: FloatArray, noise: FloatArray, spread: float) -> dict[str, Estimate]:
        found = super().metrics(means[: self._own], noise[: self._own], spread)
        rest = self._rest.metrics(means[self._own :], noise[self._own :], spread)
        return {**found, "auc": rest["auc"]}

    def half_width(self, noise: FloatArray, spread: float) -> float:
        return super().half_width(noise[: self._own], spread)


def _share(shares: FloatArray, which: FloatArray, variance: Any) -> Estimate:
    return _estimate(float(which @ shares), variance(which), 0.0, 1.0)


def _auc(shares: FloatArray, sizes: FloatArray, variance: Any) -> Estimate:
    """Area under the curve of scores in bins, of which equal ones count half."""
    zero, one = shares.reshape(2, -1)
    below = np.tril(np.ones((len(zero), len(zero))), -1) + 0.5 * np.eye(len(zero))
    area = sizes[0] * sizes[1]
    value = float(one @ below @ zero) / area
    gradient = np.concatenate(
        [one @ below / area - value / sizes[0], below @ zero / area - value / sizes[1]]
    )
    return _estimate(value, variance(gradient), 0.0, 1.0)


_Cells = tuple[FloatArray, FloatArray, FloatArray]


def _of_two() -> _Cells:
    """Questions about class and bin of a score, their shares, and which cells are right.

    The class; whether the score is in the upper half, of halves of halves too; and that times the
    class.
    """
    bins, sign = len(_EDGES) + 1, np.array([-1.0, 1.0])
    questions, shares = [np.kron(sign, np.ones(bins))], [0.13]
    levels = bins.bit_length() - 1
    for level in range(levels):
        width = bins >> level
        for node in range(1 << level):
            half = np.zeros(bins)
            half[node * width : (node + 1) * width] = np.repeat([-1.0, 1.0], width // 2)
            questions += [np.kron(sign, half), np.kron([1.0, 1.0], half)]
            shares += [0.40, 0.12] if level == 0 else [0.06, 0.03]
    upper = np.arange(bins) >= bins // 2
    return np.array(questions), np.array(shares), np.concatenate([~upper, upper]).astype(float)


def _of_several(classes: int) -> _Cells:
    """The same about class and whether the model is right; by class where these are few."""
    sign, each = np.tile([-1.0, 1.0], classes), np.repeat(np.eye(classes), 2, axis=1)
    questions = np.concatenate([sign[None], each, each * sign])
    shares = np.array([0.6, *[0.18] * classes, *[0.22] * classes])
    asked = len(shares) if classes <= _MOST_CLASSES else 1
    return questions[:asked], shares[:asked], (sign > 0).astype(float)


class Numbers(Questions):
    """RMSE, mean absolute error and R² of numbers within public bounds.

    Args:
        task: with the bounds; predictions beyond are moved there.

    Example:
        >>> wards = Numbers(Task(kind="regression", outputs=1, bounds=(0.0, 30.0)))
        >>> rows = wards.rows(np.array([[3e38], [np.nan]]), np.array([-1.0, 1.0]))
        >>> bool((np.linalg.norm(rows, axis=1) <= 1).all())
        True
    """

    headline = "mae"
    #: Powers of the error (over the range) and of the number in each question.
    _powers = ((2, 0), (1, 0), (0, 1), (0, 2), (4, 0), (2, 1), (2, 2), (0, 3), (0, 4))
    weights = _LENGTH * np.sqrt([0.30, 0.20, 0.12, 0.18, *[0.04] * 5])

    def __init__(self, task: Task) -> None:
        assert task.bounds is not None
        self._task, self._low, self._range = task, task.bounds[0], task.bounds[1] - task.bounds[0]

    def answers(self, outputs: FloatArray, labels: NDArray[Any]) -> FloatArray:
        truths = self._task.unscaled(labels.astype(np.float64))
        values = np.stack([truths, self._task.predictions(outputs)])
        there = np.isfinite(values[0])
        # A prediction that is no number is as far away as can be.
        middle = self._low + self._range / 2
        far = np.where(values[0] > middle, self._low, self._low + self._range)
        values[1] = np.where(np.isfinite(values[1]), values[1], far)
        values[0] = np.where(there, values[0], middle)
        truth, said = np.clip(2 * (values - self._low) / self._range - 1, -1.0, 1.0)
        away = np.abs(truth - said) / 2
        found = np.stack([away**e * truth**t for e, t in self._powers], axis=1)
        even = np.array([t % 2 == 0 for _, t in self._powers])
        return np.where(there[:, None], np.where(even, 2 * found - 1, found), 0.0)

    def metrics(self, means: FloatArray, noise: FloatArray, spread: float) -> dict[str, Estimate]:
        even = np.array([t % 2 == 0 for _, t in self._powers])
        known = dict(zip(self._powers, np.where(even, (means + 1) / 2, means), strict=True))
        noise = np.where(even, noise / 4, noise)

        def variance(gradient: dict[tuple[int, int], float]) -> float:
            total = 0.0
            for one, g in gradient.items():
                total += g**2 * float(noise[self._powers.index(one)])
                for two, h in gradient.items():
                    both = known[one[0] + two[0], one[1] + two[1]]
                    total += spread * g * h * (both - known[one] * known[two])
            own = sum(g**2 * float(noise[self._powers.index(one)]) for one, g in gradient.items())
            return max(total, own)

        square, mean = known[2, 0], known[0, 1]
        mean_square = _estimate(square, variance({(2, 0): 1.0}), 0.0, 1.0)
        roots = (self._range * math.sqrt(end or 0.0) for end in asdict(mean_square).values())
        error = _estimate(known[1, 0], variance({(1, 0): 1.0}), 0.0, 1.0)
        found = {
            "rmse": Estimate(*roots),
            "mae": Estimate(*(self._range * (end or 0.0) for end in asdict(error).values())),
            "r2": _UNKNOWN,
        }
        around = known[0, 2] - mean**2
        if around > _CLEAR * math.sqrt(variance({(0, 1): -2 * mean, (0, 2): 1.0})):
            ratio = 4 * square / around
            slope = {
                (2, 0): -4 / around,
                (0, 1): -2 * mean * ratio / around,
                (0, 2): ratio / around,
            }
            found["r2"] = _estimate(1 - ratio, variance(slope), -math.inf, 1.0)
        return found

    def half_width(self, noise: FloatArray, spread: float) -> float:
        return self._range / 2 * _QUANTILE * math.sqrt(float(noise[1]) + spread)


def questions_of(task: Task) -> Questions:
    """What test records of a task are asked.

    Raises:
        InputError: the task has no evaluation that can be paid for.

    Example:
        >>> questions_of(Task(kind="regression", outputs=1, bounds=(0.0, 9.0))).headline
        'mae'
    """
    if task.predicts_classes:
        return SeveralClasses(task) if 2 < task.outputs <= _FEW_CLASSES else Classes(task)
    if task.kind == "multi-label":
        return Labels(task.outputs)
    if task.bounds is not None:
        return Numbers(task)
    why = "has no bounds: give task.bounds" if task.kind == "counts" else "is not built"
    raise InputError.because(
        f"an evaluation that is paid for of a task of {task.kind} {why}, or leave [evaluation] "
        "out: then nothing is told of test records that are not public."
    )


def noise_of(epsilon: FloatArray, delta: FloatArray, sensitivity: float) -> FloatArray:
    """Standard deviation of the noise on each client's sums, for what it pays.

    Rounded up, so that server and owner come to the same number on machines of their own.
    """
    least = gaussian_mu(
        epsilon=np.minimum(epsilon, _MOST_EPSILON), delta=delta * (1 - _FOR_SAMPLING)
    )
    digits, exponent = np.frexp(sensitivity / least)
    noise: FloatArray = np.ldexp(np.ceil(np.ldexp(digits, 26)), exponent - 26)
    return noise


def is_worth_asking(
    data: Dataset, population: Population, contract: Contract, share: float
) -> bool:
    """Whether this share of each budget pays for an evaluation that tells something.

    Of classes, the interval of the accuracy must be within 15 points of it; from public numbers.
    """
    grouped = (data.persons is None) == (data.test_persons is None)
    is_share = data.task.kind in ("classification", "multi-label")
    known = is_share or data.task.bounds is not None
    if data.test_clients is None or not grouped or not known:
        return False
    if not is_share:
        return True
    owners = data.test_clients
    if data.test_persons is not None:
        owners = owners[data.test_persons.first]
    tested = dict(zip(*np.unique(owners, return_counts=True), strict=True))
    held = np.array([int(tested.get(name, 0)) for name in population.ids])
    there = np.flatnonzero(held)
    noise = np.zeros(len(population))
    paying = np.flatnonzero((held > 0) & ~population.public)
    noise[paying] = noise_of(
        share * population.epsilon[paying],
        share * population.delta[paying],
        contract.sensitivity,
    )
    half = sharpness(questions_of(data.task), held[there], noise[there]) if there.size else math.inf
    return half <= _WORTH_ASKING


def combined(
    questions: Questions, sums: FloatArray, records: IntArray | FloatArray, noise: FloatArray
) -> tuple[FloatArray, dict[str, Estimate]]:
    """Metrics in all, from the noised sums of clients.

    A client counts by how well it can be heard: by its records where its noise is small against
    sampling error, less where it is not.

    Args:
        questions: what was asked.
        sums: [clients, D] noised sums of rows.
        records: [clients] public numbers of test records.
        noise: [clients] standard deviation of the noise in every place of a sum.

    Returns:
        Weights of the clients, which add up to 1, and the metrics.

    Example:
        >>> two = Classes(Task(outputs=2))
        >>> sure = np.array([[5.0, -5.0]] * 90 + [[-5.0, 5.0]] * 90)
        >>> sums = two.rows(sure, np.repeat([0, 1], 90)).sum(0)[None]
        >>> found = combined(two, sums, np.array([180]), np.zeros(1))[1]
        >>> round(found["accuracy"].value, 6), round(found["auc"].value, 6)
        (1.0, 1.0)
    """
    weights, means, variance, spread = _in_the_mean(questions, sums, records, noise)
    return weights, questions.metrics(means, variance, spread)


def informed(
    questions: Questions, sums: FloatArray, records: IntArray | FloatArray, noise: FloatArray
) -> Questions:
    """Questions with the threshold that noised sums speak for; arguments as of `combined`."""
    return questions.informed(*_in_the_mean(questions, sums, records, noise)[1:])


def _in_the_mean(
    questions: Questions, sums: FloatArray, records: IntArray | FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    weights, variance, spread = _heard(questions, records, noise)
    return weights, (weights / records) @ sums / questions.weights, variance, spread


def sharpness(questions: Questions, records: IntArray | FloatArray, noise: FloatArray) -> float:
    """Half of the headline's 95 % interval in all, from public numbers alone.

    Example:
        >>> two = Classes(Task(outputs=2))
        >>> few, many = (sharpness(two, np.array([n]), np.array([9.0])) for n in (100, 9000))
        >>> many < 0.02 < few
        True
    """
    return questions.half_width(*_heard(questions, records, noise)[1:])


def _heard(
    questions: Questions, records: IntArray | FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray, float]:
    """Weights of clients, variance of the noise in each mean answer, and sum of squared weights."""
    sharpest = float(questions.weights.max())
    precision = 1.0 / ((noise / (sharpest * records)) ** 2 + 1.0 / records)
    weights = precision / precision.sum()
    by_sum = float(((weights * noise / records) ** 2).sum())
    return weights, by_sum / questions.weights**2, float((weights**2 / records).sum())
