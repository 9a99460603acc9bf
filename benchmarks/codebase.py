# SPDX-License-Identifier: Apache-2.0
"""Size and shape of the codebase: lines, definitions, forks, imports, tests and words.

``python benchmarks/codebase.py`` prints two tables for the tree it is in: packages by size, and its
shape. With ``--before CHECKOUT`` the second has that checkout beside this one (``git worktree add
../before 45aaf19`` makes the usual one); ``--where ROW`` lists what a row counts.

A line of code is one that holds a token of a statement: docstrings, comments, imports and blank
lines do not count. The other rules are beside the functions that count.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
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
    """Size of some files together.

    Attributes:
        files: number of files.
        classes: classes defined in them, at any depth.
        lines: lines of text.
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


def size_of(path: Path) -> Size:
    """Size of one file."""
    text = path.read_text(encoding="utf-8")
    classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(text)))
    return Size(1, classes, len(text.splitlines()), len(code_lines(text)))


def code_lines(text: str) -> set[int]:
    """Numbers of the lines of code of a file.

    Args:
        text: of a Python file.
    """
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in _not_counted(ast.parse(text)):
        code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return code


def _not_counted(tree: ast.Module) -> Iterator[ast.stmt]:
    """Imports and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and (ast.get_docstring(node, clean=False) is not None):
            yield node.body[0]


def _python(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _code(folder: Path) -> int:
    return sum(size_of(path).code for path in _python(folder))


def sizes(root: Path) -> dict[str, Size]:
    """Size of each package of ``dpcohort``; modules beside the packages are "top level"."""
    by_package: defaultdict[str, Size] = defaultdict(Size)
    for path in _python(root / "dpcohort"):
        parts = path.relative_to(root / "dpcohort").parts
        by_package[parts[0] if len(parts) > 1 else "top level"] += size_of(path)
    return dict(by_package)


def table(by_package: dict[str, Size], lab: Size) -> str:
    """Sizes as a table in Markdown, the largest package first."""
    rows = ["| package | files | classes | lines | code |", "|---|---|---|---|---|"]
    ordered = sorted(by_package.items(), key=lambda item: -item[1].code)
    total = sum(by_package.values(), start=Size())
    for name, size in [*ordered, ("**all**", total), ("lab, apart", lab)]:
        rows.append(f"| {name} | {size.files} | {size.classes} | {size.lines:,} | {size.code:,} |")
    return "\n".join(rows)


# What is counted one by one: each function lists places, so that --where can print them.


def _trees(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """The modules of the product, by path, without what only type checkers read."""
    for path in _python(root / "dpcohort"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                node.body = [ast.Pass()]
        yield str(path.relative_to(root)), tree


#: Optional parts of a plan, asked for where a part could answer for itself: a view that may be
#: None, a flag that tells the kinds of a part apart, or the class of a part.
_OPTIONAL = re.compile(
    r"\.adaptive\b|\.pooled\b|(?<!self)\.distributed\b|\bis_distributed\b|\bis_pooled\b"
    r"|\bpool is (not )?None|\.are_private\b|\.are_raw\b|\.is_known\b|\.terms is (not )?None"
    r"|\.(before|segments|charges|paid|past)( is (not )?None)?$|\b(reports|charges) is "
    r"|(noise|participation|part)\.kind\b"
    r"|isinstance\([^()]*, [^()]*(Noise|FixedCohorts|CappedRule|AdaptivePlan|Reports)\b"
)


def forks(root: Path) -> list[str]:
    """Conditions on an optional part of a plan.

    A condition is the test of an ``if``, ``while`` or conditional expression, each operand of
    ``and``, ``or`` and ``not``, and the filter of a comprehension. It counts once if its text names
    a view of an optional part, a flag that tells kinds of a part apart, or a part's class.
    """
    places = []
    for path, tree in _trees(root):
        for node in ast.walk(tree):
            for test in _tests(node):
                if _OPTIONAL.search(ast.unparse(test)):
                    places.append(f"{path}:{test.lineno}: {ast.unparse(test)}")
    return sorted(set(places))


def _tests(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.BoolOp):
        yield from (value for value in node.values if not isinstance(value, ast.BoolOp))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield from _leaf(node.test)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _leaf(test)


def _leaf(test: ast.expr) -> Iterator[ast.expr]:
    """The test itself, if it is not made of others, which are met by themselves."""
    if not isinstance(test, ast.BoolOp | ast.UnaryOp):
        yield test


def public_definitions(root: Path) -> list[str]:
    """Functions and classes at the top of a module that no underscore marks, its path included."""
    return [
        f"{path}: {node.name}"
        for path, tree in _trees(root)
        if not any(part.startswith("_") for part in Path(path).with_suffix("").parts)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    ]


def inner_imports(root: Path) -> list[str]:
    """Import statements inside functions."""
    places = set()
    for path, tree in _trees(root):
        for outer in ast.walk(tree):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                places |= {
                    f"{path}:{node.lineno}: {ast.unparse(node)}"
                    for node in ast.walk(outer)
                    if isinstance(node, ast.Import | ast.ImportFrom)
                }
    return sorted(places)


#: A task of regression has the same name as a sampler; these two files speak of the task.
_NOT_OF_SAMPLERS = {"dpcohort/tasks.py", "dpcohort/metrics.py"}


def sampler_files(root: Path) -> list[str]:
    """Files that name a sampler, by its word or its class: those to look at for one more."""
    words, classes = {"poisson", "fixed", "balls-in-bins"}, {"Poisson", "FixedSize", "BallsInBins"}
    return [
        path
        for path, tree in _trees(root)
        if path not in _NOT_OF_SAMPLERS
        and any(
            (isinstance(node, ast.Constant) and node.value in words)
            or (isinstance(node, ast.Name) and node.id in classes)
            for node in ast.walk(tree)
        )
    ]


def optimiser_state_files(root: Path) -> list[str]:
    """Files that name a tensor of a server optimiser's state, ``momentum``."""
    return [
        path
        for path, tree in _trees(root)
        if any(
            (isinstance(node, ast.Attribute) and node.attr == "momentum")
            or (isinstance(node, ast.Constant) and node.value == "momentum")
            for node in ast.walk(tree)
        )
    ]


#: Fields that are numbers of a client's training.
_OF_A_CLIENT = re.compile(
    r"^(noise_)?multipliers?$|^noise$|^(sampling_)?rates?$|^(local_)?steps$|^batch(_size)?s?$"
    r"|^(epsilon|delta|budgets?|sizes?|counts?|draws)$|^(calibrated|certified|spent)_epsilon$"
    r"|^noise_multiplier$|^stds?$|^shares?$|^sampler$"
)


def client_types(root: Path) -> list[str]:
    """Data types with two or more numbers of a client's training among their fields.

    The audit's, which describe tests of a training, do not count.
    """
    return [
        f"{path}: {node.name}"
        for path, tree in _trees(root)
        if not path.startswith("dpcohort/audit")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and sum(bool(_OF_A_CLIENT.match(name)) for name in _fields(node)) >= 2
    ]


def _fields(node: ast.ClassDef) -> list[str]:
    return [
        part.target.id
        for part in node.body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    ]


def parameters(root: Path, name: str) -> int:
    """Parameters of a public function, or of the data class that its one ``**`` unpacks."""
    for path, tree in _trees(root):
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == name and "/cli/" not in path:
                given = node.args
                return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
    return 0


def words_of_docs(root: Path) -> int:
    """Words written by hand: docs, README and CONTRIBUTING, without logs that commands write."""
    pages = [
        path for path in (root / "docs").rglob("*.md") if path.name != "log.md" and path.is_file()
    ]
    pages += [root / "README.md", root / "CONTRIBUTING.md"]
    return sum(len(path.read_text(encoding="utf-8").split()) for path in pages)


_CONFIG = """
[population]
clients = "clients.csv"
[training]
rounds = 2
cohort_size = 2
batch_size = 20
dimension = 650
[data]
name = "digits"
[model]
name = "logistic"
[run]
device = "cpu"
seed = 1
"""
_CLIENTS = """id,size,epsilon,delta
a,400,0.5,1e-5
b,400,2,1e-5
c,400,8,1e-5
"""
_COMMANDS = (
    ("plan", "config.toml", "-o", "plan.json"),
    ("explain", "plan.json", "a"),
    ("what-if", "plan.json"),
    ("rules",),
    ("verify", "run"),
    ("receipt", "run", "a"),
    ("replan", "run", "-o", "next.json"),
    ("new", "other.toml"),
)
_WITHOUT_TORCH = """
import contextlib, io, json, sys
from dpcohort.cli import main
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(command)
        except SystemExit:
            pass
assert "torch" not in sys.modules
print(json.dumps([m.__file__ for n, m in sys.modules.items()
                  if n.split(".")[0] == "dpcohort" and getattr(m, "__file__", None)]))
"""


def code_without_torch(root: Path) -> int:
    """Lines of code of the modules that planning, explaining and verifying load; torch is not."""
    environment = {**os.environ, "PYTHONPATH": str(root.resolve())}
    with tempfile.TemporaryDirectory() as place:
        Path(place, "config.toml").write_text(_CONFIG)
        Path(place, "clients.csv").write_text(_CLIENTS)

        def run(*command: str) -> str:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=place,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            return done.stdout

        run("-m", "dpcohort", "train", "config.toml", "--out", "run")
        loaded = run("-c", _WITHOUT_TORCH, json.dumps(_COMMANDS))
    return sum(size_of(Path(path)).code for path in json.loads(loaded.splitlines()[-1]))


def exported_names(root: Path) -> int:
    """Names in ``dpcohort.__all__``."""
    count = subprocess.run(
        [sys.executable, "-c", "import dpcohort; print(len(dpcohort.__all__))"],
        env={**os.environ, "PYTHONPATH": str(root.resolve())},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(count.stdout)


_LISTS: dict[str, Callable[[Path], list[str]]] = {
    "forks": forks,
    "public": public_definitions,
    "imports": inner_imports,
    "sampler": sampler_files,
    "optimiser": optimiser_state_files,
    "types": client_types,
}


def facts(root: Path) -> dict[str, str]:
    """Rows of the second table for one checkout."""
    lab = root / "lab"
    lists = {name: len(places(root)) for name, places in _LISTS.items()}
    return {
        "code lines of the product": f"{_code(root / 'dpcohort'):,}",
        "of these loaded by plan, explain, verify and their like (no torch)": (
            f"{code_without_torch(root):,}"
        ),
        "forks on optional parts of a plan": f"{lists['forks']}",
        "public definitions; exported names": f"{lists['public']:,}; {exported_names(root)}",
        "imports inside functions": f"{lists['imports']}",
        "files that name a sampler / a server optimiser's state": (
            f"{lists['sampler']} / {lists['optimiser']}"
        ),
        "data types with numbers of a client's training": f"{lists['types']}",
        "parameters of `train` / `make_plan`": (
            f"{parameters(root, 'train')} / {parameters(root, 'make_plan')}"
        ),
        "code lines of tests, the laboratory's included": (
            f"{_code(root / 'tests') + _code(lab / 'tests'):,}"
        ),
        "words of docs": f"{words_of_docs(root):,}",
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a checkout; this one")
    parser.add_argument("--before", type=Path, help="compare with this checkout")
    parser.add_argument("--where", choices=sorted(_LISTS), help="list what a row counts")
    options = parser.parse_args()
    if options.where is not None:
        print(*_LISTS[options.where](options.root), sep="\n")
        return
    lab = sum(map(size_of, _python(options.root / "lab" / "dpcohort_lab")), start=Size())
    print(table(sizes(options.root), lab) + "\n")
    columns = [facts(root) for root in (options.before, options.root) if root is not None]
    names = ["before", "now"][-len(columns) :]
    print("| | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|")
    for row in columns[-1]:
        print(f"| {row} | " + " | ".join(column[row] for column in columns) + " |")


if __name__ == "__main__":
    main()
