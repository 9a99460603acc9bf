# SPDX-License-Identifier: Apache-2.0
"""Sums of clipped per-example gradients, without forming the gradients where a layer allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.engine.clipping._network import ClippedNetwork as ClippedNetwork
    from dpcohort.engine.clipping._network import ClippingPath as ClippingPath
    from dpcohort.engine.clipping._per_example import CLIP_SLACK as CLIP_SLACK
    from dpcohort.engine.clipping._per_example import FlatLayout as FlatLayout
    from dpcohort.engine.clipping._per_example import Loss as Loss
    from dpcohort.engine.clipping._per_example import can_be_mapped as can_be_mapped
    from dpcohort.engine.clipping._per_example import clip_factors as clip_factors
    from dpcohort.engine.clipping._per_example import clip_rows as clip_rows
    from dpcohort.engine.clipping._per_example import cross_entropy as cross_entropy
    from dpcohort.engine.clipping._per_example import per_example_gradients as per_example_gradients
    from dpcohort.engine.clipping._per_example import refuse_unfit_layers as refuse_unfit_layers

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _network="ClippedNetwork ClippingPath",
    _per_example=(
        "CLIP_SLACK FlatLayout Loss can_be_mapped clip_factors clip_rows cross_entropy "
        "per_example_gradients refuse_unfit_layers"
    ),
)
