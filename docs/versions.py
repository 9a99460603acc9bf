# SPDX-License-Identifier: Apache-2.0
"""The documentation of every release and of this tree, side by side: ``make docs-versions``.

    python docs/versions.py out/site

A release is a tag ``v1.2.3``. Its documentation is built from its own files, in a folder of its own
name; every page leads to the list of versions, and the newest release is the first in it.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def files_of(tag: str) -> Iterator[Path]:
    """The tree of a tag, in a folder that goes afterwards."""
    packed = subprocess.run(["git", "archive", tag], cwd=ROOT, capture_output=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def build(tree: Path, target: Path) -> None:
    """Build the documentation of a tree; a warning is an error."""
    with tempfile.TemporaryDirectory() as trees:
        options = ["-W", "--keep-going", "-q", "-b", "html", "-d", trees]
        command = [sys.executable, "-m", "sphinx", *options, str(tree / "docs"), str(target)]
        subprocess.run(command, env={**os.environ, "DOCS_SITE": "1"}, check=True)


def main(site: Path) -> None:
    """Build all versions into a folder, with a page that lists them."""
    newest = ["git", "tag", "--list", "v[0-9]*", "--sort=-version:refname"]
    found = subprocess.run(newest, cwd=ROOT, capture_output=True, text=True, check=True)
    tags = found.stdout.split()
    for tag in tags:
        with files_of(tag) as tree:
            build(tree, site / tag)
    build(ROOT, site / "main")
    links = "".join(f'<li><a href="{one}/index.html">{one}</a></li>' for one in [*tags, "main"])
    page = f"<!doctype html><title>dpcohort</title><h1>dpcohort</h1><ul>{links}</ul>\n"
    (site / "index.html").write_text(page, encoding="utf-8")
    print(f"{len(tags) + 1} versions are in {site / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
