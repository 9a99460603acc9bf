# SPDX-License-Identifier: Apache-2.0
"""How the documentation is built: ``make docs``, offline, warnings are errors."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sphinx.util.inspect import TypeAliasForwardRef

from dpcohort import __version__

project = "dpcohort"
author = "The dpcohort authors"
copyright = "the dpcohort authors, Apache-2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_templates"]

html_theme = "furo"
html_title = f"dpcohort {__version__}"
html_copy_source = False
html_show_sphinx = False
if os.environ.get("DOCS_SITE"):  # one of several versions: docs/versions.py
    templates_path = ["_templates"]
    html_sidebars = {
        "**": [
            "sidebar/brand.html",
            "versions.html",
            "sidebar/search.html",
            "sidebar/scroll-start.html",
            "sidebar/navigation.html",
            "sidebar/scroll-end.html",
        ]
    }

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
# Readers know arrays by these names; spelled out they fill half a page.
autodoc_type_aliases = {
    name: name for name in ("ArrayLike", "BoolArray", "FloatArray", "IntArray", "Plan")
}
# Inside of unions and tuples as well.
TypeAliasForwardRef.__repr__ = lambda self: self.name  # type: ignore[method-assign]
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False


def _bars_are_sizes(
    app: Any, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Keep |M_k| as it is; reStructuredText would take it for a substitution."""
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line)
        lines[number] = "".join(
            part if part.startswith("``") else part.replace("|", r"\|") for part in parts
        )


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _bars_are_sizes, priority=900)
