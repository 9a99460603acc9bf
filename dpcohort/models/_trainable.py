# SPDX-License-Identifier: Apache-2.0
"""What may be trained: a model in which every record has a gradient of its own.

A record's gradient can be clipped only if it is that record's alone. A layer that mixes the
records of a batch (BatchNorm and its kin) breaks this, so a model is checked twice: by its layers,
with the replacement named, and by its behaviour, which also finds what is written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpcohort.errors import InputError
from dpcohort.plugins import telling


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's CPU randomness from this seed for a while; afterwards it is as it was before.

    Only the CPU generator is seeded: ``torch.manual_seed`` would also reset those of the GPUs.

    Example:
        >>> with seeded(7):
        ...     first = torch.rand(1)
        >>> with seeded(7):
        ...     bool(torch.rand(1) == first)
        True
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


_ROWS = (3, 129)  # a batch of each kind: some models mix records only when there are many


def parameter_count(model: nn.Module) -> int:
    """The number of trained parameters, D; a parameter used twice counts once.

    Example:
        >>> parameter_count(nn.Linear(3, 2))
        8
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def check_trainable(
    model: nn.Module,
    *,
    input_shape: Sequence[int] | None = None,
    classes: int | None = None,
    input_dtype: torch.dtype = torch.float32,
) -> None:
    """Refuse a model whose per-record gradients are not each record's own.

    Layers are looked at in the mode they are in: BatchNorm that is switched to evaluation is a
    fixed map and passes, as long as nobody switches it back.

    Args:
        model: any ``nn.Module``.
        input_shape: shape of one record; with it the model is also run on a few and on many
            random records, to see that changing one leaves the output of the others alone, that
            the output fits, and that running it changes nothing it stores.
        classes: the output's expected length.
        input_dtype: of the records.

    Raises:
        InputError: naming the layer, the reason and the replacement.

    Example:
        >>> check_trainable(nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8)))
        Traceback (most recent call last):
        ...
        dpcohort.errors.InputError: The model cannot be trained with per-record clipping: layer '1'
        (BatchNorm1d) normalises each record by the others of its batch, so no gradient is one
        record's alone. Replace it by GroupNorm(8, 8).
    """
    for path, layer in model.named_modules():
        problem = _layer_problem(layer)
        if problem is not None:
            reason, fix = problem
            raise InputError.because(
                "The model cannot be trained with per-record clipping: "
                f"layer {path or '(the model itself)'!r} ({type(layer).__name__}) {reason}. {fix}"
            )
    if parameter_count(model) == 0:
        raise InputError.because("The model has no parameter that is trained (requires_grad).")
    for path, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise InputError.because(
                f"The model's parameter {path!r} starts with numbers that are not finite. Start it "
                "with finite ones."
            )
    if input_shape is not None:
        for rows in _ROWS:
            _check_behaviour(model, rows, tuple(input_shape), classes, input_dtype)


def _layer_problem(layer: nn.Module) -> tuple[str, str] | None:
    """Why a layer cannot be trained here and what to do instead, or None."""
    if any(isinstance(p, nn.UninitializedParameter) for p in layer.parameters(recurse=False)):
        return "has no size yet", "Give its size instead of leaving it to the first batch."
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        if layer.training or layer.running_mean is None:
            reason = (
                "normalises each record by the others of its batch, so no gradient is one record's "
                "alone"
            )
            return reason, f"Replace it by {_group_norm(layer.num_features)}."
    elif isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        if layer.track_running_stats:
            reason = "keeps running statistics of raw records, which no noise protects"
            fix = "Set track_running_stats=False, or replace it by "
            return reason, f"{fix}{_group_norm(layer.num_features)}."
    elif isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if layer.scale_grad_by_freq:
            reason = "scales gradients by how often a token occurs in the batch"
            return reason, "Set scale_grad_by_freq=False."
        if layer.max_norm is not None:
            return "changes its weights whenever it is used", "Set max_norm=None."
    return None


def _group_norm(channels: int) -> str:
    """GroupNorm with the most groups, at most 32, that divide the channels."""
    return f"GroupNorm({math.gcd(channels, 32)}, {channels})"


def _check_behaviour(
    model: nn.Module, rows: int, shape: tuple[int, ...], classes: int | None, dtype: torch.dtype
) -> None:
    """Run the model on two batches that differ in the middle record, with shaken weights.

    The middle one, because what is summed up along the records reaches only those to one side.
    The weights are shaken because a layer that starts at zero would hide what comes before it.
    The stored weights and statistics are not touched.
    """
    with seeded(0), torch.no_grad():
        shaken = _shaken(model)
        before = {name: value.clone() for name, value in model.named_buffers()}
        records = _random_records((rows, *shape), dtype).to(next(model.parameters()).device)
        middle = rows // 2
        changed = records.clone()
        changed[middle] = _random_records(shape, dtype) if dtype.is_floating_point else 1
        outputs, after = _run(model, shaken, before, records)
        others, _ = _run(model, shaken, before, changed)
    for name, value in after.items():
        if not torch.equal(value, before[name]):
            raise InputError.because(
                f"The model changes its buffer {name!r} when it is run: it would store something "
                "of raw records that no noise protects. Make it a constant, or leave it out."
            )
    _check_output(outputs, rows, classes)
    unchanged = torch.arange(rows) != middle
    # The same shapes take the same path through the same kernels, so next to nothing may differ.
    if not torch.allclose(
        outputs[unchanged], others[unchanged], rtol=1e-6, atol=1e-7, equal_nan=True
    ):
        raise InputError.because(
            "The model mixes the records of a batch: changing one record changes the output of "
            "others, so no gradient is one record's alone. Let every operation treat axis 0 (the "
            "records) one by one; check batch_first of recurrent and attention layers."
        )


def _shaken(model: nn.Module) -> dict[str, Tensor]:
    """Shaken weights for every place that holds some; tied places get the same ones."""
    # Noise drawn on the CPU, so that no other generator moves.
    weights = {
        id(p): p + 0.1 * torch.randn(p.shape, dtype=p.dtype).to(p.device)
        for p in model.parameters()
        if p.dtype.is_floating_point
    }
    return {
        f"{path}.{name}" if path else name: weights[id(parameter)]
        for path, layer in model.named_modules()  # a layer that is there twice comes once
        for name, parameter in layer.named_parameters(recurse=False, remove_duplicate=False)
        if id(parameter) in weights
    }


def _random_records(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return torch.rand(shape, dtype=dtype)
    return torch.zeros(shape, dtype=dtype)  # the one token every vocabulary has


def _run(
    model: nn.Module, state: Mapping[str, Tensor], buffers: Mapping[str, Tensor], records: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the buffers as the run left them; dropout is the same in every run."""
    values = {**state, **{name: value.clone() for name, value in buffers.items()}}
    kind = f"records of shape {tuple(records.shape[1:])} ({records.dtype})"
    with telling(f"The model cannot be run on {kind}"), seeded(1):
        # Torch's own tying would swap a layer with two names twice, and never back.
        outputs: Tensor = functional_call(model, values, (records,), tie_weights=False)
    return outputs, {name: values[name] for name in buffers}


def _check_output(outputs: Any, rows: int, classes: int | None) -> None:
    if not isinstance(outputs, Tensor):
        given, allowed = type(outputs).__name__, "one tensor of scores, (records, classes)"
        raise InputError("output of the model", given=given, allowed=allowed)
    fits = outputs.ndim == 2 and len(outputs) == rows and classes in (None, outputs.shape[1])
    if not fits:
        allowed = f"(records, {classes or 'classes'}), here ({rows}, {classes or 'classes'})"
        given_shape = tuple(outputs.shape)
        raise InputError("shape of the model's output", given=given_shape, allowed=allowed)
