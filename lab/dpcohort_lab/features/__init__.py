# SPDX-License-Identifier: Apache-2.0
"""Fixed features of images: oriented filters and the scattering transform, by formula.

``[model] options = { features = "oriented" }`` of a configuration finds them by the entry-point
group ``dpcohort.features``.
"""

from __future__ import annotations

from dpcohort_lab.features.fixed import ImageFeatures, ScatteringFeatures
from dpcohort_lab.features.oriented import OrientedFeatures

__all__ = ["ImageFeatures", "OrientedFeatures", "ScatteringFeatures"]
