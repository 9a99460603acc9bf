# SPDX-License-Identifier: Apache-2.0
"""Accuracy and loss on public test data, in chunks, channels-last, without autograd."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dpcohort._validate import whole_number
from dpcohort.engine.layout import FlatLayout
from dpcohort.errors import InputError
from dpcohort.round_record import TestResult

__all__ = ["Evaluator"]


class Evaluator:
    """Evaluates parameter vectors of one model on one test set.

    Args:
        model: the classifier; it is copied.
        inputs: [n, ...] test inputs.
        targets: [n] classes.
        device: where to evaluate; the test set stays there.
        dtype: floating type to evaluate in.
        chunk: examples at a time.

    Example:
        >>> evaluator = Evaluator(nn.Linear(1, 2), torch.tensor([[1.0], [-1.0]]), [0, 1])
        >>> result = evaluator.evaluate(torch.tensor([1.0, -1.0, 0.0, 0.0]))
        >>> result.accuracy, result.class_accuracy
        (1.0, (1.0, 1.0))
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        targets: Any,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        chunk: int = 2000,
    ) -> None:
        whole_number("chunk", chunk, at_least=1)
        self._model = copy.deepcopy(model).to(device=device, dtype=dtype).eval()
        self._layout = FlatLayout(self._model)
        self._inputs = torch.as_tensor(inputs).to(device)
        if self._inputs.is_floating_point():
            self._inputs = self._inputs.to(dtype)
        if self._inputs.dim() == 4:
            self._inputs = self._inputs.contiguous(memory_format=torch.channels_last)
            self._model = self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._targets = torch.as_tensor(targets).to(device)
        self._chunk = chunk
        if self._inputs.shape[0] == 0 or self._inputs.shape[0] != self._targets.shape[0]:
            raise InputError.because(
                f"a test set needs inputs and as many targets, not {self._inputs.shape[0]} and "
                f"{self._targets.shape[0]}."
            )

    @torch.inference_mode()
    def evaluate(self, parameters: Tensor) -> TestResult:
        """Results of the model with these parameters."""
        self._layout.assign(self._model, parameters)
        losses, hits, classes = [], [], 0
        for start in range(0, self._inputs.shape[0], self._chunk):
            y = self._targets[start : start + self._chunk]
            outputs = self._model(self._inputs[start : start + self._chunk])
            classes = outputs.shape[1]
            losses.append(F.cross_entropy(outputs, y, reduction="none").double())
            hits.append(outputs.argmax(1) == y)
        hit = torch.cat(hits).double()
        counts = torch.bincount(self._targets, minlength=classes)
        right = torch.bincount(self._targets, weights=hit, minlength=classes)
        return TestResult(
            accuracy=float(hit.mean()),
            loss=float(torch.cat(losses).mean()),
            class_accuracy=tuple((right / counts).tolist()),
            class_counts=tuple(counts.tolist()),
        )
