# SPDX-License-Identifier: Apache-2.0
"""What this repository installs: exactly what the lock says, where it fits, and nothing unread.

``constraints.txt`` is for people. ``requirements-ci.txt`` is made from it: every package of the
test environment with its version and the SHA-256 of its file, for one Python and kind of machine.

    python .ci/dependencies.py install   # by ``make setup``, with the virtual environment's Python
    python .ci/dependencies.py lock      # by ``make lock``: write requirements-ci.txt anew
    python .ci/dependencies.py audit     # by ``make audit-dependencies``: known vulnerabilities

A file whose hash is not the one written down stops the installation. A lock that does not fit the
machine, or names files that this machine's package index does not have, does not: the versions then
come from constraints.txt, unchecked, and that is said.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The two distributions of this repository, which are worked on where they lie.
OURS = (ROOT, ROOT / "lab")
LOCK = ROOT / "requirements-ci.txt"
CONSTRAINTS = ROOT / "constraints.txt"

#: What builds the package itself, without which pip would fetch it unchecked.
BUILD = ["hatchling>=1.24", "editables"]
#: The line of a lock that says what it is for.
_HEAD = r"^# for: python (\S+), (\S+ \S+), glibc (\S+) or newer$"
#: What no service lists: these packages, and builds of their own (torch's +cpu).
_OWN_BUILDS = {"dpcohort", "dpcohort-lab", "torch"}
#: What pip says when a file is not the one that was written down.
_MISMATCH = "DO NOT MATCH THE HASHES"


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and keep what it said."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this Python's pip."""
    return run([sys.executable, "-m", "pip", *arguments])


def machine() -> dict[str, str]:
    """What a lock is for: Python, system and C library of this machine."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "system": f"{sys.platform} {platform.machine()}",
        "glibc": platform.libc_ver()[1] or "none",
    }


def misfit(lock: Path) -> str | None:
    """Why a lock is not for this machine; None if it is."""
    if not lock.is_file():
        return f"there is no {lock.name}"
    head = re.search(_HEAD, lock.read_text(), re.M)
    if head is None:
        return f"{lock.name} does not say what it is for"
    here = machine()
    if (here["python"], here["system"]) != (head.group(1), head.group(2)):
        return (
            f"{lock.name} is for Python {head.group(1)} on {head.group(2)}, this is Python "
            f"{here['python']} on {here['system']}"
        )
    if _version(here["glibc"]) < _version(head.group(3)):
        return f"{lock.name} needs glibc {head.group(3)} or newer, this is {here['glibc']}"
    return None


def install(lock: Path | None) -> int:
    """Install both packages for working on them, from the lock where it fits."""
    why = "none was asked for" if lock is None else misfit(lock)
    if lock is not None and why is None:
        done = pip("install", "--quiet", "--require-hashes", "-r", str(lock))
        if _MISMATCH in done.stdout + done.stderr:
            print(done.stdout + done.stderr, file=sys.stderr)
            print(
                f"A downloaded file is not the one that {lock.name} names: it was exchanged, or "
                "your package index serves another build. Nothing was installed from it. If you "
                "know why and trust it: make setup LOCK=",
                file=sys.stderr,
            )
            return 1
        if done.returncode == 0:
            editable = [word for place in OURS for word in ("-e", str(place))]
            done = pip("install", "--quiet", "--no-deps", "--no-build-isolation", *editable)
        if done.returncode == 0:
            done = pip("check")
        if done.returncode == 0:
            print(f"Installed from {lock.name}: every file has the hash written down.")
            return 0
        why = "it could not be used: " + _last_line(done.stdout + done.stderr)
    print(f"Without a lock ({why}); versions come from {CONSTRAINTS.name}, files are not checked.")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "-c", str(CONSTRAINTS)]
    both = ["-e", f"{ROOT}[test]", "-e", str(ROOT / "lab")]
    return subprocess.run([*command, *both], check=False).returncode


def lock_text(report: dict[str, object]) -> str:
    """The lock of what pip would install, from its ``--report``."""
    packages, newest = {}, (2, 17)
    installed = report["install"]
    assert isinstance(installed, list)
    for one in installed:
        name, version = one["metadata"]["name"], one["metadata"]["version"]
        if name in ("dpcohort", "dpcohort-lab"):
            continue
        file = one["download_info"]["url"].rpartition("/")[2]
        found = one["download_info"]["archive_info"]["hash"].partition("=")
        if found[0] != "sha256" or not file.endswith(".whl"):
            raise SystemExit(f"{name} {version} is not a wheel with a SHA-256 ({file}).")
        needs = [_version(v.replace("_", ".")) for v in re.findall(r"manylinux_(\d+_\d+)", file)]
        newest = max(newest, min(needs, default=newest))
        packages[name.lower().replace("_", "-")] = (version, found[2])
    here = machine()
    glibc = ".".join(map(str, newest))
    lines = [
        "# Made by `make lock` from pyproject.toml and constraints.txt; do not edit.",
        f"# for: python {here['python']}, {here['system']}, glibc {glibc} or newer",
        *(
            f"{n}=={v} \\\n    --hash=sha256:{digest}"
            for n, (v, digest) in sorted(packages.items())
        ),
    ]
    return "\n".join(lines) + "\n"


def lock() -> int:
    """Write the lock for this Python and machine; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = pip(
            "install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:",
            "--report", str(report), "-c", str(CONSTRAINTS), f"{ROOT}[test]", str(ROOT / "lab"),
            *BUILD,
        )  # fmt: skip
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return done.returncode
        text = lock_text(json.loads(report.read_text()))
    LOCK.write_text(text)
    print(f"{LOCK.name}: {text.count('--hash')} packages")
    return 0


def audit(environment: Path) -> int:
    """Ask for known vulnerabilities of what is installed; pip-audit lives in a place of its own."""
    home = ROOT / ".venv-audit"
    tool = home / "bin" / "pip-audit"
    if not tool.is_file():
        venv.create(home, with_pip=True)
        done = run([str(home / "bin" / "python"), "-m", "pip", "install", "-q", "pip-audit>=2.7"])
        if done.returncode:
            print(f"pip-audit cannot be installed: {_last_line(done.stderr)}", file=sys.stderr)
            return 3
    places = sorted(environment.glob("lib/python*/site-packages"))
    if not places:
        print(f"there is no environment at {environment}: run make setup", file=sys.stderr)
        return 3
    command = [str(tool), "--path", str(places[0]), "--skip-editable", "--format", "json"]
    return audit_verdict(run([*command, "--progress-spinner", "off"]))


def audit_verdict(done: subprocess.CompletedProcess[str]) -> int:
    """What pip-audit found, in words: 0 none, 1 some, 3 if it could not ask about everything.

    It calls a package that its service does not know skipped and ends well; a service that cannot
    be reached can look like one that knows nothing. Not asked is not the same as not vulnerable.
    """
    try:
        found = json.loads(done.stdout)["dependencies"]
        why = next((one["skip_reason"] for one in found if "skip_reason" in one), "no packages")
    except (ValueError, KeyError, TypeError):
        found, why = [], _last_line(done.stderr or done.stdout)
    asked = [one for one in found if "skip_reason" not in one]
    skipped = [one["name"] for one in found if "skip_reason" in one]
    if not asked:
        print(
            f"The vulnerability service could not be asked, so NOTHING was checked ({why[:200]}). "
            "Try again where it can be reached.",
            file=sys.stderr,
        )
        return 3
    broken = [one for one in asked if one["vulns"]]
    for one in broken:
        for hole in one["vulns"]:
            fixed = ", ".join(hole.get("fix_versions", [])) or "no version yet"
            print(f"{one['name']} {one['version']}: {hole['id']}, fixed in {fixed}")
    print(f"{len(asked)} of {len(found)} packages checked, {len(broken)} known to be vulnerable")
    if skipped:
        print(
            f"NOT CHECKED: {', '.join(skipped)}. The service does not know them or could not be "
            "reached; nothing is known about them.",
            file=sys.stderr,
        )
    return 1 if broken else 3 if set(skipped) - _OWN_BUILDS else 0


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)) or (0,)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the head of this file."""
    parser = argparse.ArgumentParser(description="Install, lock or audit the dependencies.")
    parser.add_argument("what", choices=["install", "lock", "audit"])
    parser.add_argument("--lock", default=LOCK.name, help="the lock; empty for none")
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv", help="to audit")
    given = parser.parse_args(arguments)
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    if given.what == "install":
        return install(ROOT / given.lock if given.lock else None)
    return lock() if given.what == "lock" else audit(given.environment)


if __name__ == "__main__":
    sys.exit(main())
