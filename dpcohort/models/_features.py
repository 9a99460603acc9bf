# SPDX-License-Identifier: Apache-2.0
"""Fixed features by name, and a data set with the features of its records computed once.

Features without parameters are the same in every round, so a model that begins with them can be
trained on the features instead of the records: the same numbers up to rounding, much sooner.
Frozen encoders are features as well. Which there are by name is announced by installed packages, in
the entry-point group ``dpcohort.features``; dpcohort-lab has ``oriented`` and ``scattering``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from dpcohort._validate import did_you_mean, whole_number
from dpcohort.data import Dataset, Normalisation
from dpcohort.data._load import is_published
from dpcohort.errors import InputError
from dpcohort.models._each_alone import IsolatedOutputs
from dpcohort.models._weights import frozen_sha256
from dpcohort.plugins import find_features, telling

_MOST_FEATURES = 300_000_000
_OF_ANY_MODULE = frozenset(vars(nn.Module()))
_MADE_UP = 17  # records that a frozen encoder is tried on


class FixedFeatures(nn.Module):
    """Base class of a formula that maps a record to a vector: no parameters, each record alone.

    A subclass is built with the shape of a record and its own options; ``forward`` changes nothing
    in it, and its ``repr`` says all that its features follow from. Private runs compute it record
    by record all the same.

    Attributes:
        width: the number of features.
    """

    width: int

    def extra_repr(self) -> str:
        """Its attributes."""
        own = {name: value for name, value in vars(self).items() if name not in _OF_ANY_MODULE}
        return ", ".join(f"{name}={value!r}" for name, value in own.items())

    def kept(
        self,
        parts: tuple[Any, ...],
        shape: tuple[int, ...],
        compute: Callable[[], NDArray[np.float32]],
    ) -> NDArray[np.float32]:
        """The features of a published data set; a subclass may keep them on disk.

        Args:
            parts: what they follow from beside these features: arrays and plain values.
            shape: of the result.
            compute: computes them.
        """
        return compute()


def build_features(name: str, input_shape: Sequence[int], **options: Any) -> FixedFeatures | None:
    """The features of that name for records of that shape; None for ``none``.

    Args:
        name: announced in the group ``dpcohort.features``, or ``module:Class``.
        input_shape: of one record.
        options: what the features have.

    Raises:
        InputError: if the name or an option is not known, or does not fit the records.

    Example:
        >>> build_features("none", (1, 28, 28)) is None
        True
    """
    if name == "none":
        if options:
            raise InputError.because(
                f'{", ".join(options)} is for features, and features = "none". Say which.'
            )
        return None
    found = find_features(name)
    refuse_unknown(f"{name} features have no", "they have", options, feature_options(name))
    with telling(f"the features {name} cannot be made"):
        made: FixedFeatures = found(tuple(input_shape), **options)
    return made


def feature_options(name: str) -> tuple[str, ...]:
    """The options that features have.

    Example:
        >>> feature_options("none")
        ()
    """
    if name == "none":
        return ()
    return tuple(inspect.signature(find_features(name)).parameters)[1:]


def refuse_unknown(lacks: str, has: str, options: Iterable[str], known: Sequence[str]) -> None:
    """Refuse an option that a model or its features do not have, with the nearest that they do.

    Raises:
        InputError: there is one.
    """
    for option in options:
        if option not in known:
            words = f"{lacks} option {option!r}; {has} {', '.join(known) or 'none'}."
            raise InputError.because(f"{words} {did_you_mean(option, known) or ''}".rstrip())


@torch.no_grad()
def precompute_features(
    data: Dataset,
    features: nn.Module,
    *,
    batch_size: int = 500,
    device: str = "cpu",
    isolated: bool = False,
) -> Dataset:
    """The data set with the features of every record in the place of the record.

    Only for a module that is not trained here and treats every record alone, as `FixedFeatures` and
    frozen encoders do: then each new record depends on one old one, and whatever is promised for
    the new records holds for the old.

    Args:
        data: the records.
        features: from [records, ...] to [records, width]; its parameters, if any, are frozen
            (``requires_grad`` is false) and were learnt from other records.
        batch_size: records at a time; bounds memory and changes nothing else.
        device: where to compute.
        isolated: compute each record as nothing but a function of that record, as private
            training must.

    Returns:
        The data set ``NAME+FEATURES`` of float32 vectors, to be used as they are.

    Raises:
        InputError: if the module has parameters that are trained, mixes records, draws random
            numbers, or does not give one vector a record.

    Example:
        >>> from dpcohort.data import load_dataset
        >>> digits = load_dataset("digits")
        >>> small = precompute_features(digits, nn.Flatten())
        >>> small.name, small.input_shape, len(small) == len(digits)
        ('digits+Flatten', (64,), True)
    """
    whole_number("batch_size", batch_size, at_least=1)
    trained = [name for name, p in features.named_parameters() if p.requires_grad]
    if trained:
        raise InputError.because(
            f"{type(features).__name__} has parameters that are trained ({trained[0]}). Features "
            "computed once must be a formula or frozen: weights learnt from the data would have to "
            "be paid for, and would stay as they are. Set requires_grad=False if they were learnt "
            "elsewhere."
        )
    _refuse_mixing(features, data)
    module: Callable[[torch.Tensor], torch.Tensor] = copy.deepcopy(features).to(device)
    if isolated:
        like = torch.as_tensor(data.normalised(data.train_inputs[:1]), device=device)
        module = IsolatedOutputs(copy.deepcopy(features).to(device), like)

    def of(inputs: NDArray[Any]) -> NDArray[np.float32]:
        records = torch.as_tensor(data.normalised(inputs), device=device)
        found: NDArray[np.float32] = module(records).cpu().numpy()
        if found.ndim != 2 or len(found) != len(inputs):
            allowed = "(records, features), one vector a record"
            raise InputError("shape of the features", given=found.shape, allowed=allowed)
        # A record that the encoder cannot take becomes zeros: an error would tell of it.
        return np.nan_to_num(found, posinf=0.0)

    def computed(inputs: NDArray[Any]) -> NDArray[np.float32]:
        rows = np.empty((len(inputs), of(inputs[:1]).shape[1]), np.float32)

        def fill(start: int) -> None:
            rows[start : start + batch_size] = of(inputs[start : start + batch_size])

        starts = range(0, len(inputs), batch_size)
        if isinstance(features, FixedFeatures) and device == "cpu" and not isolated:
            # As many parts at a time as torch has threads, each by one thread: the bits do not
            # depend on how many there are.
            workers = torch.get_num_threads()
            with ThreadPoolExecutor(
                workers, initializer=torch.set_num_threads, initargs=(1,)
            ) as pool:
                list(pool.map(torch.no_grad()(fill), starts))
        else:  # any other module may not stand several threads
            for start in starts:
                fill(start)
        return rows

    return _with_features(data, features, computed(data.train_inputs), computed(data.test_inputs))


def _with_features(
    data: Dataset, features: nn.Module, train: NDArray[np.float32], test: NDArray[np.float32]
) -> Dataset:
    return replace(
        data,
        name=f"{data.name}+{type(features).__name__}",
        train_inputs=train,
        test_inputs=test,
        normalisation=Normalisation(),
    )


#: The last features computed of each data set that is still in use: runs of several seeds share it.
_COMPUTED: WeakKeyDictionary[Dataset, tuple[str, Dataset]] = WeakKeyDictionary()


def split_features(
    model: nn.Module, data: Dataset, *, device: str = "cpu", isolated: bool = False
) -> tuple[nn.Module, Dataset]:
    """A model without the fixed features it begins with, and the data set with them computed.

    Fixed are formulas, and the leading layers of an ``nn.Sequential`` that are frozen. Training the
    one on the other is training the whole model on the images, up to rounding. The
    parameters keep their names and values, so that they fit the whole model as well. A model that
    does not begin with fixed features comes back as it is, with its data.

    Args:
        model: as ``build_model`` gives it.
        data: its records.
        device: where to compute the features.
        isolated: as `precompute_features` has it.

    Example:
        >>> from dpcohort.data import load_dataset
        >>> whole = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))
        >>> _ = whole[1].requires_grad_(False)
        >>> head, data = split_features(whole, load_dataset("digits"))
        >>> data.input_shape, list(head.state_dict())
        ((9,), ['3.weight', '3.bias'])
    """
    features = _features_of(model)
    if features is None or not _has_room(features, data):
        return model, data
    # Two encoders that look alike may have other weights.
    settings = f"{features!r} {frozen_sha256(features)}" + " isolated" * isolated
    known = _COMPUTED.get(data)
    if known is None or known[0] != settings:
        known = (settings, _precomputed(data, features, device, isolated=isolated))
        _COMPUTED[data] = known
    return without_features(model), known[1]


def _precomputed(data: Dataset, features: nn.Module, device: str, *, isolated: bool) -> Dataset:
    """The features of a data set; of a published one they may be kept for the next run."""
    if not isinstance(features, FixedFeatures) or not is_published(data):
        return precompute_features(data, features, device=device, isolated=isolated)

    def both() -> NDArray[np.float32]:
        found = precompute_features(data, features, device=device, isolated=isolated)
        return np.concatenate([found.train_inputs, found.test_inputs])

    train, test, scaling = data.train_inputs, data.test_inputs, data.normalisation
    kind = torch.device(device).type  # a GPU rounds otherwise
    parts = (train, test, scaling, kind, isolated)
    rows = features.kept(parts, (len(train) + len(test), features.width), both)
    return _with_features(data, features, rows[: len(train)], rows[len(train) :])


def without_features(model: nn.Module) -> nn.Module:
    """The model for records whose features are computed already; parameters keep their names.

    Example:
        >>> frozen = nn.Linear(64, 9).requires_grad_(False)
        >>> without_features(nn.Sequential(frozen, nn.Linear(9, 10)))
        Sequential(
          (0): Identity()
          (1): Linear(in_features=9, out_features=10, bias=True)
        )
    """
    count = _fixed_layers(model)
    if count == 0:
        return model
    rest = list(model.children())[count:]
    return nn.Sequential(*(nn.Identity() for _ in range(count)), *rest)


def _features_of(model: nn.Module) -> nn.Module | None:
    layers = list(model.children())[: _fixed_layers(model)]
    if not layers:
        return None
    return layers[0] if isinstance(layers[0], FixedFeatures) else nn.Sequential(*layers)


def _fixed_layers(model: nn.Module) -> int:
    """How many of a sequence's first layers are fixed: a formula, or frozen up to there."""
    if getattr(type(model), "forward", None) is not nn.Sequential.forward:
        return 0  # a forward of its own may do otherwise
    layers = list(model.children())
    if layers and isinstance(layers[0], FixedFeatures):
        return 1
    count = 0
    for layer in layers[:-1]:
        if any(p.requires_grad for p in layer.parameters()) or _draws(layer):
            break
        count += 1
    return count if any(True for layer in layers[:count] for _ in layer.parameters()) else 0


def _draws(module: nn.Module) -> bool:
    """Whether it draws random numbers of its own."""
    return any(
        isinstance(part, _DropoutNd) and part.training and part.p > 0 for part in module.modules()
    )


@torch.no_grad()
def _has_room(features: nn.Module, data: Dataset) -> bool:
    """Whether they are a vector a record, and those of all records fit."""
    if isinstance(features, FixedFeatures):
        return True
    one = torch.as_tensor(np.zeros((1, *data.input_shape), data.train_inputs.dtype))
    found = features(one if data.train_inputs.dtype == np.int64 else one.float())
    records = len(data) + len(data.test_labels)
    return bool(found.ndim == 2 and found.numel() * records <= _MOST_FEATURES)


@torch.no_grad()
def _refuse_mixing(features: nn.Module, data: Dataset) -> None:
    """Change one of many made-up records: the features of the others must stay as they are."""
    if _draws(features):
        raise InputError.because(
            f"{type(features).__name__} draws random numbers (dropout). Put it in .eval() first."
        )
    module = copy.deepcopy(features).cpu()
    kept = {name: value.clone() for name, value in module.named_buffers()}
    tokens = data.train_inputs.dtype == np.int64
    numbers = np.random.default_rng(0).random((_MADE_UP, *data.input_shape), np.float32)
    records = torch.as_tensor(np.zeros_like(numbers, np.int64) if tokens else numbers)
    changed, middle = records.clone(), _MADE_UP // 2
    changed[middle] = 1 - changed[middle]
    with telling(f"{type(features).__name__} cannot be run on records of shape {data.input_shape}"):
        before, after = module(records), module(changed)
    others = torch.arange(_MADE_UP) != middle
    same = len(before) == _MADE_UP and torch.allclose(before[others], after[others], 1e-6, 1e-7)
    stored = any(not torch.equal(value, kept[name]) for name, value in module.named_buffers())
    if not same or stored:
        raise InputError.because(
            f"{type(features).__name__} gives a record other features depending on the records "
            "beside it, or remembers them: no promise about the features would hold for the "
            "records. Put it in .eval(), or take out what mixes records (BatchNorm, for one)."
        )
