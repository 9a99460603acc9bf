# SPDX-License-Identifier: Apache-2.0
"""Models whose layers keep the records of a batch apart, by what the layers are.

A model passes if each of its parts is of a known type, down to that very class, with nothing hooked
to it: what it computes is then known, and is known to keep records apart. A ``forward`` of a user's
own may do anything with a batch; that it did not when it was tried proves nothing. So it is run
once, on a stand-in for a batch that writes down what is done to it (``torch.fx``). If all of that
is in a short list of operations on single numbers, single records or public sizes, the list of
operations is a model of known parts, and it is what computes records; the user's code never sees
one.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules import module as hooks_of_all

from dpcohort.models._moments import SecondMoments
from dpcohort.models._persons import PersonModel

#: Of these, an output of an example is a function of that example and the parameters: they act on
#: each number, or on the numbers of one example.
_APART = (
    nn.Sequential, nn.Identity, nn.Flatten, nn.Dropout,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid,
    nn.Tanh, nn.Hardtanh,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.GroupNorm, nn.LayerNorm,
    PersonModel, SecondMoments,
)  # fmt: skip
#: Values of a layer's attributes that can do nothing.
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)


def not_proved_apart(model: nn.Module) -> str | None:
    """The first part of a model that might mix examples; None if its layers rule that out.

    Example:
        >>> not_proved_apart(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Tanh()))
        >>> not_proved_apart(nn.Sequential(nn.Linear(4, 2), nn.Softmax(0)))
        "the layer '1' (Softmax) is none of those that are known to keep records apart"
    """
    if hooks_of_all._has_any_global_hook():  # type: ignore[no-untyped-call]
        return "a hook is set on all modules"
    for name, part in _parts(model):
        label = f"the layer {name!r} ({type(part).__name__})" if name else type(part).__name__
        if type(part) not in _APART:
            return f"{label} is none of those that are known to keep records apart"
        hooks = (
            part._forward_hooks, part._forward_pre_hooks, part._backward_hooks,
            part._backward_pre_hooks,
        )  # fmt: skip
        if any(hooks) or "forward" in vars(part):
            return f"{label} was changed by hooks or a forward of its own"
        if not all(map(_is_plain, _settings(part))):
            return f"{label} was changed by attributes of its own"
        if isinstance(part, nn.Flatten) and part.start_dim < 1:
            return f"{label} joins the records of a batch"
    return None


def _parts(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """A module and all in it; ``named_modules`` may be somebody's own and leave some out."""
    yield name, model
    for child, part in vars(model)["_modules"].items():
        if part is not None:
            yield from _parts(part, f"{name}.{child}" if name else child)


def _settings(part: nn.Module) -> Iterator[Any]:
    """Attributes of a layer beside those that every module has, and the kinds of its tensors."""
    usual = vars(nn.Module())
    yield from (value for key, value in vars(part).items() if key not in usual)
    tensors = [*part._parameters.values(), *part._buffers.values()]
    yield from (None if type(one) in (nn.Parameter, Tensor) else one for one in tensors)


def _is_plain(value: Any) -> bool:
    if type(value) in (tuple, list, torch.Size):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


# --- operations of a forward of somebody's own ----------------------------------------------------

#: Of each number by itself; whatever else they are given is plain.
_BY_NUMBER = {
    torch.relu, F.relu, torch.tanh, F.tanh, torch.sigmoid, F.sigmoid, F.gelu, F.silu, F.elu, F.selu,
    F.leaky_relu, F.softplus, F.hardtanh, F.relu6, F.hardswish, F.mish, F.logsigmoid,
    torch.exp, torch.abs, torch.square, torch.sqrt, torch.sin, torch.cos, torch.neg, torch.clamp,
    torch.pow, operator.neg, operator.pow,
    "relu", "tanh", "sigmoid", "exp", "abs", "square", "sqrt", "neg", "clamp", "pow", "float",
    "contiguous",
}  # fmt: skip
#: Of two numbers at one place; one of them may be plain.
_BY_PAIR = {
    operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul,
    torch.div, "add", "sub", "mul", "div",
}  # fmt: skip
#: Of windows of an image or a line, by its number of axes.
_BY_WINDOW = {
    torch.max_pool1d: 3, F.max_pool1d: 3, torch.max_pool2d: 4, F.max_pool2d: 4,
    torch.avg_pool1d: 3, F.avg_pool1d: 3, F.avg_pool2d: 4,
    F.adaptive_avg_pool1d: 3, F.adaptive_avg_pool2d: 4,
}  # fmt: skip
#: Along axes that are named.
_ALONG = {
    torch.mean, torch.sum, torch.amax, torch.amin, torch.softmax, F.softmax, torch.log_softmax,
    F.log_softmax, "mean", "sum", "amax", "amin", "softmax", "log_softmax",
}  # fmt: skip
#: The same numbers in the same order, in another shape.
_RESHAPES = {torch.flatten, torch.reshape, "flatten", "reshape", "view"}
_UNSQUEEZES = {torch.unsqueeze, "unsqueeze"}
_TURNS = {torch.transpose, torch.permute, "transpose", "permute"}
_JOINS = {torch.cat, torch.concat}


def in_known_parts(model: nn.Module, inputs: Tensor, rows: int) -> tuple[nn.Module | None, str]:
    """A model of known operations that does what this one does; None, and why, where there is none.

    Args:
        model: any; its parameters keep their names and order.
        inputs: made-up records [n, ...], at least 2.
        rows: how many records a batch will have.

    Example:
        >>> class Net(nn.Module):
        ...     def __init__(self) -> None:
        ...         super().__init__()
        ...         self.layer = nn.Linear(4, 2)
        ...     def forward(self, x):
        ...         return F.relu(self.layer(x.view(x.size(0), -1)))
        >>> found, _ = in_known_parts(Net(), torch.zeros(3, 2, 2), 32)
        >>> found(torch.zeros(32, 2, 2)).shape
        torch.Size([32, 2])
        >>> Net.forward = lambda self, x: self.layer(x.flatten(1) / x.max())
        >>> in_known_parts(Net(), torch.zeros(3, 2, 2), 32)[1]
        'Net does something else with a batch than operations on single records (max)'
    """
    reason = not_proved_apart(model)
    if reason is None:
        return model, ""
    if isinstance(model, PersonModel):  # every row of a person is treated like a record
        found, reason = in_known_parts(model.model, inputs.flatten(0, 1), rows * inputs.shape[1])
        return (None if found is None else PersonModel(found)), reason
    if hooks_of_all._has_any_global_hook():  # type: ignore[no-untyped-call]
        return None, reason
    name = type(model).__name__
    try:
        copied = copy.deepcopy(model)
        graph = _Tracer().trace(copied)
        traced = Traced(copied, graph)
    except Exception as error:  # it is not ours, so it may fail in any way
        return None, f"what {name} does with a batch cannot be written down ({_kind(error)})"
    try:
        for count in (rows, rows + 3):
            problem = _first_unknown(traced, graph, inputs, count)
            if problem is not None:
                does = "does something else with a batch than operations on single records"
                return None, f"{name} {does} ({problem})"
        with torch.no_grad():
            same = torch.allclose(traced(inputs), copied(inputs), 1e-5, 1e-6, equal_nan=True)
    except Exception as error:
        return None, f"what {name} does with a batch cannot be written down ({_kind(error)})"
    if not same:
        return None, f"{name} does something else every time"
    return traced, ""


def _kind(error: Exception) -> str:
    return type(error).__name__


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not_proved_apart(m) is None


class Traced(nn.Module):
    """Operations that were written down, with the layers and tensors of the model they are from.

    Args:
        model: it shares its layers.
        graph: the operations.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__()
        used = {str(node.target) for node in graph.nodes if node.op == "call_module"}
        _take_over(self, model, used, "")
        nodes = list(graph.nodes)

        def run(module: Traced, inputs: Tensor, seen: dict[fx.Node, Any] | None = None) -> Any:
            values: dict[fx.Node, Any] = {} if seen is None else seen
            for node in nodes:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                if node.op == "placeholder":
                    values[node] = inputs
                elif node.op == "get_attr":
                    values[node] = _at(module, str(node.target))
                elif node.op == "call_module":
                    values[node] = module.get_submodule(str(node.target))(*args, **kwargs)
                elif node.op == "call_method":
                    # The same numbers in the same order; images may lie in memory otherwise.
                    name = "reshape" if node.target == "view" else str(node.target)
                    values[node] = getattr(args[0], name)(*args[1:], **kwargs)
                elif node.op == "call_function":
                    values[node] = node.target(*args, **kwargs)
                else:
                    return args[0]
            raise AssertionError("a graph has an output")

        # A function, so that copies of the module share it.
        self.__dict__["run"] = run

    run: Callable[..., Any]

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs of the model."""
        outputs: Tensor = self.run(self, inputs)
        return outputs


def _take_over(into: nn.Module, model: nn.Module, used: set[str], prefix: str) -> None:
    """Layers, parameters and buffers in their order, without the classes that held them."""
    into.training = model.training
    for name, parameter in model._parameters.items():
        into.register_parameter(name, parameter)
    for name, buffer in model._buffers.items():
        into.register_buffer(name, buffer)
    for name, value in vars(model).items():
        if type(value) is Tensor and name not in model._buffers:  # written down as a constant
            into.register_buffer(name, value, persistent=False)
    for name, part in model._modules.items():
        if part is None:
            continue
        path = f"{prefix}{name}"
        if path in used:
            into.add_module(name, part)
        else:
            plain = nn.Module()
            _take_over(plain, part, used, f"{path}.")
            into.add_module(name, plain)


def _at(module: nn.Module, path: str) -> Any:
    *parents, name = path.split(".")
    for parent in parents:
        module = module._modules[parent]  # type: ignore[assignment]
    return getattr(module, name)


def _first_unknown(traced: Traced, graph: fx.Graph, inputs: Tensor, count: int) -> str | None:
    """The first operation that is not known to keep this many records apart; None if all are."""
    values: dict[fx.Node, Any] = {}
    batch = inputs[torch.arange(count) % len(inputs)]
    with torch.no_grad():
        outputs = traced.run(traced, batch, values)
    apart: set[fx.Node] = set()  # whose rows are those of records
    if len([node for node in graph.nodes if node.op == "placeholder"]) != 1:
        return "it takes more than one input"
    for node in graph.nodes:
        found = values.get(node)
        if node.op == "output":
            known = type(outputs) is Tensor and node.args[0] in apart
        elif node.op == "placeholder":
            known = True
        elif node.op == "get_attr":
            known = type(found) in (Tensor, nn.Parameter)
            if known:
                continue  # a constant, judged where it is used
        elif _is_size(node, values):
            continue
        else:
            known = _keeps_apart(node, values, apart, traced)
        if known and node.op != "output":
            known = isinstance(found, Tensor) and found.dim() > 0 and len(found) == count
        if not known:
            return str(getattr(node.target, "__name__", node.target))
        apart.add(node)
    return None


#: Calculations with sizes.
_WITH_SIZES = {operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv}


def _is_size(node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    """Whether an operation only looks at shapes, or calculates with what was looked at."""
    if node.op == "call_method" and node.target in ("size", "dim"):
        return True
    if node.op != "call_function" or isinstance(values[node], Tensor):
        return False
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim")
    tensors = any(isinstance(values[one], Tensor) for one in node.all_input_nodes)
    return node.target in _WITH_SIZES and not tensors


def _keeps_apart(
    node: fx.Node, values: dict[fx.Node, Any], apart: set[fx.Node], traced: Traced
) -> bool:
    """Whether each row of an operation's result is that of one record."""
    target, first = node.target, node.args[0] if node.args else None
    if node.kwargs.get("out") is not None:
        return False
    if target in _JOINS and node.op == "call_function":
        parts = first if isinstance(first, list | tuple) else ()
        axes = _axes(node, 1, "dim", values[parts[0]].dim()) if parts else None
        return all(part in apart for part in parts) and axes is not None and 0 not in axes
    if target in _BY_PAIR:
        return _pair_fits(node, values, apart)
    if first not in apart:
        return False
    like: Tensor = values[first]  # type: ignore[index]
    axes_count, others = like.dim(), [one for one in node.all_input_nodes if one is not first]
    if node.op == "call_module":
        part = traced.get_submodule(str(target))
        return len(node.args) == 1 and not node.kwargs and not_proved_apart(part) is None
    if target in _RESHAPES:
        return not any(isinstance(values[one], Tensor) for one in others)
    if others:
        return False
    if target in _BY_NUMBER:
        return True
    if target is F.dropout:
        return node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True) is False
    if target in _BY_WINDOW:
        return axes_count == _BY_WINDOW[target]
    if target in _ALONG:
        axes = _axes(node, 1, "dim", axes_count)
        return axes is not None and 0 not in axes
    if target in _UNSQUEEZES:
        axes = _axes(node, 1, "dim", axes_count + 1)
        return axes is not None and 0 not in axes
    if target in _TURNS:
        turned = torch.empty(tuple(range(1, axes_count + 1)), device="meta")
        name = target if isinstance(target, str) else target.__name__
        result: Tensor = getattr(turned, name)(*node.args[1:], **node.kwargs)
        return result.shape[0] == 1
    if target is operator.getitem:
        index = node.args[1]
        plain = isinstance(index, tuple) and all(
            isinstance(one, int | slice) and one is not True and one is not False for one in index
        )
        return plain and index[0] == slice(None)  # type: ignore[index]
    return False


def _pair_fits(node: fx.Node, values: dict[fx.Node, Any], apart: set[fx.Node]) -> bool:
    """Whether numbers meet only those of their own record, or constants and plain numbers."""
    if len(node.args) != 2 or node.kwargs:
        return False
    rows = [one for one in node.args if one in apart]
    axes = {values[one].dim() for one in rows}  # type: ignore[index]
    for one in node.args:
        if one in apart or isinstance(one, int | float):
            continue
        value = values.get(one)  # type: ignore[arg-type]
        if isinstance(value, int | float):
            continue
        if not isinstance(value, Tensor) or one.op != "get_attr":  # type: ignore[union-attr]
            return False
        if value.dim() > max(axes) or (value.dim() == max(axes) and value.shape[0] != 1):
            return False
    return bool(rows) and len(axes) == 1


def _axes(node: fx.Node, place: int, name: str, count: int) -> list[int] | None:
    """The axes an operation goes along, counted from the first; None if it does not say."""
    given = node.kwargs.get(name, node.args[place] if len(node.args) > place else None)
    axes = list(given) if isinstance(given, list | tuple) else [given]
    if not axes or not all(type(one) is int for one in axes):
        return None
    return [one % count for one in axes if isinstance(one, int)]
