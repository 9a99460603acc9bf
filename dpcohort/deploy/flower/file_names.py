# SPDX-License-Identifier: Apache-2.0
"""A client's id as the name of a file or folder: never a path, never too long, never another's."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

__all__ = ["file_name"]

_LONGEST = 120


def file_name(client: str) -> str:
    """The id with everything escaped that means something in a path; long ones are cut and hashed.

    Example:
        >>> file_name("ward 7/a"), file_name("..")
        ('ward%207%2Fa', '%2E%2E')
    """
    name = quote(client, safe="")
    if not name.strip("."):
        name = name.replace(".", "%2E")
    if len(name) > _LONGEST:
        digest = hashlib.sha256(client.encode()).hexdigest()[:16]
        name = f"{name[:_LONGEST].rpartition('%')[0] or name[:_LONGEST]}-{digest}"
    return name
