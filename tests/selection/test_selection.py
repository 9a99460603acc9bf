# SPDX-License-Identifier: Apache-2.0
"""The names that ``dpcohort.selection`` offers."""

from __future__ import annotations

import subprocess
import sys

import dpcohort.selection


def test_every_name_is_there():
    for name in dpcohort.selection.__all__:
        assert hasattr(dpcohort.selection, name)


def test_importing_it_needs_no_conic_solver_and_no_torch():
    code = (
        "import sys, dpcohort.selection._rules; "
        "print([m for m in ('cvxpy', 'torch', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
