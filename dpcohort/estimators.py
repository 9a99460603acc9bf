# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's interface: fit, predict, score, with a privacy budget for each group of records.

::

    model = DPFederatedClassifier(classes=["no", "yes"], bounds=[(0, 110), (80, 220)])
    model.fit(X, y, groups=hospital, epsilon={"north": 0.5, "south": 4.0})

Classes and bounds are arguments because they are public: which classes there are and how large a
number can be is known before anyone looks at a record. Taken from the records they would be answers
that no budget pays for, and are refused, except in simulations that say ``"from-data"``.

With ``"from-data"`` both pass every check of scikit-learn's ``check_estimator``. What differs from
other estimators: without classes and bounds ``fit`` refuses, for the reason above; only simulations
(``simulate=SEED``) are alike; and there are no sample weights, as clipping bounds every record
alike. Trust is local: to pool the noise of a cohort use ``make_plan`` and ``train``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from dpcohort._validate import FloatArray, number, whole_number
from dpcohort.accounting import Contract
from dpcohort.accounting._unit import UNITS
from dpcohort.clients import Population
from dpcohort.consent import typed
from dpcohort.data import Dataset, Normalisation, PersonTerms, TableColumns, column_partition
from dpcohort.data._dataset import NO_CLASS
from dpcohort.data._persons import check_persons
from dpcohort.data._tables import columns_of_frame, place_of, places_of
from dpcohort.engine import Optimiser
from dpcohort.errors import InputError
from dpcohort.models import build_model
from dpcohort.plan import make_plan
from dpcohort.runs import train
from dpcohort.runs._prediction import model_outputs
from dpcohort.tasks import Task
from dpcohort.training import Training

__all__ = ["DPFederatedClassifier", "DPFederatedRegressor"]

#: What a label is called that has no name; no column is.
_LABEL = "(label)"
_INFINITE = (math.inf, -math.inf)
#: What stands for classes and bounds in a simulation that takes them from the records.
FROM_DATA = "from-data"


@dataclass(kw_only=True, eq=False, repr=False)
class _DPFederated(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both estimators share: clients, their plan, the training.

    The fields are scikit-learn's parameters: it reads their names off the constructor.
    """

    bounds: Any = None
    categories: Mapping[str, Any] | None = None
    missing: Any = "middle"
    epsilon: Any = 1.0
    delta: Any = 1e-5
    model: str = "logistic"
    model_options: Mapping[str, Any] | None = None
    rounds: int = 40
    cohort_size: int | None = None
    sampling_rate: float = 1.0
    clip: float = 1.0
    learning_rate: float = 1.0
    average_decay: float | None = 0.8
    selection: str = "privacy-aware"
    rows_per_person: int = 5
    simulate: int | None = None
    device: str = "cpu"
    out: str | Path | None = None
    random_state: int = 0

    def fit(
        self,
        X: ArrayLike,  # noqa: N803
        y: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        persons: ArrayLike | None = None,
        epsilon: Any = None,
        delta: Any = None,
        callbacks: Any = (),
    ) -> Self:
        """Train on records of several clients.

        Args:
            X: [records, features]; a DataFrame where ``bounds`` or ``categories`` are by column.
            y: the class or the number of each record.
            groups: the client of each record; without it all are one client's.
            persons: whose each record is: all records of one person are then protected together.
            epsilon: of every client, or by its name; those of the estimator by default.
            delta: as ``epsilon``.
            callbacks: told about every round.

        Raises:
            InputError: classes or bounds are missing, or something does not fit together.
        """
        numeric = isinstance(self, RegressorMixin)
        # What is wrong with one private record is not told; it contributes nothing.
        stated = np.asarray(y)
        lost = np.zeros(stated.shape, np.bool_)
        private = self.simulate is None
        if stated.ndim == 1:  # of pandas' own kinds scikit-learn would make numbers
            y = stated
        if private and stated.dtype.kind in "fO":
            lost = np.array([one is None or one != one or one in _INFINITE for one in stated.flat])
            lost = lost.reshape(stated.shape)
            y = stated.copy()
            y[lost] = stated[~lost][0] if stated.dtype.kind == "O" and not lost.all() else 0.0
        columns = self._columns(X)
        inputs, targets = validate_data(
            self,
            X,
            y,
            **({"skip_check_array": True} if columns is not None else {"dtype": np.float64}),
            y_numeric=numeric,
            ensure_min_samples=2,
            ensure_all_finite=not private,
        )
        if columns is not None:
            targets = column_or_1d(y, warn=True)
        task, labels = self._read(targets)
        if lost.any():
            labels = np.where(lost.reshape(labels.shape), np.nan if numeric else NO_CLASS, labels)
        kept, constants = self._scaled(inputs, columns)
        data = Dataset(
            name=type(self).__name__,
            train_inputs=kept,
            train_labels=labels,
            # Nothing is scored while it trains: `score` is for records of the caller's choice.
            test_inputs=np.array(constants.mean, np.float32)[None, :] * np.ones_like(kept[:1]),
            test_labels=labels[:1] * 0,
            classes=task.outputs,
            normalisation=constants,
            task=task,
            test_public=True,  # it is none of the records
            columns=columns,
        )
        owners = _names("groups", "all" if groups is None else groups, len(kept))
        if persons is not None:
            whose = _names("persons", persons, len(kept))
            check_persons("persons", whose.tolist(), blank="refuse")
            terms = PersonTerms(rows_per_person=self.rows_per_person)
            grouped = terms.group(whose, owners)
            data, owners = replace(data, persons=grouped), owners[grouped.first]
        partition = column_partition(owners)
        names = partition.names
        clients = Population.from_arrays(
            ids=list(names),
            sizes=partition.sizes,
            epsilon=_of_each("epsilon", self.epsilon if epsilon is None else epsilon, names),
            delta=_of_each("delta", self.delta if delta is None else delta, names),
        )
        typed(*(one for one in (self.model, self.selection, task.loss) if isinstance(one, str)))
        options = dict(self.model_options or {})
        shape, seed = data.input_shape, whole_number("random_state", self.random_state, at_least=0)
        network = build_model(
            self.model, input_shape=shape, classes=data.classes, seed=seed, options=options
        )
        settings = Training(
            rounds=self.rounds,
            cohort_size=self.cohort_size or min(len(clients), 10),
            sampling_rate=self.sampling_rate,
            clip=self.clip,
            dimension=sum(p.numel() for p in network.parameters() if p.requires_grad),
        )
        step = number("learning_rate", self.learning_rate, above=0)
        self.run_ = train(
            make_plan(
                clients,
                settings,
                selection=self.selection,
                accountant=Contract(unit=UNITS["record" if persons is None else "person"]),
                seed=seed,
            ),
            self.model,
            data,
            partition=partition,
            optimiser=Optimiser(local_step=step, average_decay=self.average_decay),
            seed=seed,
            device=self.device,
            out=self.out,
            evaluate_every=self.rounds,
            callbacks=callbacks,
            simulate=self.simulate,
            model_options=options,
        )
        self.task_ = task
        return self

    def _read(self, targets: NDArray[Any]) -> tuple[Task, NDArray[Any]]:
        """What is predicted, and the targets as a model sees them."""
        raise NotImplementedError

    def _columns(self, X: ArrayLike) -> TableColumns | None:  # noqa: N803
        """What the columns of a DataFrame mean; None where bounds are those of an array."""
        if not isinstance(self.bounds, Mapping) and self.categories is None:
            return None
        if not hasattr(X, "columns"):
            given = type(X).__name__
            raise InputError("X", given=given, allowed="a DataFrame: bounds are by column")
        columns = TableColumns(
            label=_LABEL,
            bounds=dict(self.bounds or {}),
            categories={name: list(some) for name, some in (self.categories or {}).items()},
            missing=self.missing,
        )
        names = [*map(str, X.columns), _LABEL]
        return replace(columns, features=columns.seen(dict.fromkeys(names, ())))

    def _scaled(
        self, inputs: Any, columns: TableColumns | None
    ) -> tuple[NDArray[np.float32], Normalisation]:
        """Inputs within their public bounds, and the constants that scale them from there."""
        self.columns_ = columns
        if columns is not None:
            return columns.encode_inputs(columns_of_frame(inputs))[0], Normalisation()
        low, high = self._feature_bounds(inputs)
        self.feature_bounds_ = np.stack([low, high], axis=1)
        middle, half = (low + high) / 2, (high - low) / 2
        constants = Normalisation(mean=tuple(middle.tolist()), std=tuple(half.tolist()))
        return np.clip(inputs, low, high).astype(np.float32), constants

    def _feature_bounds(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Smallest and largest value of each feature; public."""
        width = inputs.shape[1]
        if self._is_from_data("bounds"):
            low, high = inputs.min(0), inputs.max(0)
            return low, np.where(high > low, high, low + 1.0)
        if self.bounds is None:
            raise InputError.about(
                "bounds",
                "are missing: features are scaled by public bounds, (low, high) for all or one "
                f"pair for each of the {width} features. Bounds taken from the records would tell "
                f'of those records; a simulation may say bounds="{FROM_DATA}".',
            )
        pairs = _numbers("bounds", self.bounds)
        if pairs.shape not in ((2,), (width, 2)):
            allowed = f"(low, high), or one such pair for each of the {width} features"
            raise InputError("shape of bounds", given=pairs.shape, allowed=allowed)
        low, high = np.broadcast_to(pairs, (width, 2)).T
        if not (np.isfinite(pairs).all() and (low < high).all()):
            raise InputError("bounds", given=self.bounds, allowed="finite, the lower one first")
        return low, high

    def _is_from_data(self, field: str) -> bool:
        """Whether a simulation takes a parameter from the records; a private fit may not."""
        given = getattr(self, field)
        if not (isinstance(given, str) and given == FROM_DATA):
            return False
        if self.simulate is None:
            raise InputError.about(
                field,
                f'= "{FROM_DATA}" is for simulations: taken from the records, they would tell of '
                "those records, and no budget pays for it. Say what is publicly known.",
            )
        return True

    def _outputs(self, X: ArrayLike) -> NDArray[np.float32]:  # noqa: N803
        check_is_fitted(self)
        if self.columns_ is not None:
            rows = columns_of_frame(X)
            return model_outputs(self.run_, self.columns_.encode_inputs(rows)[0])
        inputs = validate_data(self, X, reset=False, dtype=np.float64)
        low, high = self.feature_bounds_.T
        return model_outputs(self.run_, np.clip(inputs, low, high).astype(np.float32))


@dataclass(kw_only=True, eq=False, repr=False)
class DPFederatedClassifier(ClassifierMixin, _DPFederated):  # type: ignore[misc]
    """A classifier trained by clients that each keep a budget of their own.

    Each adds all the noise it needs. To pool the noise of a cohort, plan with ``make_plan`` and a
    ``Contract`` of distributed trust, and ``train`` that.

    Args:
        classes: all classes there can be, public; ``"from-data"`` in simulations only.
        bounds: (low, high) of all features, one pair for each, or pairs by column of a DataFrame
            (two dates as text for a column of dates); public. Values beyond are cut off.
            ``"from-data"`` in simulations only.
        categories: of a DataFrame, the values that each column of text or codes can have; public.
        missing: what a missing number of a DataFrame counts as: ``middle`` of its bounds,
            ``indicator`` or a number; for all columns or by column.
        epsilon: of every client, or by the name of the group; ``fit`` may give others.
        delta: as ``epsilon``.
        model: a name for ``build_model``: ``logistic``, ``mlp``, or your own ``module:function``.
        model_options: of the model.
        rounds: global rounds.
        cohort_size: draws in each round; by default 10, or as many as there are clients.
        sampling_rate: share of its records that a client uses in a step.
        clip: norm to which each record's gradient is clipped.
        learning_rate: of the local steps.
        average_decay: of the average of iterates that predicts; None for the last one.
        selection: the rule.
        rows_per_person: records of one person that are used, where ``fit`` is told of persons.
        simulate: seed of batches and noise in a simulation, whose receipts say NOT PRIVATE. Without
            it they come from the operating system's entropy.
        device: ``cpu``, ``cuda`` or ``auto``.
        out: a run folder, for ledger, receipts and a report.
        random_state: seed of model and schedule, which are public.

    Attributes:
        classes_: the classes.
        n_features_in_: number of features.
        feature_bounds_: (low, high) of each feature of an array.
        columns_: what columns of a DataFrame mean; None of arrays.
        run_: the training: ``run_.receipts()``, ``run_.plan``.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 10, size=(600, 3))
        >>> y = np.where(X[:, 0] > X[:, 1], "up", "down")
        >>> hospital = np.repeat(["a", "b", "c"], 200)
        >>> model = DPFederatedClassifier(classes=["down", "up"], bounds=(0, 10))
        >>> model = model.fit(X, y, groups=hospital, epsilon={"a": 1.0, "b": 4.0, "c": 8.0})
        >>> model.score(X, y) > 0.8
        True
    """

    classes: Any = None

    def _read(self, targets: NDArray[Any]) -> tuple[Task, NDArray[Any]]:
        """A choice of classes, and the number of each record's."""
        check_classification_targets(targets)
        if self._is_from_data("classes"):
            classes = np.unique(targets)
        elif self.classes is None:
            raise InputError.about(
                "classes",
                "are missing: say which classes there can be, as is publicly known. Those that "
                "happen to be among the records would tell of the records; a simulation may say "
                f'classes="{FROM_DATA}".',
            )
        else:
            classes = np.unique(np.asarray(self.classes))
        if len(classes) < 2:
            given = f"{len(classes)} class"
            raise InputError("classes", given=given, allowed="at least two; one class is no choice")
        # As they read: True, "true" and 1.0 are the same class wherever they come from.
        places = places_of(classes.tolist())
        distinct, which = np.unique(targets.astype(object).astype(str), return_inverse=True)
        labels = np.array([place_of(one, places, NO_CLASS) for one in distinct.tolist()])[which]
        if self.simulate is not None and (labels == NO_CLASS).any():
            raise InputError.because(
                f"y has a class that is not among the public ones, {_shown(classes)}. Name all "
                "that there can be, or correct the records."
            )
        self.classes_ = classes
        return Task(outputs=len(classes)), labels.astype(np.int64)

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The class of each record."""
        outputs = self._outputs(X)
        found: NDArray[Any] = self.classes_[self.task_.predictions(outputs)]
        return found

    def predict_proba(self, X: ArrayLike) -> FloatArray:  # noqa: N803
        """The probability of each class, in the order of ``classes_``."""
        outputs = self._outputs(X)
        return self.task_.chances(outputs)


@dataclass(kw_only=True, eq=False, repr=False)
class DPFederatedRegressor(RegressorMixin, _DPFederated):  # type: ignore[misc]
    """A regressor trained by clients that each keep a budget of their own.

    Args:
        target_bounds: smallest and largest number to be predicted, public; ``"from-data"`` in
            simulations only.
        loss: ``squared``, ``huber``, ``quantile``, or your own ``module:function``.
        bounds: as those of `DPFederatedClassifier`, like everything that follows.
        categories: of a DataFrame.
        missing: of a DataFrame.
        epsilon: of every client, or by the name of the group; ``fit`` may give others.
        delta: as ``epsilon``.
        model: a name for ``build_model``.
        model_options: of the model.
        rounds: global rounds.
        cohort_size: draws in each round.
        sampling_rate: share of its records that a client uses in a step.
        clip: norm to which each record's gradient is clipped.
        learning_rate: of the local steps.
        average_decay: of the average of iterates that predicts; None for the last one.
        selection: the rule.
        rows_per_person: records of one person that are used.
        simulate: seed of batches and noise in a simulation.
        device: ``cpu``, ``cuda`` or ``auto``.
        out: a run folder, for ledger, receipts and a report.
        random_state: seed of model and schedule.

    Example:
        >>> DPFederatedRegressor(target_bounds=(0, 30), bounds=(0, 1)).get_params()["loss"]
        'squared'
    """

    target_bounds: Any = None
    loss: str = "squared"
    learning_rate: float = 0.3

    def _read(self, targets: NDArray[Any]) -> tuple[Task, NDArray[Any]]:
        """A number within public bounds, and the targets scaled to them."""
        bounds = self._target_bounds(targets)
        task = Task(kind="regression", outputs=1, loss=self.loss, bounds=bounds)
        return task, task.scaled(targets)

    def _target_bounds(self, targets: FloatArray) -> tuple[float, float] | None:
        if self._is_from_data("target_bounds"):
            low, high = float(targets.min()), float(targets.max())
            return low, high if high > low else low + 1.0
        if self.target_bounds is None:
            return None  # Task says why they are needed
        pair = _numbers("target_bounds", self.target_bounds)
        if pair.shape != (2,):
            allowed = "a smaller and a larger number"
            raise InputError("target_bounds", given=self.target_bounds, allowed=allowed)
        return float(pair[0]), float(pair[1])

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The number of each record, in the units of ``y``."""
        outputs = self._outputs(X)
        return self.task_.predictions(outputs)


def _names(field: str, given: ArrayLike, records: int) -> NDArray[np.str_]:
    """A name for each record: of its client, or of its person."""
    names = np.full(records, given) if isinstance(given, str) else np.asarray(given)
    if names.shape != (records,):
        raise InputError(f"shape of {field}", given=names.shape, allowed=f"({records},)")
    return names.astype(np.str_)


def _of_each(field: str, given: Any, names: tuple[str, ...]) -> list[float]:
    """The budget of each client: one for all, or by name."""
    if not isinstance(given, Mapping):
        return [number(field, given, above=0)] * len(names)
    known = {str(name): value for name, value in given.items()}
    missing = [name for name in names if name not in known]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError.because(f"{field} names no value for the group {missing[0]!r}{more}.")
    return [number(field, known[name], above=0) for name in names]


def _numbers(field: str, given: Any) -> FloatArray:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(field, given=given, allowed="numbers") from None


def _shown(values: NDArray[Any]) -> str:
    return ", ".join(repr(value) for value in values[:5].tolist()) + (
        ", ..." if len(values) > 5 else ""
    )
