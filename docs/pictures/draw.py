# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of the documentation: ``python docs/pictures/draw.py``.

Every number in them is computed here; nothing is sketched by hand.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from dpcohort import Population, Training, make_plan
from dpcohort.report._figures import PALETTE, paper_style, save_figure
from dpcohort.selection import PrivacyAware

PLACE = Path(__file__).parent


def architecture() -> Figure:
    """Data flow, from the input files to the run."""
    stages = [
        ("clients.csv\nconfig.toml", "input files"),
        ("Population", "sizes, budgets"),
        ("accounting", "noise from budgets"),
        ("selection", "who, how often"),
        ("schedule", "all cohorts"),
        ("Plan", "frozen, certified"),
        ("engine", "clip, noise, train"),
        ("Run", "ledger, receipts"),
    ]
    figure = Figure(figsize=(8.6, 2.9), layout="constrained")
    axis = figure.subplots()
    axis.set_axis_off()
    axis.set_xlim(0, 4)
    axis.set_ylim(0, 2)
    for position, (name, caption) in enumerate(stages):
        row, column = divmod(position, 4)
        x = column if row == 0 else 3 - column  # the second row comes back
        y = 1.15 if row == 0 else 0.15
        colour = PALETTE[1] if name in ("Plan", "Run") else PALETTE[0]
        axis.add_patch(
            FancyBboxPatch(
                (x + 0.08, y), 0.84, 0.62, boxstyle="round,pad=0.02", facecolor=colour,
                alpha=0.14, edgecolor=colour,
            )
        )  # fmt: skip
        axis.text(x + 0.5, y + 0.38, name, ha="center", va="center", weight="bold")
        axis.text(x + 0.5, y + 0.1, caption, ha="center", va="center", fontsize=8)
    arrow = {"arrowstyle": "->", "color": "#444444", "lw": 1.2}
    for x in (0.94, 1.94, 2.94):
        axis.annotate("", (x + 0.12, 1.46), (x, 1.46), arrowprops=arrow)
        axis.annotate("", (x, 0.46), (x + 0.12, 0.46), arrowprops=arrow)
    axis.annotate("", (3.5, 0.8), (3.5, 1.1), arrowprops=arrow)
    return figure


def noise() -> Figure:
    """What a client's noise does to its mean gradient, for three budgets."""
    clients = Population.from_arrays(sizes=[600] * 3, epsilon=[0.3, 1.0, 8.0], delta=1e-5)
    plan = make_plan(
        clients,
        Training(rounds=100, cohort_size=3, batch_size=128, dimension=2),
        selection="unbiased",
        seed=0,
    )
    rng = np.random.default_rng(0)
    gradient = np.array([0.8, 0.4])  # of norm below the clip, C = 1
    figure = Figure(figsize=(8.2, 2.8), layout="constrained")
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    for axis, k in zip(axes, range(3), strict=True):
        std = plan.noise_multipliers[k] / plan.batch_sizes[k]
        cloud = gradient + std * rng.standard_normal((300, 2))
        axis.scatter(*cloud.T, s=5, alpha=0.5, color=PALETTE[0], linewidths=0)
        axis.annotate("", gradient, (0, 0), arrowprops={"arrowstyle": "->", "color": PALETTE[1]})
        axis.set_title(f"ε = {clients.epsilon[k]:g}: noise {std:.2f} C a coordinate")
        axis.set_aspect("equal")
        axis.set_xlim(-0.2, 1.6)
        axis.set_ylim(-0.5, 1.2)
    axes[0].set_ylabel("300 noisy answers")
    return figure


def selection() -> Figure:
    """Noise of a round and distance from unbiased along eta, for 100 clients."""
    rng = np.random.default_rng(1)
    clients = Population.from_arrays(
        sizes=rng.uniform(300, 900, 100).astype(int), epsilon=rng.uniform(0.05, 1, 100), delta=1e-5
    )
    training = Training(rounds=100, cohort_size=10, batch_size=128, dimension=26_010)
    etas = np.geomspace(0.1, 1e3, 16)
    noises, distances = [], []
    for eta in etas:
        plan = make_plan(clients, training, selection=PrivacyAware(eta=float(eta)), seed=0)
        noises.append(plan.noise_to_clip)
        distances.append(np.abs(plan.selection.probabilities - clients.unbiased).sum())
    unbiased = make_plan(clients, training, selection="unbiased", seed=0).noise_to_clip
    figure = Figure(figsize=(4.6, 3.0), layout="constrained")
    axis = figure.subplots()
    axis.plot(distances, noises, "o-", markersize=4)
    axis.axhline(unbiased, color="#555555", linewidth=0.8, linestyle=":", label="by size")
    for eta, x, y in list(zip(etas, distances, noises, strict=True))[3::4]:
        axis.annotate(f"η = {eta:.3g}", (x, y), xytext=(5, 5), textcoords="offset points", size=8)
    axis.set_xlabel("share of draws moved, twice: ‖p − pᵘ‖₁")
    axis.set_ylabel("noise of a round / C")
    axis.margins(x=0.15)
    axis.legend()
    return figure


def main() -> None:
    """Draw all of them."""
    with paper_style():
        for draw in (architecture, noise, selection):
            save_figure(draw(), PLACE / f"{draw.__name__}.png")
            print(f"wrote docs/pictures/{draw.__name__}.png")


if __name__ == "__main__":
    main()
