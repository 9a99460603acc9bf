# SPDX-License-Identifier: Apache-2.0
"""A data set in memory: training and test arrays, and the public constants that scale them.

The normalisation is fixed before anyone looks at a client's data: constants published with a set,
or the range of a pixel. A mean computed from the clients' records would be one more answer about
them that no budget pays for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpcohort._validate import BoolArray, IntArray, number, whole_number
from dpcohort.data._persons import Persons, PersonTerms, check_persons
from dpcohort.errors import InputError
from dpcohort.limits import MOST_CLASSES
from dpcohort.plain_text import first_of
from dpcohort.tasks import Task

if TYPE_CHECKING:
    from dpcohort.data._tables import TableColumns

#: What a simulation is told; a private run is refused.
_COUNTED = (
    "the number of classes ({classes}) was counted from the training labels; for a private run "
    "state it: classes = ... in [data], or in the .npz file."
)
_INPUT_TYPES = ("uint8", "float32", "int64")
#: The class of a record that has none of those stated: torch's losses leave it out. Where numbers
#: are to be predicted it is NaN.
NO_CLASS = -100


def without_label(labels: NDArray[Any]) -> BoolArray:
    """Which records have no label, and so contribute nothing. SENSITIVE.

    Example:
        >>> without_label(np.array([0, -100])).tolist(), without_label(np.array([np.nan])).tolist()
        ([False, True], [True])
    """
    missing = np.isnan(labels) if labels.dtype.kind == "f" else labels == NO_CLASS
    rows: BoolArray = missing.reshape(len(labels), -1).any(axis=1)
    return rows


def simulation_seed(simulate: int | None, *, public: bool, seed: int) -> int | None:
    """Seed of batches and noise; None takes them from the operating system's entropy.

    Args:
        simulate: the seed of a simulation that was asked for; None if none was.
        public: whether all records are public, which are simulated with unasked.
        seed: of the run, public.

    Example:
        >>> simulation_seed(None, public=False, seed=3), simulation_seed(7, public=False, seed=3)
        (None, 7)
    """
    return seed if simulate is None and public else simulate


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """Public constants: an input x becomes (x / scale - mean) / std, channel by channel.

    Attributes:
        scale: what stored values are divided by first (255 for bytes, 16 for the digits).
        mean: one value, or one per channel (axis 1 of the inputs).
        std: as ``mean``; never 0.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


def affine_map(constants: Normalisation) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The same map as x * multiplier + offset, one float32 entry per channel (or just one).

    Raises:
        InputError: the constants are none that records can be scaled by.

    Example:
        >>> multiplier, offset = affine_map(Normalisation(scale=4.0, mean=(0.5,), std=(2.0,)))
        >>> multiplier.tolist(), offset.tolist()
        ([0.125], [-0.25])
    """
    mean, std = np.asarray(constants.mean), np.asarray(constants.std)
    number("scale", constants.scale, above=0)
    if not mean.size or not np.isfinite(mean).all():
        raise InputError("mean", given=constants.mean, allowed="one or more finite numbers")
    if len(std) != len(mean):
        allowed = f"as many numbers as mean has ({len(mean)})"
        raise InputError("std", given=constants.std, allowed=allowed)
    if not (np.isfinite(std) & (std > 0)).all():
        raise InputError("std", given=constants.std, allowed="finite numbers above 0")
    multiplier, offset = 1.0 / (constants.scale * std), -mean / std
    return multiplier.astype(np.float32), offset.astype(np.float32)


def normalise(inputs: NDArray[Any], constants: Normalisation) -> NDArray[np.float32]:
    """The inputs as float32, normalised; axis 1 is the channel.

    Example:
        >>> mnist = Normalisation(scale=255, mean=(0.1307,), std=(0.3081,))
        >>> normalise(np.array([[0, 255]], np.uint8), mnist).round(3).astype(str).tolist()
        [['-0.424', '2.821']]
    """
    shape = (-1,) + (1,) * (inputs.ndim - 2)
    multiplier, offset = (part.reshape(shape) for part in affine_map(constants))
    scaled = inputs.astype(np.float32)
    scaled *= multiplier
    scaled += offset
    return scaled


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and test records of one task.

    Where the person is the unit of privacy, a training record is a person: what follows of records
    is then of rows, and ``persons`` says whose they are.

    Attributes:
        name: what the set is called in plans, runs and messages.
        train_inputs: (records, channels, height, width) or (records, features); bytes (uint8),
            float32, or int64 token ids, which are never normalised.
        train_labels: int64, one per record, from 0 to ``classes`` - 1.
        test_inputs: as ``train_inputs``.
        test_labels: as ``train_labels``.
        classes: number of classes, or of what else a model puts out; public.
        normalisation: the constants that turn stored values into what a model sees; public.
        task: what is predicted; without it one of ``classes`` classes.
        clients: whose each training record is, where the set says so; None where it does not.
        test_public: whether results on the test records may be published. Where not, a private
            run does not write them down.
        remarks: sentences for the reader of a result; of a private run on public records only.
        test_clients: whose each test record is, where the set says so.
        unusable: what is wrong with the first record that cannot be used: inputs that are not
            finite, or a label that the task does not have, in whose place such records have none.
            A simulation is refused with it; in a private run they contribute nothing, and it is
            not told. Test records that are public are refused at once. SENSITIVE.
        counted_classes: whether nobody stated ``classes`` and the training labels were counted: one
            record more can then change the model, so that a private run refuses the set.
        persons: whose each training row is, where the person is the unit.
        row_bound: largest norm that public bounds allow a row of inputs, the 1 of a bias included.
        test_persons: the same of test rows.
        columns: what the columns of its table mean, where it is of one.
        public: whether the records are public, so that a training on them is a simulation unless
            another is asked for; of any others it is private.

    Example:
        >>> tiny = dataset_from_arrays("tiny", train_inputs=np.zeros((4, 2)),
        ...     train_labels=[0, 1, 0, 1], test_inputs=np.ones((1, 2)), test_labels=[1])
        >>> tiny.classes, tiny.input_shape, len(tiny)
        (2, (2,), 4)
    """

    name: str
    train_inputs: NDArray[Any]
    train_labels: NDArray[Any]
    test_inputs: NDArray[Any]
    test_labels: NDArray[Any]
    classes: int
    normalisation: Normalisation = Normalisation()
    task: Task = None  # type: ignore[assignment]  # filled in below
    clients: NDArray[np.str_] | None = None
    test_public: bool = False
    remarks: tuple[str, ...] = ()
    test_clients: NDArray[np.str_] | None = None
    unusable: str = ""
    counted_classes: bool = False
    persons: Persons | None = None
    row_bound: float = math.inf
    test_persons: Persons | None = None
    public: bool = False
    columns: TableColumns | None = None

    def __post_init__(self) -> None:
        given: object = self.task
        if given is None:
            whole_number("classes", self.classes, at_least=2, at_most=MOST_CLASSES)
            object.__setattr__(self, "task", Task(outputs=self.classes))
        whole_number("classes", self.classes, at_least=self.task.outputs, at_most=self.task.outputs)
        _check_inputs("train_inputs", self.train_inputs)
        _check_inputs("test_inputs", self.test_inputs)
        train, test = self.train_inputs, self.test_inputs
        if test.shape[1:] != train.shape[1:]:
            allowed = f"records of shape {train.shape[1:]}, as in train_inputs"
            raise InputError("shape of test_inputs", given=test.shape[1:], allowed=allowed)
        if test.dtype != train.dtype:
            allowed = f"{train.dtype}, as train_inputs"
            raise InputError("type of test_inputs", given=str(test.dtype), allowed=allowed)
        self._take_labels("train")
        self._take_labels("test")
        for name, records, kind in (("clients", train, "training"), ("test_clients", test, "test")):
            owners = getattr(self, name)
            if owners is not None and owners.shape != (len(records),):
                allowed = f"({len(records)},), one client a {kind} record"
                raise InputError(f"shape of {name}", given=owners.shape, allowed=allowed)
        for name, records, kind in (("persons", train, "training"), ("test_persons", test, "test")):
            grouped = getattr(self, name)
            if grouped is not None and grouped.rows.max() >= len(records):
                allowed = f"rows of the {len(records)} {kind} rows"
                raise InputError(name, given=int(grouped.rows.max()), allowed=allowed)
        if len(affine_map(self.normalisation)[0]) not in (1, train.shape[1]):
            allowed = f"1 number, or one for each of the {train.shape[1]} channels"
            raise InputError("mean", given=self.normalisation.mean, allowed=allowed)

    def _take_labels(self, part: str) -> None:
        """Take the labels off records that cannot be used; refuse public test records."""
        inputs, labels = getattr(self, f"{part}_inputs"), getattr(self, f"{part}_labels")
        _check_label_types(f"{part}_labels", labels, len(inputs), self.task)
        known = without_label(labels) if self.unusable else np.zeros(len(labels), np.bool_)
        unusable = known.copy()
        for field, values, fits, allowed in (
            (f"{part}_inputs", inputs, _finite(inputs), "a finite number within float32"),
            (f"{part}_labels", labels, *_fitting_labels(labels, self.task)),
        ):
            fits = fits | known.reshape(-1, *[1] * (fits.ndim - 1))
            if fits.all():
                continue
            problem = _first_problem(field, values, fits, allowed)
            if part == "test" and self.test_public:
                raise problem
            object.__setattr__(self, "unusable", self.unusable or str(problem))
            unusable |= ~fits.reshape(len(fits), -1).all(axis=1)
        if not np.array_equal(unusable, known):
            labels = labels.copy()
            labels[unusable] = NO_CLASS if self.task.predicts_classes else np.nan
            object.__setattr__(self, f"{part}_labels", labels)

    def refuse_unusable(self) -> None:
        """Refuse records that cannot be used; a private run must not, as it would tell of them.

        Raises:
            InputError: there is one; the message names it.

        Example:
            >>> dataset_from_arrays("tiny", train_inputs=[[1.0], [2.0]], train_labels=[0, 7],
            ...     test_inputs=[[1.0]], test_labels=[1], classes=2).refuse_unusable()
            Traceback (most recent call last):
            ...
            dpcohort.errors.InputError: train_labels[1] = 7 is not allowed: ...
        """
        if self.unusable:
            raise InputError.because(self.unusable)

    def __len__(self) -> int:
        """The number of training records: of persons, where these are the unit."""
        return len(self.train_labels) if self.persons is None else len(self.persons)

    @property
    def summed_rows(self) -> int:
        """Rows whose gradients are added up before they are clipped as one, at most; public."""
        persons = self.persons
        return persons.most if persons is not None and persons.person_rows == "sum" else 1

    @property
    def test_is_public(self) -> bool:
        """Whether results on the test records may be told without paying for them."""
        return self.test_public or self.public

    @property
    def record_labels(self) -> NDArray[Any]:
        """A label of each training record: of a person, its first row's. SENSITIVE."""
        return self.train_labels if self.persons is None else self.train_labels[self.persons.first]

    @property
    def record_clients(self) -> NDArray[np.str_] | None:
        """Whose each training record is, where the set says so."""
        if self.clients is None or self.persons is None:
            return self.clients
        return self.clients[self.persons.first]

    def rows_of(self, records: IntArray) -> IntArray:
        """The training rows of these records, all that are used of a person."""
        return records if self.persons is None else self.persons.all_rows(records)

    def knowing_rare_classes(self) -> Dataset:
        """The same whose task says how frequent classes are, where public test records show it."""
        if not (self.test_is_public and self.task.predicts_classes) or self.task.class_shares:
            return self
        counts = np.bincount(self.test_labels, minlength=self.classes)
        if not counts.all():
            return self
        task = replace(self.task, class_shares=tuple((counts / counts.sum()).tolist()))
        return replace(self, task=task) if task.is_uneven else self

    def held_out(self, kept: IntArray, held: IntArray, *, name: str) -> Dataset:
        """The same with the training records ``kept``; those ``held`` are its test records.

        Of a person one row is a test record.

        Example:
            >>> tiny = dataset_from_arrays("tiny", train_inputs=np.eye(3), train_labels=[0, 1, 0],
            ...     test_inputs=np.ones((1, 3)), test_labels=[1])
            >>> tiny.held_out(np.array([2, 0]), np.array([1]), name="inner").test_labels.tolist()
            [1]
        """
        persons, rest, scored = self.persons, kept, held
        if self.persons is not None:
            persons, rest = self.persons.only(kept)
            scored = self.persons.first[held]
        return replace(
            self,
            name=name,
            train_inputs=self.train_inputs[rest],
            train_labels=self.train_labels[rest],
            test_inputs=self.train_inputs[scored],
            test_labels=self.train_labels[scored],
            clients=None if self.clients is None else self.clients[rest],
            test_clients=None if self.clients is None else self.clients[scored],
            persons=persons,
            test_persons=None,
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return tuple(self.train_inputs.shape[1:])

    def normalised(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Inputs of this set as the model sees them; token ids stay as they are."""
        return inputs if inputs.dtype == np.int64 else normalise(inputs, self.normalisation)


def dataset_from_arrays(
    name: str,
    *,
    train_inputs: ArrayLike,
    train_labels: ArrayLike,
    test_inputs: ArrayLike,
    test_labels: ArrayLike,
    classes: int | None = None,
    normalisation: Normalisation | None = None,
    task: Task | None = None,
    clients: ArrayLike | None = None,
    test_clients: ArrayLike | None = None,
    test_public: bool = False,
    persons: ArrayLike | None = None,
    test_persons: ArrayLike | None = None,
    person_terms: PersonTerms | None = None,
    public: bool = False,
) -> Dataset:
    """A data set from a user's own arrays, converted to the types a `Dataset` holds.

    Args:
        name: what to call it.
        train_inputs: bytes stay bytes; other numbers become float32, which must hold them.
        train_labels: whole numbers.
        test_inputs: as ``train_inputs``.
        test_labels: as ``train_labels``.
        classes: number of classes; without it, the largest training label + 1, which is for
            simulations: a private run refuses what was counted from records.
        normalisation: public constants; without them bytes are divided by 255 and other numbers
            are left alone.
        task: what is predicted; without it a class. Its labels are as `Task.losses` takes them,
            numbers of a regression not yet scaled.
        clients: the name of the client of each training record, where the set knows it.
        test_clients: the same of each test record: who pays for an evaluation on it.
        test_public: whether results on the test records may be published.
        persons: whose each training row is, where the person is the unit of privacy.
        test_persons: whose each test row is; nobody may be on both sides.
        person_terms: how the rows of a person are used.
        public: whether all records are public; see `Dataset`.

    Raises:
        InputError: if shapes, types or labels do not fit together, or if without ``classes`` a
            label looks like a mistake: a test label above all of training, or one so large that
            most classes would be empty. Single records that cannot be used: see `Dataset`.

    Example:
        >>> dataset_from_arrays("tiny", train_inputs=np.zeros((2, 1, 4, 4), np.uint8),
        ...     train_labels=[0, 3], test_inputs=np.zeros((1, 1, 4, 4), np.uint8),
        ...     test_labels=[2]).classes
        4
    """

    def labels(field: str, values: ArrayLike) -> NDArray[Any]:
        if task is None or task.predicts_classes:
            whole = _as_numbers(field, values, "iu", "whole numbers")
            return _of_type(whole, np.int64)
        return task.scaled(_as_numbers(field, values, "biuf", "numbers"))

    train, test = labels("train_labels", train_labels), labels("test_labels", test_labels)
    inputs = _as_inputs("train_inputs", train_inputs)
    counted = task is None and classes is None
    if task is not None:
        classes = task.outputs
    elif classes is None:
        classes = _counted_classes(train, test)
    if normalisation is None:
        normalisation = Normalisation(scale=255.0 if inputs.dtype == np.uint8 else 1.0)
    owners = None if clients is None else np.asarray(clients).astype(np.str_)
    test_owners = None if test_clients is None else np.asarray(test_clients).astype(np.str_)
    grouped = test_grouped = None
    if persons is not None:
        names = _person_names("persons", persons, len(train))
        terms = person_terms or PersonTerms()
        if test_persons is not None:
            test_names = _person_names("test_persons", test_persons, len(test))
            _refuse_both(names, test_names)
            test_grouped = terms.group(test_names, test_owners)
        check_persons("persons", names.tolist(), blank=terms.blank_person)
        grouped = terms.group(names, owners)
    elif test_persons is not None:
        raise InputError.about("test_persons", "goes with persons, which says whose a row is.")
    return Dataset(
        name=name,
        train_inputs=inputs,
        train_labels=train,
        test_inputs=_as_inputs("test_inputs", test_inputs),
        test_labels=test,
        classes=classes,
        normalisation=normalisation,
        clients=owners,
        test_public=test_public,
        test_clients=test_owners,
        persons=grouped,
        test_persons=test_grouped,
        public=public,
        counted_classes=counted,
        remarks=(_COUNTED.format(classes=classes),) if counted else (),
        **({} if task is None else {"task": task}),  # type: ignore[arg-type]
    ).knowing_rare_classes()


def _person_names(field: str, given: ArrayLike, rows: int) -> NDArray[np.str_]:
    names = np.asarray(given).astype(np.str_)
    if names.shape != (rows,):
        raise InputError(f"shape of {field}", given=names.shape, allowed=f"({rows},), one a row")
    return names


def _refuse_both(train: NDArray[np.str_], test: NDArray[np.str_]) -> None:
    """Refuse persons with rows on both sides, whose test would be of what was learnt by heart."""
    if np.isin(train[train != ""], test).any():
        raise InputError.because(
            "somebody has rows in training and test: the test would be of persons that the model "
            "knows. Split by person."
        )


def _counted_classes(train: IntArray, test: IntArray) -> int:
    """The largest training label + 1; one stray label must not make a class of its own."""
    classes = max(2, 1 + int(train.max(initial=0)))
    stray = test[test >= classes]
    if stray.size:
        raise InputError.because(
            f"test_labels has {_counted(stray)}, and no training record has a label above "
            f"{classes - 1}. Correct it, or say how many classes there are: "
            f"classes = {1 + int(stray.max())}."
        )
    used = np.unique(train[train >= 0])
    if 2 * used.size < classes and classes > 2:
        top = train[train == train.max()]
        raise InputError.because(
            f"train_labels has {_counted(top)}, which makes {classes} classes, but only "
            f"{used.size} of them have a record. Correct it, or say how many classes there are: "
            f"classes = {classes}."
        )
    return classes


def _counted(labels: IntArray) -> str:
    """Labels with how often each is there, in words."""
    values, counts = np.unique(labels, return_counts=True)
    said = [f"the label {v} ({c}x)" for v, c in zip(values, counts, strict=True)]
    return first_of(said)


def _as_inputs(field: str, values: ArrayLike) -> NDArray[Any]:
    array = _as_numbers(field, values, "biuf", "numbers")
    if str(array.dtype) in _INPUT_TYPES:
        return array
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    return _of_type(array, np.float32 if array.dtype.kind == "f" else np.int64)


def _as_numbers(field: str, values: ArrayLike, kinds: str, allowed: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        raise InputError(field, given=values, allowed=f"an array of {allowed}") from None
    if array.dtype.kind not in kinds:
        raise InputError(f"type of {field}", given=str(array.dtype), allowed=allowed)
    return array


def _of_type(array: NDArray[Any], kind: type[Any]) -> NDArray[Any]:
    """The array in the given type; numbers beyond it become infinite or negative, see `Dataset`."""
    with np.errstate(over="ignore"):
        converted: NDArray[Any] = array.astype(kind, copy=False)
    return converted


def _check_inputs(field: str, inputs: NDArray[Any]) -> None:
    if str(inputs.dtype) not in _INPUT_TYPES:
        allowed = "one of " + ", ".join(_INPUT_TYPES)
        raise InputError(f"type of {field}", given=str(inputs.dtype), allowed=allowed)
    if inputs.ndim < 2 or 0 in inputs.shape:
        raise InputError(
            f"shape of {field}",
            given=inputs.shape,
            allowed="(records, channels, height, width) or (records, features), no axis empty",
        )


def _finite(inputs: NDArray[Any]) -> BoolArray:
    """Which inputs are finite, in a shape that goes with theirs."""
    finite: BoolArray = np.ones(len(inputs), np.bool_)
    if inputs.dtype == np.float32:
        finite = np.isfinite(inputs)
    return finite


def _check_label_types(field: str, labels: NDArray[Any], records: int, task: Task) -> None:
    kind = "int64" if task.predicts_classes else "float32"
    if labels.dtype != kind:
        raise InputError(f"type of {field}", given=str(labels.dtype), allowed=kind)
    shape = (records, task.outputs) if task.kind == "multi-label" else (records,)
    if labels.shape != shape:
        allowed = f"{shape}, " + ("one 0 or 1 a label" if len(shape) == 2 else "one label a record")
        raise InputError(f"shape of {field}", given=labels.shape, allowed=allowed)


def _fitting_labels(labels: NDArray[Any], task: Task) -> tuple[BoolArray, str]:
    """Which labels a task has, and which it may have."""
    if task.predicts_classes:
        fits = (labels >= 0) & (labels < task.outputs)
        return fits, f"a class from 0 to {task.outputs - 1}"
    if task.kind == "multi-label":
        return (labels == 0) | (labels == 1), "0 or 1"
    if task.kind == "counts":
        return (labels >= 0) & (labels == np.floor(labels)), "0, 1, 2, ..."
    return np.abs(labels) <= 1, "from -1 to 1, as Task.scaled gives it"


def _first_problem(field: str, array: NDArray[Any], fits: BoolArray, allowed: str) -> InputError:
    """What is wrong with the first entry that does not fit."""
    place = tuple(int(i) for i in np.argwhere(~fits)[0])
    next_step = None
    if array.dtype == np.int64:
        next_step = f"{np.count_nonzero(~fits)} of {len(fits)} labels are outside."
    return InputError(
        f"{field}[{', '.join(map(str, place))}]",
        given=array[place].item(),
        allowed=allowed,
        next_step=next_step,
    )
