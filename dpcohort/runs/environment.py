# SPDX-License-Identifier: Apache-2.0
"""What a run ran on: versions, device, threads; no host names, user names or paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

from dpcohort._version import __version__

__all__ = ["environment"]

_PACKAGES = ("numpy", "scipy", "dp-accounting", "torch", "scikit-learn", "safetensors")


def environment(device: str) -> dict[str, Any]:
    """Versions and device, for ``environment.json``.

    Example:
        >>> found = environment("cpu")
        >>> found["device"], "python" in found
        ('cpu', True)
    """
    import torch

    found: dict[str, Any] = {
        "dpcohort": __version__,
        "python": platform.python_version(),
        "system": sys.platform,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "packages": {name: _version(name) for name in _PACKAGES},
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
        found["cuda"] = torch.version.cuda
    return found


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
