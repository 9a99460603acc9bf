# SPDX-License-Identifier: Apache-2.0
"""A FedAvg job of NVFLARE's own under the filter of ``examples/nvflare``, simulated.

::

    python -m venv nvflare-venv
    nvflare-venv/bin/pip install -c constraints.txt ".[train]" "nvflare>=2.8,<2.10"
    nvflare-venv/bin/python benchmarks/nvflare_filter.py

Two sites with ledgers and policies of their own train a regression by NVFLARE's client API, as a
user writes it: with metrics and numbers of steps in every result. A first job uses up what the
policies allow, a second one asks for more. Printed: what reached the server beside what the ledgers
hold, and what became of the second job. Then the filter is read from a site's ``privacy.json``, by
NVFLARE's own reader. docs/how-to/nvflare.md has a recorded run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.deploy.ledger import ClientLedger, DrawKey, LifetimeCap, verify_ledger

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "nvflare"))

from ledger_filter import LedgerFilter

ROUNDS, PARAMETERS = 5, 20
EPSILONS = {"site-1": 60.0, "site-2": 40.0}

CLIENT = """
import sys

import numpy as np
import nvflare.client as flare
from nvflare.apis.dxo import MetaKey

flare.init()
site = flare.get_site_name()
rng = np.random.default_rng(int(site[-1]))
truth = np.linspace(-1, 1, {parameters})
inputs = rng.standard_normal((400, {parameters}))
targets = inputs @ truth
while flare.is_running():
    model = flare.receive()
    start = np.asarray(model.params["numpy_key"], dtype=np.float64)
    weights = start.copy()
    for _ in range(20):
        weights -= 0.1 * inputs.T @ (inputs @ weights - targets) / len(inputs)
    flare.send(
        flare.FLModel(
            params={{"numpy_key": weights - start}},
            params_type=flare.ParamsType.DIFF,
            metrics={{"loss": float(np.mean((inputs @ weights - targets) ** 2))}},
            meta={{MetaKey.NUM_STEPS_CURRENT_ROUND: len(inputs)}},
        )
    )
"""


def site(folder: Path, name: str, epsilon: float) -> Path:
    """The owner's part: a ledger and a policy."""
    home = folder / name
    home.mkdir()
    with ClientLedger.create(home / "site.ledger") as ledger:
        cap = LifetimeCap(epsilon=100.0, delta=1e-5, neighbours="replace-one")
        ledger.register(name, cap)
    policy = home / "policy.toml"
    policy.write_text(
        f'ledger = "site.ledger"\ndataset = "{name}"\nrun = "spring"\nepsilon = {epsilon}\n'
        f"delta = 1e-5\nclip = 2.0\nrounds = {ROUNDS}\n"
    )
    return policy


def run_job(folder: Path, policies: Mapping[str, Path], name: str, rounds: int) -> Path:
    """Simulate a FedAvg job whose results go through the sites' filters; where it was."""
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
    from nvflare.recipe import SimEnv, set_per_site_config

    recipe: Any = NumpyFedAvgRecipe(
        name=name,
        model=[0.0] * PARAMETERS,
        min_clients=len(policies),
        num_rounds=rounds,
        train_script=str(folder / "client.py"),
    )
    set_per_site_config(recipe, {site: {} for site in policies})
    for client, policy in policies.items():
        recipe.add_client_output_filter(LedgerFilter(str(policy)), ["train"], [client])
    recipe.execute(SimEnv(clients=list(policies), workspace_root=str(folder / "simulation")))
    return folder / "simulation" / name


def stored(policy: Path, name: str) -> NDArray[np.float32]:
    """Every update that the site's ledger holds, [rounds, parameters]."""
    with ClientLedger(policy.parent / "site.ledger") as ledger:
        keys = [DrawKey(dataset=name, run="spring", round=t, draw=t) for t in range(ROUNDS)]
        return np.stack([np.frombuffer(ledger.output(key), np.float32) for key in keys])


def by_privacy_file(folder: Path, policy: Path) -> str:
    """The filters of a site's privacy.json, as NVFLARE reads them."""
    from nvflare.apis.workspace import Workspace
    from nvflare.private.fed.app.fl_conf import create_privacy_manager

    home = folder / "deployed"
    (home / "local").mkdir(parents=True)
    (home / "startup").mkdir()
    filters = [{"path": "ledger_filter.LedgerFilter", "args": {"policy": str(policy)}}]
    scope = {"name": "private", "task_result_filters": filters}
    said = {"scopes": [scope], "default_scope": "private"}
    (home / "local" / "privacy.json").write_text(json.dumps(said))
    manager = create_privacy_manager(Workspace(str(home), "site-1"), names_only=False)
    found = manager.get_scope(None).task_result_filters
    return str({way: [type(one).__name__ for one in some] for way, some in found.items()})


def main() -> None:
    """Run both jobs and print what came of them."""
    folder = Path(tempfile.mkdtemp(prefix="nvflare-filter-"))
    (folder / "client.py").write_text(CLIENT.format(parameters=PARAMETERS))
    policies = {name: site(folder, name, epsilon) for name, epsilon in EPSILONS.items()}
    there = run_job(folder, policies, "first", ROUNDS)
    model = np.load(next(there.rglob("server.npy")))
    sent = np.stack([stored(policy, name) for name, policy in policies.items()])
    expected = sent.astype(np.float64).mean(axis=0).sum(axis=0)
    told = [f"NVFLARE {version('nvflare')}, {ROUNDS} rounds of FedAvg, {len(policies)} sites"]
    told.append(f"server's model less the ledgers' updates: {np.abs(model - expected).max():.1e}")
    try:
        run_job(folder, policies, "second", 1)
        told.append("second job: went through")
    except RuntimeError:
        logs = "".join(
            path.read_text() for path in (folder / "simulation" / "second").rglob("log.txt")
        )
        why = "TASK_RESULT_FILTER_ERROR" in logs and "draws accepted for this run are counted"
        told.append(f"second job: {'refused, ' + why if why and why in logs else 'failed'}")
    for name, policy in policies.items():
        with ClientLedger(policy.parent / "site.ledger") as ledger:
            told.append(ledger.receipt(name).text())
        told.append(f"  ledger verified: {verify_ledger(policy.parent / 'site.ledger').holds}")
    told.append(f"privacy.json: {by_privacy_file(folder, policies['site-1'])}")
    print("\n".join(["", *told]))


if __name__ == "__main__":
    main()
