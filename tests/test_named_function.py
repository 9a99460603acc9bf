# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys

import pytest

from dpcohort.errors import InputError
from dpcohort.named_function import is_named_function, named_function


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:b", True),
        ("a.b_1:c", True),
        ("a", False),
        (":b", False),
        ("a:", False),
        ("a:b:c", False),
        ("a..b:c", False),
        ("a/b.py:c", False),
        ("", False),
    ],
)
def test_the_form_of_a_name(text, expected):
    assert is_named_function(text) is expected


def test_a_module_in_the_current_folder_is_found_and_the_path_left_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "module_of_this_test.py").write_text("def answer():\n    return 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = list(sys.path)
    try:
        assert named_function("dataset", "module_of_this_test:answer")() == 42
    finally:
        sys.modules.pop("module_of_this_test", None)
    assert sys.path == before


def test_a_module_that_fails_is_reported(tmp_path, monkeypatch):
    (tmp_path / "module_that_fails.py").write_text("raise RuntimeError('no luck')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="RuntimeError: no luck"):
        named_function("dataset", "module_that_fails:load")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module_here:load", "Importing no_such_module_here failed"),
        ("math:sqrtt", "Did you mean 'sqrt'"),
        ("math:pi", "has no function 'pi'"),
        ("math.sqrt", "module:function"),
    ],
)
def test_wrong_names_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        named_function("model", text)
