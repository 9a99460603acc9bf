# SPDX-License-Identifier: Apache-2.0
# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Why selection helps
# A hundred clients, budgets from U(0, 1) as in the paper, and one question: who should speak?

# %%
import numpy as np

from dpcohort import Population, Training, make_plan
from dpcohort.selection import PrivacyAware

rng = np.random.default_rng(1)
clients = Population.from_arrays(
    sizes=rng.uniform(300, 900, 100).astype(int), epsilon=rng.uniform(0.02, 1, 100), delta=1e-5
)
training = Training(rounds=100, cohort_size=10, batch_size=128, dimension=26_010)

# %% [markdown]
# Drawn by size, the strictest tenth adds most of the noise.

# %%
by_size = make_plan(clients, training, selection="unbiased", seed=0)
variance = by_size.schedule.counts * (by_size.noise_multipliers / by_size.batch_sizes) ** 2
strictest = np.argsort(clients.epsilon)[:10]
share = np.nansum(variance[strictest]) / np.nansum(variance)
print(f"the ten strictest clients add {share:.0%} of the noise variance")

# %% [markdown]
# Problem 1 weighs noise against the distance from drawing by size. Its weight is η; a bias cap says
# the same in a unit one can discuss.

# %%
for cap in (0.0, 0.05, 0.1, 0.2, 0.4):
    plan = make_plan(clients, training, selection=PrivacyAware(bias_cap=cap), seed=0)
    print(f"at most {cap / 2:.0%} of the draws moved: noise of a round {plan.noise_to_clip:.2f} C")

# %% [markdown]
# The answer is exact: a dual bound comes with it.

# %%
chosen = make_plan(clients, training, seed=0).selection
print(f"objective {chosen.objective:.6g}, proved to be within {chosen.gap:.1e} of the optimum")
