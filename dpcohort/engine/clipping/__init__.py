# SPDX-License-Identifier: Apache-2.0
"""Sums of clipped per-example gradients, without forming the gradients where a layer allows."""

from __future__ import annotations

from dpcohort.engine.clipping.network import ClippedNetwork, ClippingPath, not_proved_apart
from dpcohort.engine.clipping.per_example import (
    CLIP_SLACK,
    FlatLayout,
    Loss,
    can_be_mapped,
    clip_factors,
    clip_rows,
    cross_entropy,
    per_example_gradients,
    refuse_unfit_layers,
)

__all__ = [
    "CLIP_SLACK",
    "ClippedNetwork",
    "ClippingPath",
    "FlatLayout",
    "Loss",
    "can_be_mapped",
    "clip_factors",
    "clip_rows",
    "cross_entropy",
    "not_proved_apart",
    "per_example_gradients",
    "refuse_unfit_layers",
]
