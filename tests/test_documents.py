# SPDX-License-Identifier: Apache-2.0
"""What README and docs show: Python runs, commands exist, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from dpcohort.cli import COMMANDS, app, console, main, other_commands

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "paper.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "lab" / "README.md",
]
#: With those of the lab.
KNOWN = [*COMMANDS, *other_commands()]
BLOCKS = [
    pytest.param(code, id=f"{document.name}-{position}")
    for document in DOCUMENTS
    for position, code in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), re.S))
]


@pytest.mark.parametrize("code", BLOCKS)
def test_python_in_the_documents_runs(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "document", "exec"), {})
    assert capsys.readouterr().out


def test_commands_in_the_documents_exist():
    unknown = []
    for document in DOCUMENTS:
        text = document.read_text()
        commands = set(re.findall(r"^ {4}dpcohort ([a-z][a-z-]*)", text, re.M))
        commands |= set(re.findall(r"`dpcohort ([a-z][a-z-]*)", text))
        unknown += [(document.name, name) for name in sorted(commands - set(KNOWN))]
    assert unknown == []


def test_options_in_the_documents_exist():
    roots = {name: typer.main.get_command(app(name)) for name in KNOWN}
    unknown = []
    for document in DOCUMENTS:
        text = document.read_text().replace("\\\n", " ")
        lines = re.findall(r"^ {4}dpcohort (.+)", text, re.M)
        lines += re.findall(r"`dpcohort ([^`]+)`", text)
        for line in (one for several in lines for one in several.split("; dpcohort ")):
            words = line.split("#")[0].split()
            command = roots.get(words[0] if words else "", roots["train"])
            while words and words[0] in getattr(command, "commands", {}):
                command = command.get_command(None, words.pop(0))
            known = {option for one in command.params for option in one.opts}
            known |= {"--help", "--allow-code"}  # which may stand anywhere
            options = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            if options - known:
                unknown.append((document.name, line))
    assert unknown == []


def test_links_lead_somewhere():
    lost = [
        (document.name, target)
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#]+)", document.read_text())
        if not target.startswith("http") and not (document.parent / target).exists()
    ]
    assert lost == []


def test_the_plan_in_the_recorded_session_is_what_the_command_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_width", 112)
    assert main(["new", "digits.toml", "--from", "digits"]) == 0
    capsys.readouterr()
    assert main(["plan", "digits.toml"]) == 0
    printed = _plain(capsys.readouterr().out)  # a terminal wraps sentences
    session = (ROOT / "docs" / "pictures" / "session.txt").read_text()
    block = session.split("$ dpcohort plan digits.toml\n")[1].split("$ ")[0]
    lines = [line for line in block.splitlines() if line.strip()]
    assert len(lines) > 10
    for line in lines:
        assert _plain(line) in printed


@pytest.mark.parametrize("script", ["results_page", "assurance"])
def test_written_pages_are_what_the_results_say(script):
    command = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["MNIST", "Fashion-MNIST", "CIFAR-10"])
def test_the_readmes_table_is_what_the_results_hold(name):
    page = (ROOT / "docs" / "research" / "results.md").read_text()
    [mix] = re.findall(rf"^\| {name} \| 30 \| (.*) \|$", page, re.M)
    paper, own_code, local, features, _, _, everyone, colluding, no_privacy = mix.split(" | ")
    section = page.split("## The paper's own networks under distributed noise")[1].split("##")[0]
    [network] = re.findall(rf"^\| {name} \| (.*) \|$", section, re.M)
    row = [paper, own_code, local, network.split(" | ")[2], features, everyone, colluding]
    lines = (ROOT / "README.md").read_text().replace("*", "").splitlines()
    ending = " | ".join([*row, no_privacy])
    assert any(line.startswith(f"| {name}, ") and line.endswith(f" | {ending} |") for line in lines)


def _plain(line: str) -> str:
    """Without what the last bits of another machine's arithmetic may change."""
    line = re.sub(r"plan [0-9a-f]{12}|[0-9.]+e-1[0-9]", "", line)
    return " ".join(line.split())


def test_every_number_of_the_paper_is_printed_by_a_command(tmp_path, monkeypatch, capsys):
    """The rows are README's, which are held to the results; the rest is printed here."""
    text = (ROOT / "paper.md").read_text()
    _, head, body = text.split("---\n", 2)
    rows = re.findall(r"^\| (?:MNIST|Fashion-MNIST|CIFAR-10), .*$", body, re.M)
    assert len(rows) == 3
    assert set(rows) <= set((ROOT / "README.md").read_text().splitlines())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_width", 200)
    assert main(["new", "heart.toml", "--from", "heart-disease"]) == 0
    assert main(["plan", "heart.toml"]) == 0
    printed = capsys.readouterr().out
    quoted = re.findall(r'"([^"]*\d[^"]*)"', body)
    assert len(quoted) == 2
    assert all(" ".join(one.split()) in printed for one in quoted)
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    held = [*rows, *quoted, f"from {python.strip('>=')} on", "Apache-2.0"]
    for one in held:
        assert one in body
        body = body.replace(one, "")
    cited = set(re.findall(r"@(\w+)", body))
    assert cited == set(re.findall(r"^@\w+{(\w+),", (ROOT / "paper.bib").read_text(), re.M))
    assert re.findall(r".*\d.*", re.sub(r"@\w+", "", body)) == []
    assert "bibliography: paper.bib" in head
