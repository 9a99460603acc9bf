# SPDX-License-Identifier: Apache-2.0
"""Sums of clipped gradients of a whole model, for many draws in one forward and backward pass.

The model is copied and its layers are exchanged for stacked ones; its own ``forward`` stays as it
is. Models that this does not cover (a parameter used directly, tied or twice, a layer without a
fast path) go through ``torch.func`` instead, and say why in ``path``. Before a model may take the
fast path it is examined on a few made-up examples, in 64 bits, against ``torch.func``.

Max-pooling is made cheaper on the way, without changing a number. ``MaxPool`` is ``nn.MaxPool2d``
with its own kernels on a GPU, several times faster for small images: the same maxima, and among
equals the same one is taken. On a CPU it is torch's. ``pool_before_relu`` changes the order: ReLU
never changes which of several numbers is largest, so pooling first and then taking the ReLU of the
few survivors equals the printed order, gradients included: where two numbers tie, both are zero and
so is their gradient, or they are equal and the same one is taken. (For tanh this fails: it rounds
different numbers to equal ones. A GPU's kernel takes it of every entry as it pools.)
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dpcohort.engine.clipping import _kernels as kernels
from dpcohort.engine.clipping._convolution import StackedConvolution
from dpcohort.engine.clipping._layers import (
    Part,
    StackedEmbedding,
    StackedLayer,
    StackedLinear,
    StackedNormalisation,
)
from dpcohort.engine.clipping._per_example import (
    FlatLayout,
    Loss,
    clip_factors,
    clip_rows,
    cross_entropy,
    full_precision_products,
    per_example_gradients,
    refuse_unfit_layers,
)
from dpcohort.engine.clipping._recording import Function, compiled, function_text, record
from dpcohort.errors import InputError
from dpcohort.models._each_alone import made_up_inputs
from dpcohort.models._persons import PersonModel

_STACKED_LAYERS: tuple[type[StackedLayer], ...] = (
    StackedLinear,
    StackedConvolution,
    StackedEmbedding,
    StackedNormalisation,
)

_EXAMPLES = 3  # made-up examples a model is examined on
_CROWD = 129  # records of a batch as large as in training; a model may mix only in a crowd
_FORMED_NUMBERS = 1 << 26  # numbers of gradients that are formed at a time
_VANISHED, _SMALL_CLIP = 1e-30, 1e-12  # a squared norm, and the clips for which it may matter
_OFTEN = 20  # passes of the same shapes before eight workers record them; fewer gain less by it
_SOME = 6  # shapes that are recorded that soon
_OUR_LOSSES = (f"{cross_entropy.__module__}.cross_entropy", "dpcohort.tasks.Task.loss_on.")
#: Relative differences from torch.func that are still rounding, in 64 bits and in 32.
_AGREEMENT, _AGREEMENT_OF_FLOATS = 1e-9, 1e-5


@dataclass(frozen=True)
class ClippingPath:
    """How a model's gradients are clipped.

    Attributes:
        kind: ``stacked`` (fast), ``vmap``, ``loop`` or, in private runs, ``process``.
        reason: why this path.
        floats_per_example: about how many numbers a pass keeps for each example.
    """

    kind: Literal["stacked", "vmap", "loop", "process"]
    reason: str
    floats_per_example: int = 1


#: A pass of some shapes, each half of it one call. The first takes weights, inputs, targets and
#: clips to factors, whether all is finite, and what the second needs; that one adds clipped sums to
#: what is given it: factors, where to add, and what was kept.
RecordedPass = tuple[Function, Function]
#: Inputs and targets from stored rows, stored inputs and stored targets.
Gather = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

#: A local step of one draw, or of a part of its batch, around the two halves of its pass. ``begin``
#: says whether all is finite besides what ``end`` needs; ``scale`` is a factor on each row, 0 of
#: those that fill up a batch. ``end`` adds to a sum, and if it is the last to do so scales it and
#: adds the noise of rng.
_STEP = """
def begin(rows, stored, labels, weights, clip, scale):
    inputs, targets = gather(rows, stored, labels)
    factors, finite{kept} = observe(weights, inputs, targets, clip)
    return bool(finite), [factors * scale{kept}]

def end(into, found: List[Tensor], last: bool, scale: float, noise: Tensor,
        rng: Optional[Generator], spread: float):
    factors{kept} = found
    add(factors, into{kept})
    if last:
        into.mul_(scale)
        if rng is not None:
            into.add_(noise.normal_(generator=rng), alpha=spread)
"""
#: Both of them.
RecordedStep = tuple[Callable[..., tuple[bool, list[Tensor]]], Callable[..., None]]
#: Shape, strides and type of weights, inputs, targets and clips.
Shapes = tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]


def _factors(norms: Tensor, clip: Tensor) -> tuple[Tensor, Tensor]:
    """Clipping factors from squared norms [draws, width], and whether all of them can be trusted.

    Squares of so small a norm may have vanished; beside a larger clip that changes nothing.
    """
    vanished = (norms < _VANISHED) & (clip[:, None] < _SMALL_CLIP)
    finite = torch.isfinite(norms) & ~vanished
    return clip_factors(norms, clip[:, None]), finite.all()


def _one_batch(gather: Gather, *records: Tensor) -> list[Tensor]:
    """Inputs and targets of the batch of one draw."""
    return [part[None] for part in gather(*records)]


def _does_a_step(
    step: RecordedStep, halves: RecordedPass, gather: Gather, weights: Tensor,
    alike: Sequence[Tensor],
) -> bool:  # fmt: skip
    """Whether a recorded step does what its parts do, to the bit, with made-up records."""
    rng = [torch.Generator().manual_seed(1) for _ in range(3)]
    stored = [torch.zeros_like(part) for part in alike]
    if stored[0].is_floating_point():
        stored[0].normal_(generator=rng[0])
    rows, clip, memory = torch.arange(len(alike[0])), weights.new_ones(1), torch.empty_like(weights)
    factors, _, *kept = halves[0](weights, *_one_batch(gather, rows, *stored), clip)
    scale = torch.full_like(factors, 0.3)
    (total,) = halves[1](factors * scale, torch.ones_like(weights), *kept)
    total.mul_(0.5).add_(memory.normal_(generator=rng[1]), alpha=0.25)
    into = torch.ones_like(weights)
    finite, found = step[0](rows, *stored, weights, clip, scale)
    step[1](into, found, True, 0.5, memory, rng[2], 0.25)
    return finite and torch.equal(into, total)


class ClippedNetwork:
    """A model that answers with sums of clipped gradients.

    Args:
        model: any module whose examples do not mix; it is copied.
        loss: one number for each example.
        example_inputs: [n, ...] inputs of the right shape and type; no number of them is looked at.
        example_targets: [n, ...] targets.
        path: take this path instead of examining the model again, as a copy for a second
            thread does.

    Example:
        >>> net = ClippedNetwork(nn.Linear(2, 1, bias=False), lambda o, t: o[:, 0],
        ...                      torch.zeros(1, 2), torch.zeros(1))
        >>> x = torch.tensor([[[3.0, 4.0], [0.1, 0.0]]])
        >>> net.clipped_sums(torch.zeros(1, 2), x, torch.zeros(1, 2), clip=torch.tensor([1.0]))
        tensor([[0.7000, 0.8000]])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        example_inputs: Tensor,
        example_targets: Tensor,
        *,
        path: ClippingPath | None = None,
    ) -> None:
        refuse_unfit_layers(model)
        self.layout = FlatLayout(model)
        self._loss = loss
        self._model = copy.deepcopy(model)
        self._layers: list[StackedLayer] = []
        self._stacked: nn.Module = self._model
        self.path = path or _examine(model, loss, example_inputs, example_targets)
        if self.path.kind == "stacked":
            self._stacked, self._layers = _stacked_copy(model, self.layout)
        vectorised = self.path.kind != "loop"
        self._per_example = per_example_gradients(self._model, loss, vectorised=vectorised)
        self._all_finite: Tensor | None = None
        #: How often passes of some shapes were done, and those that are replayed; copies share it.
        self.passes: dict[Shapes, int | RecordedPass | None] = {}
        #: The same of passes for gradients of single records.
        self.own_passes: dict[Shapes, int | RecordedGradients | None] = {}
        #: Local steps in two calls, by the width of their batches; copies share it too.
        self.steps: dict[int, RecordedStep] = {}
        #: SENSITIVE: records left out so far because their gradient was not finite. It depends on
        #: private records and has no noise: it may be looked at by the client alone.
        self.raw_nonfinite_count = 0

    @torch.no_grad()
    def clipped_sums(
        self,
        weights: Tensor,
        inputs: Tensor,
        targets: Tensor,
        *,
        clip: Tensor,
        scale: Tensor | None = None,
        mask: Tensor | None = None,
        total: Tensor | Callable[[], Tensor] | None = None,
        micro_batch: int | None = None,
        all_finite: Tensor | None = None,
    ) -> Tensor:
        """Sum of the clipped gradients of each draw's examples (Algorithm 1, lines 14-16).

        Args:
            weights: [groups, D]; the draws are split evenly among the groups, in order.
            inputs: [draws, width, ...].
            targets: [draws, width, ...].
            clip: C of each draw, [draws].
            scale: factor on each clipped gradient, [draws, width]; None is 1. It costs nothing
                here, and a pass over the sums afterwards.
            mask: [draws, width], false for padding; None if there is none.
            total: [draws, D] to add to; a new one if None. A function that gives it is asked when
                there is something to add, and not before.
            micro_batch: examples in one pass at most, all draws together. It bounds memory and
                changes the result only by the order of additions, that is by rounding.
            all_finite: a truth value on the device, made false if some gradient is not finite.
                The host then waits for nothing, and the caller must look at it before it uses
                the sums: they are right only if it stayed true.

        Returns:
            [draws, D] sums. SENSITIVE until noise is added. A record whose gradient is not finite
            contributes nothing.
        """
        draws, width = inputs.shape[:2]
        into = weights.new_zeros(draws, self.layout.dimension) if total is None else total

        def place() -> Tensor:
            return into if isinstance(into, Tensor) else into()

        step = width if micro_batch is None else max(1, micro_batch // draws)
        self._all_finite = all_finite
        add = self._add_stacked if self.path.kind == "stacked" else self._add_formed
        with full_precision_products(weights.device):
            for start in range(0, width, max(1, step)):
                part = slice(start, start + step)
                there, own = (None if each is None else each[:, part] for each in (mask, scale))
                add(weights, inputs[:, part], targets[:, part], clip, own, there, place)
        return place()

    def floats_per_example(self) -> int:
        """About how many numbers the last pass kept for each example.

        A layer's output is there about six times: the output, its activation, what follows them,
        and their gradients; convolutions may form their gradients besides.
        """
        convolutions = (layer for layer in self._layers if isinstance(layer, StackedConvolution))
        formed = sum(layer.places["weight"][1].numel() for layer in convolutions)
        return max(1, 6 * sum(layer.outputs_per_row for layer in self._layers) + formed)

    def _add_stacked(
        self, weights: Tensor, inputs: Tensor, targets: Tensor, clip: Tensor,
        scale: Tensor | None, mask: Tensor | None, total: Callable[[], Tensor],
    ) -> None:  # fmt: skip
        replay = self._recorded_pass(weights, inputs, targets, clip)
        kept: Sequence[Tensor] = ()
        if replay is None:
            factors, finite = _factors(self._pass(weights, inputs, targets), clip)
        else:
            factors, finite, *kept = replay[0](weights, inputs, targets, clip)
        if self._all_finite is not None:
            self._all_finite.logical_and_(finite)
        elif not bool(finite):
            # A NaN times a factor of 0 is still NaN: in sums of products no record could be left
            # out. So each gets its own gradient, and what is done about it is done to it alone.
            self._release()
            self._add_formed(weights, inputs, targets, clip, scale, mask, total)
            return
        for each in (mask, scale):
            if each is not None:
                factors = factors * each
        into = total()
        if replay is not None:
            replay[1](factors, into, *kept)
            return
        for layer in self._layers:
            layer.add_clipped_sum(factors, into)
        self._release()

    def _recorded_pass(
        self, weights: Tensor, inputs: Tensor, targets: Tensor, clip: Tensor
    ) -> RecordedPass | None:
        """The recorded pass for these shapes if there is one; where not, their passes are counted.

        Layers of torch do the same with every batch. Code of somebody's own, in a model or a loss,
        need not: it is never recorded.
        """
        if inputs.device.type != "cpu" or not self._can_be_recorded:
            return None
        shapes = _shapes_of(weights, inputs, targets, clip)
        found = self.passes.get(shapes, 0)
        if isinstance(found, int):
            self.passes[shapes] = found + 1
            return None
        return found

    @torch.no_grad()
    def record_frequent_passes(
        self,
        weights: Tensor,
        *,
        workers: int,
        gather: Gather | None,
        stored: tuple[Tensor, Tensor],
    ) -> None:
        """Record the passes of shapes that come often; one thread at a time, when none is passing.

        They are compared with the passes they stand for, to the bit, on made-up examples. That
        takes as long as hundreds of passes, and the more workers wait for Python's lock the sooner
        it pays.

        Args:
            weights: [D], any.
            workers: how many threads run passes.
            gather: from stored records to a batch: local steps are recorded around passes of one
                draw. None if it may do something else with the next batch.
            stored: inputs and targets, all of them.
        """
        soon = _OFTEN * max(1, 64 // workers**2)
        # Batches of any size have many shapes: further ones must come so often that it pays.
        recorded = sum(not isinstance(found, int) for found in self.passes.values())
        for shapes, count in list(self.passes.items()):
            often = soon if recorded < _SOME else 20 * soon
            if isinstance(count, int) and count >= often:
                recorded += 1
                try:
                    self.passes[shapes] = self._record(weights[None], shapes, gather, stored)
                except (RuntimeError, NotImplementedError, AttributeError, TypeError):
                    self.passes[shapes] = None
                self._release()

    def _record(
        self, weights: Tensor, shapes: Shapes, gather: Gather | None, stored: tuple[Tensor, Tensor]
    ) -> RecordedPass | None:  # fmt: skip
        rng = torch.Generator().manual_seed(0)

        def make_up() -> list[Tensor]:
            return [weights, *_made_up_like(shapes[1:3], rng), weights.new_ones(shapes[3][0])]

        def observe(weights: Tensor, inputs: Tensor, targets: Tensor, clip: Tensor) -> list[Tensor]:
            judged = _factors(self._pass(weights, inputs, targets), clip)
            return [*judged, *(value for layer in self._layers for value in layer.kept.values())]

        def add(factors: Tensor, into: Tensor, *values: Tensor) -> list[Tensor]:
            for (layer, name), value in zip(names, values, strict=True):
                layer.kept[name] = value
            for layer in self._layers:
                layer.add_clipped_sum(factors, into)
            return [into]

        arguments = make_up()
        factors, _, *kept = observe(*arguments)
        names = [(layer, name) for layer in self._layers for name in layer.kept]
        observed = record(observe, arguments)
        added = record(add, [factors, factors.new_zeros(len(factors), weights.shape[1]), *kept])
        # What the sums do not need is not kept.
        entries = [node for node in added.nodes if node.op == "placeholder"][2:]
        needed = [bool(node.users) for node in entries]
        given = observed.output_node()
        every = list(given.all_input_nodes)
        given.args = ([*every[:2], *itertools.compress(every[2:], needed)],)
        for node in itertools.compress(entries, [not used for used in needed]):
            added.erase_node(node)
        text = function_text("observe", observed) + function_text("add", added)
        replay_observe, replay_add = compiled(text, "observe", "add")
        for _ in range(2):
            arguments = make_up()
            factors, finite, *kept = observe(*arguments)
            zeros = factors.new_zeros(len(factors), weights.shape[1])
            (total,) = add(factors, zeros.clone(), *kept)
            again, fine, *kept = replay_observe(*arguments)
            (other,) = replay_add(again, zeros, *kept)
            pairs = ((factors, again), (finite, fine), (total, other))
            if not all(torch.equal(one, two) for one, two in pairs):
                return None
        found = replay_observe, replay_add
        draws, width = shapes[1][0][:2]
        if gather is not None and draws == 1:
            alike = [part[:width] for part in stored]
            picked = record(functools.partial(_one_batch, gather), [torch.arange(width), *alike])
            more = "".join(f", kept_{i}" for i in range(sum(needed)))
            text += function_text("gather", picked) + _STEP.format(kept=more)
            begin, end = compiled(text, "begin", "end")
            if _does_a_step((begin, end), found, gather, weights, alike):
                self.steps[width] = begin, end
        return found

    @functools.cached_property
    def _can_be_recorded(self) -> bool:
        loss = f"{getattr(self._loss, '__module__', '')}.{getattr(self._loss, '__qualname__', '')}"
        return loss.startswith(_OUR_LOSSES) and all(
            type(layer).__module__.startswith(("torch.nn.modules.", __package__))
            and not layer._forward_hooks
            and not layer._forward_pre_hooks
            for layer in self._stacked.modules()
        )

    def _pass(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """One forward and one backward; squared norms [draws, width]."""
        draws, width = inputs.shape[:2]
        self._run(weights, inputs.flatten(0, 1), targets.flatten(0, 1))
        norms = weights.new_zeros(draws * width)
        for layer in self._layers:
            if layer.squared_norms is not None:
                norms = norms + layer.squared_norms
        return norms.view(draws, width)

    def _run(
        self, weights: Tensor, inputs: Tensor, targets: Tensor, *, apart: bool = False,
        own_convolutions: bool = True,
    ) -> None:  # fmt: skip
        with torch.enable_grad():
            losses = self._forward(
                weights, inputs, targets, apart=apart, own_convolutions=own_convolutions
            )
            losses.sum().backward()  # type: ignore[no-untyped-call]

    def _forward(
        self, weights: Tensor, inputs: Tensor, targets: Tensor, *, apart: bool,
        own_convolutions: bool = True,
    ) -> Tensor:  # fmt: skip
        each = inputs.shape[1] if isinstance(self._stacked, PersonModel) else 1
        for layer in self._layers:
            layer.bind(weights, len(inputs), each=each, apart=apart)
            layer.own_convolutions = own_convolutions
        return self._loss(self._stacked(inputs), targets)

    def _release(self) -> None:
        for layer in self._layers:
            layer.release()

    def _add_formed(
        self, weights: Tensor, inputs: Tensor, targets: Tensor, clip: Tensor,
        scale: Tensor | None, mask: Tensor | None, total: Callable[[], Tensor],
    ) -> None:  # fmt: skip
        per_group, width = inputs.shape[0] // weights.shape[0], inputs.shape[1]
        stacked = self.path.kind == "stacked"
        step = max(1, _FORMED_NUMBERS // self.layout.dimension) if stacked else width
        if mask is None:
            mask = torch.ones(inputs.shape[:2], dtype=torch.bool, device=inputs.device)
        for draw in range(inputs.shape[0]):
            for start in range(0, width, step):
                part = slice(start, start + step)
                x, y, there = inputs[draw, part], targets[draw, part], mask[draw, part]
                raw = self.gradients(weights[draw // per_group], x, y)
                factors, rows = clip_rows(raw, clip[draw])
                self.raw_nonfinite_count += int((there & (factors == 0)).sum())
                factors = factors * there
                if scale is not None:
                    factors = factors * scale[draw, part]
                total()[draw] += factors @ rows

    @torch.no_grad()
    def gradients(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The raw gradient of each example, [rows, D]. SENSITIVE: clip before any use.

        A row is computed from its own example and the weights: what other examples hold, however
        extreme, changes no bit of it.

        Args:
            weights: [D].
            inputs: [rows, ...].
            targets: [rows, ...].
        """
        if self.path.kind != "stacked":
            return self._per_example(weights, inputs, targets)
        with full_precision_products(weights.device):
            self._run(weights[None], inputs, targets, apart=True)
            raw = self._formed(weights, len(inputs))
        self._release()
        return raw

    @torch.no_grad()
    def own_gradients(
        self, weights: Tensor, inputs: Tensor, targets: Tensor, *, own_convolutions: bool = True
    ) -> tuple[list[Part], Callable[[Sequence[Tensor]], Tensor]]:
        """The same in parts, as ``Lattice.clipped_sums`` takes them: less is formed and copied.

        Args:
            weights: [D], or of a fast path [groups, D], among which rows are split evenly.
            inputs: [rows, ...].
            targets: [rows, ...].
            own_convolutions: whether a GPU's convolutions are this package's, which make every
                number from one record in one order. Those of cuDNN are faster, and must be tried.

        Returns:
            Parts, each with a row for each example, and a function that makes a vector [..., D] of
            sums [..., numbers] over examples, of all parts. SENSITIVE.
        """
        if self.path.kind != "stacked":
            return [(self._per_example(weights, inputs, targets),)], _only
        if inputs.device.type == "cpu" and self._can_be_recorded:
            shapes = _shapes_of(weights, inputs, targets)
            known = self.own_passes.get(shapes, 0)
            if isinstance(known, RecordedGradients):
                return known.parts(weights, inputs, targets), known.placed
            if isinstance(known, int):
                self.own_passes[shapes] = known + 1
        with full_precision_products(weights.device), _repeatable(weights.device):
            self._run(
                weights.reshape(-1, weights.shape[-1]), inputs, targets, apart=True,
                own_convolutions=own_convolutions,
            )  # fmt: skip
            # A layer that the loss does not come by has no gradient.
            layers = [layer for layer in self._layers if layer.squared_norms is not None]
            found = [layer.own_gradients() for layer in layers]
        self._release()

        def placed(sums: Sequence[Tensor]) -> Tensor:
            total = sums[0].new_zeros(*sums[0].shape[:-1], self.layout.dimension)
            rest = iter(sums)
            for layer, parts in zip(layers, found, strict=True):
                layer.place(list(itertools.islice(rest, len(parts))), total)
            return total

        return [part for parts in found for part in parts], placed

    @torch.no_grad()
    def record_own_gradients(self, weights: Tensor, *, workers: int) -> bool:
        """Record passes of ``own_gradients`` that come often, as ``record_frequent_passes`` does.

        Args:
            weights: [D], any.
            workers: how many threads run passes.

        Returns:
            Whether one was recorded.
        """
        found = False
        for shapes, count in list(self.own_passes.items()):
            if isinstance(count, int) and count >= _OFTEN * max(1, 64 // workers**2):
                with suppress(RuntimeError, NotImplementedError, AttributeError, TypeError):
                    self.own_passes[shapes] = None  # also where it fails
                    self.own_passes[shapes] = self._recorded_gradients(weights, shapes)
                    found = True
                self._release()
        return found

    def _recorded_gradients(self, weights: Tensor, shapes: Shapes) -> RecordedGradients | None:
        rng = torch.Generator().manual_seed(0)
        arguments = _made_up_like(shapes[1:3], rng)
        parts, placed = self.own_gradients(weights, *arguments)

        def flat(*given: Tensor) -> list[Tensor]:
            return [one for part in self.own_gradients(*given)[0] for one in part]

        text = function_text("gradients", record(flat, [weights, *arguments]))
        (replay,) = compiled(text, "gradients")
        made = RecordedGradients(replay, tuple(map(len, parts)), placed)
        for _ in range(2):
            arguments = _made_up_like(shapes[1:3], rng)
            wanted, again = flat(weights, *arguments), replay(weights, *arguments)
            if not all(map(torch.equal, wanted, again)):
                return None
        return made

    @torch.no_grad()
    def own_losses(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example, [rows], of a model with a fast path. SENSITIVE."""
        with full_precision_products(weights.device):
            losses = self._forward(weights[None], inputs, targets, apart=True)
        self._release()
        return losses

    def _formed(self, weights: Tensor, rows: int) -> Tensor:
        """Gradients of the pass under way, [rows, D]: every example a draw of its own."""
        raw = weights.new_zeros(rows, self.layout.dimension)
        for layer in self._layers:
            layer.add_clipped_sum(weights.new_ones(rows, 1), raw)
        return raw


@contextmanager
def _repeatable(device: torch.device) -> Iterator[None]:
    """Convolutions of cuDNN that add up in the same order every time, meanwhile."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = before or device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


@dataclass(frozen=True)
class RecordedGradients:
    """A recorded pass for the gradients of single records.

    Attributes:
        replay: the tensors of all parts, from weights, inputs and targets.
        lengths: how many each part has.
        placed: makes a vector of their sums.
    """

    replay: Function
    lengths: tuple[int, ...]
    placed: Callable[[Sequence[Tensor]], Tensor]

    def parts(self, *given: Tensor) -> list[Part]:
        """The parts of gradients. SENSITIVE."""
        flat = iter(self.replay(*given))
        return [tuple(itertools.islice(flat, length)) for length in self.lengths]


def _shapes_of(*tensors: Tensor) -> Shapes:
    return tuple((one.shape, one.stride(), one.dtype) for one in tensors)


def _made_up_like(shapes: Shapes, rng: torch.Generator) -> list[Tensor]:
    """Inputs of these shapes, and targets, all of them 0."""
    inputs, targets = (torch.empty_strided(*of, dtype=kind) for *of, kind in shapes)
    if inputs.is_floating_point():
        inputs.normal_(generator=rng)
    else:
        inputs.zero_()
    return [inputs, targets.zero_()]


def _only(sums: Sequence[Tensor]) -> Tensor:
    return sums[0]


def _stacked_copy(model: nn.Module, layout: FlatLayout) -> tuple[nn.Module, list[StackedLayer]]:
    """The model with every layer that has trained parameters exchanged for a stacked one."""
    names = [n for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    if len(names) != len(layout.places):
        raise NotImplementedError("parameters are tied")
    stacked = copy.deepcopy(model)
    pool_before_relu(stacked)
    layers: list[StackedLayer] = []
    for name, layer in model.named_modules():
        own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        kind = next((k for k in _STACKED_LAYERS if k.supports(layer)), None)
        if kind is None:
            raise NotImplementedError(f"{name or 'the model'} ({type(layer).__name__})")
        exchanged = kind(layer, name, layout)
        layers.append(exchanged)
        if not name:
            return exchanged, layers
        parent, _, child = name.rpartition(".")
        setattr(stacked.get_submodule(parent), child, exchanged)
    stacked.requires_grad_(requires_grad=False)
    exchange_pooling(stacked)
    return stacked, layers


def _examine(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> ClippingPath:
    """The path a model takes, tried on made-up examples, in 64 bits if it can be run so."""
    made_up = made_up_inputs(model, inputs, _EXAMPLES), made_up_targets(targets, _EXAMPLES)
    x, y = (one.cpu().double() if one.is_floating_point() else one.cpu() for one in made_up)
    try:
        return _examined(copy.deepcopy(model).double().cpu(), loss, x, y, _AGREEMENT)
    except InputError:
        raise
    except Exception:  # one that makes numbers of 32 bits itself: it is tried in these
        x, y = (one.float() if one.is_floating_point() else one for one in (x, y))
    probe = copy.deepcopy(model).float().cpu()
    try:
        return _examined(probe, loss, x, y, _AGREEMENT_OF_FLOATS)
    except InputError:
        raise
    except Exception as error:  # it is not ours, so it may fail in any way
        raise InputError.because(
            f"the model ({type(model).__name__}) cannot be trained on made-up examples of shape "
            f"{tuple(x.shape[1:])}{_where_it_fails(probe, x)}: {type(error).__name__}: {error}"
        ) from error


def _where_it_fails(probe: nn.Module, x: Tensor) -> str:
    """The innermost layer at which it fails, as part of a sentence."""
    entered: list[str] = []
    for name, layer in probe.named_modules():
        label = f"{name!r} ({type(layer).__name__})"
        layer.register_forward_pre_hook(lambda *_, label=label: entered.append(label))
        layer.register_forward_hook(lambda *_: entered.pop() and None)
    try:
        probe(x)
    except Exception:
        return f"; the layer {entered[-1]} fails" if len(entered) > 1 else ""
    return ""


def _examined(probe: nn.Module, loss: Loss, x: Tensor, y: Tensor, agreement: float) -> ClippingPath:
    _refuse_mixing(probe, x, agreement)
    layout = FlatLayout(probe)
    weights = layout.flatten(probe)
    kind: Literal["vmap", "loop"] = "vmap"
    try:
        expected = per_example_gradients(probe, loss)(weights, x, y)
    except RuntimeError:
        kind = "loop"
        expected = per_example_gradients(probe, loss, vectorised=False)(weights, x, y)
    try:
        net = ClippedNetwork(probe, loss, x, y, path=ClippingPath("stacked", "on trial"))
        reason = _disagreement(net, weights, x, y, expected, agreement)
    except (AttributeError, RuntimeError, TypeError) as problem:
        reason = str(problem)
    if reason is not None:
        return ClippingPath(kind, f"no fast path: {reason}", 2 * layout.dimension)
    return ClippingPath("stacked", "every layer has a fast path", net.floats_per_example())


def _disagreement(
    net: ClippedNetwork, weights: Tensor, x: Tensor, y: Tensor, expected: Tensor, agreement: float
) -> str | None:
    """What the fast path gets wrong on the made-up examples, None if nothing."""
    for rows in (_EXAMPLES - 1, _EXAMPLES):  # two sizes, so that no other dimension passes for rows
        norms = expected[:rows].square().sum(1)
        clip = norms.max().sqrt()[None] * 0.5 + 1e-12
        sums = net.clipped_sums(weights[None], x[None, :rows], y[None, :rows], clip=clip)[0]
        wanted = clip_factors(norms, clip) @ expected[:rows]
        if float((sums - wanted).norm()) > agreement * float(wanted.norm()):
            return "its gradients differ from torch.func's"
    return None


def _refuse_mixing(probe: nn.Module, x: Tensor, agreement: float) -> None:
    """Hold each answer in a small and in a large batch against the answer to the example alone."""
    with torch.no_grad():
        alone = torch.cat([probe(row[None]) for row in x])
        for rows in (len(x), _CROWD):
            places = torch.arange(rows) % len(x)
            together, wanted = probe(x[places]), alone[places]
            same = together.shape == wanted.shape
            if not same or not torch.allclose(together, wanted, 1e3 * agreement, agreement):
                raise InputError.because(
                    f"the model ({type(probe).__name__}) answers an example differently depending "
                    "on the others in its batch, so no record has a gradient of its own to clip."
                )


def made_up_targets(like: Tensor, count: int) -> Tensor:
    """Targets of this shape and type: 1 and 0 in turn, which every task has.

    Example:
        >>> made_up_targets(torch.zeros(1), 3)
        tensor([1., 0., 1.])
    """
    turns = np.indices((count, *like.shape[1:])).sum(0)
    return torch.as_tensor((turns + 1) % 2).to(like)


Pair = tuple[int, int]


class MaxPool(nn.MaxPool2d):
    """Max-pooling of images, with a ReLU after it or a tanh before it if they are set.

    Example:
        >>> MaxPool(2)(torch.arange(4.0).view(1, 1, 2, 2))
        tensor([[[[3.]]]])
    """

    relu = False
    #: As of a convolution: whether it takes the tanh of its inputs, and of which layer's outputs.
    takes_tanh = False
    before: StackedConvolution | None = None

    @classmethod
    def supports(cls, layer: nn.Module) -> bool:
        """Plain max-pooling, without dilation, indices or windows that hang over the edge."""
        return (
            type(layer) is nn.MaxPool2d
            and _pair(layer.dilation) == (1, 1)
            and not layer.return_indices
            and not layer.ceil_mode
            and _pair(layer.kernel_size)[0] * _pair(layer.kernel_size)[1] <= kernels.LARGEST_WINDOW
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """The largest entry of each window."""
        known = inputs.dtype in (torch.float32, torch.float64) and inputs.dim() == 4
        if inputs.is_cuda and kernels.AVAILABLE and known:
            sizes = map(_pair, (self.kernel_size, self.stride, self.padding))
            bias = None if self.before is None else self.before.kept.get("left bias")
            pooled: Tensor = _Pool.apply(  # type: ignore[no-untyped-call]
                inputs, *sizes, self.relu, self.takes_tanh, bias
            )
            return pooled
        pooled = super().forward(inputs.tanh() if self.takes_tanh else inputs)
        return pooled.relu() if self.relu else pooled


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, kernel: Pair, stride: Pair, padding: Pair, relu: bool,
        tanh: bool, bias: Tensor | None,
    ) -> Tensor:  # fmt: skip
        image = inputs.permute(0, 2, 3, 1).contiguous()
        rows, height, width, channels = image.shape
        down = (height + 2 * padding[0] - kernel[0]) // stride[0] + 1
        across = (width + 2 * padding[1] - kernel[1]) // stride[1] + 1
        out = image.new_empty(rows, down, across, channels)
        places = torch.empty_like(out, dtype=torch.uint8)
        ctx.options = {"kernel": kernel, "stride": stride, "padding": padding}
        ctx.image_shape = image.shape
        ctx.save_for_backward(places, *([out] if tanh else []))
        if out.numel() > 0:
            kernels.pool(out, places, image, **ctx.options, relu=relu, tanh=tanh, bias=bias)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        places, *pooled = ctx.saved_tensors
        gradient = gradients[0].permute(0, 2, 3, 1).contiguous()
        out = gradient.new_empty(ctx.image_shape)
        if out.numel() > 0:
            kernels.pool_gradient(
                out, places, gradient, **ctx.options, pooled=pooled[0] if pooled else None
            )
        return out.permute(0, 3, 1, 2), *[None] * 6


def exchange_pooling(model: nn.Module) -> None:
    """Put ``MaxPool`` in the place of every ``nn.MaxPool2d`` it supports, and of a ReLU after it.

    It, and convolutions, take the tanh before them: on a GPU that saves a pass over the images, and
    on a processor it is done as well so that examining a model finds out if it looks between them.

    Example:
        >>> model = nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True))
        >>> exchange_pooling(model)
        >>> [type(layer).__name__ for layer in model]
        ['MaxPool', 'Identity', 'MaxPool2d']
    """
    for part in model.modules():
        for name, layer in part.named_children():
            if isinstance(layer, nn.MaxPool2d) and MaxPool.supports(layer):
                setattr(part, name, MaxPool(layer.kernel_size, layer.stride, layer.padding))
        if type(part) is not nn.Sequential:
            continue
        for i, (first, second) in enumerate(itertools.pairwise(list(part))):
            if isinstance(first, MaxPool) and type(second) is nn.ReLU:
                first.relu, part[i + 1] = True, nn.Identity()
            elif type(first) is nn.Tanh and isinstance(second, MaxPool | StackedConvolution):
                second.takes_tanh, part[i] = True, nn.Identity()
                before = part[i - 1] if i > 0 else None
                if isinstance(before, StackedConvolution):
                    before.may_leave_bias = True
                    second.__dict__["before"] = before  # it is no part of the other


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def pool_before_relu(model: nn.Module) -> None:
    """In every ``nn.Sequential``, turn ReLU then max-pooling into max-pooling then ReLU, in place.

    Example:
        >>> model = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
        >>> pool_before_relu(model)
        >>> [type(layer).__name__ for layer in model]
        ['MaxPool2d', 'ReLU']
    """
    for part in model.modules():
        if type(part) is not nn.Sequential:
            continue
        for i in range(len(part) - 1):
            relu, pool = part[i], part[i + 1]
            pools = type(pool) in (nn.MaxPool1d, nn.MaxPool2d) and not pool.return_indices
            if type(relu) is nn.ReLU and pools:
                part[i], part[i + 1] = pool, relu
