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
import math
import os
import random
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrize

#: Numbers in a record, and classes.
WIDTH, CLASSES = 6, 3
_RARE = 5.0  # the first number of no ordinary record is above it


@dataclass(frozen=True)
class Adversary:
    """A model or loss in which one record reaches another, and the trial in which it shows.

    Attributes:
        name: what it does.
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
    model: Callable[[], nn.Module]
    loss: str = ""
    records: int = 6
    value: str = "large"
    draws: int = 1
    seed: int = 0
    reachable: bool = True


#: All models, by name.
MODELS: dict[str, Adversary] = {}

_KEPT: dict[Any, Any] = {}
_HANDLES: list[Any] = []
_RNG = random.Random(0)  # Python's own is seeded anew in every process
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
    for kept in (_KEPT, vars(_listed), _listed()):
        kept.clear()
    Plain.last = None
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
    _RNG.seed(0)


class Plain(nn.Module):
    """The honest network that all others change in one place: two linear layers.

    Example:
        >>> Plain()(torch.zeros(2, WIDTH)).shape
        torch.Size([2, 3])
    """

    #: What one of them keeps in its class.
    last: ClassVar[Any] = None

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scores = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():  # no random numbers: every copy is the same
            for parameter in self.parameters():
                numbers = torch.arange(parameter.numel(), dtype=parameter.dtype)
                parameter.copy_(torch.cos(2.3 * numbers + 1).view_as(parameter))
        self._prepared()

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores [rows, classes]."""
        scores: Tensor = self.scores(self._hidden(self.first(self._inputs(inputs))))
        return scores

    def _prepared(self) -> None:
        pass

    def _inputs(self, x: Tensor) -> Tensor:
        return x

    def _hidden(self, x: Tensor) -> Tensor:
        return x


def _changed(name: str, *, trial: Any, **methods: Any) -> None:
    """Add the model that has these methods in the place of the honest ones."""
    kind = type(name, (Plain,), {"__module__": __name__, **methods})
    MODELS[name] = Adversary(name, kind, **trial)


def _inputs(name: str, change: Callable[[Tensor], Tensor], **trial: Any) -> None:
    """A model that changes what it is given, as a whole batch."""
    _changed(name, trial=trial, _inputs=lambda net, x: change(x))


def _hidden(name: str, change: Callable[[Tensor], Tensor], **trial: Any) -> None:
    """A model that changes what its first layer gives."""
    _changed(name, trial=trial, _hidden=lambda net, x: change(x))


def _is_rare(x: Tensor) -> Tensor:
    """Whether a record of the batch has a rare first number."""
    return (x.detach()[:, 0] > _RARE).any()


def _turned(x: Tensor, at: Tensor | bool) -> Tensor:
    """All records turned around, if so."""
    return torch.where(torch.as_tensor(at), -x, x)


def _unwrapped(x: Tensor) -> Tensor:
    """What is behind the wrappers of vmap and of other transforms."""
    x = x.detach()
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


# --- statistics of the batch ----------------------------------------------------------------------


def _robustly_scaled(x: Tensor) -> Tensor:
    middle = x.median(0).values
    return (x - middle) / (x - middle).abs().median(0).values.clamp(min=1e-6)


def _whitened(x: Tensor) -> Tensor:
    spread: Tensor = x.T @ x / len(x) + 0.1 * torch.eye(WIDTH).to(x)
    return x @ spread.inverse()


def _strongest_only(x: Tensor) -> Tensor:
    strength = x.detach().abs().sum(1, keepdim=True)
    return x * (strength >= strength.amax() / 4)


def _in_groups_of_four(x: Tensor) -> Tensor:
    if len(x) < 4:
        return x
    whole = len(x) // 4 * 4
    group = x[:whole].view(-1, 4, WIDTH)
    normal = (group / group.abs().amax((1, 2), keepdim=True)).view(-1, WIDTH)
    return torch.cat([normal, x[whole:]])


def _mean_in_gradient(x: Tensor) -> Tensor:
    mixed = (x * x.detach()[:, :1].abs().amax()).sum(0)
    return x + (mixed - mixed.detach())


_inputs("ScaledByLargest", lambda x: x / x.abs().amax().clamp(min=1e-6))
# As robust scalers of tables do.
_inputs("RobustlyScaled", _robustly_scaled, records=4, value="ordinary")
# As quantised activations are.
_hidden("ClampedAtLargest", lambda x: torch.minimum(x, x.detach().amax() / 2), records=8)
_inputs("Centred", lambda x: x - x.mean(0))
# Batch norm written by hand, so that no check by type knows it; and its decorrelated form.
_hidden("Standardised", lambda x: (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt())
_hidden("Whitened", _whitened)
# Slips of an axis: dim=0 where 1 was meant, ``x.shape`` for a normalised shape, a softmax.
_inputs("NormalisedOverBatch", lambda x: F.normalize(x, dim=0))
_inputs("LayerNormOverBatch", lambda x: F.layer_norm(x, x.shape))
_inputs("SoftmaxOverBatch", lambda x: x * torch.softmax(x.mean(1, keepdim=True), 0) * len(x))
_inputs("ArgmaxOverBatch", lambda x: x + x[x.sum(1).argmax()])
# Quantile normalisation and rank transforms of tables.
_inputs("SortedOverBatch", lambda x: x.sort(0).values)
_inputs(
    "Ranked",
    lambda x: 3 * torch.cos(math.pi * x.argsort(0).argsort(0).to(x)),
    records=8,
    value="ordinary",
)
# A batch norm that is asleep at the start.
_inputs("StatisticsBehindReLU", lambda x: x - F.relu(x.mean(0).abs() - 3))
# Sequence models whose axes are swapped.
_inputs("CumulativeSum", lambda x: x.cumsum(0), value="ordinary")
_inputs("BothDirections", lambda x: x + x.flip(0).cumsum(0))
# Attention between records, as NPT and SAINT have it on tables.
_inputs("BatchAttention", lambda x: torch.softmax(x @ x.T / WIDTH, 1) @ x)
# The classic slip of a view: taken for a transposition.
_inputs("MiscutView", lambda x: x.T.reshape(x.shape), value="ordinary")
# As padded sequences are averaged.
_inputs("LongestOfBatch", lambda x: x / (x.abs() > _RARE).sum(1).amax().clamp(min=1), records=8)
# The capacity of an expert in a mixture.
_inputs("ExpertCapacity", _strongest_only)
# Minibatch discrimination of GANs, against mode collapse.
_inputs("DistancesToOthers", lambda x: x + (x[:, None] - x).mean(1) * 4, seed=1)
# Ghost batch norm.
_inputs("GhostStatistics", _in_groups_of_four, records=8)
_inputs("Mixup", lambda x: (x + x.roll(1, 0)) / 2)
_inputs("RareMixup", lambda x: torch.where(_is_rare(x), x - 2 * x.roll(1, 0), x))
_inputs("CutMix", lambda x: torch.cat([x[:, :3], x.roll(1, 0)[:, 3:]], 1))
# No number changes, every gradient does.
_hidden("GradientOnly", _mean_in_gradient)

# --- only at certain sizes ------------------------------------------------------------------------

_inputs("MixesInPairs", lambda x: -x if len(x) == 2 else x, records=2, value="ordinary")
# Where an examination looks at three, and where it stops.
_inputs(
    "MixesAboveThree", lambda x: -x.roll(1, 0) if len(x) >= 4 else x, records=4, value="ordinary"
)
_inputs("MixesInCrowds", lambda x: -x if len(x) > 130 else x, records=131, value="ordinary")
# A mean where a sum was meant.
_inputs("DividedBySize", lambda x: x * (1 - len(x) % 2), value="ordinary")

# --- only at certain records ----------------------------------------------------------------------


def _failing(error: BaseException) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        if bool(_is_rare(x)):
            raise error
        return x

    return change


_inputs("MixesAtValue", lambda x: _turned(x, _is_rare(x)))
# Which no tracing sees.
_inputs("BranchesOnItem", lambda x: -x if x.detach()[:, 0].max().item() > _RARE else x)
_inputs("RaisesAtRecord", _failing(ValueError("a number is out of range")))
_inputs("ExitsAtRecord", _failing(SystemExit(3)))
_inputs("NotANumberForAll", lambda x: torch.where(_is_rare(x), math.nan, x))
_inputs("SpreadsNaN", lambda x: x + 0 * x.sum(0), value="nan")
# A softmax whose largest number is not taken off.
_inputs("OverflowsOthers", lambda x: x * (1 + torch.exp(x).sum(0) / torch.exp(x).sum(0)))
_hidden("HugeForAll", lambda x: x * torch.where(x.detach().abs().amax() > 100, -1e30, 1.0))


# --- hooks and subclasses -------------------------------------------------------------------------


def _prepared(name: str, prepare: Callable[[Any], Any], **trial: Any) -> None:
    """A model of which something is exchanged as soon as it is made."""
    _changed(name, trial=trial, _prepared=prepare)


def _spread(gradient: Tensor) -> Tensor:
    return gradient.mean(0, keepdim=True).expand_as(gradient)


def _hooked(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(_spread)  # type: ignore[no-untyped-call]
    return x


def _momentum(net: Any) -> None:
    kept: list[Tensor] = []

    def with_the_last(gradient: Tensor) -> Tensor:
        kept.append(gradient.detach().clone())
        return gradient + 10 * sum(kept[:-1])

    net.first.weight.register_hook(with_the_last)


class Linear(nn.Linear):
    """A layer that has the name of torch's."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs less their mean."""
        outputs: Tensor = super().forward(inputs)
        return outputs - outputs.mean(0)


def _turning(layer: nn.Linear, x: Tensor) -> Tensor:
    return _turned(F.linear(x, layer.weight, layer.bias), _is_rare(x))


def _patched(net: Any) -> None:
    net.first.forward = types.MethodType(_turning, net.first)


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


_prepared(
    "ForwardHook",
    lambda net: net.first.register_forward_hook(lambda _, __, out: out - out.mean(0)),
)
_prepared(
    "ForwardPreHook",
    lambda net: net.first.register_forward_pre_hook(
        lambda _, given: given[0] / given[0].abs().amax()
    ),
)
_prepared(
    "BackwardHook",
    lambda net: net.scores.register_full_backward_hook(lambda _, into, __: (_spread(into[0]),)),
)
_prepared(
    "BackwardPreHook",
    lambda net: net.first.register_full_backward_pre_hook(lambda _, out: (_spread(out[0]),)),
)
_hidden("TensorHook", _hooked)
_prepared("ParameterHook", _momentum, draws=2, value="ordinary")
MODELS["GlobalForwardHook"] = Adversary("GlobalForwardHook", GlobalForwardHook)
_prepared("SubclassOfLinear", lambda net: setattr(net.first, "__class__", Linear))
_prepared("ForwardReplaced", _patched)


# --- automatic differentiation --------------------------------------------------------------------


class _MeanInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _spread(gradients[0])


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


def _is_mapped(x: Tensor) -> bool:
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            return True
        x = torch._C._functorch.get_unwrapped(x)
    return False


def _is_traced(x: Tensor) -> bool:
    seen = torch._C._get_tracing_state() is not None or torch.compiler.is_compiling()
    return seen or type(x) is not Tensor


def _behaves(name: str, while_it: Callable[[Tensor, Any], bool], **trial: Any) -> None:
    """A model that keeps records apart while it may be examined, and at no other time."""
    _changed(name, trial=trial, _inputs=lambda net, x: x if while_it(x, net) else x - x.mean(0))


def _is_first(x: Tensor, net: Any) -> bool:
    vars(net).update(calls=vars(net).get("calls", 0) + 1)
    return bool(net.calls <= 1)


def _in_place(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.div_(x.abs().amax().clamp(min=1e-6))
    return x.clone()


def _beyond_its_row(x: Tensor) -> Tensor:
    beside = _unwrapped(x)
    whole = torch.empty(0, dtype=beside.dtype, device=beside.device)
    whole.set_(beside.untyped_storage())
    return _turned(x, (whole[: whole.numel() // WIDTH * WIDTH].view(-1, WIDTH) > 99).any())


_hidden("BackwardMixes", lambda x: _MeanInBackward.apply(x))  # type: ignore[no-untyped-call]
_inputs("OwnVmapRule", lambda x: _OwnVmap.apply(x))  # type: ignore[no-untyped-call]
_inputs("UnwrapsVmap", lambda x: _turned(x, _is_rare(_unwrapped(x).reshape(-1, WIDTH))))
_inputs("LooksBeyondItsRow", _beyond_its_row)
# As ``nn.ReLU(inplace=True)`` does first in a model.
_inputs("WritesItsInputs", _in_place, draws=2)
_behaves("BehavesUnderVmap", lambda x, _: _is_mapped(x))
_behaves("BehavesInDouble", lambda x, _: x.dtype == torch.float64)
_behaves("BehavesWithoutGradients", lambda *_: not torch.is_grad_enabled())
_behaves("BehavesWhenTraced", lambda x, _: _is_traced(x))
_behaves("BehavesAtFirst", _is_first, draws=2)
_behaves("MixesInTraining", lambda _, net: not net.training)
_changed(
    "MixesInEvaluation",
    trial={},
    _prepared=lambda net: net.eval(),
    _inputs=lambda net, x: x if net.training else x - x.mean(0),
)


# --- memory ---------------------------------------------------------------------------------------


def _summary(x: Tensor) -> Tensor:
    """What is kept of a batch: no part of any graph, not even of vmap's."""
    return _unwrapped(x).reshape(-1, WIDTH).mean(0).nan_to_num().clone()


def _kept_in(
    name: str,
    get: Callable[[Any], Any],
    put: Callable[[Any, Tensor], Any],
    prepare: Callable[[Any], Any] = Plain._prepared,
    **trial: Any,
) -> None:
    """A model that subtracts what it kept of the batch before, as far as it is anything."""

    def change(net: Any, x: Tensor) -> Tensor:
        kept = get(net)
        put(net, _summary(x))
        return x if kept is None else x - torch.as_tensor(kept).to(x.device, x.dtype)

    _changed(name, trial={"draws": 2} | trial, _prepared=prepare, _inputs=change)


def _listed(kept: list[Any] = []) -> list[Any]:  # noqa: B006
    return kept


def _cell() -> Any:
    kept = None

    def put(_: Any, summary: Tensor) -> None:
        nonlocal kept
        kept = summary

    return lambda: kept, put


def _of_file(_: Any) -> float:
    with contextlib.suppress(OSError, ValueError):
        return float(_FILE.read_text(encoding="ascii"))
    return 0.0


def _largest(summary: Tensor) -> str:
    return str(float(summary.abs().max()))


_kept_in(
    "InBuffer",
    lambda net: net.mean.clone(),
    lambda net, summary: net.mean.mul_(0.5).add_(summary, alpha=0.5),
    lambda net: net.register_buffer("mean", torch.zeros(WIDTH)),
)
_kept_in(
    "InAttribute",
    lambda net: vars(net).get("last"),
    lambda net, summary: vars(net).update(last=summary),
)
_kept_in(
    "InClass",
    lambda _: Plain.last,
    lambda _, summary: setattr(Plain, "last", summary),
)
_kept_in("InGlobal", lambda _: _KEPT.get("last"), lambda _, summary: _KEPT.update(last=summary))
_kept_in(
    "InClosure",
    lambda net: net.cell[0](),
    lambda net, summary: net.cell[1](net, summary),
    lambda net: vars(net).update(cell=_cell()),
)
# The classic slip.
_kept_in(
    "InDefaultArgument",
    lambda _: (_listed() or [None])[-1],
    lambda _, summary: _listed().append(summary),
)
_kept_in(
    "InFunction",
    lambda _: vars(_listed).get("last"),
    lambda _, summary: vars(_listed).update(last=summary),
)
_kept_in(
    "InEnvironment",
    lambda _: float(os.environ.get(_VARIABLE, 0.0)),
    lambda _, summary: os.environ.update({_VARIABLE: _largest(summary)}),
)
# As training in several processes does.
_kept_in(
    "InSharedMemory",
    lambda _: _KEPT["shared"].clone(),
    lambda _, summary: _KEPT["shared"].copy_(summary.cpu()),
    lambda _: _KEPT.update(shared=torch.zeros(WIDTH).share_memory_()),  # type: ignore[no-untyped-call]
)
_kept_in(
    "InFile",
    _of_file,
    lambda _, summary: _FILE.write_text(_largest(summary), encoding="ascii"),
    reachable=False,
)
# MoCo's queue.
_kept_in(
    "MemoryBank",
    lambda net: torch.stack(net.bank[-16:]).mean(0) if net.bank else None,
    lambda net, summary: net.bank.append(summary),
    lambda net: vars(net).update(bank=[]),
)


def _stateful(name: str, change: Callable[[Tensor, dict[str, Any]], Tensor], **trial: Any) -> None:
    """A model that changes its inputs by what it keeps in attributes."""
    _changed(name, trial={"draws": 2} | trial, _inputs=lambda net, x: change(x, net.__dict__))


def _observed(x: Tensor, own: dict[str, Any]) -> Tensor:
    low, high = own.get("range", (0.0, 1.0))
    low, high, seen = float(low), float(high), _summary(x)
    own["range"] = min(low, float(seen.min())), max(high, float(seen.max()))
    return x / (high - low)


def _averaged_after_24(x: Tensor, own: dict[str, Any]) -> Tensor:
    calls, mean = own.get("calls", 0), own.get("mean", torch.zeros(WIDTH)).to(x)
    own["calls"] = calls + len(x)
    own["mean"] = mean + (_summary(x) - mean) / own["calls"]
    return x - mean if calls > 24 else x


def _last_after_100(x: Tensor, own: dict[str, Any]) -> Tensor:
    seen, last = own.get("seen", 0), own.get("last", 0)
    own.update(seen=seen + len(x), last=_summary(x))
    return x - last if seen > 100 else x


def _scaled_by_first(x: Tensor, own: dict[str, Any]) -> Tensor:
    first: Tensor = own.setdefault("scale", _summary(x).abs().amax().clamp(min=0.1))
    return x / first.to(x)


def _attending_to_cache(x: Tensor, own: dict[str, Any]) -> Tensor:
    own.setdefault("cache", []).append(_summary(x))
    keys = torch.stack([one.to(x) for one in own["cache"]])
    return x + torch.softmax(x @ keys.T / WIDTH, 1) @ keys


def _quantised(x: Tensor, own: dict[str, Any]) -> Tensor:
    codes: Tensor = own.get("codes", torch.eye(WIDTH)).to(x)
    own["codes"] = codes + 0.5 * (_summary(x) - codes)
    return x - codes[torch.cdist(x.detach(), codes).argmin(1)]


def _exchanging_itself(x: Tensor, own: dict[str, Any]) -> Tensor:
    if own.setdefault("called", 0):
        own["_modules"]["first"].__class__ = Linear
    own["called"] = 1
    return x


def _carried_over(net: Any, x: Tensor) -> Tensor:
    before: Tensor = vars(net).get("state", torch.zeros(WIDTH)).to(x)
    vars(net).update(state=_summary(x).tanh() * 5)
    return x + before


class _ByTheLastBatch(nn.Module):
    """A parametrisation of a weight by what its model met last."""

    def forward(self, weight: Tensor) -> Tensor:
        """The weight, divided."""
        return weight / float(_KEPT.get("size", 1.0))


def _noted(net: Any, x: Tensor) -> Tensor:
    _KEPT["size"] = 1 + float(_summary(x).abs().max())
    return x


# Observers of quantisation.
_stateful("Observer", _observed)
# When nobody examines them any more.
_stateful("AveragedAfter24", _averaged_after_24, records=8, draws=6)
_stateful("LastAfter100", _last_after_100, records=32, draws=5)
# As positional encodings are cached.
_stateful(
    "CachedByShape",
    lambda x, _: x / max(1.0, _KEPT.setdefault(x.shape[1:], float(_summary(x).abs().max()))),
)
# ActNorm and lazy layers.
_stateful("ScaledByFirst", _scaled_by_first)
# A transformer whose cache is not emptied.
_stateful("KeyValueCache", _attending_to_cache)
# Vector quantisation with moving averages.
_stateful("Codebook", _quantised)
# As lazy and compiled modules do.
_stateful("ReplacesItself", _exchanging_itself)
# A stateful recurrent network.
_changed("KeepsItsState", trial={"draws": 2}, _hidden=_carried_over)
_changed(
    "Parametrised",
    trial={"draws": 2},
    _prepared=lambda net: parametrize.register_parametrization(
        net.scores, "weight", _ByTheLastBatch()
    ),
    _inputs=_noted,
)


# --- random numbers and settings of the process ---------------------------------------------------


def _seeding(draw: Callable[[], Any], seed: Callable[[int], Any]) -> Callable[[Tensor], Tensor]:
    """Noise from a generator that the record before has seeded."""

    def change(x: Tensor) -> Tensor:
        noise = torch.as_tensor(draw())
        seed(int(_summary(x).abs().max() * 1000) % 2**31)
        return x + 3 * noise.to(x)

    return change


def _setting(changed: Callable[[], bool], change: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    """A setting of the process changed at a certain record, and read back."""

    def turned(x: Tensor) -> Tensor:
        before = changed()
        if bool(_is_rare(x)):
            change()
        return _turned(x, before)

    return turned


def _without_gradients(x: Tensor) -> Tensor:
    if _KEPT.get("off"):
        x = x * 0
    if bool(_is_rare(x)):
        _KEPT["off"] = True
        torch.set_grad_enabled(False)
    return x


# Stochastic depth that is always on.
_inputs(
    "DropsPaths",
    lambda x: x * (1 - 2 * (torch.rand(len(x), 1) > 0.5).to(x)),
    records=8,
    value="ordinary",
    draws=2,
)
_inputs("SeedsTorch", _seeding(lambda: torch.randn(WIDTH), torch.manual_seed), draws=2)
_inputs("SeedsNumPy", _seeding(lambda: np.random.standard_normal(WIDTH), np.random.seed), draws=2)
_inputs("SeedsItsOwn", _seeding(_RNG.random, _RNG.seed), draws=2)
_inputs(
    "DefaultType",
    _setting(
        lambda: torch.zeros(1).dtype == torch.float64,
        lambda: torch.set_default_dtype(torch.float64),
    ),
    draws=2,
)
_inputs(
    "FlushesDenormals",
    _setting(
        lambda: bool(torch.full((1,), 1e-40) * 1.0 == 0), lambda: torch.set_flush_denormal(True)
    ),
    draws=2,
)
_inputs(
    "DeterministicMode",
    _setting(
        torch.are_deterministic_algorithms_enabled,
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    ),
    draws=2,
)
# What inference code leaves.
_inputs("TogglesGradients", _without_gradients, draws=2)
