# SPDX-License-Identifier: Apache-2.0
"""Models to train, and the check that a model can be trained record by record. Imports torch."""

from __future__ import annotations

from dpcohort.models.build import MODEL_NAMES, build_model
from dpcohort.models.features import (
    FEATURE_NAMES,
    build_features,
    precompute_features,
    split_features,
    without_features,
)
from dpcohort.models.fixed_features import FixedFeatures, ScatteringFeatures
from dpcohort.models.oriented import OrientedFeatures
from dpcohort.models.trainable import check_trainable, parameter_count
from dpcohort.models.weights import described_weights, freeze, load_weights

__all__ = [
    "FEATURE_NAMES",
    "MODEL_NAMES",
    "FixedFeatures",
    "OrientedFeatures",
    "ScatteringFeatures",
    "build_features",
    "build_model",
    "check_trainable",
    "described_weights",
    "freeze",
    "load_weights",
    "parameter_count",
    "precompute_features",
    "split_features",
    "without_features",
]
