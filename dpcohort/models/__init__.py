# SPDX-License-Identifier: Apache-2.0
"""Models to train, and the check that a model can be trained record by record. Imports torch."""

from __future__ import annotations

from dpcohort.models.build import MODEL_NAMES, build_model
from dpcohort.models.trainable import check_trainable, parameter_count

__all__ = ["MODEL_NAMES", "build_model", "check_trainable", "parameter_count"]
