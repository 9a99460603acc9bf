# SPDX-License-Identifier: Apache-2.0
"""Whether a training came to anything: the model beside the best constant, and what looks wrong.

Two kinds of information, as everywhere: plans and their noise are public; what is computed from
test records may be written only where those are public, or where all is a simulation. Nothing here
looks at a client's records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.errors import DpcohortError
from dpcohort.metrics import Check, check_trivial, measure, prediction_faults, trivial_outputs
from dpcohort.plan import Plan
from dpcohort.round_record import RoundRecord, TestResult
from dpcohort.tasks import Task

#: A model whose test loss has grown so much since its best, past the trivial one, diverges.
_GROWN = 1.2
_MOST = 0.99


def plan_warnings(plan: Plan) -> list[str]:
    """What a plan says beforehand about a training that cannot go well; from public numbers.

    Example:
        >>> from dpcohort import Population, Training, make_plan
        >>> clients = Population.from_arrays(sizes=[90] * 4, epsilon=[0.01] * 4, delta=1e-5)
        >>> plan = make_plan(clients, Training(rounds=20, cohort_size=2, batch_size=9), seed=0)
        >>> plan_warnings(plan)[0]
        'noise far above the signal: over the whole training it is ... times as long as ...'
    """
    found = []
    steps = plan.training.total_steps
    ratio = plan.noise_to_clip / math.sqrt(steps)
    if ratio > 1:
        found.append(
            f"noise far above the signal: over the whole training it is {ratio:.2g} times as long "
            f"as the longest step that clipping allows ({plan.noise_to_clip:.3g} C in a round, "
            f"{steps} steps). Larger budgets, more records in a batch or a smaller model lower it."
        )
    return [*found, *_selection_moves_nothing(plan)]


def _selection_moves_nothing(plan: Plan) -> list[str]:
    """That a rule that weighs noise came out at the unbiased selection, and why."""
    eta = plan.participation.eta
    if plan.rule == "unbiased" or eta is None or not math.isfinite(eta):
        return []
    if plan.selection.bias > 1e-9:
        return []
    threshold = plan.problem.threshold
    if not math.isfinite(threshold):
        return [
            "selection moves nothing: no client has less noise to offer than another, so unbiased "
            "selection is optimal for every η."
        ]
    if eta > threshold:
        return []
    return [
        f"selection moves nothing: below η₀ = {threshold:.4g} unbiased selection is optimal; your "
        f"η is {eta:.4g}. A larger selection.eta weighs noise more."
    ]


def judgement(
    task: Task,
    outputs: NDArray[Any],
    labels: NDArray[Any],
    *,
    plan: Plan,
    history: Sequence[RoundRecord],
    trivial_loss: float = math.nan,
    clipped_share: float | None = None,
) -> dict[str, Any]:
    """What ``result.json`` says about a model, from its outputs on test records.

    Args:
        task: what is predicted.
        outputs: of the final model, [n, outputs].
        labels: of the test records.
        plan: what was trained.
        history: rounds with their test results.
        trivial_loss: the loss of the best constant on them.
        clipped_share: of test records whose gradient is clipped; None if it was not counted.

    Returns:
        ``metrics`` and ``trivial`` with the same keys, ``check`` (a `Check` in plain values) and
        ``warnings``, sentences.
    """
    check = check_trivial(task, outputs, labels)
    warnings = [] if check.is_better else [f"{check.sentence}."]
    warnings += prediction_faults(task, outputs, labels)
    warnings += _divergence(history, trivial_loss)
    warnings += _clipping(clipped_share, plan)
    metrics: dict[str, Any] = {}
    trivial: dict[str, Any] = {}
    try:
        metrics = measure(task, outputs, labels)
        trivial = measure(task, trivial_outputs(task, labels), labels)
    except ModuleNotFoundError:
        warnings.append("scikit-learn is not installed, so result.json has no metrics.")
    warnings += _probabilities(metrics, trivial)
    return {
        "metrics": metrics,
        "trivial": trivial,
        "check": check.to_dict(),
        "warnings": [*warnings, *plan_warnings(plan)],
    }


def _probabilities(metrics: Mapping[str, Any], trivial: Mapping[str, Any]) -> list[str]:
    """That predicted chances are worse than those of a constant, however good the classes are."""
    loss, constant = (float(found.get("log_loss", math.nan)) for found in (metrics, trivial))
    if not loss > constant:
        return []
    return [
        f"its probabilities are worse than a constant's: log loss {loss:.3g}, {constant:.3g} for "
        f"always predicting how frequent each class is (AUC {metrics['auc']:.3g}, so records may "
        "still be ranked). A larger training.clip and a smaller optimiser.learning_rate keep them "
        "honest: dpcohort tune looks for both."
    ]


def _divergence(history: Sequence[RoundRecord], trivial_loss: float) -> list[str]:
    tested = [(line.round + 1, line.scored.loss) for line in history if line.scored]
    if len(tested) < 3:
        return []
    (best_round, best), (_, last) = min(tested, key=lambda pair: pair[1]), tested[-1]
    if not last > max(_GROWN * best, trivial_loss):
        return []
    return [
        f"the model diverges: its test loss was {best:.3g} after round {best_round} and is "
        f"{last:.3g} now, above the {trivial_loss:.3g} of a constant. Lower the step size or the "
        "rounds, or take an average (optimiser.average_decay)."
    ]


def linear_reach(weights: Mapping[str, NDArray[Any]], row_bound: float) -> float:
    """The largest output that a linear model can give within public bounds; 0 of any other."""
    if not math.isfinite(row_bound) or {*weights} - {"1.weight", "1.bias"} - _MOMENTS:
        return 0.0
    return row_bound * float(np.abs(np.linalg.norm(weights["1.weight"], axis=1)).max())


_MOMENTS = {"moments.weight", "moments.bias"}
#: Outputs beyond these are of a training that diverged: log-odds, or times the range of a number.
_TOO_SURE = {"classification": 60.0, "multi-label": 60.0, "regression": 20.0, "counts": 60.0}


def sureness(task: Task, reach: float) -> list[str]:
    """That a model's weights, which are public, are longer than any that were learned.

    Example:
        >>> sureness(Task(), 4.0), sureness(Task(), 900.0)[0].partition(":")[0]
        ([], 'the model has diverged')
    """
    if reach <= _TOO_SURE[task.kind]:
        return []
    return [
        f"the model has diverged: within the public bounds its outputs reach {reach:.3g}. Lower "
        "optimiser.learning_rate or the rounds, or raise budgets: noise alone may carry it there."
    ]


def _clipping(share: float | None, plan: Plan) -> list[str]:
    if share is None or share < _MOST:
        return []
    return [
        f"{100 * share:.0f} % of the test records have a gradient longer than the clip "
        f"({plan.training.clip:g}) at the final model: their directions count and their lengths do "
        "not. A larger training.clip may serve better, with more noise in proportion."
    ]


def task_of(settings: Mapping[str, Any]) -> Task:
    """What a run predicts, by its ``run.json``; plain classification where that says nothing.

    Example:
        >>> task_of({"data": {"classes": 1}, "task": {"kind": "counts"}}).loss
        'poisson'
    """
    data, said = settings.get("data"), settings.get("task")
    classes = data.get("classes") if isinstance(data, Mapping) else None
    outputs = classes if isinstance(classes, int) else 2
    try:
        return Task.from_dict(said if isinstance(said, Mapping) else {}, outputs=outputs)
    except (DpcohortError, TypeError):
        return Task()


def check_of(judged: Mapping[str, Any], test: TestResult | None = None) -> Check | None:
    """The final model beside the best constant; None where nothing is told of test records.

    Args:
        judged: what ``result.json`` or a run says of the model.
        test: its test result, from which classes can be judged where nothing else is said: runs of
            older versions, and those that are not finished.

    Example:
        >>> from dpcohort.round_record import TestResult
        >>> check_of({}) is None
        True
        >>> test = TestResult(accuracy=0.5, loss=1.0, class_accuracy=(1.0, 0.0),
        ...                   class_counts=(50, 50))
        >>> check_of({}, test).sentence.partition(" (")[0]
        'test accuracy 50.0 % is NOT BETTER than always saying class 0'
    """
    stored = judged.get("check")
    if isinstance(stored, Mapping):
        try:
            return Check.from_dict(stored)
        except (TypeError, ValueError):
            return None
    if test is None or test.value is not None or not sum(test.class_counts):
        return None
    records = sum(test.class_counts)
    most = max(test.class_counts)
    value, trivial = test.accuracy, most / records
    # As if the two were right independently of each other: wider than record by record.
    half = 196 * math.sqrt((value * (1 - value) + trivial * (1 - trivial)) / records)
    gain = 100 * (value - trivial)
    return Check(
        metric="accuracy",
        value=value,
        trivial=trivial,
        says=f"always saying class {test.class_counts.index(most)}",
        gain=gain,
        low=gain - half,
        high=gain + half,
        records=records,
    )


def judged_words(judged: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warnings about the models of several seeds: each once, with how many seeds have it.

    Example:
        >>> judged_words([{"warnings": ["loss 2.5 now."]}, {"warnings": ["loss 3.1 now."]}, {}])
        ['loss 2.5 now. (2 of 3 seeds)']
    """
    kinds: dict[str, list[str]] = {}
    for found in judged:
        for words in found.get("warnings", []):
            # Numbers differ from seed to seed: the first that says so stands for the others.
            kinds.setdefault(re.sub(r"[-\d.,]+", "#", str(words)), []).append(str(words))
    return [
        words[0]
        if len(words) >= len(judged)
        else f"{words[0]} ({len(words)} of {len(judged)} seeds)"
        for words in kinds.values()
    ]
