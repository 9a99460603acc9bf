# SPDX-License-Identifier: Apache-2.0
"""The floors under each package's coverage; measuring them takes minutes: ``make coverage``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch, tmp_path):
    path = ROOT / "benchmarks" / "branch_coverage.py"
    spec = importlib.util.spec_from_file_location("branch_coverage", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "measured", lambda package: (90.27, ""))
    return module


def test_floors_are_those_of_packages(script):
    assert set(script.floors()) <= set(script.packages())
    assert all(50 < floor <= 100 for floor in script.floors().values())


@pytest.mark.parametrize(("floor", "code"), [(90.2, 0), (90.3, 1)])
def test_a_package_below_its_floor_fails(script, monkeypatch, tmp_path, capsys, floor, code):
    monkeypatch.setattr(script, "FLOORS", tmp_path / "floors.toml")
    script.FLOORS.write_text(f"lab = {floor}\n")
    assert script.main(["lab"]) == code
    assert ("BELOW" in capsys.readouterr().out) == bool(code)


def test_a_package_whose_tests_fail_fails(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "measured", lambda package: (100.0, "1 failed"))
    assert script.main(["lab"]) == 1
    assert "The tests of lab fail:\n1 failed" in capsys.readouterr().out


def test_what_was_measured_is_recorded_rounded_down(script, monkeypatch, tmp_path):
    monkeypatch.setattr(script, "FLOORS", tmp_path / "floors.toml")
    script.FLOORS.write_text("data = 80.0\nlab = 99.0\n")
    assert script.main(["lab", "--record"]) == 0
    assert script.floors() == {"data": 80.0, "lab": 90.2}


def test_a_name_that_is_no_package_is_refused(script, capsys):
    with pytest.raises(SystemExit):
        script.main(["labs"])
    assert "no package: labs" in capsys.readouterr().err
