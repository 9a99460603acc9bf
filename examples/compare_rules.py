# SPDX-License-Identifier: Apache-2.0
"""Which selection rule wins at the same budgets? Five seeds, a confidence interval, a sentence."""

import numpy as np

from dpcohort import Population, Training, make_plan, train
from dpcohort.runs import compare_runs, mean_interval
from dpcohort.selection import PrivacyAware

rng = np.random.default_rng(3)
clients = Population.from_arrays(
    sizes=[90] * 15, epsilon=np.concatenate([rng.uniform(0.2, 0.6, 8), rng.uniform(3, 6, 7)]),
    delta=1e-5,
)  # fmt: skip
training = Training(rounds=60, cohort_size=5, batch_size=40, dimension=650)

rules = {
    "unbiased": "unbiased",
    "epsilon-proportional": "epsilon-proportional",
    "privacy-aware, eta auto": PrivacyAware(eta="auto"),
    "privacy-aware, eta 100": PrivacyAware(eta=100.0),
}
groups = {}
for name, rule in rules.items():
    plan = make_plan(clients, training, selection=rule, seed=0)
    groups[name] = [train(plan, "logistic", "digits", seed=seed) for seed in range(5)]
    found = mean_interval([100 * run.test_accuracy for run in groups[name]])
    accuracy = f"{found.mean:5.1f} %  ± {found.half_width:.1f}"
    print(f"{name:24} {accuracy}  noise {plan.noise_to_clip:.2f} C")

for name, runs in groups.items():
    if name != "unbiased":
        print(compare_runs(runs, groups["unbiased"], names=(name, "unbiased")).sentence)
