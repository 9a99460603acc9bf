# SPDX-License-Identifier: Apache-2.0
"""The map from the paper to the code: its names exist, no label is missing, its numbers hold."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

from dpcohort.selection import solve_selection

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "docs" / "research" / "paper-map.md", ROOT / "docs" / "reference" / "notation.md"]
MAP = DOCS[0].read_text(encoding="utf-8")

#: Every label of an equation or statement in the paper's source.
_LABELS = """
algo: DP-FedAvg; assumption: Lipschitz; assumption: convexity; assumption: dissimilarity;
assumption: norm; corollary: infinite; corollary: optimal T; equ: 24; equ: 25; equ: 76; equ: A_1;
equ: A_2; equ: A_2_final; equ: Gaussian mechanism; equ: KKT1; equ: all iterations; equ: am-gm;
equ: avg1; equ: avg2; equ: avg3; equ: clip; equ: convergence; equ: convergence_smooth; equ: convex
part1; equ: convex part2; equ: convexity; equ: descent; equ: f(T); equ: g_clip; equ: global
objective; equ: kkt; equ: kkt 1; equ: kkt 2; equ: lemma3; equ: lemma4; equ: lemma5; equ: nabla
F_clip; equ: noise; equ: noise level, variance; equ: one-step; equ: one-step1; equ: p_c; equ:
quad; equ: quadratic; equ: selected objective; equ: smooth_descent; equ: solving; equ: square
convex part1; equ: square convex part2; equ: square inequ; inequality: final gap inf; inequality:
learning rate 1; inequality: learning rate 2; inequality: loss; lemma: A3; lemma: A4; lemma: A5;
lemma: convex; lemma: strong composition; lemma: subsampling; opt: original; proposition: convex;
proposition: full participation; theorem: convergence; theorem: convergence_smooth
"""
LABELS = re.sub(r"\s+", " ", _LABELS).strip().split("; ")

NAMES = sorted(
    {
        name
        for document in DOCS
        for name in re.findall(
            r"`(dpcohort(?:_lab)?(?:\.\w+)+)`", document.read_text(encoding="utf-8")
        )
    }
)


def resolve(name: str) -> None:
    """Import the longest module part of the name, then follow attributes and dataclass fields."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            value: object = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
            continue
        break
    for attribute in parts[length:]:
        if dataclasses.is_dataclass(value):
            fields = {field.name for field in dataclasses.fields(value)}
            if attribute in fields:
                continue
        value = getattr(value, attribute)


def test_every_name_can_be_imported() -> None:
    missing = []
    for name in NAMES:
        try:
            resolve(name)
        except AttributeError as error:
            missing.append(f"{name}: {error}")
    assert missing == []


def test_every_label_of_the_paper_is_in_the_map() -> None:
    assert [label for label in LABELS if f"`{label}`" not in MAP] == []


def test_every_line_of_algorithm_1_is_in_the_map_once() -> None:
    section = MAP.split("## Algorithm 1")[1].split("##")[0]
    ranges = re.findall(r"^\| (\d+)(?:-(\d+))? \|", section, flags=re.MULTILINE)
    lines = [line for a, b in ranges for line in range(int(a), int(b or a) + 1)]
    assert sorted(line for line in lines if line <= 22) == list(range(1, 23))


# The numbers of "Where the paper's statement had to be corrected", by point.


def stated(number: str) -> float:
    """A number that must stand in the map as written."""
    assert number in MAP
    return float(number.replace(",", ""))


def test_point_5_a_local_minimum_and_the_infimum() -> None:
    def joint(steps: int) -> float:
        root = math.sqrt(steps)
        best = solve_selection([0.2, 0.8], [0.0, 2 * root])
        return 0.5 * best.objective + math.sqrt(1.5 / root)

    values = {steps: joint(steps) for steps in range(1, 30)}
    assert min(values, key=values.__getitem__) == 6
    assert values[6] == pytest.approx(stated("1.663"), abs=5e-4)
    assert joint(10**14) == pytest.approx(stated("1.600"), abs=5e-4)


def gaussian_delta(epsilon: mp.mpf, mu: mp.mpf) -> mp.mpf:
    """The exact delta of a Gaussian mechanism whose sensitivity is mu standard deviations."""
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("sensitivity", "holds_at", "fails_at"), [(1, "169", "170"), (2, "13.5", "13.6")]
)
def test_point_9_lemma_2_fails_for_large_epsilon(
    sensitivity: int, holds_at: str, fails_at: str
) -> None:
    stated(fails_at)
    with mp.workdps(60):
        delta = mp.mpf("1e-5")
        for epsilon, holds in ((mp.mpf(holds_at), True), (mp.mpf(fails_at), False)):
            mu = sensitivity * epsilon / mp.sqrt(8 * mp.log(mp.e + epsilon / delta))
            assert (gaussian_delta(epsilon, mu) <= delta) == holds


def test_point_10_the_textbook_gaussian_mechanism_fails_for_large_epsilon() -> None:
    with mp.workdps(60):
        delta, epsilon = mp.mpf("1e-5"), mp.mpf(str(stated("8.45")))
        mu = epsilon / mp.sqrt(2 * mp.log(mp.mpf("1.25") / delta))
        assert gaussian_delta(epsilon, mu) > delta


def test_point_11_clients_that_the_optimum_leaves_out() -> None:
    empty = solve_selection([0.5, 0.5, 0.0], [1.0, 1.0, 1.0])
    assert empty.probabilities[2] == 0.0
    drowned = solve_selection([0.3, 0.3, 0.4], [1.0, 1.0, math.inf])
    assert drowned.probabilities[2] == 0.0
    draws = 100

    def second(cost: float) -> float:
        solution = solve_selection(
            [0.5, 0.5],
            np.array([0.0, cost]) * (1 - 1 / draws),
            linear_costs=np.array([0.0, cost]) / draws,
        )
        return float(solution.probabilities[1])

    assert second(stated("790")) == pytest.approx(6.4e-5, rel=0.02)
    assert second(stated("810")) == 0.0
