# SPDX-License-Identifier: Apache-2.0
"""The wheel and the sdist, built and installed into an empty environment, and what goes with them.

The environment has what the wheel asks for and nothing else; these packages are linked from the one
the tests run in, so that nothing is fetched.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement

from dpcohort import Population, Training, __version__, make_plan, train

ROOT = Path(__file__).parents[1]
BUILT = {"SOURCE_DATE_EPOCH": "1700000000"}


def run(*command: str | Path, **settings) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, **settings
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist of this tree, and the wheel made from what is in it."""
    folder = tmp_path_factory.mktemp("built")
    environment = {**os.environ, **BUILT}
    if importlib.util.find_spec("hatchling") is None:
        tool = folder / "tool"
        got = run(sys.executable, "-m", "pip", "install", "-q", "--target", tool, "hatchling>=1.24")
        if got.returncode:
            pytest.skip(f"hatchling, which builds the package, cannot be had: {got.stderr[-200:]}")
        environment["PYTHONPATH"] = str(tool)
    build = (sys.executable, "-m", "hatchling", "build", "-d", folder)
    done = run(*build, "-t", "sdist", cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    done = run(*build, "-t", "wheel", cwd=source, env=environment)
    assert done.returncode == 0, done.stderr
    lab = (sys.executable, "-m", "hatchling", "build", "-d", folder / "lab", "-t", "wheel")
    done = run(*lab, cwd=ROOT / "lab", env=environment)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """Python of an environment with the wheel, what it asks for, and no extra."""
    home = tmp_path_factory.mktemp("empty")
    venv.create(home, with_pip=False)
    (site,) = home.glob("lib/python*/site-packages")
    with ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        asked = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.M)
    done, waiting = {"dpcohort"}, [Requirement(line) for line in asked]
    while waiting:
        one = waiting.pop()
        if one.name in done or not (one.marker is None or one.marker.evaluate({"extra": ""})):
            continue
        done.add(one.name)
        package = importlib.metadata.distribution(one.name)
        waiting += map(Requirement, package.requires or [])
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(package.locate_file(top)))
    found = home / "bin" / "python"
    install = ("--no-deps", "--no-index", "--no-compile", wheel)
    installed = run(sys.executable, "-m", "pip", "--python", found, "install", *install)
    assert installed.returncode == 0, installed.stderr
    return found


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel):
    listed = run("git", "ls-files", "dpcohort", cwd=ROOT)
    if listed.returncode:
        pytest.skip("this is no checkout, so nothing says which files belong to the package")
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    there = {name for name in listed.stdout.split() if (ROOT / name).is_file()}
    assert there <= held
    assert "dpcohort/py.typed" in held
    assert {name.split("/")[0] for name in held} == {"dpcohort"}


#: Runs commands one after the other and says how each ended; torch must stay out of it.
SCRIPT = """
import contextlib, importlib.util, io, json, sys
from dpcohort.cli import main
assert importlib.util.find_spec("torch") is None
told = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    told.append([code, out.getvalue(), " ".join(err.getvalue().split())])
json.dump(told, sys.stdout)
"""


def commands(python: Path, folder: Path, *lines: str) -> list[tuple[int, str, str]]:
    asked = json.dumps([line.split() for line in lines])
    environment = {"PATH": os.environ["PATH"], "COLUMNS": "300", "HOME": str(folder)}
    done = run(python, "-W", "error", "-c", SCRIPT, input=asked, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return [tuple(one) for one in json.loads(done.stdout)]


#: What the wheel alone cannot do, and the extra that can.
MISSING = {
    "train heart.toml --out new": "train",
    "demo": "train",
    "tune heart.toml -o tuned.toml": "train",
    "audit": "train",
    "guard new terms.toml": "train",
    "report run -o page.html": "report",
    "receipt run client-1 --letter letter.html --draft": "report",
    "flower demo": "train",
}


def test_without_extras_one_plans_explains_verifies_and_gets_receipts(python, tmp_path):
    rows = "".join(f"clinic-{k},{200 + k},{0.5 + k},1e-5\n" for k in range(5))
    (tmp_path / "clients.csv").write_text(f"id,size,epsilon,delta\n{rows}")
    clients = Population.from_arrays(sizes=[240] * 3, epsilon=[1, 4, 8], delta=1e-5)
    settings = Training(rounds=2, cohort_size=2, batch_size=60, dimension=650)
    train(make_plan(clients, settings), "logistic", "digits", device="cpu", out=tmp_path / "run")
    done = [
        "plan --clients clients.csv -o plan.json",
        "explain clinic-1 plan.json",
        "verify run",
        "receipt run client-1",
        "new heart.toml --from heart-disease",
    ]
    told = commands(python, tmp_path, *done, *MISSING)
    assert [code for code, *_ in told[: len(done)]] == [0] * len(done), told
    planned, explained, verified, receipt, _ = (out for _, out, _ in told[: len(done)])
    assert "Wrote plan.json" in planned
    assert "clinic-1" in explained
    assert "holds; SIMULATION" in verified
    assert "client-1" in receipt
    for extra, (code, out, err) in zip(MISSING.values(), told[len(done) :], strict=True):
        assert code in (2, 3), err
        assert out == ""
        assert f"dpcohort[{extra}]" in err
    left = {"clients.csv", "run", "plan.json", "heart.toml"}
    assert {path.name for path in tmp_path.glob("[!.]*")} == left  # nothing half-written


def test_the_laboratory_is_a_wheel_of_its_own_that_adds_its_commands(built, python, tmp_path):
    lab = "dpcohort-lab: pip install dpcohort-lab"
    names = ("bound", "compare-rules", "personal", "reproduce", "schemes", "search")
    told = commands(python, tmp_path, *names)
    assert told == [(2, "", f"error: {name} is part of {lab}") for name in names]
    (found,) = (built / "lab").glob("*.whl")
    with ZipFile(found) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(tmp_path / "site")
    assert {name.split("/")[0] for name in held} == {"dpcohort_lab"}
    assert {"dpcohort_lab/py.typed", "dpcohort_lab/recipes/mnist.toml"} <= held
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "site")}
    code = "import sys; from dpcohort.cli import main; sys.exit(main(sys.argv[1:]))"
    listed = run(python, "-c", code, "reproduce", "--list", env=environment)
    assert listed.returncode == 0, listed.stderr
    assert "mnist-budgets" in listed.stdout


def test_a_users_type_checker_knows_the_types(python, tmp_path):
    code = """
from dpcohort import Population, Training, make_plan

clients = Population.from_arrays(sizes=[240] * 6, epsilon=[0.3, 1, 2, 4, 8, 8], delta=1e-5)
plan = make_plan(clients, Training(rounds=30, cohort_size=4, batch_size=60, dimension=650))
right: str = plan.sha256
wrong: int = plan.sha256
"""
    (tmp_path / "user.py").write_text(code)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache")
    done = run(*mypy, "--python-executable", python, "user.py", cwd=tmp_path)
    assert re.findall(r"user.py:(\d+): error: (.*?)  ", done.stdout) == [
        (
            "7",
            'Incompatible types in assignment (expression has type "str", variable has type "int")',
        )
    ], done.stdout


def test_version_and_requirements_are_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    recipe = (ROOT / "recipe" / "meta.yaml").read_text()
    assert citation["version"] == __version__
    assert f'version = "{__version__}"' in recipe
    plain = re.sub(r"{{.*?}}", "x", re.sub(r"{%.*?%}", "", recipe))
    needs = yaml.safe_load(plain)["requirements"]["run"]
    asked = [f"python {project['requires-python']}", *project["dependencies"]]
    told = {re.sub(r"-base| ", "", one) for one in needs}
    assert told == {one.replace(" ", "") for one in asked}


def test_the_workflow_tests_every_python_and_trusts_nobody_more_than_needed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {line.split(" :: ")[-1] for line in project["classifiers"] if " 3." in line}
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    workflow = yaml.safe_load(text)
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    for name in ("test", "install"):
        assert set(jobs[name]["strategy"]["matrix"]["python"]) == named
    steps = [step for job in jobs.values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", one) for one in used)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    made = re.findall(r"\bmake ([a-z-]+)", " ".join(step.get("run", "") for step in steps))
    assert set(made) <= set(targets)
    assert "secrets." not in text


def _unit(name: str) -> str:
    path = ROOT / "dpcohort" / "deploy" / "flower" / "kit_files" / f"dpcohort-{name}.service"
    return re.search(r"^ExecStart=((?:.*\\\n)*.*)$", path.read_text(), re.M)[1]


def _words(command: str) -> list[str]:
    """A command without folders of programs and what a kit or a shell fills in."""
    return shlex.split(re.sub(r"/opt/dpcohort/bin/|\\\n", "", re.sub(r"\${[^}]*}", "X", command)))


@pytest.mark.parametrize("name", ["superlink", "run", "guard", "node"])
def test_a_container_runs_what_the_unit_of_a_kit_runs(name):
    composed = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"][name]
    assert _words(composed["command"]) == _words(_unit(name))
    assert composed["read_only"] is True
    assert composed["cap_drop"] == ["ALL"]
    assert composed["security_opt"] == ["no-new-privileges:true"]


def test_the_guard_has_a_user_of_its_own_no_network_and_files_of_nobody_else():
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.M)[1:]
    users = {
        stage.split()[2]: re.findall(r"^USER (\S+)$", stage, re.M)
        for stage in stages
        if stage.split()[2] not in ("build", "base")
    }
    guard, node = services["guard"], services["node"]
    assert guard["network_mode"] == "none"
    assert "ports" not in guard
    for service in services.values():
        target = service["build"]["target"] if "build" in service else "server"
        assert [service["user"]] == users[target]
    assert len({users[name][0] for name in users}) == len(users) == 3
    shared = {one.split(":")[0] for one in guard["volumes"]} & {
        one.split(":")[0] for one in node["volumes"]
    }
    assert shared == {"socket"}
    published = [name for name, service in services.items() if "ports" in service]
    assert published == ["superlink"]  # whose network nginx shares; its own port is on 127.0.0.1
    assert "GATE_PORT" in services["superlink"]["ports"][0]
    assert services["gate"]["network_mode"] == "service:superlink"
    assert services["gate"]["read_only"] is True
    assert services["gate"]["cap_drop"] == ["ALL"]
