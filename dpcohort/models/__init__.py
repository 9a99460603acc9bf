# SPDX-License-Identifier: Apache-2.0
"""Models to train, and the check that a model can be trained record by record. All need torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpcohort._lazy import names_on_use

if TYPE_CHECKING:
    from dpcohort.models._build import MODEL_NAMES as MODEL_NAMES
    from dpcohort.models._build import build_model as build_model
    from dpcohort.models._features import FixedFeatures as FixedFeatures
    from dpcohort.models._features import build_features as build_features
    from dpcohort.models._features import precompute_features as precompute_features
    from dpcohort.models._features import split_features as split_features
    from dpcohort.models._features import without_features as without_features
    from dpcohort.models._trainable import check_trainable as check_trainable
    from dpcohort.models._trainable import parameter_count as parameter_count
    from dpcohort.models._weights import described_weights as described_weights
    from dpcohort.models._weights import freeze as freeze
    from dpcohort.models._weights import load_weights as load_weights

__all__, __getattr__, __dir__ = names_on_use(
    __name__,
    _build="MODEL_NAMES build_model",
    _features="FixedFeatures build_features precompute_features split_features without_features",
    _trainable="check_trainable parameter_count",
    _weights="described_weights freeze load_weights",
)
