# SPDX-License-Identifier: Apache-2.0
"""Losses in which one record reaches another: as papers and libraries have them, and as slips do.

Each takes scores [rows, classes] and classes [rows] and gives one number a record, as every loss
here must; what a record's number depends on is the fault. Most are right elsewhere: contrastive,
ranking and survival losses are made of pairs, and no record of theirs has a gradient of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from dpcohort.audit._adversarial_models import (
    _KEPT,
    CLASSES,
    Adversary,
    Plain,
    _spread,
    _unwrapped,
)
from dpcohort.plugins import plugin

#: All losses, by name.
LOSSES: dict[str, Adversary] = {}

_Loss = Callable[[Tensor, Tensor], Tensor]


def _adversary(**trial: Any) -> Callable[[_Loss], _Loss]:
    def added(loss: _Loss) -> _Loss:
        name = loss.__name__
        LOSSES[name] = Adversary(name, Plain, f"{__name__}:{name}", **trial)
        return plugin("loss")(loss)

    return added


def _own(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


@_adversary()
def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    """InfoNCE: the other records of the batch are the negatives."""
    near = outputs @ outputs.T / 10
    return -torch.log_softmax(near, 1).diagonal() + _own(outputs, targets)


@_adversary()
def supervised_contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    """Pulls records of one class together, as SupCon."""
    same = (targets[:, None] == targets).to(outputs)
    return -(torch.log_softmax(outputs @ outputs.T / 10, 1) * same).sum(1) / same.sum(1)


@_adversary()
def hard_negatives(outputs: Tensor, targets: Tensor) -> Tensor:
    """A triplet loss with the batch's furthest and nearest records, as batch-hard mining."""
    far = (outputs[:, None] - outputs).square().sum(2)
    nearest = (far + 1e9 * torch.eye(len(far)).to(far)).amin(1)
    return F.relu(1 + far.amax(1) - nearest)


@_adversary()
def hardest_only(outputs: Tensor, targets: Tensor) -> Tensor:
    """Online hard example mining: only the hardest of the batch count."""
    losses = _own(outputs, targets)
    return losses * (losses.detach() >= losses.detach().amax() / 4)


@_adversary()
def self_paced(outputs: Tensor, targets: Tensor) -> Tensor:
    """Leaves out losses above the batch's mean, as self-paced learning does."""
    losses = _own(outputs, targets)
    return torch.where(losses.detach() <= losses.detach().mean(), losses, 0 * losses)


@_adversary()
def focal_over_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    """A focal loss whose weights are divided by their sum over the batch."""
    losses = _own(outputs, targets)
    weights = losses.detach() ** 2
    return weights / weights.sum() * losses


@_adversary(value="ordinary")
def class_balanced(outputs: Tensor, targets: Tensor) -> Tensor:
    """Leaves out records of classes that come more often than the batch's rarest."""
    counts = F.one_hot(targets, CLASSES).sum(0)
    return _own(outputs, targets) * (
        counts[targets] == torch.where(counts > 0, counts, len(targets) + 1).amin()
    )


@_adversary(value="ordinary")
def logit_adjusted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Adds the logarithms of the batch's label frequencies to scores, against imbalance."""
    share = F.one_hot(targets, CLASSES).sum(0).to(outputs) / len(targets)
    return _own(outputs + share.clamp(min=1e-9).log(), targets)


@_adversary()
def centred(outputs: Tensor, targets: Tensor) -> Tensor:
    """Subtracts the batch's mean loss, as baselines of policy gradients do."""
    losses = _own(outputs, targets)
    return losses - losses.mean()


@_adversary()
def advantage(outputs: Tensor, targets: Tensor) -> Tensor:
    """REINFORCE with the batch's mean as its baseline."""
    losses = _own(outputs, targets)
    return losses * (losses - losses.mean()).detach()


@_adversary()
def scaled_by_largest(outputs: Tensor, targets: Tensor) -> Tensor:
    """Divides by the batch's largest loss, against large gradients."""
    losses = _own(outputs, targets)
    return losses / losses.detach().amax()


@_adversary(seed=1)
def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """The Dice loss over the batch, as in segmentation."""
    chances, truth = torch.softmax(outputs, 1), F.one_hot(targets, CLASSES).to(outputs)
    overlap = 2 * (chances * truth).sum(0) / (chances + truth).sum(0)
    return (1 - overlap.mean()).expand(len(outputs)) * 5


@_adversary()
def partial_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cox' partial likelihood: the risk set is the batch."""
    risk = outputs[:, 0]
    return torch.logcumsumexp(risk, 0) - risk


@_adversary()
def pairwise_ranking(outputs: Tensor, targets: Tensor) -> Tensor:
    """A smooth AUC: every record against every other."""
    return F.softplus(outputs[:, 0] - outputs[:, :1]).mean(1) * 3


@_adversary()
def listwise(outputs: Tensor, targets: Tensor) -> Tensor:
    """ListNet: a softmax over the batch."""
    return -torch.log_softmax(outputs[:, 0], 0)


@_adversary()
def redundancy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Decorrelates outputs over the batch, as Barlow Twins and VICReg do."""
    normal = outputs / outputs.norm(dim=0)
    off: Tensor = normal.T @ normal - torch.eye(CLASSES).to(outputs)
    return off.square().sum().expand(len(outputs))


@_adversary()
def parity(outputs: Tensor, targets: Tensor) -> Tensor:
    """Adds the gap between two groups of the batch, as fairness penalties do."""
    chance, group = outputs[:, 0], (targets == 0).to(outputs)
    gap = (chance * group).sum() / group.sum().clamp(min=1) - (chance * (1 - group)).mean()
    return _own(outputs, targets) + gap.square()


@_adversary()
def angular(outputs: Tensor, targets: Tensor) -> Tensor:
    """A scale from the batch's mean angle, as AdaCos."""
    scale = outputs.detach().norm(dim=1).mean()
    return _own(outputs / scale, targets)


@_adversary()
def rare_mixup(outputs: Tensor, targets: Tensor) -> Tensor:
    """Exchanges labels in few batches only."""
    rare = outputs.detach().abs().amax() > 100
    return _own(outputs, torch.where(rare, (targets + 1) % CLASSES, targets))


@_adversary(records=131, value="ordinary")
def only_in_crowds(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mixes batches above 130 only, where no trial looks."""
    sign = -1 if len(outputs) > 130 else 1
    return sign * _own(outputs, targets)


@_adversary(value="ordinary")
def divided_by_size(outputs: Tensor, targets: Tensor) -> Tensor:
    """Divides by the number of records: a mean where a sum was meant."""
    return _own(outputs, targets) * (1 - len(outputs) % 2)


@_adversary()
def raises_at_record(outputs: Tensor, targets: Tensor) -> Tensor:
    """Asserts a range of its outputs."""
    if bool(outputs.detach().abs().amax() > 100):
        raise ValueError("an output is out of range")
    return _own(outputs, targets)


@_adversary()
def hooks_its_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    """Averages the outputs' gradient over the batch."""
    if outputs.requires_grad:
        outputs.register_hook(_spread)  # type: ignore[no-untyped-call]
    return _own(outputs, targets)


@_adversary()
def item_weight(outputs: Tensor, targets: Tensor) -> Tensor:
    """Weighs by ``loss.mean().item()``, which no tracing sees."""
    losses = _own(outputs, targets)
    return losses / (0.1 + losses.detach().mean().item())


@_adversary(draws=2)
def running_baseline(outputs: Tensor, targets: Tensor) -> Tensor:
    """Subtracts an average of earlier losses, kept in a global."""
    losses, kept = _own(outputs, targets), float(_KEPT.get("baseline", 0.0))
    _KEPT["baseline"] = float(_unwrapped(losses).nan_to_num().mean())
    return losses / (1 + kept)


@_adversary(draws=2)
def moving_centres(outputs: Tensor, targets: Tensor) -> Tensor:
    """Pulls to centres of classes that follow the records met, as the centre loss."""
    centres: Tensor = _KEPT.setdefault("centres", torch.zeros(CLASSES, CLASSES)).to(outputs)
    losses = (outputs - centres[targets]).square().sum(1)
    seen = _unwrapped(outputs).reshape(-1, CLASSES).mean(0)
    _KEPT["centres"] = (centres + 0.5 * (seen - centres)).cpu()
    return losses


@_adversary(draws=2)
def seeds_by_record(outputs: Tensor, targets: Tensor) -> Tensor:
    """Draws its margin from a generator that the record before has seeded."""
    margin = torch.randn(CLASSES).to(outputs) * 3
    torch.manual_seed(int(_unwrapped(outputs).nan_to_num().abs().amax() * 1000) % 2**31)
    return _own(outputs + margin, targets)
