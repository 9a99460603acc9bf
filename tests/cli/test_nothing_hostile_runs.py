# SPDX-License-Identifier: Apache-2.0
"""Every command on hostile files, in every place where it takes one: nothing of theirs runs.

The commands are those that there are. A new one is covered by being there: its arguments are known
by their names, and one that is not known yet fails the test until it is said here what it takes.
"""

from __future__ import annotations

import itertools
import json
import pickle
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import typer

from dpcohort import Population, Training, make_plan, train
from dpcohort.adaptive import make_adaptive_plan
from dpcohort.adaptive._rules import PowerOfChoice
from dpcohort.cli import COMMANDS, app, main, other_commands
from dpcohort.deploy.guard._terms import commented_terms
from dpcohort.selection import PlannedRule, evaluated

MODULE = """
from pathlib import Path
Path({folder!r}, "imported").touch()
from dpcohort import plugin

def called(*given, **named):
    Path({folder!r}, "called").touch()

for kind in ("selection", "adaptive", "aggregation", "model", "data", "loss"):
    vars()[kind] = plugin(kind)(lambda *given, **named: called())
"""
#: What a file may name: code beside it, and what Python brings that writes a file when called.
NAMES = ("hostile_marker:{kind}", "builtins:open")
CONFIG = """
population = { count = 3, size = 300, epsilon = 4.0 }
training = { rounds = 2, cohort_size = 2, batch_size = 20, dimension = 650 }
"""
PLACES = {
    "selection": ('selection = {{ rule = "{0}", {1} }}', "rule"),
    "aggregation": ('aggregation = {{ rule = "{0}", {1} }}', "rule"),
    "data": ('data = {{ name = "{0}" }}', "name"),
    "model": ('model = {{ name = "{0}", options = {{ {1} }} }}', "name"),
    "loss": ('task = {{ loss = "{0}" }}', "loss"),
}


@dataclass(frozen=True)
class Theirs(PlannedRule):
    """A rule of somebody, who chose its name, and that of a file to be opened."""

    name: str
    settings: dict = field(default_factory=dict)

    def select(self, problem):
        return evaluated(self.name, problem.unbiased, problem, settings=self.settings)


class Adaptive(PowerOfChoice):
    name = "hostile_marker:adaptive"


class Opens:
    """Unpickled, it opens a file to write."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder of hostile files of every sort, and a few good ones."""
    home = tmp_path_factory.mktemp("hostile")
    (home / "hostile_marker.py").write_text(MODULE.format(folder=str(home)))
    opened = str(home / "called")
    given = f"file = {json.dumps(opened)}, mode = 'w'"
    files: dict[str, list[str]] = {kind: [] for kind in ("config", "plan", "run", "terms", "data")}

    def add(kind, name, content):
        write = Path.write_text if isinstance(content, str) else Path.write_bytes
        write(home / name, content)
        (home / name).chmod(0o600)
        files[kind].append(name)

    for name, data in (("good", "digits"), ("cifar", "cifar10")):
        (home / f"{name}.toml").write_text(f"{CONFIG}data = {{ name = '{data}' }}\n")
    every = CONFIG
    for (place, (line, _)), name in itertools.product(PLACES.items(), NAMES):
        named = name.format(kind=place), given if "open" in name else ""
        text = line.format(*named)
        digits = "" if place == "data" else 'data = { name = "digits" }\n'
        add("config", f"{place}-{named[0].partition(':')[0]}.toml", f"{CONFIG}{digits}{text}\n")
        every += f"{text}\n" if "marker" in name else ""
    grid = 'grid = { selection.rule = ["hostile_marker:selection", "unbiased"] }\n'
    add("config", "grid.toml", f"{CONFIG}data = {{ name = 'digits' }}\n{grid}")
    clients = Population.from_arrays(sizes=[300] * 3, epsilon=[4.0] * 3, delta=1e-5)
    training = Training(rounds=2, cohort_size=2, batch_size=20, dimension=650)
    clients.to_csv(home / "clients.csv")
    for name in NAMES:
        rule = Theirs(name.format(kind="selection"), {"file": opened, "mode": "w"})
        plan = make_plan(clients, training, selection=rule, seed=0)
        word = "marker" if "marker" in name else "builtins"
        plan.save(home / f"{word}.json")
        files["plan"].append(f"{word}.json")
        run = home / f"run-{word}"
        train(plan, "logistic", "digits", seed=0, device="cpu", out=run)
        (run / "config.toml").write_text(every)
        said = json.loads((run / "run.json").read_text())
        files["run"].append(run.name)
        said["model"]["name"] = name.format(kind="model")
        said["model"]["options"] = {"file": opened, "mode": "w"}
        said["aggregation"] = {"rule": name.format(kind="aggregation"), "settings": {}}
        said["data"]["name"] = said["data"]["data_set"] = name.format(kind="data")
        said["task"] = {"kind": "classification", "loss": name.format(kind="loss")}
        forged = shutil.copytree(run, home / f"forged-{word}")
        (forged / "run.json").write_text(json.dumps(said))
        shutil.copy(home / f"selection-{'hostile_marker' if word == 'marker' else word}.toml",
                    forged / "config.toml")  # fmt: skip
        for kept in ("model.safetensors", "receipts.jsonl", "partition.npz"):
            (forged / kept).write_bytes(pickle.dumps(Opens(opened)))
        files["run"].append(forged.name)
    make_adaptive_plan(clients, training, rule=Adaptive(), seed=0).save(home / "adaptive.json")
    files["plan"].append("adaptive.json")
    for name in NAMES:
        for key, line in (("name", '"logistic"'), ("task", None)):
            kind = "model" if key == "name" else "loss"
            there = name.format(kind=kind)
            new = (
                f'name = "{there}"' if line else f'name = "logistic"\ntask = {{ loss = "{there}" }}'
            )
            text = re.sub(r'(?m)^name = "logistic"', new, commented_terms())
            text = text.replace("options = {}", f"options = {{ {given} }}")
            add("terms", f"terms-{key}-{there.partition(':')[0]}.toml", text)
    evil = pickle.dumps(Opens(opened))
    odd = np.array([Opens(opened)], dtype=object)
    np.savez(home / "evil.npz", inputs=odd, labels=odd, train_inputs=odd, test_inputs=odd)
    np.save(home / "evil.npy", odd, allow_pickle=True)
    files["data"] += ["evil.npz", "evil.npy"]
    for name in ("evil.csv", "evil.parquet", "evil.safetensors", "evil.pt"):
        add("data", name, evil)
    batches = home / "cifar" / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        (batches / name).write_bytes(evil)
    return home, files


#: What arguments that name files take, by their names; a path is tried as each of these.
FILES = {
    **dict.fromkeys(("source", "words"), ("config", "plan", "run", "data")),
    **dict.fromkeys(("sources", "runs"), ("run", "config", "plan")),
    **dict.fromkeys(("run", "after"), ("run",)),
    **dict.fromkeys(("config",), ("config",)),
    **dict.fromkeys(("plan", "worth"), ("plan",)),
    **dict.fromkeys(
        ("clients", "counter", "ledger", "public", "test", "example", "table"), ("data",)
    ),
    **dict.fromkeys(("certificate", "key", "authority"), ("data",)),
    **dict.fromkeys(("name", "data"), ("data", "config")),
    **dict.fromkeys(("terms", "members", "federation"), ("terms",)),
    **dict.fromkeys(("path", "client"), ("run", "plan", "data")),
    "data_dir": ("cifar",),
}
#: What the others are given where they must be; None leaves them out.
VALUES = {
    **dict.fromkeys(("source", "config", "federation"), "good.toml"),
    **dict.fromkeys(("clients",), "clients.csv"),
    **dict.fromkeys(("run", "runs", "sources"), "run-marker"),
    **dict.fromkeys(("terms",), "terms-name-hostile_marker.toml"),
    **dict.fromkeys(("path", "ledger"), "some.ledger"),
    **dict.fromkeys(("client", "dataset"), "client-0"),
    **dict.fromkeys(("certificate", "key", "authority", "table"), "evil.pt"),
    "setting": "eta", "superlink": "127.0.0.1:1", "name": "cifar10", "ranges": "x=0:1",
    "epsilon": "1", "delta": "1e-6", "guard": "g.sock", "folder": None,
}  # fmt: skip
#: Places to write to, and texts that name no file.
_OTHERS = """
letters
out letter registry picture figure csv backup keep to socket folder tensorboard wandb mlflow changes
rule eta accountant guard label task which names mode receipt values origin device method model
input_shape user host step sampler returns only rules selection aggregation at mirror ranges
dataset neighbours across_runs per until person unit head setting superlink category leave_out
latex require pull backend onnx sklearn torch csv_file serve metrics refuse
"""
OTHERS = frozenset(_OTHERS.split())
#: Where a name means something else: what is written, or a name of the user's.
WRITES = {
    ("new", "path"),
    ("guard new", "path"),
    ("guard identity", "path"),
    ("ledger init", "path"),
}
WORDS = {("receipt", "client"), ("what-if", "client"), ("guard new", "client"), ("new", "client"),
         ("ledger accept", "run"), ("flower init", "run"), ("guard new", "run"),
         ("data fetch", "name"), ("flower node", "guard"), ("plan", "guard")}  # fmt: skip


#: Of this package, and of others that are installed beside it.
ALL = (*COMMANDS, *other_commands())


def commands():
    """Every command with its arguments: those that there are."""

    def walk(words, command):
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                yield from walk(f"{words} {name}", inner)
        yield words, [one for one in command.params if one.name != "help"]

    for name in ALL:
        yield from walk(name, typer.main.get_command(app(name)).commands[name])


def cases(files):
    """Every command with every hostile file at every place that takes one."""
    for command, arguments in commands():
        for one in arguments:
            is_text = one.type.name in ("path", "text")
            known = one.name in FILES or one.name in OTHERS
            assert known or not is_text, (
                f"{command} {one.name}: say in FILES or OTHERS what it takes"
            )
            if not is_text or one.name not in FILES or (command, one.name) in WRITES | WORDS:
                continue
            kinds = FILES[one.name]
            for file in itertools.chain(*(files.get(kind, [kind]) for kind in kinds)):
                if file == "grid.toml" and command not in ("compare", "search"):
                    continue  # others take no notice of a grid, and work
                yield command, arguments, one, file


def filled(arguments, tested, file, counter):
    """The words of a command, with the tested argument's file and what must be given beside."""
    words = []
    for one in arguments:
        if one is tested:
            value = file
        elif one.name in ("once", "resume", "as_json"):
            words += [one.opts[0]] if one.name == "once" else []
            continue
        elif one.name in ("out", "folder", "socket"):
            value = f"out/{next(counter)}" + {"out": ".html"}.get(one.name, "")
            value = value if one.required or one.name == "socket" else None
        else:
            value = VALUES.get(one.name, "1") if one.required or one.name == "records" else None
            value = "cifar.toml" if value == "good.toml" and tested.name == "data_dir" else value
        if value is not None:
            words += [value] if one.param_type_name == "argument" else [one.opts[0], str(value)]
    return words


@pytest.fixture
def tried(hostile, monkeypatch, capsys, tmp_path):
    """Runs every command on every hostile file, of some sorts; gives the commands."""
    home, files = hostile
    monkeypatch.chdir(home)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(home)
    monkeypatch.delitem(sys.modules, "hostile_marker", raising=False)
    monkeypatch.setattr("signal.signal", lambda *given: None)

    def run(kinds=tuple(files), only=frozenset(ALL), without=()):
        counter, seen, calls = itertools.count(), set(), 0
        some = {kind: names if kind in kinds else [] for kind, names in files.items()}
        for command, arguments, tested, file in cases(some):
            if command.split()[0] not in only or tested.name in without:
                continue
            words = [*command.split(), *filled(arguments, tested, file, counter)]
            code = main(words)
            said = f"{' '.join(words)}: {code}, {capsys.readouterr()}"
            assert code in range(5), said
            assert not (home / "imported").exists(), said
            assert not (home / "called").exists(), said
            assert "hostile_marker" not in sys.modules, said
            seen.add(command.split()[0])
            calls += 1
        shutil.rmtree(home / "out", ignore_errors=True)
        print(f"{calls} calls of {len(seen)} commands, nothing of theirs ran")
        return seen

    return run


def test_no_command_runs_anything_of_a_hostile_file(tried):
    assert set(ALL) - tried() == {"rules", "audit", "doctor", "demo"}  # which take no file


def test_what_is_only_read_is_not_even_run_where_it_was_allowed(tried):
    assert main(["--allow-code", "hostile_marker"]) == 0
    reading = {"explain", "verify", "receipt", "report", "watch", "guard", "ledger"}
    # Without a client, explain tells what pooling is worth, which the rule decides.
    assert tried(("run", "plan", "terms"), reading, without=("client",)) == reading


def test_a_plan_is_explained_without_its_rule_and_asks_for_it_where_it_must(tried, capsys):
    assert main(["explain", "client-0", "marker.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["larger_budget"] is None
    for asked in (["explain", "client-0", "marker.json", "--epsilon", "9"],
                  ["what-if", "trust", "marker.json"]):  # fmt: skip
        assert main(asked) == 2
        assert "--allow-code hostile_marker" in " ".join(capsys.readouterr().err.split())
        assert "hostile_marker" not in sys.modules
