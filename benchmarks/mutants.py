# SPDX-License-Identifier: Apache-2.0
"""Breaks privacy-bearing code on purpose, one line at a time, and asks a test to notice.

``python benchmarks/mutants.py`` (or ``make mutants``) reads ``benchmarks/mutants.toml``. Each entry
replaces one piece of text that occurs exactly once in its file, says which promise that breaks and
names the test that must fail. All of it happens in a copy of the tree. First every named test must
pass on the copy as it is; then, mutant by mutant, only its own test is run:

- ``killed``: the test failed;
- ``survived``: the test passed, so nothing would have noticed;
- ``unusable``: the test could not be run or did not end, e.g. because the mutant is no Python;
- ``stale``: the text is not in the file, or not only once: the code has moved on.

Exit status 1 if one of them is anything but killed. To add one: write the entry, run ``python
benchmarks/mutants.py --find NAME`` for the tests of the module that notice it, and name one. If
none does, a test is missing.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import importlib
import json
import os
import py_compile
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "benchmarks" / "mutants.toml"

#: What a run of pytest may take; more says nothing about a mutant.
SECONDS = 600
#: What is not part of the tree.
_LEFT_OUT = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "out", "build", "dist")
#: What most tests load and takes long.
_LOADED = ("torch", "torch.func", "scipy.stats", "scipy.optimize", "hypothesis")
#: Exit codes of pytest.
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault.

    Attributes:
        name: what it is called.
        file: the file it is in, from the root of the tree.
        old: text that occurs there exactly once.
        new: what it is replaced by.
        breaks: the promise that then no longer holds.
        test: node id of the test that notices.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    test: str


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant: ``killed``, ``survived``, ``unusable`` or ``stale``."""

    mutant: Mutant
    outcome: str
    seconds: float = 0.0
    detail: str = ""


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """The list, each entry with exactly the keys of :class:`Mutant` and a name of its own."""
    names = [field.name for field in fields(Mutant)]
    found = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
        if sorted(entry) != sorted(names):
            raise SystemExit(f"{path}: {entry.get('name', entry)} needs the keys {names}.")
        found.append(Mutant(**entry))
    twice = [name for name, times in Counter(one.name for one in found).items() if times > 1]
    if twice:
        raise SystemExit(f"{path}: two mutants are called {twice[0]!r}.")
    return found


def is_stale(mutant: Mutant, root: Path) -> bool:
    """Whether its text is not exactly once in its file, or changes nothing."""
    path = root / mutant.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return text.count(mutant.old) != 1 or mutant.old == mutant.new


@cache
def _statements(path: Path) -> Sequence[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


def is_test(node: str, root: Path = ROOT) -> bool:
    """Whether a node id names a test function that is there; nothing is imported."""
    file, *names = re.sub(r"\[.*\]$", "", node).split("::")
    path = root / file
    if not path.is_file() or not names:
        return False
    body = _statements(path)
    for position, name in enumerate(names):
        kind = ast.FunctionDef if position == len(names) - 1 else ast.ClassDef
        found = [one for one in body if isinstance(one, kind) and one.name == name]
        if not found:
            return False
        body = found[0].body
    return True


def copy_tree(root: Path, target: Path, *, compiled: bool) -> Path:
    """The tree without what is made from it, compiled if it will be run many times."""
    shutil.copytree(root, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    if compiled:  # by the hash of the source: a changed file of the same size and second is noticed
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(target, quiet=2, invalidation_mode=mode)
    return target


class Runner:
    """Runs pytest on a copy of the tree, time after time, each run a fork of one process.

    Nothing of the package under test is loaded before the fork.

    Args:
        tree: the copy.
        loaded: load torch and scipy beforehand, which takes longer than most tests do.
    """

    def __init__(self, tree: Path, *, loaded: bool) -> None:
        self.tree = tree
        settings = {
            "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "lab")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", *(_LOADED if loaded else [])],
            cwd=tree,
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def run(self, nodes: Sequence[str], *options: str) -> tuple[int, str]:
        """Exit status and output of pytest; -1 where it did not end."""
        command = ["-q", "--tb=line", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"]
        command += ["--hypothesis-seed=0", *options, *nodes]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        status, output = json.loads(self._process.stdout.readline())
        return int(status), str(output)


def serve(modules: Sequence[str]) -> None:
    """Answer each line of pytest arguments with a fork's exit status and output."""
    for name in (*modules, "pytest"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                sys.stdin = open(os.devnull)  # noqa: SIM115
                import pytest

                status = int(pytest.main(json.loads(line)))
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
            status = _wait(child)
            said.seek(0)
            output = said.read().decode("utf-8", "replace")
        print(json.dumps([status, output]), file=answers, flush=True)


def _wait(child: int) -> int:
    """Exit status of a child; -1 if it was stopped after ``SECONDS`` or died of a signal."""
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else -1
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def judge(mutant: Mutant, runner: Runner, nodes: Sequence[str] = (), *options: str) -> Verdict:
    """Put a mutant into a copy, run its test (or ``nodes``), and take it out again."""
    tree = runner.tree
    if is_stale(mutant, tree):
        return Verdict(mutant, "stale", detail="the text is not in the file exactly once")
    path = tree / mutant.file
    whole = path.read_text(encoding="utf-8")
    started = time.perf_counter()
    path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status, output = runner.run(nodes or [mutant.test], *(options or ["-x"]))
    finally:
        path.write_text(whole, encoding="utf-8")
    outcome = {_PASSED: "survived", _FAILED: "killed"}.get(status, "unusable")
    return Verdict(mutant, outcome, time.perf_counter() - started, output)


def judge_all(
    mutants: Sequence[Mutant], *, root: Path = ROOT, jobs: int = 1, quiet: bool = False
) -> list[Verdict]:
    """A verdict on each, in the order of the list.

    Raises:
        SystemExit: a named test fails on the tree as it is; it could kill nothing.
    """
    verdicts: dict[str, Verdict] = {}
    many = len(mutants) > 4
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)

    def work(runner: Runner) -> None:
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            verdict = verdicts[mutant.name] = judge(mutant, runner)
            if not quiet:
                print(f"{verdict.outcome:9} {verdict.seconds:6.1f} s  {mutant.name}", flush=True)
            if verdict.outcome == "unusable" and not quiet:
                print(verdict.detail[-2000:])

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
        trees = [copy_tree(root, folder / str(n), compiled=many) for n in range(jobs)]
        runners = [stack.enter_context(Runner(tree, loaded=many)) for tree in trees]
        nodes = sorted({one.test for one in mutants if not is_stale(one, root)})
        if nodes:
            status, output = runners[0].run(nodes)
            if status != _PASSED:
                raise SystemExit(f"the named tests do not pass without a mutant:\n{output[-4000:]}")
        workers = [threading.Thread(target=work, args=(runner,)) for runner in runners]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return [verdicts[one.name] for one in mutants]


def mirror_tests(file: str, root: Path = ROOT) -> str:
    """Where the tests of a module are: its mirror, or the folder of its package's tests."""
    path = Path(file)
    mirror = Path("tests", *path.parts[1:-1], f"test_{path.stem.removeprefix('_')}.py")
    return str(mirror if (root / mirror).is_file() else mirror.parent)


def find(mutant: Mutant, paths: Sequence[str]) -> None:
    """Print which tests notice a mutant, those of its module unless others are named."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copy_tree(ROOT, Path(folder) / "0", compiled=False)
        where = list(paths) or [mirror_tests(mutant.file)]
        with Runner(tree, loaded=False) as runner:
            verdict = judge(mutant, runner, where, "-rf", "--durations=0", "--durations-min=0")
    noticed = re.findall(r"^FAILED (\S+(?: [^-]\S*)*)", verdict.detail, re.MULTILINE)
    print(f"{mutant.name}: {verdict.outcome} by {len(noticed)} tests of {' '.join(where)}")
    for node in noticed:
        seconds = re.search(rf"([\d.]+)s call +{re.escape(node)}\n", verdict.detail)
        print(f"  {seconds.group(1) if seconds else '?':>6} s  {node}")
    if verdict.outcome in ("stale", "unusable"):
        print(verdict.detail[-3000:])


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many of each, in words."""
    counts = Counter(one.outcome for one in verdicts)
    return ", ".join(f"{counts[kind]} {kind}" for kind in ("killed", "survived", "stale")) + (
        f", {counts['unusable']} unusable" if counts["unusable"] else ""
    )


def record(verdicts: Sequence[Verdict]) -> None:
    """Write the row of docs/reference/assurance.md."""
    from assurance import record as write_row  # beside this file, when it is run as a script

    files = {one.mutant.file for one in verdicts}
    write_row(
        "mutants",
        tries=len(verdicts),
        attack=f"Faults written by hand into {len(files)} files, one at a time (listed below).",
        result=summary(verdicts),
        test="tests/benchmarks/test_mutants.py::test_the_fastest_mutants_are_killed",
        command="make mutants",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the head of this file."""
    parser = argparse.ArgumentParser(description="Break the code on purpose; the tests must see.")
    parser.add_argument("names", nargs="*", help="mutants to try; all by default")
    parser.add_argument("--list", type=Path, default=LIST, help="another list")
    parser.add_argument("--root", type=Path, default=ROOT, help="another tree")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree at work at once")
    parser.add_argument("--check", action="store_true", help="only whether the list is up to date")
    parser.add_argument("--find", action="store_true", help="print which tests notice each")
    parser.add_argument("--tests", nargs="*", default=[], help="with --find: where to look")
    parser.add_argument(
        "--record", action="store_true", help="write it down for the assurance page"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        serve(given.names)
        return 0
    mutants = read_mutants(given.list)
    unknown = sorted(set(given.names) - {one.name for one in mutants})
    if unknown:
        parser.error(f"there is no mutant {unknown[0]!r}")
    chosen = [one for one in mutants if not given.names or one.name in given.names]
    if given.record and len(chosen) < len(mutants):
        parser.error("--record goes with all mutants")
    if given.find:
        for mutant in chosen:
            find(mutant, given.tests)
        return 0
    if given.check:
        wrong = [f"stale: {one.name}" for one in chosen if is_stale(one, given.root)]
        wrong += [f"no such test: {o.test}" for o in chosen if not is_test(o.test, given.root)]
        print("\n".join(wrong) or f"{len(chosen)} mutants, all up to date")
        return 1 if wrong else 0
    verdicts = judge_all(chosen, root=given.root, jobs=given.jobs)
    print(summary(verdicts))
    if given.record:
        record(verdicts)
    return 0 if all(one.outcome == "killed" for one in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
