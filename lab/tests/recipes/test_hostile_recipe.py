# SPDX-License-Identifier: Apache-2.0
"""A recipe that is broken in any way is one error: mutations of tests/test_hostile_files.py."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

import dpcohort_lab
from dpcohort.errors import DpcohortError
from dpcohort_lab.recipes import load_recipe

HOSTILE = Path(__file__).parents[3] / "tests" / "test_hostile_files.py"


def test_a_broken_recipe_is_one_error_of_ours(tmp_path):
    spec = importlib.util.spec_from_file_location("hostile_files", HOSTILE)
    files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(files)
    seed = (Path(dpcohort_lab.__file__).parent / "recipes" / "mnist.toml").read_bytes()
    mutations = files._mutations([seed], random.Random("dpcohort recipe"))
    path = tmp_path / "recipe.toml"
    path.write_bytes(seed)
    load_recipe(path)
    for number in range(files.TRIES // 3):
        path.write_bytes(next(mutations))
        try:
            load_recipe(path)
        except DpcohortError:
            continue
        except Exception as error:
            pytest.fail(f"try {number}: {type(error).__name__}: {error}; the file is {path}")
