# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcohort.engine import cross_entropy
from dpcohort.engine.clipping import ClippedNetwork, clip_factors, per_example_gradients
from dpcohort.errors import InputError
from dpcohort.models._apart import not_proved_apart


def setting(network: Any) -> tuple[ClippedNetwork, Tensor, Tensor, Tensor]:
    """A clipped network, weights of 4 groups, and inputs and targets of 4 draws of 15."""
    targets = torch.from_numpy(np.random.default_rng(0).integers(0, 3, 60))
    net = ClippedNetwork(network.model, cross_entropy, network.inputs, targets)
    own = net.layout.flatten(network.model)
    noise = torch.randn(4, own.numel(), generator=torch.Generator().manual_seed(1))
    weights = own + 0.1 * noise.double()
    return net, weights, network.inputs.unflatten(0, (4, 15)), targets.view(4, 15)


@pytest.mark.parametrize("groups", [1, 4])
def test_norms_and_sums_are_those_of_torch_func(
    squared_norms: Any, network: Any, groups: int
) -> None:
    net, weights, inputs, targets = setting(network)
    weights = weights[:groups]
    slow = per_example_gradients(network.model, cross_entropy, vectorised=network.path != "loop")
    clip = torch.tensor([0.1, 0.3, 1.0, 1e6], dtype=torch.float64)
    mask = torch.rand(4, 15, generator=torch.Generator().manual_seed(2)) > 0.2
    norms = squared_norms(net, weights, inputs, targets)
    sums = net.clipped_sums(weights, inputs, targets, clip=clip, mask=mask)
    for k in range(4):
        raw = slow(weights[k * groups // 4], inputs[k], targets[k])
        expected = raw.square().sum(1)
        torch.testing.assert_close(norms[k], expected, rtol=1e-9, atol=1e-15)
        factors = clip_factors(expected, clip[k]) * mask[k]
        torch.testing.assert_close(sums[k], factors @ raw, rtol=1e-9, atol=1e-13)


def test_each_gradient_has_a_factor_of_its_own(network: Any) -> None:
    net, weights, inputs, targets = setting(network)
    inputs, targets = inputs[:, :5], targets[:, :5]
    clip = torch.full((4,), 0.3).double()
    scale = torch.rand(inputs.shape[:2], dtype=torch.float64)
    expected = torch.zeros_like(weights)
    for place in range(inputs.shape[1]):
        only = torch.zeros_like(scale)
        only[:, place] = 1
        one = net.clipped_sums(weights, inputs, targets, clip=clip, mask=only.bool())
        expected += scale[:, place, None] * one
    for micro_batch in (None, 2):
        found = net.clipped_sums(
            weights, inputs, targets, clip=clip, scale=scale, micro_batch=micro_batch
        )
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)


def test_norms_are_those_of_opacus(squared_norms: Any, network: Any) -> None:
    if network.name in ("bare", "twice", "tied", "recurrent", "frozen"):
        pytest.skip("Opacus has no gradients for single examples here, or counts them otherwise")
    if network.name == "words":
        network.model.words.padding_idx = None  # which Opacus does not heed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule

        net, _, inputs, targets = setting(network)
        peer = GradSampleModule(network.model, batch_first=True, loss_reduction="sum")
        cross_entropy(peer(inputs[0]), targets[0]).sum().backward()
    expected = sum(
        p.grad_sample.flatten(1).square().sum(1) for p in peer.parameters() if p.requires_grad
    )
    own = net.layout.flatten(network.model)
    norms = squared_norms(net, own[None], inputs[:1], targets[:1])[0]
    peer.to_standard_module()
    torch.testing.assert_close(norms, expected, rtol=1e-9, atol=1e-15)


def test_one_record_never_contributes_more_than_the_clip(squared_norms: Any, network: Any) -> None:
    """In 32 bits, with clips just below, at and far below the norm."""
    net, weights, inputs, targets = setting(network)
    inputs, targets = inputs[:, :5], targets[:, :5]
    exact = squared_norms(net, weights, inputs, targets).sqrt()
    small = ClippedNetwork(network.model.float(), cross_entropy, inputs[0].float() if
                           inputs.is_floating_point() else inputs[0], targets[0])  # fmt: skip
    singles = inputs.flatten(0, 1)[:, None]
    singles = singles.float() if singles.is_floating_point() else singles
    rows = weights.repeat_interleave(5, 0).float()
    for share in (1e-3, 0.5, 1 - 1e-6, 1.0):
        clip = (exact.flatten() * share).clamp(min=1e-12).float()
        sums = small.clipped_sums(rows, singles, targets.reshape(20, 1), clip=clip).double()
        assert float((sums.norm(dim=1) / clip).max()) <= 1 + 1e-6


def test_nothing_of_an_example_is_kept(network: Any) -> None:
    net, weights, inputs, targets = setting(network)
    net.clipped_sums(weights, inputs, targets, clip=torch.ones(4))
    for layer in net._layers:
        left = [v for v in vars(layer).values() if isinstance(v, Tensor)]
        assert left == []
        assert layer.kept == {}


@pytest.mark.parametrize("least", [1, 100], ids=["always", "in a crowd"])
def test_mixing_models_are_refused(least: int) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            mean = inputs.mean(0) if len(inputs) >= least else 0
            return torch.as_tensor(self.layer(inputs - mean))

    with pytest.raises(InputError, match="depending on the others in its batch"):
        ClippedNetwork(
            Mixing(), cross_entropy, torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)
        )


def test_a_model_that_reads_its_layers_weights_takes_the_slow_path() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs @ self.layer.weight.t()

    net = ClippedNetwork(
        Reader(), cross_entropy, torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)
    )
    assert net.path.kind == "vmap"
    assert "weight" in net.path.reason


def test_rows_in_another_place_take_the_slow_path() -> None:
    class Turned(nn.Module):
        """Positions first, so that the rows of the layer are not the examples."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.as_tensor(self.layer(inputs.transpose(0, 1)).mean(0))

    for positions in (2, 3, 5):
        net = ClippedNetwork(
            Turned(), cross_entropy, torch.zeros(3, positions, 4), torch.zeros(3, dtype=torch.int64)
        )
        assert net.path.kind == "vmap"


def test_what_is_hooked_or_joins_a_batch_is_not_proved_apart() -> None:
    hooked = nn.Sequential(nn.Linear(4, 2))
    assert not_proved_apart(hooked) is None
    hooked[0].register_forward_hook(lambda *_: None)
    assert "was changed by hooks" in str(not_proved_apart(hooked))
    joined = nn.Sequential(nn.Flatten(0), nn.Linear(4, 2))
    assert "joins the records of a batch" in str(not_proved_apart(joined))


def test_positions_share_a_layer_without_a_bias() -> None:
    rng = torch.Generator().manual_seed(6)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Flatten(), nn.Linear(15, 3)).double()
    inputs = torch.randn(1, 5, 3, 4, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, 3, (1, 5), generator=rng)
    net = ClippedNetwork(model, cross_entropy, inputs[0], targets[0])
    weights, clip = net.layout.flatten(model)[None], torch.tensor([0.3]).double()
    raw = per_example_gradients(model, cross_entropy)(weights[0], inputs[0], targets[0])
    expected = clip_factors(raw.square().sum(1), clip[0]) @ raw
    found = net.clipped_sums(weights, inputs, targets, clip=clip)
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-13)


class PartlyUsed(nn.Module):
    """Only the last layer is ever asked; the gradient of the others is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([
            nn.Linear(4, 5), nn.Conv2d(1, 2, 3), nn.Embedding(7, 2), nn.LayerNorm(4),
        ])  # fmt: skip
        self.last = nn.Linear(4, 3, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(inputs)


@pytest.mark.parametrize("groups", [1, 2])
def test_layers_that_are_not_used_have_no_gradient(groups: int) -> None:
    rng = torch.Generator().manual_seed(3)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = PartlyUsed().double()
    inputs = torch.randn(2, 5, 4, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, 3, (2, 5), generator=rng)
    net = ClippedNetwork(model, cross_entropy, inputs[0], targets[0])
    weights = net.layout.flatten(model).expand(groups, -1).clone()
    sums = net.clipped_sums(weights, inputs, targets, clip=torch.full((2,), 0.3).double())
    slow = per_example_gradients(model, cross_entropy)
    for k in range(2):
        raw = slow(weights[0], inputs[k], targets[k])
        expected = clip_factors(raw.square().sum(1), torch.tensor(0.3).double()) @ raw
        torch.testing.assert_close(sums[k], expected, rtol=1e-9, atol=1e-13)


def test_a_model_that_looks_between_a_tanh_and_what_takes_it_is_found_out() -> None:
    class Looks(nn.Module):
        def __init__(self, *after: nn.Module) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), *after)

        def forward(self, images: Tensor) -> Tensor:
            seen = self.layers[:2](images)
            outputs: Tensor = self.layers[2:](seen)
            return outputs.flatten(1)[:, :2] + seen.mean((2, 3))

    images, targets = torch.randn(3, 1, 6, 6), torch.tensor([0, 1, 1])
    for after in (nn.Conv2d(2, 2, 3), nn.MaxPool2d(2)):
        network = ClippedNetwork(Looks(after), cross_entropy, images, targets)
        assert network.path.kind == "vmap"
