# SPDX-License-Identifier: Apache-2.0
"""The owner's terms name the one loss that is trained with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.accounting._samplers import SAMPLERS
from dpcohort.consent import allow_code
from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard import GuardTerms, ModelTerms, Refusal
from dpcohort.deploy.guard._files import GuardedData, load_data
from dpcohort.deploy.guard._start import open_guard, terms_in_words
from dpcohort.deploy.guard._terms import layout_sha256, terms_from_plan
from dpcohort.deploy.guard._training import LocalTraining
from dpcohort.engine import Lattice
from dpcohort.engine.clipping import clip_factors, per_example_gradients
from dpcohort.errors import FileFormatError, InputError
from dpcohort.models import build_model

STAY = {"kind": "regression", "bounds": [0.0, 20.0], "loss": "huber", "delta": 2.0}
MODEL = ModelTerms(name="logistic", input_shape=(5,), classes=1, task=STAY)
PLAIN = ModelTerms(name="logistic", input_shape=(5,), classes=3)


@pytest.fixture
def data_file(folder):
    """The guard's records with numbers for labels."""
    dice = np.random.default_rng(0)
    path = folder / "ward.npz"
    inputs = dice.normal(size=(40, 5)).astype(np.float32)
    np.savez(path, inputs=inputs, labels=dice.uniform(0, 25, 40))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "other",
    [
        {**STAY, "loss": "squared"},
        {**STAY, "delta": 3.0},
        {**STAY, "bounds": [0.0, 21.0]},
        {**STAY, "loss": "os:getcwd"},
        {"kind": "counts"},
    ],
)
def test_a_loss_that_the_terms_do_not_name_is_refused(open_handler, good, terms, other):
    ours = replace(terms, model=MODEL)
    handler = open_handler(ours)
    request = {"layout": layout_sha256([("1.weight", (1, 5)), ("1.bias", (1,))])}
    request["vector"] = np.zeros(6, np.float32)
    answer = handler.answer(good(model=replace(MODEL, task=other).sha256(), **request))
    assert isinstance(answer, Refusal)
    assert (answer.code, "model = " in answer.message) == ("terms", True)
    assert not isinstance(handler.answer(good(model=MODEL.sha256(), **request)), Refusal)


def test_the_guard_trains_with_the_loss_of_its_terms(data_file, monkeypatch):
    data = load_data(data_file, MODEL, GuardTerms.model_fields["normalisation"].default)
    assert data.labels.dtype == np.float32
    assert np.abs(data.labels).max() == 1.0  # cut off at the bounds
    monkeypatch.setattr(
        Lattice, "release", lambda self, total, key, *, scale: total.double() * scale * self.unit
    )
    weights = np.random.default_rng(1).normal(size=6).astype(np.float32)
    update = LocalTraining(MODEL, data).update(
        weights, Lattice(2.0, 0.3), (SAMPLERS["fixed"], 1.0, 40), [0.5]
    )
    built = build_model("logistic", input_shape=(5,), classes=1, seed=0)
    raw = per_example_gradients(built, MODEL.predicts.loss_on("cpu"))(
        torch.from_numpy(weights), torch.from_numpy(data.inputs), torch.from_numpy(data.labels)
    )
    wanted = 0.5 * (clip_factors(raw.square().sum(1), 0.3) @ raw) / 40
    assert np.allclose(update, wanted.numpy(), rtol=1e-4, atol=1e-7)


def test_an_own_loss_is_tried_and_its_folder_must_be_closed(folder, data_file, terms, monkeypatch):
    work = folder / "work"
    work.mkdir(mode=0o700)
    (work / "own_losses_of_a_guard.py").write_text(
        "from dpcohort import plugin\n@plugin('loss')\n"
        "def away(outputs, targets):\n    return (outputs[:, 0] - targets).square()\n"
        "@plugin('loss')\ndef mean(outputs, targets):\n"
        "    return (outputs[:, 0] - targets).square().mean().expand(len(targets))\n"
    )
    monkeypatch.chdir(work)
    allow_code("own_losses_of_a_guard")
    data = GuardedData(np.ones((4, 5), np.float32), np.zeros(4, np.float32), "")
    own = replace(MODEL, task={**STAY, "loss": "own_losses_of_a_guard:away", "delta": 1.0})
    assert LocalTraining(own, data).dimension == 6
    mixed = replace(own, task={**own.task, "loss": "own_losses_of_a_guard:mean"})
    with pytest.raises(InputError, match="mixes the examples"):
        LocalTraining(mixed, data)
    work.chmod(0o777)  # others could put a module of that name here
    with pytest.raises(InputError, match="work"):
        open_guard(
            replace(terms, model=own),
            data=data_file,
            ledger=folder / "new.ledger",
            socket=folder / "socket",
            new_ledger=True,
        )


@pytest.mark.parametrize(
    ("labels", "task", "words"),
    [
        (np.zeros((40, 2)), STAY, "shape"),
        (np.full(40, np.nan), STAY, "finite"),
        (np.full(40, 0.5), {"kind": "counts"}, "0, 1, 2"),
        (np.full((40, 1), 2), {"kind": "multi-label"}, "0 or 1"),
    ],
)
def test_labels_that_do_not_fit_are_refused_without_a_value(folder, labels, task, words):
    path = folder / "bad.npz"
    np.savez(path, inputs=np.zeros((40, 5), np.float32), labels=labels)
    path.chmod(0o600)
    with pytest.raises(FileFormatError, match=words) as found:
        load_data(path, replace(MODEL, task=task), GuardTerms.model_fields["normalisation"].default)
    assert "0.5" not in str(found.value)


def test_the_proposal_of_a_plan_names_the_task(folder):
    from dpcohort import Population, Training, make_plan

    clients = Population.from_arrays(sizes=[40] * 2, epsilon=[1.0, 4.0], delta=1e-5, ids=["a", "b"])
    plan = make_plan(clients, Training(rounds=4, cohort_size=2, batch_size=10), seed=0)
    path = folder / "terms.toml"
    path.write_text(terms_from_plan(plan, "b", run="spring", model=MODEL, same_user=True))
    terms = GuardTerms.from_toml(path)
    assert terms.model == MODEL
    words = "\n".join(terms_in_words(terms, 40))
    assert "regression, trained with the loss huber and no other" in words
    assert "[model.task]" not in terms_from_plan(plan, "b", run="spring", model=PLAIN)


def test_a_task_that_is_none_is_refused():
    with pytest.raises(InputError, match="kind"):
        replace(MODEL, task={"kind": "guess"})
    with pytest.raises(InputError, match="key of the task"):
        replace(MODEL, task={"losss": "huber"})
    with pytest.raises(InputError, match="classes"):
        ModelTerms(name="logistic", input_shape=(5,), classes=1)
