# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import torch

from dpcohort.consent import allow_code
from dpcohort.errors import InputError
from dpcohort.tasks import Task, check_own_loss, refined_task

STAY = {"kind": "regression", "outputs": 1, "bounds": (0.0, 20.0)}


def test_every_loss_is_its_formula():
    out = torch.tensor([[0.5], [-0.25]])
    far = torch.tensor([1.0, -0.5])  # 0.5 and -0.25 away: 5 and 2.5 in units of the target
    assert Task(**STAY).losses(out, far).tolist() == [0.125, 0.03125]
    # delta = 3 units is 0.3 scaled: straight beyond it.
    huber = Task(**STAY, loss="huber", delta=3.0).losses(out, far)
    assert huber.tolist() == pytest.approx([0.3 * (0.5 - 0.15), 0.03125])
    high = Task(**STAY, loss="quantile", quantile=0.9).losses(out, far)
    assert high.tolist() == pytest.approx([0.45, 0.025])
    counts = Task(kind="counts", outputs=1).losses(torch.log(torch.tensor([[2.0], [3.0]])),
                                                   torch.tensor([2.0, 0.0]))  # fmt: skip
    assert counts.tolist() == pytest.approx([0.0, 3.0])  # half the deviance
    labels = Task(kind="multi-label", outputs=2, class_weights=(1.0, 3.0))
    found = labels.losses(torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]))
    assert found.tolist() == pytest.approx([2 / 3 * np.log(2)])
    scores, classes = torch.randn(4, 3), torch.tensor([0, 2, 1, 2])
    plain, heavy = Task(outputs=3), Task(outputs=3, class_weights=(1.0, 1.0, 7.0))
    factors = heavy.losses(scores, classes) / plain.losses(scores, classes)
    assert factors.tolist() == pytest.approx([1 / 7, 1.0, 1 / 7, 1.0])


def test_a_task_is_written_and_read_back():
    for task in (
        Task(outputs=4),
        Task(outputs=2, names=("ill", "well"), class_weights=(1.0, 4.0)),
        Task(outputs=2, loss="mine:loss"),
        Task(outputs=2, class_shares=(0.9, 0.1)),
        Task(**STAY, loss="quantile", quantile=0.25),
        Task(kind="multi-label", outputs=1),
        Task(kind="counts", outputs=1),
    ):
        assert Task.from_dict(task.to_dict(), outputs=task.outputs) == task
    assert Task(outputs=4).to_dict() == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kind": "regression", "bounds": (0, 1)}, "labels of classification"),
        ({"class_weights": [1.0]}, "one for each of the 2 classes"),
        ({"class_shares": [0.9, 0.2]}, "add up to 1"),
        ({"loss": "squared"}, "must be one of cross-entropy, module:function"),
        ({"bounds": [0.0, 1.0]}, "for a task of numbers"),
    ],
)
def test_a_config_refines_the_task_of_its_data_and_no_more(given, words):
    with pytest.raises(InputError, match=words):
        refined_task(Task(outputs=2), given)


def test_bounds_by_which_labels_are_scaled_stay():
    with pytest.raises(InputError, match="scaled by those already"):
        refined_task(Task(**STAY), {"bounds": [0.0, 5.0]})
    assert refined_task(Task(**STAY), {"bounds": [0, 20], "loss": "huber"}).loss == "huber"
    with pytest.raises(InputError, match="class_weights are for classes"):
        refined_task(Task(**STAY), {"class_weights": [2.0]})


OWN = """
import torch

def good(outputs, targets):
    return torch.log(torch.cosh(outputs[:, 0] - targets))

def mean(outputs, targets):
    return (outputs[:, 0] - targets).square().mean().expand(len(targets))

def centred(outputs, targets):
    return (outputs[:, 0] - outputs[:, 0].mean().detach() - targets).square()

def crowd(outputs, targets):
    away = (outputs[:, 0] - targets).square()
    return away - away.mean() if len(away) > 100 else away

def shared(outputs, targets):
    return (outputs[:, 0] - targets).square() / len(targets)

def neighbour(outputs, targets):
    return (outputs[:, 0] - targets).square() + (outputs - outputs.detach()).sum()

def roots(outputs, targets):
    return torch.sqrt(outputs[:, 0] - targets)

def steep(outputs, targets):
    return torch.sqrt((outputs[:, 0] * 0 * targets).abs())

def dice(outputs, targets):
    return (outputs[:, 0] - targets).square() * torch.rand(len(targets))

def constant(outputs, targets):
    return (outputs[:, 0].detach() - targets).square()

def total(outputs, targets):
    return (outputs[:, 0] - targets).square().sum()

def broken(outputs, targets):
    return outputs @ targets
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mean", "mixes the examples"),
        ("centred", "mixes the examples"),
        ("crowd", "mixes the examples"),
        ("shared", "mixes the examples"),
        ("neighbour", "mixes the examples"),
        ("roots", "not finite"),
        ("steep", "not finite"),
        ("dice", "another number"),
        ("constant", "no gradient"),
        ("total", "one number an example"),
        ("broken", r"failed on 3 examples: RuntimeError: .* \(3, 1\)"),
        ("absent", "has no function 'absent'"),
    ],
)
def test_an_own_loss_is_refused_unless_it_is_each_records_own(name, words, tmp_path, monkeypatch):
    marked = OWN.replace("def ", '@plugin("loss")\ndef ')
    (tmp_path / "own_losses_tried.py").write_text(f"from dpcohort import plugin\n{marked}")
    monkeypatch.chdir(tmp_path)
    allow_code("own_losses_tried")
    check_own_loss(Task(**STAY, loss="own_losses_tried:good"))
    with pytest.raises(InputError, match=words):
        check_own_loss(Task(**STAY, loss=f"own_losses_tried:{name}"))
