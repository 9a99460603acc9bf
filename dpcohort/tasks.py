# SPDX-License-Identifier: Apache-2.0
"""What is predicted: a class, several labels, a number or a count; its loss, and how it is judged.

Everything a task says is public: its classes, their weights, the bounds of a number. None of it may
come from the clients' records.

Every loss gives one number an example, a function of that example alone, so that gradients can be
clipped record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dpcohort._validate import FloatArray, choice, number, whole_number
from dpcohort.errors import InputError
from dpcohort.limits import MOST_CLASSES
from dpcohort.plugins import is_named_function, named_plugin, telling

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["LOSSES", "RARE", "Task", "TaskKind", "check_own_loss", "refined_task"]

TaskKind = Literal["classification", "multi-label", "regression", "counts"]

#: The losses of each kind of task, the usual one first; a user's own is ``module:function``.
LOSSES: dict[TaskKind, tuple[str, ...]] = {
    "classification": ("cross-entropy",),
    "multi-label": ("binary-cross-entropy",),
    "regression": ("squared", "huber", "quantile"),
    "counts": ("poisson",),
}

#: Largest second derivative of each kind's usual loss by its outputs; that of counts has none, and
#: is as large as the mean count.
CURVATURES = {"classification": 0.5, "multi-label": 0.25, "regression": 1.0, "counts": 1.0}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a model predicts, and by which loss it learns it.

    Attributes:
        kind: ``classification`` (one class a record), ``multi-label`` (each label is there or not),
            ``regression`` (a number within public bounds) or ``counts`` (0, 1, 2, ...).
        outputs: length of the model's output: classes, labels, or 1.
        loss: one of `LOSSES`, or ``module:function`` of the user's, marked
            ``@dpcohort.plugin("loss")``; "" is the usual one.
        names: of the classes or labels, as people call them; () where they are numbers.
        class_weights: public factors on the loss of each class (or label), of which the largest
            counts as 1, so that none asks for a larger clip; () is none.
        class_shares: how frequent each class is, as is publicly known; () where it is not. Where
            one is rare, a class is predicted when its chance is raised most over its share.
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
    class_shares: tuple[float, ...] = ()
    bounds: tuple[float, float] | None = None
    delta: float = 1.0
    quantile: float = 0.5

    def __post_init__(self) -> None:
        choice("kind", self.kind, get_args(TaskKind))
        for key in ("names", "class_weights", "class_shares", "bounds"):
            if isinstance(given := getattr(self, key), list):  # as JSON and TOML have it
                object.__setattr__(self, key, tuple(given))
        if not self.loss:
            object.__setattr__(self, "loss", LOSSES[self.kind][0])
        if not is_named_function(self.loss):
            choice("loss", self.loss, (*LOSSES[self.kind], "module:function"))
        least = 2 if self.kind == "classification" else 1
        most = MOST_CLASSES if self.kind in ("classification", "multi-label") else 1
        whole_number("outputs", self.outputs, at_least=least, at_most=most)
        for key in ("names", "class_weights", "class_shares"):
            if (given := getattr(self, key)) and len(given) != self.outputs:
                allowed = f"one for each of the {self.outputs} classes"
                raise InputError(key, given=list(given), allowed=allowed)
        if self.class_weights and self.kind in ("regression", "counts"):
            words = f"are for classes and labels; a task of {self.kind} has none. Remove them."
            raise InputError.about("class_weights", words)
        for weight in self.class_weights:
            number("class_weights", weight, above=0)
        shares = [number("class_shares", one, above=0) for one in self.class_shares]
        if shares and (self.kind != "classification" or abs(sum(shares) - 1) > 0.02):
            allowed = "one for each class, which add up to 1, for a task of classification"
            raise InputError("class_shares", given=shares, allowed=allowed)
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

    @property
    def is_uneven(self) -> bool:
        """Whether a class is publicly known to be rare: being right often is then easy.

        Example:
            >>> Task(class_shares=(0.92, 0.08)).is_uneven, Task(class_shares=(0.7, 0.3)).is_uneven
            (True, False)
        """
        return bool(self.class_shares) and min(self.class_shares) <= RARE / self.outputs

    @property
    def leaning(self) -> FloatArray | None:
        """What is taken off outputs before the largest is the class; None for nothing.

        With rare classes that is what weights and shares put in, so that an output says how much
        more likely than usual a class is: the threshold of the best balanced accuracy.
        """
        return self._log_factors + np.log(self.class_shares) if self.is_uneven else None

    @property
    def _log_factors(self) -> FloatArray:
        factors: FloatArray = np.log(np.array(self.class_weights or (1.0,)))
        return np.asarray(factors - factors.max())

    def chances(self, outputs: NDArray[Any]) -> FloatArray:
        """The probability of each class or label, without what class weights put into outputs.

        Example:
            >>> Task(class_weights=(1.0, 3.0)).chances(np.log([[0.2, 0.6]])).round(9).tolist()
            [[0.5, 0.5]]
        """
        found = np.asarray(outputs, np.float64)
        if self.kind == "multi-label":
            return np.asarray(expit(found))
        return np.asarray(softmax(found - self._log_factors, axis=1))

    def called(self, output: int) -> str:
        """What people call a class or a label.

        Example:
            >>> Task(names=("no", "yes")).called(1), Task(kind="multi-label").called(1)
            ('yes', 'label 1')
        """
        word = "class" if self.predicts_classes else "label"
        return self.names[output] if self.names else f"{word} {output}"

    def to_dict(self) -> dict[str, Any]:
        """What differs from plain classification, in plain values; nothing if nothing does.

        Example:
            >>> Task(outputs=3).to_dict()
            {}
            >>> Task(kind="regression", outputs=1, bounds=(0.0, 30.0)).to_dict()
            {'kind': 'regression', 'loss': 'squared', 'bounds': [0.0, 30.0]}
        """
        plain = Task(outputs=max(2, self.outputs))
        found = {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in fields(self)
            if field.name != "outputs"
            and (value := getattr(self, field.name)) != getattr(plain, field.name)
        }
        if "kind" in found or "loss" not in found:
            return found
        return {"kind": self.kind, **found}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, outputs: int) -> Task:
        """What `to_dict` gave, or a person wrote.

        Args:
            values: the fields that were given.
            outputs: length of the model's output.

        Raises:
            InputError: one is not known, or they do not go together.

        Example:
            >>> Task.from_dict({"kind": "counts"}, outputs=1).loss
            'poisson'
        """
        known = [field.name for field in fields(cls) if field.name != "outputs"]
        for key in values:
            choice("key of the task", key, known)
        return cls(outputs=outputs, **values)

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
        return self.loss_on(outputs.device)(outputs, targets)

    def loss_on(self, device: torch.device | str = "cpu") -> Callable[[Tensor, Tensor], Tensor]:
        """The function `losses`, with its constants put on a device once.

        A pass that is recorded there may copy nothing to it.
        """
        import torch
        from torch.nn import functional

        if is_named_function(self.loss):
            return _own_loss(self.loss)
        factors = np.array(self.class_weights) / max(self.class_weights, default=1.0)
        weights = torch.tensor(factors.tolist(), device=device) if factors.size else None

        def of_classes(outputs: Tensor, targets: Tensor) -> Tensor:
            weight = None if weights is None else weights.to(outputs)
            return functional.cross_entropy(outputs, targets, weight=weight, reduction="none")

        def of_labels(outputs: Tensor, targets: Tensor) -> Tensor:
            weight = None if weights is None else weights.to(outputs)
            return functional.binary_cross_entropy_with_logits(
                outputs, targets, weight=weight, reduction="none"
            ).mean(1)

        def of_numbers(outputs: Tensor, targets: Tensor) -> Tensor:
            predicted = outputs[:, 0]
            if self.loss == "poisson":  # half the deviance: 0 where the prediction is right
                best = torch.xlogy(targets, targets) - targets
                return torch.exp(predicted) - targets * predicted + best
            if self.loss == "huber":
                low, high = self.bounds or (-1.0, 1.0)
                knee = 2.0 * self.delta / (high - low)
                return functional.huber_loss(predicted, targets, delta=knee, reduction="none")
            away = targets - predicted
            if self.loss == "quantile":
                return torch.maximum(self.quantile * away, (self.quantile - 1.0) * away)
            return 0.5 * away * away

        of = {"classification": of_classes, "multi-label": of_labels}
        return of.get(self.kind, of_numbers)

    def predictions(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """What outputs say: classes, labels as 0 and 1, or numbers as people read them."""
        if self.kind == "classification":
            leaning = self.leaning
            return np.asarray((outputs if leaning is None else outputs - leaning).argmax(1))
        if self.kind == "multi-label":
            return (outputs > 0).astype(np.int64)
        values = outputs[:, 0].astype(np.float64)
        # Beyond e^50 a count is no number that arithmetic could go on with.
        return np.exp(np.minimum(values, 50)) if self.loss == "poisson" else self.unscaled(values)


def refined_task(task: Task, given: Mapping[str, Any]) -> Task:
    """A data set's task with what a configuration adds to it.

    Args:
        task: of the data set.
        given: keys of [task]; None is not given.

    Raises:
        InputError: another kind of task than the data are for, or keys that do not go with it.

    Example:
        >>> refined_task(Task(outputs=2), {"class_weights": [1.0, 5.0]}).class_weights
        (1.0, 5.0)
    """
    said = {key: value for key, value in given.items() if value is not None}
    if said.pop("kind", task.kind) != task.kind:
        raise InputError.about(
            "kind",
            f"is {given['kind']!r}, but the data set has labels of {task.kind}. What is predicted "
            "is the data set's to say; loss, class_weights, bounds, delta and quantile refine it.",
        )
    if task.kind == "regression" and tuple(said.get("bounds") or task.bounds or ()) != task.bounds:
        raise InputError(
            "bounds",
            given=list(said["bounds"]),
            allowed=f"{list(task.bounds or ())}: the labels are scaled by those already",
        )
    return replace(task, **said)


#: Of an even share, what a rare class has at most: 10 % of two classes.
RARE = 0.2
_ROWS = (3, 129)  # some functions mix records only when there are many


def check_own_loss(task: Task) -> None:
    """Refuse a user's loss that is not one finite number an example, of that example alone.

    It is tried on made-up outputs and targets, a few and many. A loss of this package passes as
    it is.

    Raises:
        InputError: it fails, mixes examples, draws random numbers, has no gradient, or gives
            numbers that are not finite.

    Example:
        >>> check_own_loss(Task(kind="regression", outputs=1, bounds=(0.0, 1.0), loss="math:fsum"))
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: loss = 'math:fsum' is not allowed: ...
    """
    if is_named_function(task.loss):
        for rows in _ROWS:
            _try_loss(task, rows)


def _try_loss(task: Task, rows: int) -> None:
    import torch

    name, loss = task.loss, task.loss_on("cpu")
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(rows, task.outputs, generator=generator)
    other = torch.randn(rows, task.outputs, generator=generator)
    targets = made_up_targets(task, rows)
    middle = rows // 2

    def run(rows_of: Tensor, wanted: Tensor) -> Tensor:
        given = (
            f". It is given the model's outputs, ({len(rows_of)}, {task.outputs}), and targets of "
            f"shape {tuple(wanted.shape)} ({wanted.dtype})."
        )
        what = f"the loss {name} failed on {len(rows_of)} examples"
        with telling(what, given), torch.enable_grad():
            return loss(rows_of, wanted)

    point = outputs.clone().requires_grad_()
    losses = run(point, targets)
    if not losses.requires_grad or not losses.is_floating_point():
        raise InputError.because(
            f"the loss {name} has no gradient with respect to the outputs: compute it from them "
            "with torch's operations, without detach(), numpy or rounding."
        )
    (own,) = torch.autograd.grad(losses[middle], point, retain_graph=True)
    (every,) = torch.autograd.grad(losses.sum(), point)
    if not bool(torch.isfinite(losses).all() and torch.isfinite(every).all()):
        raise InputError.because(
            f"the loss {name} or its gradient is not finite at ordinary outputs (about -3 to 3). "
            "Check logarithms, roots and divisions; torch.clamp and torch.xlogy help."
        )
    with torch.no_grad():
        again = run(outputs, targets)
        changed_outputs, changed_targets = outputs.clone(), targets.clone()
        changed_outputs[middle] = other[middle]
        changed_targets[middle] = targets[0]
        changed = run(changed_outputs, changed_targets)
        alone = torch.cat([run(outputs[i : i + 1], targets[i : i + 1]) for i in range(rows)])
    if not torch.equal(losses.detach(), again):
        raise InputError.because(
            f"the loss {name} gives another number for the same example each time: it draws random "
            "numbers or remembers earlier calls. Take that out."
        )
    others = torch.arange(rows) != middle

    def same(one: Tensor, two: Tensor) -> bool:
        return torch.allclose(one, two, rtol=1e-5, atol=1e-6)

    if (
        bool(own[others].any())
        or not same(again[others], changed[others])
        or not same(again, alone)
    ):
        raise InputError.because(
            f"the loss {name} mixes the examples of a batch: the number of one depends on others, "
            "so no gradient is one record's alone. Give one number an example, without mean() or "
            "sum() over axis 0, and without the number of examples."
        )


def made_up_targets(task: Task, rows: int) -> Tensor:
    """Targets of the kind that a task has, from no record.

    Example:
        >>> made_up_targets(Task(outputs=3), 4)
        tensor([0, 1, 2, 0])
    """
    import torch

    numbers = torch.arange(rows)
    if task.kind == "classification":
        return numbers % task.outputs
    if task.kind == "multi-label":
        return ((numbers[:, None] + torch.arange(task.outputs)) % 2).float()
    return (numbers % 10).float() if task.kind == "counts" else torch.cos(numbers.float())


def _own_loss(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    function: Callable[..., Any] = named_plugin("loss", name)

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        found = function(outputs, targets)
        if getattr(found, "shape", None) != outputs.shape[:1]:
            # Without numbers: how many examples a batch has may be a secret.
            axes = len(getattr(found, "shape", ()))
            given = f"a tensor of {axes} axes" if axes > 1 else "a tensor of another length"
            given = given if axes else type(found).__name__
            allowed = "a tensor of one axis, one number an example"
            raise InputError(f"result of {name}", given=given, allowed=allowed)
        result: Tensor = found
        return result

    return losses
