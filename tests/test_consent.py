# SPDX-License-Identifier: Apache-2.0
"""A name in a file loads nothing: consent before the import, the right kind before the call."""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import sys
from pathlib import Path

import pytest

from dpcohort import load_config, load_dataset
from dpcohort.cli import main
from dpcohort.config import loads_config
from dpcohort.consent import allow_code, allowances_file, code_of, typed
from dpcohort.errors import FileFormatError, InputError
from dpcohort.models import build_model
from dpcohort.plugins import find_rule, named_plugin
from dpcohort.tasks import Task

MODULE = """
from pathlib import Path
from dpcohort import plugin
Path("imported").touch()

def bare(*args, **named):
    Path("called").touch()

@plugin("data")
def load():
    return {}
"""
CONFIG = """
population = { count = 3, size = 100, epsilon = 4.0 }
training = { rounds = 3, cohort_size = 2, batch_size = 20, dimension = 650 }
data = { name = "visitor:load" }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module and a config that names it; the user has a home of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delitem(sys.modules, "visitor", raising=False)
    Path("visitor.py").write_text(MODULE)
    Path("c.toml").write_text(CONFIG)
    yield tmp_path
    sys.modules.pop("visitor", None)


def refused(*words):
    """Bad input, and the module was not imported."""
    assert main([*words, "c.toml"]) == 2
    return not Path("imported").exists() and "visitor" not in sys.modules


def test_a_refusal_names_line_file_hash_and_next_step(folder, capsys):
    assert refused("plan")
    said = " ".join(capsys.readouterr().err.split())
    digest = hashlib.sha256(MODULE.encode()).hexdigest()[:12]
    assert "c.toml, line 4: data.name = 'visitor:load' would run" in said
    assert f"{folder / 'visitor.py'} (sha256 {digest})" in said
    assert "--allow-code visitor" in said


def test_what_was_allowed_is_remembered_until_the_file_changes(folder, capsys):
    assert main(["--allow-code", "visitor"]) == 0
    kept = allowances_file()
    assert kept == folder / "home" / "dpcohort" / "allowed_code.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(kept.read_text())[str(folder / "visitor.py")]["module"] == "visitor"
    assert not Path("imported").exists()  # to allow is not to run
    assert load_config("c.toml").data.name == "visitor:load"
    Path("visitor.py").write_text(MODULE + "# another\n")
    capsys.readouterr()
    assert refused("plan")
    assert "which changed since you allowed it" in " ".join(capsys.readouterr().err.split())
    assert main(["plan", "c.toml", "--allow-code=visitor"]) == 2  # it is loaded, and gives no data
    assert Path("imported").exists()


def test_the_same_file_elsewhere_is_asked_for_again(folder, monkeypatch):
    """What it imports lies beside it."""
    assert main(["--allow-code", "visitor"]) == 0
    other = folder / "other"
    other.mkdir()
    for name in ("visitor.py", "c.toml"):
        (other / name).write_text((folder / name).read_text())
    monkeypatch.chdir(other)
    assert refused("plan")


def test_what_is_typed_needs_no_more(folder):
    allowed = ["--set", "data.name=visitor:load"]
    assert main(["plan", "c.toml", *allowed]) == 2  # it gives no data
    assert Path("imported").exists()
    typed("visitor:load")
    load_config("c.toml")
    with pytest.raises(FileFormatError, match="visitor:other"):
        loads_config(CONFIG.replace("visitor:load", "visitor:other"))


def test_python_allows_a_module_by_name_or_by_importing_what_is_marked(folder, monkeypatch):
    with pytest.raises(FileFormatError, match=r"line 4.*allow_code"):
        load_config("c.toml")
    assert load_config("c.toml", allow_code=["visitor"]).data.name == "visitor:load"
    Path("guest.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    import guest

    try:
        assert named_plugin("data", "guest:load") is guest.load
        for name in ("guest:bare", "guest:load.x"):
            with pytest.raises(InputError, match="not allowed"):
                named_plugin("data", name)
        loads_config(CONFIG.replace("visitor", "guest"))
    finally:
        del sys.modules["guest"]


def test_a_package_is_hashed_with_all_of_its_code(folder):
    package = folder / "parcel"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/deep.py"):
        (package / name).write_text(MODULE)
    before = code_of("parcel.inner.deep")
    assert (before.module, before.path) == ("parcel", package)
    (package / "notes.txt").write_text("no code")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "deep.pyc").write_text("made by Python")
    assert code_of("parcel") == before
    for change in ("inner/deep.py", "inner/more.py", "inner/more.so"):
        (package / change).write_text("# another\n")
        assert code_of("parcel").sha256 != before.sha256, change
        before = code_of("parcel")
    assert not Path("imported").exists()


@pytest.mark.parametrize("name", ["subprocess:Popen", "os:system", "builtins:exec", "math:sqrt"])
def test_nothing_of_python_itself_is_ever_named(name):
    allow_code("subprocess", "os", "builtins", "math")
    for kind in ("selection", "adaptive", "aggregation", "model", "data", "loss"):
        with pytest.raises(InputError, match="not allowed"):
            named_plugin(kind, name)
    with pytest.raises(InputError, match=r"of Python itself|plugin\("):
        loads_config(f'{CONFIG}selection = {{ rule = "{name}", args = "touch called" }}')


def test_only_the_right_kind_is_called(folder):
    allow_code("visitor", "torch", "dpcohort")
    for make in (
        lambda: find_rule("selection", "visitor:bare"),
        lambda: build_model("visitor:bare", input_shape=(4,), classes=2, seed=0),
        lambda: build_model("torch:load", input_shape=(4,), classes=2, seed=0),
        lambda: build_model("visitor:load", input_shape=(4,), classes=2, seed=0),
        lambda: load_dataset("visitor:bare"),
        lambda: Task(outputs=2, loss="visitor:bare").loss_on(),
        lambda: named_plugin("selection", "dpcohort.plan:make_plan"),
    ):
        with pytest.raises(InputError, match="marked with @dpcohort"):
            make()
    assert not Path("called").exists()
    options = {"in_features": 4, "out_features": 2}
    built = build_model("torch.nn:Linear", input_shape=(4,), classes=2, seed=0, options=options)
    assert built.out_features == 2  # a class of modules is a model


def test_bytecode_beside_an_allowed_file_is_not_run(folder):
    """It need not be that of the file; Python believes its date."""
    source = folder / "visitor.py"
    innocent = source.read_text()
    source.write_text("open('evil', 'w')#" + " " * (len(innocent) - 18))
    stat = source.stat()
    py_compile.compile(str(source))
    source.write_text(innocent)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    allow_code("visitor")
    assert named_plugin("data", "visitor:load")() == {}
    assert not Path("evil").exists()


def test_allowances_that_others_can_write_are_none(folder, capsys):
    assert main(["--allow-code", "visitor"]) == 0
    allowances_file().chmod(0o666)
    assert refused("plan")
    assert "others can write to" in capsys.readouterr().err
    for broken in ("[]", "{", '{"a": '):
        allowances_file().write_text(broken)
        allowances_file().chmod(0o600)
        assert refused("plan")


def test_a_config_that_is_only_read_loads_nothing(folder):
    rule = 'selection = { rule = "visitor:Rule", power = 2 }\naggregation = { rule = "visitor:A" }'
    allow_code("visitor")
    read = load_config("c.toml", allow_code=None)
    assert read.data.name == "visitor:load"
    Path("c.toml").write_text(f"{CONFIG}{rule}\n")
    read = load_config("c.toml", allow_code=None)
    assert (read.rule, read.rule_settings) == ("visitor:Rule", {"power": 2})
    assert read.with_overrides(["training.rounds=9"]).training.rounds == 9
    assert not Path("imported").exists()
    Path("c.toml").write_text(f'{CONFIG}selection = {{ rule = "no-such-rule" }}\n')
    with pytest.raises(FileFormatError, match="no-such-rule"):
        load_config("c.toml", allow_code=None)


def test_without_a_home_nothing_beside_somebodys_files_is_believed(folder, monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "here")
    with pytest.raises(InputError, match="set XDG_CONFIG_HOME"):
        allowances_file()
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    with pytest.raises(InputError, match="set XDG_CONFIG_HOME"):
        allowances_file()


def test_a_folder_that_never_ends_is_refused(folder, monkeypatch):
    monkeypatch.setattr("dpcohort.consent._MOST_FILES", 200)
    Path("endless").mkdir()
    for name in "ab":
        Path("endless", name).symlink_to(folder / "endless")
    with pytest.raises(InputError, match="more than 200 folders"):
        code_of("endless")
