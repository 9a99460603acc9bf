# SPDX-License-Identifier: Apache-2.0
"""Entry of the public registry of differential privacy deployments (arXiv 2509.13509).

Its fields are those of github.com/opendp/deployments-registry-data, July 2026. What a run cannot
know, such as who publishes the model and for what, is left to be filled in by a person.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from dpcohort._version import __version__
from dpcohort.errors import InputError
from dpcohort.plain_text import counted, one_line
from dpcohort.report._statement import RunStatement, at_most
from dpcohort.runs import Run

#: How a text begins that a person has to write.
FILL_IN = "TO BE FILLED IN: "


def registry_entry(run: Run, answers: RunStatement, *, seal: str) -> dict[str, Any]:
    """An entry about the promise to one client of a run, as a draft.

    Args:
        run: a finished private one.
        answers: about the client's receipt.
        seal: hash of the run's files.

    Raises:
        InputError: the client's data are public, or the promise was not kept.
    """
    receipt = answers.receipt
    whole = receipt.in_all()
    if receipt.public or not receipt.holds:
        what = "has public data" if receipt.public else "was not kept its promise"
        raise InputError.because(
            f"{one_line(receipt.client)!r} {what}: that is no deployment of differential privacy."
        )
    plan, client = run.plan, one_line(receipt.client)
    clients = len(plan.population.ids)
    alone = ""
    if whole.trust is not None:
        alone = f" If all others help the server: {at_most(whole.trust['alone_epsilon'])}."
    return {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", f"{client}-{receipt.plan[:12]}".lower()).strip("-"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": f"{FILL_IN}name of the model",
                "data_curators": [f"{FILL_IN}who publishes the model"],
                "intended_use": f"{FILL_IN}what the model is used for",
                "data_product_type": "Machine learning model",
                "data_product_region": f"{FILL_IN}region of the people in the data",
                "description": f"A {run.task.kind} model trained in "
                f"{counted(plan.training.rounds, 'round')} on records of "
                f"{counted(clients, 'client')}, each with a privacy budget of its own. This entry "
                f"is about the promise of {client}.",
                "publication_date": datetime.now(UTC).strftime("%Y-%m-%d"),
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"Data sets of {client} of the same, public size.",
                "unprotected_quantities": "Sizes and budgets of the clients, who took "
                "part in which round, and all settings of the training.",
            },
            "privacy_loss": {
                "privacy_unit": receipt.unit,
                "privacy_unit_details": answers.unit,
                "privacy_parameters": {
                    "epsilon": whole.promised_epsilon,
                    "delta": whole.delta,
                },
                "privacy_parameters_details": f"{answers.parameters}{alone} Other clients have "
                "budgets of their own.",
            },
            "deployment_model": {
                "model_name": "Federated" if answers.over_a_network else "Central",
                "model_name_details": answers.trust,
                "actors": answers.access,
                "release_type": "One release",
                "release_type_details": answers.composition,
                "data_source_type": "Static",
                "access_type": "Non-interactive",
                "access_type_details": answers.release,
            },
            "accounting": {
                "post_processing": "Averages, momentum and selection of models use noisy updates "
                "only.",
                "composition": answers.composition,
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": answers.tuning,
                "mechanisms": f"{answers.mechanism} {answers.sampling} {answers.randomness} "
                f"Library: dpcohort {__version__}.",
                "justification": f"{FILL_IN}why this unit, these parameters and this trust. "
                f"{answers.utility}",
            },
            "administrative": {
                "sources": f"Plan (SHA-256) {receipt.plan}; seal of the run's files {seal}.",
                "notes": f"{answers.exposure} Written by dpcohort {__version__} from a receipt.",
                "registry_authors": [f"{FILL_IN}who fills in this entry"],
            },
        },
    }
