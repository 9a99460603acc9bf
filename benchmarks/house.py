# SPDX-License-Identifier: Apache-2.0
"""The size of the house: files, classes and lines of code, package by package.

``python benchmarks/house.py`` prints the table of docs/architecture.md for the tree it is in, and
``python benchmarks/house.py OTHER`` that of another checkout. A line of code is one that holds a
token of a statement: docstrings, comments, imports and blank lines do not count.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


@dataclass(frozen=True)
class Size:
    """How large some files are together.

    Attributes:
        files: how many.
        classes: defined in them, at any depth.
        lines: of text.
        code: lines of code.
    """

    files: int = 0
    classes: int = 0
    lines: int = 0
    code: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.files + other.files,
            self.classes + other.classes,
            self.lines + other.lines,
            self.code + other.code,
        )


def size_of(text: str) -> Size:
    """The size of one file.

    Args:
        text: of a Python file.
    """
    tree = ast.parse(text)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in _not_counted(tree):
        code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
    return Size(files=1, classes=classes, lines=len(text.splitlines()), code=len(code))


def _not_counted(tree: ast.Module) -> Iterator[ast.stmt]:
    """Imports and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and (ast.get_docstring(node, clean=False) is not None):
            yield node.body[0]


def sizes(root: Path) -> dict[str, Size]:
    """The size of each package of ``dpcohort``; its own modules are "top level".

    Args:
        root: of a checkout.
    """
    found: defaultdict[str, Size] = defaultdict(Size)
    package = root / "dpcohort"
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        name = parts[0] if len(parts) > 1 else "top level"
        found[name] += size_of(path.read_text(encoding="utf-8"))
    return dict(found)


def table(found: dict[str, Size]) -> str:
    """The sizes as a table in Markdown, the largest package first.

    Args:
        found: name of a package to its size.
    """
    rows = ["| package | files | classes | lines | code |", "|---|---|---|---|---|"]
    total = sum(found.values(), start=Size())
    ordered = sorted(found.items(), key=lambda item: -item[1].code)
    for name, size in [*ordered, ("**all**", total)]:
        rows.append(f"| {name} | {size.files} | {size.classes} | {size.lines:,} | {size.code:,} |")
    return "\n".join(rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a checkout; this one")
    print(table(sizes(parser.parse_args().root)))


if __name__ == "__main__":
    main()
