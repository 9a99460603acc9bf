# SPDX-License-Identifier: Apache-2.0
"""What is predicted: a class, several labels, a number or a count; its loss, and how it is judged.

Everything a task says is public: its classes, their weights, the bounds of a number. None of it may
come from the clients' records.

Every loss gives one number an example, a function of that example alone, so that gradients can be
clipped record by record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dpcohort._validate import FloatArray, choice, number, whole_number
from dpcohort.errors import InputError
from dpcohort.limits import MOST_CLASSES
from dpcohort.plugins import is_named_function, named_function

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSSES", "Task", "TaskKind"]

TaskKind = Literal["classification", "multi-label", "regression", "counts"]

#: The losses of each kind of task, the usual one first; a user's own is ``module:function``.
LOSSES: dict[TaskKind, tuple[str, ...]] = {
    "classification": ("cross-entropy",),
    "multi-label": ("binary-cross-entropy",),
    "regression": ("squared", "huber", "quantile"),
    "counts": ("poisson",),
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a model predicts, and by which loss it learns it.

    Attributes:
        kind: ``classification`` (one class a record), ``multi-label`` (each label is there or not),
            ``regression`` (a number within public bounds) or ``counts`` (0, 1, 2, ...).
        outputs: length of the model's output: classes, labels, or 1.
        loss: one of `LOSSES`, or ``module:function`` of the user's; "" is the usual one.
        names: of the classes or labels, as people call them; () where they are numbers.
        class_weights: public factors on the loss of each class (or label); () is none.
        bounds: smallest and largest number to be predicted; public. Targets beyond are cut off.
        delta: where ``huber`` turns from square to straight, in units of the target.
        quantile: which one ``quantile`` aims at.

    Example:
        >>> Task(outputs=3).loss
        'cross-entropy'
        >>> stay = Task(kind="regression", outputs=1, bounds=(0.0, 30.0))
        >>> stay.scaled(np.array([0.0, 15.0, 60.0])).tolist()
        [-1.0, 0.0, 1.0]
    """

    kind: TaskKind = "classification"
    outputs: int = 2
    loss: str = ""
    names: tuple[str, ...] = ()
    class_weights: tuple[float, ...] = ()
    bounds: tuple[float, float] | None = None
    delta: float = 1.0
    quantile: float = 0.5

    def __post_init__(self) -> None:
        choice("kind", self.kind, get_args(TaskKind))
        if not self.loss:
            object.__setattr__(self, "loss", LOSSES[self.kind][0])
        if not is_named_function(self.loss):
            choice("loss", self.loss, (*LOSSES[self.kind], "module:function"))
        least = 2 if self.kind == "classification" else 1
        most = MOST_CLASSES if self.kind in ("classification", "multi-label") else 1
        whole_number("outputs", self.outputs, at_least=least, at_most=most)
        for key, given in (("names", self.names), ("class_weights", self.class_weights)):
            if given and len(given) != self.outputs:
                allowed = f"one for each of the {self.outputs} classes"
                raise InputError(key, given=list(given), allowed=allowed)
        for weight in self.class_weights:
            number("class_weights", weight, above=0)
        if self.kind == "regression" and self.bounds is None:
            raise InputError.about(
                "bounds",
                "are missing: a number is predicted within public bounds, its smallest and largest "
                "value. Bounds taken from the clients' records would tell of those records.",
            )
        if self.bounds is not None:
            low, high = (number("bounds", value) for value in self.bounds)
            if self.kind not in ("regression", "counts") or not low < high:
                allowed = "a smaller and a larger number, for a task of numbers"
                raise InputError("bounds", given=list(self.bounds), allowed=allowed)
        number("delta", self.delta, above=0)
        number("quantile", self.quantile, above=0, below=1)

    @property
    def predicts_classes(self) -> bool:
        """Whether a record has one class out of several."""
        return self.kind == "classification"

    def scaled(self, targets: NDArray[Any]) -> NDArray[np.float32]:
        """Numbers to be predicted as a model sees them: cut off at the bounds; -1 to 1 there."""
        if self.bounds is None:
            return targets.astype(np.float32)
        low, high = self.bounds
        inside: FloatArray = np.clip(targets.astype(np.float64), low, high)
        if self.kind == "regression":
            inside = (2.0 * inside - (low + high)) / (high - low)
        return inside.astype(np.float32)

    def unscaled(self, values: FloatArray) -> FloatArray:
        """The inverse of `scaled`: numbers as people read them."""
        if self.kind != "regression" or self.bounds is None:
            return values
        low, high = self.bounds
        return (values * (high - low) + (low + high)) / 2.0

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record, [n].

        Args:
            outputs: of the model, [n, outputs].
            targets: [n] int64 classes, [n, outputs] labels as 0 and 1, or [n] scaled numbers.
        """
        import torch
        from torch.nn import functional

        weights = outputs.new_tensor(self.class_weights) if self.class_weights else None
        if is_named_function(self.loss):
            return _own_losses(self.loss, outputs, targets)
        if self.kind == "classification":
            return functional.cross_entropy(outputs, targets, weight=weights, reduction="none")
        if self.kind == "multi-label":
            each = functional.binary_cross_entropy_with_logits(
                outputs, targets, weight=weights, reduction="none"
            )
            return each.mean(1)
        predicted = outputs[:, 0]
        if self.loss == "poisson":
            return torch.exp(predicted) - targets * predicted
        away = targets - predicted
        if self.loss == "huber":
            low, high = self.bounds or (-1.0, 1.0)
            knee = 2.0 * self.delta / (high - low)
            return functional.huber_loss(predicted, targets, delta=knee, reduction="none")
        if self.loss == "quantile":
            return torch.maximum(self.quantile * away, (self.quantile - 1.0) * away)
        return 0.5 * away * away

    def predictions(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """What outputs say: classes, labels as 0 and 1, or numbers as people read them."""
        if self.kind == "classification":
            return np.asarray(outputs.argmax(1))
        if self.kind == "multi-label":
            return (outputs > 0).astype(np.int64)
        values = outputs[:, 0].astype(np.float64)
        return np.exp(values) if self.loss == "poisson" else self.unscaled(values)


def _own_losses(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    function: Callable[..., Any] = named_function("loss", name)
    found = function(outputs, targets)
    if getattr(found, "shape", None) != outputs.shape[:1]:
        given = tuple(getattr(found, "shape", ())) or type(found).__name__
        allowed = f"({outputs.shape[0]},), one number an example"
        raise InputError(f"result of {name}", given=given, allowed=allowed)
    result: Tensor = found
    return result
