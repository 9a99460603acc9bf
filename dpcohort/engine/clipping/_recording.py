# SPDX-License-Identifier: Apache-2.0
"""A function of tensors as one call: its operations are recorded once and replayed without Python.

Between two operations of torch a thread needs Python's lock, of which there is one. A pass through
small layers has a few hundred operations that take microseconds each, so threads that run passes
side by side spend their time waiting for each other. What a pass does depends on the shapes of its
arguments only. So it is recorded once for every shape, and replayed by torch's own interpreter in
one call that does not hold the lock: the same operations in the same order, hence the same bits.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

#: Tensors in, tensors out.
Function = Callable[..., Sequence[Tensor]]


def record(function: Function, arguments: Sequence[Tensor]) -> fx.Graph:
    """The operations that a function does with arguments of these shapes.

    Example:
        >>> graph = record(lambda x: [x + 1], [torch.zeros(2)])
        >>> [node.op for node in graph.nodes]
        ['placeholder', 'call_function', 'output']
    """
    return make_fx(function)(*arguments).graph


def function_text(name: str, graph: fx.Graph) -> str:
    """Recorded operations as a function that ``compiled`` takes.

    Raises:
        NotImplementedError: there is something in it that is not an operation on tensors.

    Example:
        >>> print(function_text("same", record(lambda x: [x], [torch.zeros(2)])))
        def same(x_1):
            return [x_1]
        <BLANKLINE>
    """
    names = [node.name for node in graph.nodes if node.op == "placeholder"]
    lines = [f"def {name}({', '.join(names)}):"]
    lines += [f"    {_line(node)}" for node in graph.nodes if node.op != "placeholder"]
    return "\n".join(lines) + "\n"


def compiled(text: str, *names: str) -> list[Callable[..., Any]]:
    r"""Some of the functions of a text, in the words of TorchScript; they may call each other.

    Example:
        >>> [one] = compiled("def one(x):\n    return x + 1\n", "one")
        >>> one(torch.ones(2))
        tensor([2., 2.])
    """
    scripts = torch.jit.CompilationUnit(text)
    return [_as_written(getattr(scripts, name)) for name in names]


def _as_written(script: Callable[..., Any]) -> Callable[..., Any]:
    def replay(*arguments: Any) -> Any:
        # Optimised, some operations would be exchanged for others that round differently.
        with torch.jit.optimized_execution(should_optimize=False):  # type: ignore[attr-defined]
            return script(*arguments)

    return replay


def _line(node: fx.Node) -> str:
    if node.op == "output":
        return f"return {_text(list(node.args[0]))}"  # type: ignore[arg-type]
    if node.op == "call_function" and node.target is operator.getitem:
        return f"{node.name} = {node.args[0]}[{node.args[1]}]"
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        raise NotImplementedError(f"{node.op} {node.target} is not an operation on tensors")
    named = [f"{name} = {_text(value)}" for name, value in node.kwargs.items()]
    call = ", ".join([*map(_text, node.args), *named])
    return f"{node.name} = torch.ops.{node.target._schema.name.replace('::', '.')}({call})"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    return str(value) if isinstance(value, fx.Node) or not isinstance(value, str) else repr(value)
