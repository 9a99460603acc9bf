# SPDX-License-Identifier: Apache-2.0
"""A pass on a GPU recorded once and replayed: a hundred small kernels for the price of one launch.

A recording (a CUDA graph) has fixed shapes and fixed memory. What changes from pass to pass is
written into that memory first: the packed step and the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpcohort.engine.packed_step import PackedStep

__all__ = ["CapturedPass", "PassBody", "UncapturableError"]

#: Adds the clipped sums of a packed step at some weights to the third, [slots, D].
PassBody = Callable[[PackedStep, Tensor, Tensor], None]

_WARM_UPS = 2  # libraries choose and set up their kernels when first called
_AGREEMENT = 1e-3  # far above rounding, far below what a pass of other data would give


class UncapturableError(Exception):
    """A model does something that cannot be recorded; the caller goes without."""


class CapturedPass:
    """The clipped sums of one shape of pass.

    Args:
        body: what is recorded.
        step: a packed step, in host memory, to try it on.
        weights: [groups, D] to try it on.
        pool: memory shared by recordings that are never replayed at the same time.

    Raises:
        UncapturableError: the recording failed, or it does not do what the body does.
    """

    def __init__(self, body: PassBody, step: PackedStep, weights: Tensor, *, pool: Any) -> None:
        self.weights = weights.clone()
        self.step = step.moved_to(torch.empty_like(step.words, device=weights.device))
        self.sums = weights.new_empty(step.slots, weights.shape[1])
        self._graph = torch.cuda.CUDAGraph()
        expected = self._warm_up(body)
        try:
            with torch.cuda.graph(self._graph, pool=pool):
                self._record(body)
        except Exception as problem:
            _end_failed_recording()
            raise UncapturableError(str(problem)) from problem
        self._graph.replay()
        gap = float((self.sums - expected).norm())
        if not gap <= _AGREEMENT * float(expected.norm()):
            raise UncapturableError("its recording computes something else")

    def load(self, step: PackedStep) -> PackedStep:
        """Put the next step into the recording's memory; the weights are the caller's to write."""
        return step.moved_to(self.step.words)

    def replay(self) -> Tensor:
        """The clipped sums of what was loaded, in memory that the next replay uses again."""
        self._graph.replay()
        return self.sums

    def _record(self, body: PassBody) -> None:
        self.sums.zero_()
        body(self.step, self.weights, self.sums)

    def _warm_up(self, body: PassBody) -> Tensor:
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                self._record(body)
            expected = self.sums.clone()
        here.wait_stream(aside)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the recording has memory of its own
        return expected


def _end_failed_recording() -> None:
    """Make torch's own generator usable again: a failed recording leaves it waiting for the end.

    A recording that succeeds, of next to nothing, brings the end.
    """
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")
