# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.fft
import scipy.special

from dpcohort.accounting import gaussian, special

FIRST = """
import sys
from dpcohort.accounting.special import ndtr
assert ndtr(0.0) == 0.5
heavy = {"numpy.f2py", "numpy.testing", "scipy.special._orthogonal", "scipy.fft"} & set(sys.modules)
assert not heavy, heavy
"""
THEN = {
    "a function": "import scipy.special\nassert scipy.special.ndtr is ndtr",
    "a name": "from scipy.special import gammaln\nassert gammaln(3.0) > 0",
    "all names": "from scipy.special import *\nassert gammaln(3.0) > 0",
    "its version": "import scipy\nassert scipy.__version__",
    "another package": "import scipy.stats\nassert scipy.stats.norm.cdf(0.0) == 0.5",
    "a package by its parent": "import scipy\nassert scipy.linalg.norm([3.0, 4.0]) == 5.0",
    "a private module": "import scipy.special\nassert scipy.special._ufuncs.ndtr is ndtr",
    "nothing of that name": "import scipy.special\nassert not hasattr(scipy.special, 'no_such')",
}


@pytest.mark.parametrize("then", THEN)
def test_scipy_is_whole_for_everybody_else(then):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIRST + THEN[then]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_threads_that_ask_first_see_all_of_it():
    code = FIRST + (
        "from threading import Thread\nfound = []\n"
        "def ask():\n    import scipy.special\n    found.append(scipy.special.gammaln(3.0) > 0)\n"
        "threads = [Thread(target=ask) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert found == [True] * 8, found\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_they_are_the_functions_of_scipy():
    for name in ("erfcx", "erfinv", "log_ndtr", "ndtr", "ndtri"):
        assert getattr(special, name) is getattr(scipy.special, name)


def test_lengths_are_those_of_scipy():
    lengths = [*range(1, 2000), *(10**k + d for k in range(4, 9) for d in (-1, 1, 7))]
    assert [special.fast_length(n) for n in lengths] == [
        scipy.fft.next_fast_len(n, real=True) for n in lengths
    ]


def test_points_written_down_are_those_of_the_quadrature():
    points, weights = np.polynomial.legendre.leggauss(4)
    assert pytest.approx(points, rel=1e-15) == gaussian._GAUSS_POINTS
    assert pytest.approx(weights, rel=2e-15) == gaussian._GAUSS_WEIGHTS
