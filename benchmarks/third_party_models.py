# SPDX-License-Identifier: Apache-2.0
"""Models and losses in which one record reaches another: what dpcohort and its peers do with them.

::

    python benchmarks/third_party_models.py                       # Opacus and Flower
    python benchmarks/third_party_models.py --ours                # and dpcohort; minutes
    python benchmarks/third_party_models.py --ours --record       # and into results/assurance
    python benchmarks/third_party_models.py --ours --unit person  # of ours, persons alone

Opacus is asked by its own ``PrivacyEngine.make_private``, which validates the module, and then
measured: gradients of single records by its ``GradSampleModule``, clipped and added up by its
``DPOptimizer``, of a batch with a record and without it. What it validates is layers, not what is
written between them; it has never said that it checks more, and a loss it does not see at all.

Flower's ``LocalDpMod`` and NVFLARE's filters take what a client's training has come to, as a whole,
and never see model or records. They promise nothing of a record's influence on a gradient: there is
nothing for them to check, and nothing of theirs is broken here. Of Flower every model's update is
passed through the mod; of NVFLARE 2.9.0 the filters (``app_common/filters``) were read.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import logging
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from referee import flower_release

from dpcohort.audit import Isolation, ModelsUnderTest, isolation
from dpcohort.audit._adversarial_losses import LOSSES
from dpcohort.audit._adversarial_models import CLASSES, MODELS, WIDTH, Adversary, forget
from dpcohort.audit._under_test import MODEL_PLACES
from dpcohort.engine import cross_entropy
from dpcohort.errors import InputError

PERSON_ROWS = 3
EVERY = [*MODELS.values(), *LOSSES.values()]
TEST = "tests/audit/test_isolation.py::test_no_record_reaches_others_through_a_model_or_loss"
PERSONS_TEST = "tests/audit/test_isolation.py::test_nor_between_persons"
PROMISE = "No model and no loss of others lets a record move a batch by more than C."
ATTACK = (
    "Hostile and careless modules and losses, with a record and without it, in fresh processes."
)


def loss_of(case: Adversary) -> Any:
    """The loss of each record."""
    module, _, name = case.loss.partition(":")
    return getattr(importlib.import_module(module), name) if module else cross_entropy


def opacus_released(case: Adversary, inputs: Any, labels: Any) -> Any:
    """Training with Opacus, without noise, as ``dpcohort.audit.isolation`` takes it."""
    from opacus import PrivacyEngine
    from opacus.validators.errors import UnsupportedModuleError

    def made() -> Any:
        model = case.model().train()  # it asks for that
        rows = torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(labels)
        try:
            return PrivacyEngine().make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
                data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows)),
                noise_multiplier=0.0,
                max_grad_norm=1.0,
                loss_reduction="sum",
            )
        except (UnsupportedModuleError, NotImplementedError) as error:
            raise InputError.because(str(error)) from None

    def run(batches: Sequence[Any]) -> Any:
        forget()
        module, optimizer, _ = made()
        sums = []
        for batch in batches:
            optimizer.zero_grad()
            x, y = torch.as_tensor(inputs[batch], dtype=torch.float32), torch.as_tensor(labels)
            loss_of(case)(module(x), y[batch]).sum().backward()
            optimizer.clip_and_accumulate()
            parts = [p.summed_grad for group in optimizer.param_groups for p in group["params"]]
            sums.append(torch.cat([part.detach().reshape(-1) for part in parts]).numpy())
        return np.stack(sums)

    made()
    return run


def flower_accepts(case: Adversary) -> bool:
    """Whether Flower's mod sends on the update of a client that trained this model."""
    model = case.model()
    x = torch.linspace(-1, 1, 5 * WIDTH).view(5, WIDTH)
    loss_of(case)(model(x), torch.arange(5) % CLASSES).sum().backward()
    update = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    update[0] += 1e-3  # it fails at an update of zeros, of which this is no test
    forget()
    sent = flower_release(update.numpy(), clip=1.0, sensitivity=1.0, epsilon=1.0)
    return bool(np.isfinite(sent).all())


def summed_up(found: Sequence[Isolation]) -> str:
    """How many held, were refused and broke the bound, and by how much."""
    failed = [one for one in found if one.verdict == "BROKEN" and "always" in one.detail]
    counts = Counter(one.verdict for one in found if one not in failed)
    broken = [one for one in found if one.verdict == "BROKEN" and one not in failed]
    finite = [one.moved for one in broken if math.isfinite(one.moved)]
    said = f"{counts['refused']} of {len(found)} refused, {counts['BROKEN']} broke the bound"
    if finite:
        said += f" (by up to {max(finite):.3g} C)"
    stopped = len(broken) - len(finite)
    said += f", {stopped} of them by an answer that one record decides" if stopped else ""
    said += f", {len(failed)} failed on any records" if failed else ""
    held = [one.moved for one in found if one.verdict == "held"]
    return said + (f", {len(held)} held (at most {max(held):.5f} C)" if held else "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what came of it; see the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", action="store_true", help="dpcohort as well")
    parser.add_argument("--unit", choices=["record", "person"], help="of ours, this one alone")
    parser.add_argument("--full", action="store_true", help="many trials of each model, of ours")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--record", action="store_true", help="write results/assurance")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    found = isolation(opacus_released, EVERY)
    accepted = sum(one.verdict != "refused" for one in found)
    version = importlib.metadata.version
    told = {
        "Opacus": f"Opacus {version('opacus')} accepts {accepted} of {len(found)}: "
        f"{summed_up(found)}"
    }
    flower = sum(flower_accepts(case) for case in EVERY)
    told["Flower"] = (
        f"Flower {version('flwr')}: no check, {flower} of {len(EVERY)} accepted (LocalDpMod clips "
        "a client's whole update and promises nothing of single records)"
    )
    told["NVFLARE"] = (
        f"NVFLARE 2.9.0: no check, all {len(EVERY)} accepted (read: its filters take weights only)"
    )
    print("\n".join(told.values()), flush=True)
    units = {"record": 1, "person": PERSON_ROWS}
    ours: dict[int, list[str]] = {
        rows: [] for unit, rows in units.items() if given.unit in (None, unit)
    }
    for rows, place in product(ours, MODEL_PLACES if given.ours else ()):
        here = given.device == "cpu" or not place.startswith("guard")
        if here:
            subject = ModelsUnderTest(place, given.device)
            cases = EVERY if subject.takes_losses else list(MODELS.values())
            found = isolation(subject, cases, rows=rows, full=given.full)
            ours[rows].append(f"{place}: {summed_up(found)}")
            print(f"{rows} rows, {ours[rows][-1]}", flush=True)
    if given.record:
        options = f"--device {given.device}" + (f" --unit {given.unit}" if given.unit else "")
        record(ours, list(told.values()), device=given.device, options=options)


def record(ours: dict[int, list[str]], peers: Sequence[str], *, device: str, options: str) -> None:
    """Write the rows of docs/reference/assurance.md."""
    assurance = importlib.import_module("assurance")
    command = f"python benchmarks/third_party_models.py --ours {options} --record"
    tries = f"{len(MODELS)} modules and {len(LOSSES)} losses"
    common = {"tries": tries, "test": TEST, "command": command, "attack": ATTACK}
    for rows, results in ours.items():
        key = "isolation" if rows == 1 else "isolation-persons"
        promise = PROMISE if rows == 1 else f"The same of a person with {rows} rows."
        if device != "cpu":
            promise = f"{promise[:-1]}, on a GPU."
        key += "" if device == "cpu" else f"-{device}"
        common["test"] = TEST if rows == 1 else PERSONS_TEST
        assurance.record(key, promise=promise, result="; ".join(results), **common)
    if device == "cpu":
        common["test"] = TEST
        promise = "The same models and losses, given to others (no promise of ours)."
        assurance.record("isolation-peers", promise=promise, result="; ".join(peers), **common)


if __name__ == "__main__":
    main()
