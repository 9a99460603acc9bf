# SPDX-License-Identifier: Apache-2.0
# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # For the privacy officer
# What was promised, what was spent, and how to check it without believing anyone.

# %%
import json
import tempfile
from pathlib import Path

from dpcohort import Population, Training, certify_epsilon, make_plan, train, verify_run

clients = Population.from_arrays(
    ids=["north", "east", "south"], sizes=[480, 470, 480], epsilon=[0.5, 2.0, 8.0], delta=1e-5
)
plan = make_plan(clients, Training(rounds=20, cohort_size=2, batch_size=48, dimension=650), seed=4)
folder = Path(tempfile.mkdtemp()) / "run"
run = train(plan, "logistic", "digits", seed=4, out=folder)

# %% [markdown]
# A receipt says what one client promised and what it spent. This run has a seed, so it is a
# simulation, and the receipt says so.

# %%
receipt = run.receipt("north")
print(json.dumps({k: v for k, v in receipt.to_dict().items() if k != "plan"}, indent=1))

# %% [markdown]
# The number can be computed again from the receipt's own facts, by an independent accountant.

# %%
again = certify_epsilon(
    noise_multiplier=receipt.noise_multiplier,
    delta=receipt.delta,
    sampling_rate=receipt.sampling_rate,
    steps=receipt.spent_steps,
)
print(f"receipt {receipt.certified_epsilon:.5f}, computed again {again:.5f}")

# %% [markdown]
# Verification believes no receipt: it counts from the ledger. A line slipped in is found.

# %%
print("holds:", verify_run(folder).holds)
ledger = folder / "ledger.jsonl"
ledger.write_text(ledger.read_text() + '{"round": 19, "draws": {"north": 3}}\n')
for finding in verify_run(folder).findings:
    print(f"{finding.kind}: {finding.subject}: {finding.message}")
