# SPDX-License-Identifier: Apache-2.0
"""What does each hospital get for its budget, before any data is touched?"""

from pathlib import Path

import numpy as np

from dpcohort import Population, Training, make_plan

clients = Population.from_csv(Path(__file__).parent / "clients" / "hospitals.csv")
training = Training(rounds=80, cohort_size=3, batch_size=64, dimension=7_850)

by_size = make_plan(clients, training, selection="unbiased", seed=7)
chosen = make_plan(clients, training, selection="privacy-aware", seed=7)

print(
    f"noise of a round: {by_size.noise_to_clip:.2f} C by size, {chosen.noise_to_clip:.2f} C chosen"
)
for k, name in enumerate(clients.ids):
    promised = "public" if clients.public[k] else f"{clients.epsilon[k]:g}"
    spent = chosen.certified_epsilon[k]
    shown = "-" if np.isnan(spent) else f"{spent:.3g}"
    draws = f"{by_size.schedule.counts[k]:3d} -> {chosen.schedule.counts[k]:3d} draws"
    print(f"{name:16} promised {promised:>6}  {draws}  will spend {shown}")

chosen.verify()  # again, by an independent accountant
print("every promise certified twice; plan", chosen.sha256[:12])
