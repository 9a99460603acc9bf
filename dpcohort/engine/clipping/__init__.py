# SPDX-License-Identifier: Apache-2.0
"""Sums of clipped per-example gradients, without forming the gradients where a layer allows."""

from __future__ import annotations

from dpcohort.engine.clipping.factors import CLIP_SLACK, clip_factors, clip_rows
from dpcohort.engine.clipping.network import ClippedNetwork, ClippingPath
from dpcohort.engine.clipping.per_example import Loss, PerExampleGradients, refuse_unfit_layers

__all__ = [
    "CLIP_SLACK",
    "ClippedNetwork",
    "ClippingPath",
    "Loss",
    "PerExampleGradients",
    "clip_factors",
    "clip_rows",
    "refuse_unfit_layers",
]
