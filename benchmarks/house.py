# SPDX-License-Identifier: Apache-2.0
"""The size of the house: files, classes, lines of code, and what is there twice.

The laboratory, dpcohort-lab, is counted apart, as one line.

``python benchmarks/house.py`` prints the sizes package by package for the tree it is in, and
``python benchmarks/house.py OTHER`` those of another checkout. With ``--before CHECKOUT`` it prints
the table of docs/architecture.md: that checkout beside this one (``git worktree add /tmp/before
98ed787`` makes the one that the table begins with).

A line of code is one that holds a token of a statement: docstrings, comments, imports and blank
lines do not count. The other rules are beside the functions that count.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: What one must know to change training; what a package of them imports counts as well.
CORE = (
    *("clients", "config", "accounting", "selection", "schedule", "plan", "aggregation", "data"),
    *("models", "engine", "runs", "adaptive"),
)

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
    classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(text)))
    code = len(code_lines(text))
    return Size(files=1, classes=classes, lines=len(text.splitlines()), code=code)


def code_lines(text: str) -> set[int]:
    """The numbers of the lines of code of a file.

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


def _modules(root: Path) -> dict[str, Path]:
    """The files of ``dpcohort`` by the name of their module."""
    package = root / "dpcohort"
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(package.rglob("*.py"))
    }


def _part(module: str) -> str:
    """The package or the top-level module that a module is in; "" for ``dpcohort`` itself."""
    return [*module.split("."), ""][1]


def sizes(root: Path) -> dict[str, Size]:
    """The size of each package of ``dpcohort``; its own modules are "top level".

    Args:
        root: of a checkout.
    """
    found: defaultdict[str, Size] = defaultdict(Size)
    for module, path in _modules(root).items():
        part = _part(module)
        name = part if (root / "dpcohort" / part).is_dir() and part else "top level"
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


def lab_size(root: Path) -> Size:
    """The size of the laboratory, which in older checkouts is part of ``dpcohort``.

    Args:
        root: of a checkout.
    """
    held = (root / "lab" / "dpcohort_lab").rglob("*.py")
    return sum((size_of(path.read_text(encoding="utf-8")) for path in held), start=Size())


def core_size(root: Path) -> Size:
    """The size of the core."""
    held = core_modules(root).values()
    return sum((size_of(path.read_text(encoding="utf-8")) for path in held), start=Size())


def core_modules(root: Path) -> dict[str, Path]:
    """The core: the packages and modules of ``CORE``, and the top-level modules they import.

    What is imported is followed from file to file, imports inside functions included, imports for
    type checkers and other packages not.
    """
    modules = _modules(root)
    parts = set(CORE)
    while True:
        imported = {
            _part(name)
            for module, path in modules.items()
            if _part(module) in parts
            for name in _imported(path)
        }
        top_level = {part for part in imported if (root / "dpcohort" / f"{part}.py").exists()}
        if top_level <= parts:
            break
        parts |= top_level
    return {module: path for module, path in modules.items() if _part(module) in parts}


def _imported(path: Path) -> set[str]:
    """Modules of dpcohort that a file imports when it is loaded or used."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("dpcohort.")}


def _trees(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for module, path in _modules(root).items():
        yield module, ast.parse(path.read_text(encoding="utf-8"))


#: A loop over rounds has one of these in its head, and does one of those in its body.
_HEAD = re.compile(r"\b(next_round|rounds|\w+_rounds)\b")
_BODY = {"next", "combine", "combine_round", "updates", "apply", "_round"}


def round_loops(root: Path) -> list[str]:
    """Loops that lead a training from round to round.

    A ``for`` or ``while`` statement counts if its head names the rounds (``rounds``,
    ``next_round``, ``..._rounds``) and its body, without the functions it calls, takes the next
    round of an engine (``next``), gets or combines updates, or applies them to a model. A loop
    inside a counted one is part of it, and one that only writes down what such a loop yields is
    none.
    """
    found = []
    for module, tree in _trees(root):
        inside: set[ast.AST] = set()
        for node in ast.walk(tree):
            if node in inside or not isinstance(node, ast.For | ast.While):
                continue
            head = node.iter if isinstance(node, ast.For) else node.test
            body = {name for part in node.body for name in _called(part)}
            if _HEAD.search(ast.unparse(head)) and body & _BODY:
                found.append(f"{module}:{node.lineno}")
                inside |= set(ast.walk(node))
    return found


def _called(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                yield node.func.attr
            elif isinstance(node.func, ast.Name):
                yield node.func.id


def plans(root: Path) -> list[str]:
    """Plans that can be trained: classes called ``...Plan`` with a ``schedule`` or with ``caps``.

    A class counts if it, not its base, annotates or defines one of the two and is no Protocol;
    those of ``audit``, which only tests use, do not.
    """
    return [
        f"{module}.{node.name}"
        for module, node in _classes(root)
        if node.name.endswith("Plan")
        and not module.startswith("dpcohort.audit")
        and not any("Protocol" in ast.unparse(base) for base in node.bases)
        and _members(node) & {"schedule", "caps"}
    ]


def run_ledgers(root: Path) -> list[str]:
    """Ledgers of runs: classes called ``...Ledger`` or ``...Journal`` outside the clients' own.

    The client's own ledger (``client_ledger``, ``deploy``) is the client's, and no Protocol counts.
    """
    return [
        f"{module}.{node.name}"
        for module, node in _classes(root)
        if re.search(r"(Ledger|Journal)$", node.name)
        and not module.startswith(("dpcohort.client_ledger", "dpcohort.deploy"))
        and not any("Protocol" in ast.unparse(base) for base in node.bases)
    ]


def forks_on_plans(root: Path) -> list[str]:
    """Calls of ``isinstance`` with a class of plans, also in a union; not in ``__eq__``."""
    found = []
    for module, tree in _trees(root):
        compared: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == "__eq__":
                compared |= set(ast.walk(node))
            elif (
                isinstance(node, ast.Call)
                and node not in compared
                and ast.unparse(node.func) == "isinstance"
                and re.search(r"\b(Adaptive)?Plan\b", ast.unparse(node.args[1]))
            ):
                found.append(f"{module}:{node.lineno}")
    return found


def _classes(root: Path) -> Iterator[tuple[str, ast.ClassDef]]:
    for module, tree in _trees(root):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield module, node


def _members(node: ast.ClassDef) -> set[str]:
    names = set()
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            names.add(part.target.id)
        elif isinstance(part, ast.FunctionDef):
            names.add(part.name)
    return names


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


def _trace() -> None:
    """Train three clients of a CSV file on the digits, and print what ran as JSON."""
    import dpcohort
    from dpcohort.cli import main as command

    package = str(Path(dpcohort.__file__).parent) + os.sep
    files: set[str] = set()
    classes: set[str] = set()

    def watch(frame: object, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code  # type: ignore[attr-defined]
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or of a class
            return
        if not code.co_filename.startswith(package):
            return
        files.add(code.co_filename)
        if code.co_argcount and code.co_varnames[0] in ("self", "cls"):
            owner = frame.f_locals.get(code.co_varnames[0])  # type: ignore[attr-defined]
            # Not isinstance, which would ask an object that loads itself when it is asked.
            owner = owner if issubclass(type(owner), type) else type(owner)
            if owner.__module__.startswith("dpcohort."):
                classes.add(f"{owner.__module__}.{owner.__qualname__}")

    sys.setprofile(watch)
    code = command(["train", "config.toml", "--out", "run", "--json"])
    sys.setprofile(None)
    print(json.dumps({"code": code, "files": sorted(files), "classes": sorted(classes)}))


def met_in_training(root: Path) -> tuple[int, int]:
    """Files and classes of dpcohort that a row of clients.csv meets in ``dpcohort train``.

    Traced in a process of its own on the CPU, two rounds, three clients: the files in which a
    function ran, and the classes of which a method ran that is written there (not one that a
    dataclass generates). Bodies of modules and of classes, which run when a file is loaded, do not
    count.
    """
    with tempfile.TemporaryDirectory() as place:
        Path(place, "config.toml").write_text(_CONFIG)
        Path(place, "clients.csv").write_text(_CLIENTS)
        done = subprocess.run(
            [sys.executable, __file__, "--trace"],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(root.resolve())},
            capture_output=True,
            text=True,
            check=True,
        )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == 0, done.stderr
    return len(found["files"]), len(found["classes"])


def tests_of(root: Path) -> tuple[int, int]:
    """Test cases, doctests included, as pytest collects them; and lines of text under ``tests``."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root.resolve())},
        capture_output=True,
        text=True,
        check=False,
    )
    cases = sum("::" in line for line in done.stdout.splitlines())
    paths = (root / "tests").rglob("*.py")
    return cases, sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def stood_at(root: Path, commit: str) -> tuple[int, int]:
    """Lines of code of today that stood at a commit, moved or not, and those of the core.

    What ``git blame -w -M -C`` finds in a later commit was written or changed after it.

    Args:
        root: of a checkout with its history.
        commit: an ancestor of what is checked out.
    """
    git = ["git", "-C", str(root)]
    before = set(subprocess.check_output([*git, "rev-list", commit], text=True).split())
    core = core_modules(root)
    all_lines = of_core = 0
    for module, path in _modules(root).items():
        blame = [*git, "blame", "-w", "-M", "-C", "-s", "-l", "--root", str(path)]
        owners = [
            line.split()[0] for line in subprocess.check_output(blame, text=True).splitlines()
        ]
        code = code_lines(path.read_text(encoding="utf-8"))
        stood = sum(owners[number - 1] in before for number in code)
        all_lines += stood
        of_core += stood if module in core else 0
    return all_lines, of_core


def facts(root: Path, *, slow: bool = True) -> dict[str, str]:
    """The rows of the table before and after.

    Args:
        root: of a checkout.
        slow: with the trace of a training, and the tests.
    """
    total, core = sum(sizes(root).values(), start=Size()), core_size(root)
    counted = (round_loops(root), plans(root), run_ledgers(root), forks_on_plans(root))
    found = {
        "code lines without docs, comments, imports, blanks": f"{total.code:,}",
        "… of the core": f"{core.code:,}",
        "… of the laboratory, not in the sum": f"{lab_size(root).code:,}",
        "files / classes": f"{total.files} / {total.classes}",
        "… of the core, files / classes": f"{core.files} / {core.classes}",
        "round loops; plans; run ledgers; `isinstance` forks on plans": "; ".join(
            str(len(places)) for places in counted
        ),
    }
    if slow:
        files, classes = met_in_training(root)
        found["files / classes a row of clients.csv meets in `train`"] = f"{files} / {classes}"
        cases, lines = tests_of(root)
        found["test cases / lines"] = f"{cases:,} / {lines:,}"
    return found


def comparison(before: Path, after: Path, *, slow: bool = True) -> str:
    """Two checkouts side by side, as a table in Markdown."""
    old, new = facts(before, slow=slow), facts(after, slow=slow)
    rows = ["| | before | after |", "|---|---|---|"]
    return "\n".join([*rows, *(f"| {name} | {old[name]} | {new[name]} |" for name in new)])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a checkout; this one")
    parser.add_argument("--before", type=Path, help="compare with this checkout")
    parser.add_argument("--quick", action="store_true", help="without the trace and the tests")
    parser.add_argument("--where", action="store_true", help="name the loops, plans and forks")
    parser.add_argument("--stood-at", metavar="COMMIT", help="lines of today that stood there")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.trace:
        _trace()
    elif asked.stood_at is not None:
        every, core = stood_at(asked.root, asked.stood_at)
        print(f"{every:,} lines of code stood at {asked.stood_at}, {core:,} of them in the core")
    elif asked.where:
        for count in (round_loops, plans, run_ledgers, forks_on_plans):
            print(count.__name__, *count(asked.root), sep="\n    ")
    elif asked.before is not None:
        print(comparison(asked.before, asked.root, slow=not asked.quick))
    else:
        lab = lab_size(asked.root)
        print(table(sizes(asked.root)))
        print(f"| lab, apart | {lab.files} | {lab.classes} | {lab.lines:,} | {lab.code:,} |")


if __name__ == "__main__":
    main()
