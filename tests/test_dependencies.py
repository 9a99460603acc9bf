# SPDX-License-Identifier: Apache-2.0
"""The lock covers what the package asks for, and ``.ci/dependencies.py`` trusts nothing else."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKED = dict(
    re.findall(
        r"^([a-z0-9.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$",
        (ROOT / "requirements-ci.txt").read_text(),
        re.M,
    )
)


@pytest.fixture
def dependencies():
    path = ROOT / ".ci" / "dependencies.py"
    spec = importlib.util.spec_from_file_location("dependencies", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _asked() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())
    lines = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    lines += [*lab["project"]["dependencies"], *lab["build-system"]["requires"]]
    tested = re.findall(r"[\w-]+", extras["test"][0])[1:]  # the others are tried by hand
    lines += [line for extra in ("test", *tested) for line in extras[extra]]
    lines += [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line]
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return [one for one in found if one.name != "dpcohort"]


def test_the_lock_covers_what_is_asked_for():
    uncovered = []
    for asked in _asked():
        version = LOCKED.get(canonicalize_name(asked.name))
        if version is None or not asked.specifier.contains(version):
            uncovered.append(f"{asked}: requirements-ci.txt has {version}: make lock")
    assert uncovered == []


def test_the_lock_names_no_place_and_every_package_has_its_hash():
    lines = (ROOT / "requirements-ci.txt").read_text().splitlines()
    assert not [line for line in lines if "//" in line or "index" in line]
    assert 2 * len(LOCKED) == len([line for line in lines if not line.startswith("#")])


def _done(code: int, said: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, said, "")


def _audited(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": list(packages), "fixes": []})


GOOD = {"name": "numpy", "version": "2.4.6", "vulns": []}
HOLE = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
BAD = {"name": "jinja2", "version": "1.0", "vulns": [HOLE]}


@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        (_audited(GOOD), 0, "1 of 1 packages checked, 0 known"),
        (_audited(GOOD, {"name": "torch", "skip_reason": "not found"}), 0, "NOT CHECKED: torch"),
        (_audited(GOOD, BAD), 1, "jinja2 1.0: PYSEC-1, fixed in 2.0"),
        (_audited(GOOD, {"name": "flwr", "skip_reason": "not found"}), 3, "NOT CHECKED: flwr"),
        (_audited({"name": "flwr", "skip_reason": "not found"}), 3, "NOTHING was checked"),
        ("Traceback (most recent call last):\n...\nConnectionError: refused", 3, "NOTHING was"),
    ],
    ids=["well", "own build", "vulnerable", "unknown", "all unknown", "unreachable"],
)
def test_what_an_audit_could_not_ask_about_is_not_called_safe(
    dependencies, capsys, said, code, told
):
    assert dependencies.audit_verdict(_done(int(code > 0), said)) == code
    printed = "".join(capsys.readouterr())
    assert told in printed
    assert "Traceback" not in printed


def test_everything_that_is_installed_to_build_or_to_ship_has_a_version():
    lock = (ROOT / "requirements-ci.txt").read_text()
    image, make, flow = (
        (ROOT / name).read_text() for name in ("Dockerfile", "Makefile", ".github/workflows/ci.yml")
    )
    first, second = re.findall(r"pip install (.+?)(?: \\\\)?$", image, re.M)
    assert first.startswith("--require-hashes --no-deps")
    assert second == "--no-deps --no-build-isolation ."
    assert f"# for: python {re.search('python:([0-9.]+)-', image)[1]}," in lock
    for line in re.findall(r"-m pip install (?:--quiet )?([a-z].+)$", make + flow, re.M):
        for package in line.split():
            assert "==" in package or package.startswith("dist/"), package
    built = (ROOT / ".github" / "build-constraints.txt").read_text()
    for package in re.findall(r"^hatchling==\S+$", built, re.M):
        assert f"{package} " in lock
        assert package in make
