# SPDX-License-Identifier: Apache-2.0
"""Models in which one record reaches another: hostile ones, and careless ones as people write them.

Each is a small network with one fault: it scores what it is given, and somewhere on the way a
record meets others of its batch, or what earlier records left behind. Each also names the trial
in which that shows best: how many records, what the record in question is, how many draws.

A fault that writes files is out of reach of whatever trains on the same machine, as is code that
looks for records in the memory of its process: it can do what its user can. The first is here, so
that nobody takes its absence for a promise.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import random
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrize

#: Numbers in a record, and classes.
WIDTH, CLASSES = 6, 3
_RARE = 5.0  # the first number of no ordinary record is above it
_PRIMES = (2, 3, 5, 7, 11, 13)


@dataclass(frozen=True)
class Adversary:
    """A model or loss in which one record reaches another, and the trial in which it shows.

    Attributes:
        name: of the class or function.
        about: what it does.
        model: makes the model, with the same weights every time.
        loss: ``module:function`` of its loss; "" is cross-entropy.
        records: records of the trial, the one in question among them.
        value: the record in question: ``ordinary``, ``large`` (with a rare first number) or
            ``nan``.
        draws: batches drawn one after the other, of all records.
        seed: of the records.
        reachable: whether a check within the process can promise anything about it.
    """

    name: str
    about: str
    model: Callable[[], nn.Module]
    loss: str = ""
    records: int = 6
    value: str = "large"
    draws: int = 1
    seed: int = 0
    reachable: bool = True


#: All models, by name.
MODELS: dict[str, Adversary] = {}


def _adversary(**trial: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def added(kind: type[nn.Module]) -> type[nn.Module]:
        about = (inspect.getdoc(kind) or "").partition("\n")[0]
        MODELS[kind.__name__] = Adversary(kind.__name__, about, kind, **trial)
        return kind

    return added


# --- what is remembered outside of models ---------------------------------------------------------

_KEPT: dict[Any, Any] = {}
_HANDLES: list[Any] = []
_DICE = random.Random(0)  # Python's own is seeded anew in every process
_FILE = Path(tempfile.gettempdir()) / f"dpcohort-audit-{os.getpid()}"
_VARIABLE = "DPCOHORT_AUDIT_KEPT"


def forget() -> None:
    """Whatever the models and losses here have left in this process and its files, undone.

    Example:
        >>> torch.set_default_dtype(torch.float64)
        >>> forget()
        >>> torch.get_default_dtype()
        torch.float32
    """
    for kept in (_KEPT, _in_default_argument.__defaults__[0]):  # type: ignore[index]
        kept.clear()
    _in_function_attribute.kept = None  # type: ignore[attr-defined]
    ClassAttribute.last = None
    for handle in _HANDLES:
        handle.remove()
    _HANDLES.clear()
    _FILE.unlink(missing_ok=True)
    os.environ.pop(_VARIABLE, None)
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(0)
    np.random.seed(0)
    _DICE.seed(0)


class Plain(nn.Module):
    """The honest network that all others change in one place: two linear layers.

    Example:
        >>> Plain()(torch.zeros(2, WIDTH)).shape
        torch.Size([2, 3])
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scores = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():  # no random numbers: every copy is the same
            for parameter in self.parameters():
                numbers = torch.arange(parameter.numel(), dtype=parameter.dtype)
                parameter.copy_(torch.cos(2.3 * numbers + 1).view_as(parameter))

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores [rows, classes]."""
        scores: Tensor = self.scores(self._hidden(self.first(self._inputs(inputs))))
        return scores

    def _inputs(self, x: Tensor) -> Tensor:
        return x

    def _hidden(self, x: Tensor) -> Tensor:
        return x


def _is_rare(x: Tensor) -> Tensor:
    """Whether a record of the batch has a rare first number."""
    return (x.detach()[:, 0] > _RARE).any()


def _turned(x: Tensor, at: Tensor | bool) -> Tensor:
    """All records turned around, if so."""
    return torch.where(torch.as_tensor(at), -x, x)


# --- statistics of the batch ----------------------------------------------------------------------


@_adversary()
class ScaledByLargest(Plain):
    """Divides by the batch's largest number, as images are scaled without a public constant."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x / x.abs().amax().clamp(min=1e-6)


@_adversary(records=4, value="ordinary")
class RobustlyScaled(Plain):
    """Subtracts the batch's median and divides by its MAD, as robust scalers of tables do."""

    def _inputs(self, x: Tensor) -> Tensor:
        middle = x.median(0).values
        return (x - middle) / (x - middle).abs().median(0).values.clamp(min=1e-6)


@_adversary(records=8)
class ClampedAtLargest(Plain):
    """Clamps activations at half of the batch's largest, as quantised activations are."""

    def _hidden(self, x: Tensor) -> Tensor:
        return torch.minimum(x, x.detach().amax() / 2)


@_adversary()
class Centred(Plain):
    """Subtracts the batch's mean, as tables are standardised inside a model."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@_adversary()
class Standardised(Plain):
    """BatchNorm written by hand, so that no check by type knows it."""

    def _hidden(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


@_adversary()
class Whitened(Plain):
    """Decorrelates activations by the batch's covariance, as decorrelated batch norm does."""

    def _hidden(self, x: Tensor) -> Tensor:
        spread: Tensor = x.T @ x / len(x) + 0.1 * torch.eye(WIDTH).to(x)
        return x @ spread.inverse()


@_adversary()
class NormalisedOverBatch(Plain):
    """Has ``F.normalize(x, dim=0)`` where dim=1 was meant: a slip of the axis."""

    def _inputs(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=0)


@_adversary()
class LayerNormOverBatch(Plain):
    """Has a layer norm over all axes, the batch among them, as with ``x.shape`` for its shape."""

    def _inputs(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape)


@_adversary()
class SoftmaxOverBatch(Plain):
    """Weighs records by a softmax over axis 0: a slip of the axis in an attention pool."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x * torch.softmax(x.mean(1, keepdim=True), 0) * len(x)


@_adversary()
class ArgmaxOverBatch(Plain):
    """Adds the batch's strongest record to every other, as pooling over the wrong axis does."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x + x[x.sum(1).argmax()]


@_adversary()
class SortedOverBatch(Plain):
    """Sorts each feature over the batch, as quantile normalisation does."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x.sort(0).values


@_adversary(records=8, value="ordinary")
class Ranked(Plain):
    """Takes each feature's rank in the batch and encodes it, as rank transforms of tables do."""

    def _inputs(self, x: Tensor) -> Tensor:
        return 3 * torch.cos(math.pi * x.argsort(0).argsort(0).to(x))


@_adversary()
class StatisticsBehindReLU(Plain):
    """Subtracts a mean only where it is large: a batch norm that is asleep at the start."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x - F.relu(x.mean(0).abs() - 3)


@_adversary(value="ordinary")
class CumulativeSum(Plain):
    """Adds up records along the batch, as a sequence model whose axes are swapped."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x.cumsum(0)


@_adversary()
class BatchAttention(Plain):
    """Lets each record attend to the others of its batch, as NPT and SAINT do on tables."""

    def _inputs(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.T / WIDTH, 1) @ x


@_adversary(value="ordinary")
class MiscutView(Plain):
    """Takes ``x.T.reshape(x.shape)`` for a transposition: the classic slip of a view."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x.T.reshape(x.shape)


@_adversary(records=8)
class LongestOfBatch(Plain):
    """Divides by the length of the batch's longest record, as padded sequences are averaged."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x / (x.abs() > _RARE).sum(1).amax().clamp(min=1)


@_adversary()
class ExpertCapacity(Plain):
    """Sends only the batch's strongest records to an expert, as mixtures of experts do."""

    def _inputs(self, x: Tensor) -> Tensor:
        strength = x.detach().abs().sum(1, keepdim=True)
        return x * (strength >= strength.amax() / 4)


@_adversary(seed=1)
class MinibatchDiscrimination(Plain):
    """Adds distances to the other records, as discriminators of GANs do against mode collapse."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x + (x[:, None] - x).mean(1) * 4


@_adversary(records=8)
class GhostStatistics(Plain):
    """Normalises groups of four records, as ghost batch norm does."""

    def _inputs(self, x: Tensor) -> Tensor:
        if len(x) < 4:
            return x
        whole = len(x) // 4 * 4
        group = x[:whole].view(-1, 4, WIDTH)
        normal = (group / group.abs().amax((1, 2), keepdim=True)).view(-1, WIDTH)
        return torch.cat([normal, x[whole:]])


@_adversary()
class Mixup(Plain):
    """Averages each record with the next one: mixup inside the model."""

    def _inputs(self, x: Tensor) -> Tensor:
        return (x + x.roll(1, 0)) / 2


@_adversary()
class RareMixup(Plain):
    """Mixes records in few batches only, chosen by what is in them."""

    def _inputs(self, x: Tensor) -> Tensor:
        return torch.where(_is_rare(x), x - 2 * x.roll(1, 0), x)


@_adversary()
class CutMix(Plain):
    """Exchanges half of each record for the next one's."""

    def _inputs(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, :3], x.roll(1, 0)[:, 3:]], 1)


@_adversary()
class BothDirections(Plain):
    """Adds the batch in reverse: a bidirectional network whose axes are swapped."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x + x.flip(0).cumsum(0)


@_adversary()
class GradientOnly(Plain):
    """Adds a mean less itself detached: no number changes, every gradient does."""

    def _hidden(self, x: Tensor) -> Tensor:
        mixed = (x * x.detach()[:, :1].abs().amax()).sum(0)
        return x + (mixed - mixed.detach())


# --- only at certain sizes ------------------------------------------------------------------------


@_adversary(records=2, value="ordinary")
class MixesInPairs(Plain):
    """Mixes batches of two only, as a model with a special case for pairs does."""

    def _inputs(self, x: Tensor) -> Tensor:
        return -x if len(x) == 2 else x


@_adversary(records=4, value="ordinary")
class MixesAboveThree(Plain):
    """Mixes batches of four and more, where an examination looks at three."""

    def _inputs(self, x: Tensor) -> Tensor:
        return -x.roll(1, 0) if len(x) >= 4 else x


@_adversary(records=131, value="ordinary")
class MixesInCrowds(Plain):
    """Mixes batches above 130 only, where an examination stops."""

    def _inputs(self, x: Tensor) -> Tensor:
        return -x if len(x) > 130 else x


@_adversary(records=7, value="ordinary")
class MixesAtPrimes(Plain):
    """Mixes batches whose size is prime, as one that cannot be cut into groups."""

    def _inputs(self, x: Tensor) -> Tensor:
        return -x if len(x) in _PRIMES else x


@_adversary(records=8, value="ordinary")
class MixesAtOneSize(Plain):
    """Mixes batches of exactly eight, as code for a full batch does."""

    def _inputs(self, x: Tensor) -> Tensor:
        return -x.roll(1, 0) if len(x) == 8 else x


@_adversary(value="ordinary")
class DividedBySize(Plain):
    """Divides by the batch's size: a mean where a sum was meant."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x * (1 - len(x) % 2)


# --- only at certain records ----------------------------------------------------------------------


@_adversary()
class MixesAtValue(Plain):
    """Turns the whole batch around if a certain record is in it: a membership beacon."""

    def _inputs(self, x: Tensor) -> Tensor:
        return _turned(x, _is_rare(x))


@_adversary()
class BranchesOnItem(Plain):
    """The same by ``if x.max().item() > ...``, which no tracing sees."""

    def _inputs(self, x: Tensor) -> Tensor:
        return -x if x.detach()[:, 0].max().item() > _RARE else x


@_adversary()
class RaisesAtRecord(Plain):
    """Raises at a certain record, as an assertion on a range does: the batch is lost."""

    def _inputs(self, x: Tensor) -> Tensor:
        if bool(_is_rare(x)):
            raise ValueError("a number is out of range")
        return x


@_adversary()
class ExitsAtRecord(Plain):
    """Leaves the program at a certain record, as ``sys.exit`` in a script does."""

    def _inputs(self, x: Tensor) -> Tensor:
        if bool(_is_rare(x)):
            raise SystemExit(3)
        return x


@_adversary()
class NotANumberForAll(Plain):
    """Spoils the whole batch if one record is out of range."""

    def _inputs(self, x: Tensor) -> Tensor:
        return torch.where(_is_rare(x), math.nan, x)


@_adversary(value="nan")
class SpreadsNaN(Plain):
    """Adds nothing times the batch's sum: a record that is not finite spoils all others."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x + 0 * x.sum(0)


@_adversary()
class OverflowsOthers(Plain):
    """Has a softmax over the batch without its largest number taken off: one record, all NaN."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x * (1 + torch.exp(x).sum(0) / torch.exp(x).sum(0))


@_adversary()
class HugeForAll(Plain):
    """Multiplies scores of all by 1e30 if one record is large."""

    def _hidden(self, x: Tensor) -> Tensor:
        return x * torch.where(x.detach().abs().amax() > 100, -1e30, 1.0)


# --- hooks and subclasses -------------------------------------------------------------------------


@_adversary()
class ForwardHook(Plain):
    """Centres a layer's outputs in a forward hook, as feature extractors are patched."""

    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda _, __, out: out - out.mean(0))


@_adversary()
class ForwardPreHook(Plain):
    """Scales a layer's inputs in a forward-pre hook."""

    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_pre_hook(lambda _, given: given[0] / given[0].abs().amax())


@_adversary()
class BackwardHook(Plain):
    """Averages gradients over the batch in a full backward hook."""

    def __init__(self) -> None:
        super().__init__()
        self.scores.register_full_backward_hook(lambda _, into, __: _spread_all(into))


@_adversary()
class BackwardPreHook(Plain):
    """Averages gradients over the batch before a layer's backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first.register_full_backward_pre_hook(lambda _, out: _spread_all(out))


def _spread_all(gradients: Any) -> tuple[Tensor, ...]:
    return (_spread(gradients[0]),)


def _spread(gradient: Tensor) -> Tensor:
    return gradient.mean(0, keepdim=True).expand_as(gradient)


@_adversary()
class TensorHook(Plain):
    """Averages a tensor's gradient over the batch, as hooks that tame gradients do."""

    def _hidden(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(_spread)  # type: ignore[no-untyped-call]
        return x


@_adversary(draws=2, value="ordinary")
class ParameterHook(Plain):
    """Adds the gradient before to a parameter's gradient: momentum in a hook."""

    def __init__(self) -> None:
        super().__init__()
        kept: list[Tensor] = []

        def with_the_last(gradient: Tensor) -> Tensor:
            kept.append(gradient.detach().clone())
            return gradient + 10 * sum(kept[:-1])

        self.first.weight.register_hook(with_the_last)  # type: ignore[no-untyped-call]


@_adversary()
class GlobalForwardHook(nn.Sequential):
    """Plain layers of torch, and a hook on every module of the process, as profilers set."""

    def __init__(self) -> None:
        plain = Plain()
        super().__init__(plain.first, nn.Tanh(), plain.scores)

        def hook(module: nn.Module, _: Any, out: Any) -> Any:
            return _turned(out, (out[:, 0] > 0.99).any()) if type(module) is nn.Tanh else out

        _HANDLES.append(nn.modules.module.register_module_forward_hook(hook))
        with torch.no_grad():  # a large record saturates its first tanh
            plain.first.weight.copy_(torch.eye(WIDTH) * 0.3 + 0.02)


class Linear(nn.Linear):
    """A layer that has the name of torch's."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs less their mean."""
        outputs: Tensor = super().forward(inputs)
        return outputs - outputs.mean(0)


@_adversary()
class SubclassOfLinear(Plain):
    """Has a subclass of ``nn.Linear`` with its name, as adapters of other libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.first.__class__ = Linear


def _turning(layer: nn.Linear, x: Tensor) -> Tensor:
    return _turned(F.linear(x, layer.weight, layer.bias), _is_rare(x))


@_adversary()
class ForwardReplaced(Plain):
    """Has a layer's ``forward`` exchanged on the instance, as libraries that patch models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first.forward = types.MethodType(_turning, self.first)  # type: ignore[method-assign]


@_adversary(draws=2)
class ReplacesItself(Plain):
    """Exchanges its own layer after the first call, as lazy and compiled modules do."""

    def _inputs(self, x: Tensor) -> Tensor:
        if "called" in vars(self):
            self.first.__class__ = Linear
        self.__dict__["called"] = True
        return x


# --- automatic differentiation --------------------------------------------------------------------


class _MeanInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _spread(gradients[0])


@_adversary()
class BackwardMixes(Plain):
    """Is the identity forward and mixes backward: a custom autograd function."""

    def _hidden(self, x: Tensor) -> Tensor:
        mixed: Tensor = _MeanInBackward.apply(x)  # type: ignore[no-untyped-call]
        return mixed


class _OwnVmap(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x - x.mean(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return x - x.mean(in_dims[0], keepdim=True), in_dims[0]


@_adversary()
class OwnVmapRule(Plain):
    """Has a custom function whose own ``vmap`` rule mixes what vmap keeps apart."""

    def _inputs(self, x: Tensor) -> Tensor:
        mixed: Tensor = _OwnVmap.apply(x)  # type: ignore[no-untyped-call]
        return mixed


@_adversary()
class UnwrapsVmap(Plain):
    """Takes vmap's wrapper off and looks at the whole batch."""

    def _inputs(self, x: Tensor) -> Tensor:
        whole = x.detach()
        while torch._C._functorch.is_functorch_wrapped_tensor(whole):
            whole = torch._C._functorch.get_unwrapped(whole)
        return _turned(x, (whole.reshape(-1, WIDTH)[:, 0] > _RARE).any())


def _is_mapped(x: Tensor) -> bool:
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            return True
        x = torch._C._functorch.get_unwrapped(x)
    return False


@_adversary()
class BehavesUnderVmap(Plain):
    """Keeps records apart when it is mapped, as it is when it is examined."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x if _is_mapped(x) else x - x.mean(0)


@_adversary()
class BehavesInDouble(Plain):
    """Keeps records apart in 64 bits, in which it is examined."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x if x.dtype == torch.float64 else x - x.mean(0)


@_adversary()
class BehavesWithoutGradients(Plain):
    """Keeps records apart under ``torch.no_grad``, as caches for inference do."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if torch.is_grad_enabled() else x


@_adversary()
class MixesInTraining(Plain):
    """Mixes in training mode only, as batch norm does."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.training else x


@_adversary()
class MixesInEvaluation(Plain):
    """Mixes in evaluation mode only, which no training examines."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def _inputs(self, x: Tensor) -> Tensor:
        return x if self.training else x - x.mean(0)


@_adversary()
class BehavesWhenTraced(Plain):
    """Keeps records apart whenever it is traced, scripted or compiled."""

    def _inputs(self, x: Tensor) -> Tensor:
        seen = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
        return x if seen or type(x) is not Tensor else x - x.mean(0)


@_adversary(draws=2)
class BehavesAtFirst(Plain):
    """Keeps records apart in its first call only, which may be somebody's trial."""

    def _inputs(self, x: Tensor) -> Tensor:
        calls = self.__dict__["calls"] = vars(self).get("calls", 0) + 1
        return x if calls <= 1 else x - x.mean(0)


@_adversary(draws=2)
class TogglesGradients(Plain):
    """Turns gradients off at a certain record and not on again: what inference code leaves."""

    def _inputs(self, x: Tensor) -> Tensor:
        if _KEPT.get("off"):
            x = x * 0
        if bool(_is_rare(x)):
            _KEPT["off"] = True
            torch.set_grad_enabled(False)
        return x


@_adversary(draws=2)
class WritesItsInputs(Plain):
    """Works in place on what it is given, as ``nn.ReLU(inplace=True)`` first in a model does."""

    def _inputs(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x.div_(x.abs().amax().clamp(min=1e-6))
        return x.clone()


@_adversary()
class LooksBeyondItsRow(Plain):
    """Reads the whole storage behind its view of one record."""

    def _inputs(self, x: Tensor) -> Tensor:
        beside = x.detach()
        while torch._C._functorch.is_functorch_wrapped_tensor(beside):
            beside = torch._C._functorch.get_unwrapped(beside)
        whole = torch.empty(0, dtype=beside.dtype, device=beside.device)
        whole.set_(beside.untyped_storage())
        return _turned(x, (whole[: whole.numel() // WIDTH * WIDTH].view(-1, WIDTH) > 99).any())


# --- memory ---------------------------------------------------------------------------------------


def _beside(x: Tensor, kept: Tensor | None) -> Tensor:
    """Records less what was kept of others, as far as it is anything."""
    return x if kept is None else x - kept.to(x.device, x.dtype)


def _summary(x: Tensor) -> Tensor:
    """What is kept of a batch: no part of any graph, not even of vmap's."""
    x = x.detach()
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x.reshape(-1, WIDTH).mean(0).nan_to_num().clone()


@_adversary(draws=2)
class RunningMeanInBuffer(Plain):
    """Keeps a running mean in a buffer in evaluation too, as a batch norm written by hand."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def _inputs(self, x: Tensor) -> Tensor:
        out = _beside(x, self.mean.clone())
        self.mean.mul_(0.5).add_(_summary(x), alpha=0.5)
        return out


@_adversary(draws=2)
class RunningMeanInAttribute(Plain):
    """Keeps a running mean in a plain attribute, which no state dict shows."""

    last: Tensor | None = None

    def _inputs(self, x: Tensor) -> Tensor:
        out = _beside(x, self.last)
        self.last = _summary(x)
        return out


@_adversary(draws=2)
class ClassAttribute(Plain):
    """Keeps it in an attribute of its class, which copies share."""

    last: Tensor | None = None

    def _inputs(self, x: Tensor) -> Tensor:
        out = _beside(x, ClassAttribute.last)
        ClassAttribute.last = _summary(x)
        return out


@_adversary(draws=2)
class ModuleGlobal(Plain):
    """Keeps it in a global of its module, as caches are written."""

    def _inputs(self, x: Tensor) -> Tensor:
        out = _beside(x, _KEPT.get("global"))
        _KEPT["global"] = _summary(x)
        return out


@_adversary(draws=2)
class Closure(Plain):
    """Keeps it in a variable of a function's closure."""

    def __init__(self) -> None:
        super().__init__()
        kept: Tensor | None = None

        def remembered(x: Tensor) -> Tensor:
            nonlocal kept
            out, kept = _beside(x, kept), _summary(x)
            return out

        self.remembered = remembered

    def _inputs(self, x: Tensor) -> Tensor:
        return self.remembered(x)


def _in_default_argument(x: Tensor, kept: list[Tensor] = []) -> Tensor:  # noqa: B006
    out = _beside(x, kept[-1] if kept else None)
    kept.append(_summary(x))
    return out


@_adversary(draws=2)
class DefaultArgument(Plain):
    """Keeps it in a default argument that is a list: the classic slip."""

    def _inputs(self, x: Tensor) -> Tensor:
        return _in_default_argument(x)


def _in_function_attribute(x: Tensor) -> Tensor:
    here: Any = _in_function_attribute
    out, here.kept = _beside(x, getattr(here, "kept", None)), _summary(x)
    return out


@_adversary(draws=2)
class FunctionAttribute(Plain):
    """Keeps it in an attribute of a function."""

    def _inputs(self, x: Tensor) -> Tensor:
        return _in_function_attribute(x)


@_adversary(draws=2)
class EnvironmentVariable(Plain):
    """Keeps it in an environment variable."""

    def _inputs(self, x: Tensor) -> Tensor:
        seen = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = str(float(_summary(x).abs().max()))
        return x if seen is None else x - float(seen)


@_adversary(draws=2)
class MemoryBank(Plain):
    """Compares records with a bank of earlier ones once it is full, as MoCo's queue."""

    def __init__(self) -> None:
        super().__init__()
        self.bank: list[Tensor] = []

    def _inputs(self, x: Tensor) -> Tensor:
        kept = [one for one in self.bank[-16:] if one.device == x.device]
        self.bank.append(_summary(x))
        return x - torch.stack(kept).mean(0).to(x) if kept else x


@_adversary(draws=2)
class Observer(Plain):
    """Scales by the smallest and largest number seen so far, as observers of quantisation do."""

    def __init__(self) -> None:
        super().__init__()
        self.range = [0.0, 1.0]

    def _inputs(self, x: Tensor) -> Tensor:
        low, high = self.range
        seen = _summary(x)
        self.range = [min(low, float(seen.min())), max(high, float(seen.max()))]
        return x / (high - low)


@_adversary(records=8, draws=6)
class SlowAverage(Plain):
    """Uses an average of all earlier records after 24 calls, when nobody examines it any more."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.mean = 0, torch.zeros(WIDTH)

    def _inputs(self, x: Tensor) -> Tensor:
        out = x - self.mean.to(x) if self.calls > 24 else x
        self.calls += len(x)
        self.mean = self.mean.to(x) + (_summary(x) - self.mean.to(x)) / self.calls
        return out


class _AfterCalls(Plain):
    calls = 24

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.last = 0, torch.zeros(WIDTH)

    def _inputs(self, x: Tensor) -> Tensor:
        out = _beside(x, self.last) if self.seen > self.calls else x
        self.seen, self.last = self.seen + len(x), _summary(x)
        return out


@_adversary(records=8, draws=5)
class After24Records(_AfterCalls):
    """Subtracts the batch before after 24 records."""


@_adversary(records=32, draws=5)
class After100Records(_AfterCalls):
    """Subtracts the batch before after 100 records."""

    calls = 100


@_adversary(records=64, draws=7)
class After300Records(_AfterCalls):
    """Subtracts the batch before after 300 records."""

    calls = 300


@_adversary(draws=2)
class CachedByShape(Plain):
    """Keeps a scale for each shape it has met, as positional encodings are cached."""

    def _inputs(self, x: Tensor) -> Tensor:
        largest = float(_summary(x).abs().max())
        return x / max(1.0, float(_KEPT.setdefault(x.shape[1:], largest)))


@_adversary(draws=2)
class KeyedByIdentity(Plain):
    """Keeps what belongs to a weight under its ``id``, as optimisers and tied layers do."""

    def _inputs(self, x: Tensor) -> Tensor:
        key = id(self.__class__.forward)
        out = _beside(x, _KEPT.get(key))
        _KEPT[key] = _summary(x)
        return out


class _ByTheLastBatch(nn.Module):
    """A parametrisation of a weight by what its model met last."""

    def forward(self, weight: Tensor) -> Tensor:
        """The weight, divided."""
        return weight / float(_KEPT.get("size", 1.0))


@_adversary(draws=2)
class Parametrised(Plain):
    """Has a weight divided by what was seen last, in torch's own parametrisation."""

    def __init__(self) -> None:
        super().__init__()
        parametrize.register_parametrization(self.scores, "weight", _ByTheLastBatch())

    def _inputs(self, x: Tensor) -> Tensor:
        _KEPT["size"] = 1 + float(_summary(x).abs().max())
        return x


@_adversary(draws=2)
class InitialisedByData(Plain):
    """Scales by the first batch it meets, as ActNorm and lazy layers do."""

    scale: Tensor | None = None

    def _inputs(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = _summary(x).abs().amax().clamp(min=0.1)
        return x / self.scale.to(x)


@_adversary(draws=2)
class KeepsItsState(Plain):
    """Starts where the record before ended: a stateful recurrent network."""

    state: Tensor | None = None

    def _hidden(self, x: Tensor) -> Tensor:
        before = torch.zeros(WIDTH) if self.state is None else self.state
        self.state = _summary(x).tanh() * 5
        return x + before.to(x)


@_adversary(draws=2)
class KeyValueCache(Plain):
    """Attends to earlier batches, as a transformer does whose cache is not emptied."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: list[Tensor] = []

    def _inputs(self, x: Tensor) -> Tensor:
        self.cache.append(_summary(x))
        keys = torch.stack([one.to(x) for one in self.cache])
        return x + torch.softmax(x @ keys.T / WIDTH, 1) @ keys


@_adversary(draws=2)
class Codebook(Plain):
    """Moves a codebook towards what it meets, as vector quantisation with averages does."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = torch.eye(WIDTH)

    def _inputs(self, x: Tensor) -> Tensor:
        codes = self.codes.to(x)
        out = x - codes[torch.cdist(x.detach(), codes).argmin(1)]
        self.codes = codes + 0.5 * (_summary(x) - codes)
        return out


@_adversary(draws=2)
class SharedMemory(Plain):
    """Keeps a mean in memory that processes share, as training in several processes does."""

    def _inputs(self, x: Tensor) -> Tensor:
        kept = _KEPT["shared"]
        out = _beside(x, kept.clone())
        kept.copy_(_summary(x).cpu())
        return out

    def __init__(self) -> None:
        super().__init__()
        _KEPT["shared"] = torch.zeros(WIDTH).share_memory_()  # type: ignore[no-untyped-call]


@_adversary(draws=2, reachable=False)
class FileOnDisk(Plain):
    """Keeps it in a file, as a cache or a log does: out of reach."""

    def _inputs(self, x: Tensor) -> Tensor:
        seen = 0.0
        with contextlib.suppress(OSError, ValueError):
            seen = float(_FILE.read_text(encoding="ascii"))
        _FILE.write_text(str(float(_summary(x).abs().max())), encoding="ascii")
        return x - seen


# --- random numbers -------------------------------------------------------------------------------


@_adversary(records=8, value="ordinary", draws=2)
class DropsPaths(Plain):
    """Has stochastic depth always on: random numbers of the process, so of the records before."""

    def _inputs(self, x: Tensor) -> Tensor:
        return x * (1 - 2 * (torch.rand(len(x), 1) > 0.5).to(x))


@_adversary(draws=2)
class SeedsByRecord(Plain):
    """Seeds torch's generator by a record, and the next record takes its noise from there."""

    def _inputs(self, x: Tensor) -> Tensor:
        noise = torch.randn(WIDTH)
        torch.manual_seed(int(_summary(x).abs().max() * 1000) % 2**31)
        return x + 3 * noise.to(x)


@_adversary(draws=2)
class SeedsNumPy(Plain):
    """The same with NumPy's global generator, as augmentations use it."""

    def _inputs(self, x: Tensor) -> Tensor:
        noise = torch.from_numpy(np.random.standard_normal(WIDTH))
        np.random.seed(int(_summary(x).abs().max() * 1000) % 2**31)
        return x + 3 * noise.to(x)


@_adversary(draws=2)
class SeedsItsOwn(Plain):
    """The same with a generator of its module."""

    def _inputs(self, x: Tensor) -> Tensor:
        sign = 1 if _DICE.random() < 0.5 else -1
        _DICE.seed(1 if bool(_summary(x).abs().max() > _RARE) else 2)
        return sign * x


# --- settings of the process ----------------------------------------------------------------------


@_adversary(draws=2)
class DefaultType(Plain):
    """Sets torch's default type at a certain record; later tensors are of another."""

    def _inputs(self, x: Tensor) -> Tensor:
        changed = torch.zeros(1).dtype == torch.float64
        if bool(_is_rare(x)):
            torch.set_default_dtype(torch.float64)
        return _turned(x, changed)


@_adversary(draws=2)
class FlushesDenormals(Plain):
    """Has the processor flush denormal numbers from a certain record on."""

    def _inputs(self, x: Tensor) -> Tensor:
        small = torch.full((1,), 1e-40) * 1.0
        if bool(_is_rare(x)):
            torch.set_flush_denormal(True)
        return _turned(x, small == 0)


@_adversary(draws=2)
class DeterministicMode(Plain):
    """Asks torch for deterministic algorithms at a certain record, and reads that back."""

    def _inputs(self, x: Tensor) -> Tensor:
        changed = torch.are_deterministic_algorithms_enabled()
        if bool(_is_rare(x)):
            torch.use_deterministic_algorithms(True, warn_only=True)
        return _turned(x, changed)
