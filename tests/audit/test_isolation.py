# SPDX-License-Identifier: Apache-2.0
"""Models and losses in which one record reaches another, wherever records meet them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from dpcohort.audit import ModelsUnderTest, isolation
from dpcohort.audit._adversarial_losses import LOSSES
from dpcohort.audit._adversarial_models import MODELS, WIDTH, Adversary, Plain, forget
from dpcohort.engine import cross_entropy
from dpcohort.engine.clipping import clip_rows
from dpcohort.errors import InputError

EVERY = [*MODELS.values(), *LOSSES.values()]
HONEST = Adversary("Plain", Plain)


def shared_pass(case: Adversary, inputs: Any, labels: Any) -> Any:
    """Training that shows a model whole batches, and trusts that it keeps their records apart."""
    loss = cross_entropy
    if case.loss:
        module, _, name = case.loss.partition(":")
        loss = getattr(importlib.import_module(module), name)

    def run(batches: Any) -> Any:
        forget()
        model, sums = case.model(), []
        parameters = list(model.parameters())
        for batch in batches:
            x = torch.as_tensor(inputs[batch], dtype=torch.float32).reshape(-1, WIDTH)
            rows = []
            for one in loss(model(x), torch.as_tensor(labels[batch]).reshape(-1)):
                found = torch.autograd.grad(
                    one, parameters, retain_graph=True, materialize_grads=True
                )
                rows.append(torch.cat([part.reshape(-1) for part in found]))
            factors, gradients = clip_rows(torch.stack(rows), 1.0)
            sums.append((factors @ gradients).numpy())
        return np.stack(sums)

    return run


def test_the_collection_is_large_and_all_of_it_breaks_a_shared_pass() -> None:
    """What an engine breaks that trusts its models: the audit can fail, at every one of them."""
    assert len(MODELS) >= 40
    assert len(LOSSES) >= 20
    found = isolation(shared_pass, EVERY)
    assert [one.name for one in found if not one.moved > 1.05] == []
    verdicts = {one.verdict for one in found if MODELS.get(one.name, HONEST).reachable}
    assert verdicts == {"BROKEN"}
    (held,) = isolation(shared_pass, [HONEST])
    assert held.verdict == "held"
    assert held.moved == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(("place", "part"), [("batched", 0), ("guard", 2), ("reports", 4)])
def test_no_record_reaches_others_through_a_model_or_loss(place: str, part: int) -> None:
    """Some of them at each place; ``dpcohort audit --adversarial`` has all of them at all."""
    found = isolation(ModelsUnderTest(place), EVERY[part::6])
    assert [f"{one.name}: {one.detail}" for one in found if one.verdict == "BROKEN"] == []
    assert sum(one.verdict == "held" for one in found) >= 5


@pytest.mark.parametrize("place", ["reference", "frozen", "guard-reports"])
def test_nor_elsewhere(place: str) -> None:
    names = ["GlobalForwardHook", "RaisesAtRecord"]
    found = isolation(ModelsUnderTest(place), [MODELS[name] for name in names])
    assert [str(one) for one in found if one.verdict == "BROKEN"] == []


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["batched", "reference"])
def test_nor_on_a_gpu(cuda: str, kind: str, rows: int) -> None:
    found = isolation(ModelsUnderTest(kind, cuda), EVERY, rows=rows)
    assert [f"{one.name}: {one.detail}" for one in found if one.verdict == "BROKEN"] == []


def test_a_person_is_left_out_with_all_rows() -> None:
    """Where every row is clipped for itself, two move a sum by up to 2 C."""
    for rows in (1, 2):
        (found,) = isolation(shared_pass, [HONEST], rows=rows)
        assert rows - 0.3 < found.moved < rows + 1e-3
        assert found.verdict == ("held" if rows == 1 else "BROKEN")


@pytest.mark.parametrize(
    ("place", "many"), [("batched", 5), ("frozen", 1), ("guard", 1), ("guard-reports", 1)]
)
def test_nor_between_persons(place: str, many: int) -> None:
    """A few kinds of faults; ``dpcohort audit --adversarial --unit person`` has all."""
    names = ["RaisesAtRecord", "MixesAtValue", "Standardised", "BackwardHook", "InGlobal"]
    losses = [LOSSES["contrastive"]] if ModelsUnderTest(place).takes_losses else []
    cases = [*(MODELS[name] for name in names[:many]), *losses, HONEST]
    found = isolation(ModelsUnderTest(place), cases, rows=3)
    assert [f"{one.name}: {one.detail}" for one in found if one.verdict == "BROKEN"] == []
    assert found[-1].verdict == "held"
    assert found[-1].moved == pytest.approx(1, abs=1e-3)


def test_an_answer_that_depends_on_one_record_is_broken_and_a_refusal_is_not() -> None:
    def refusing(when: int) -> Any:
        def released(case: Any, inputs: Any, labels: Any) -> Any:
            def run(batches: Any) -> Any:
                if len(batches[0]) >= when:
                    raise InputError.because("not this one")
                return np.zeros((len(batches), 3))

            return run

        return released

    (always,), (once,) = (isolation(refusing(when), [HONEST]) for when in (0, HONEST.records))
    assert (always.verdict, always.detail) == ("refused", "not this one")
    assert (once.verdict, once.moved) == ("BROKEN", np.inf)


def test_a_place_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="guard-reports"):
        ModelsUnderTest("server")
