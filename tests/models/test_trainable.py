# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from dpcohort.errors import InputError
from dpcohort.models import check_trainable, parameter_count
from dpcohort.models._trainable import seeded


@pytest.mark.parametrize(
    ("layer", "fix"),
    [
        (nn.BatchNorm1d(12), "GroupNorm(4, 12)"),
        (nn.BatchNorm2d(64), "GroupNorm(32, 64)"),
        (nn.BatchNorm3d(7), "GroupNorm(1, 7)"),
        (nn.SyncBatchNorm(32), "GroupNorm(32, 32)"),
        (nn.BatchNorm2d(8, affine=False), "GroupNorm(8, 8)"),
        (nn.BatchNorm2d(8, track_running_stats=False).eval(), "GroupNorm(8, 8)"),
        (nn.InstanceNorm1d(8, track_running_stats=True), "track_running_stats=False"),
        (nn.InstanceNorm2d(8, track_running_stats=True), "GroupNorm(8, 8)"),
        (nn.InstanceNorm3d(8, track_running_stats=True), "GroupNorm(8, 8)"),
        (nn.Embedding(5, 3, scale_grad_by_freq=True), "scale_grad_by_freq=False"),
        (nn.Embedding(5, 3, max_norm=1.0), "max_norm=None"),
        (nn.EmbeddingBag(5, 3, scale_grad_by_freq=True, mode="sum"), "scale_grad_by_freq=False"),
    ],
)
def test_a_layer_that_mixes_records_is_named_with_its_replacement(layer, fix):
    model = nn.Sequential()
    model.add_module("front", nn.Linear(2, 2))
    model.add_module("block", nn.Sequential(nn.Tanh(), layer))
    with pytest.raises(InputError) as caught:
        check_trainable(model)
    message = str(caught.value)
    assert "layer 'block.1'" in message
    assert f"({type(layer).__name__})" in message
    assert fix in message


def test_a_replacement_that_is_named_can_be_trained():
    check_trainable(nn.Sequential(nn.Linear(2, 12), nn.GroupNorm(4, 12)), input_shape=(2,))


def test_lazy_layers_are_refused_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that lazy layers are new
        layer = nn.LazyLinear(3)
    with pytest.raises(InputError, match=r"\(LazyLinear\) has no size yet"):
        check_trainable(nn.Sequential(layer))


def test_batch_norm_that_is_frozen_is_a_fixed_map():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval())
    check_trainable(model, input_shape=(4,))


def test_a_model_without_trained_parameters_is_refused():
    frozen = nn.Linear(2, 2).requires_grad_(False)
    for model in (nn.Flatten(), frozen):
        with pytest.raises(InputError, match="no parameter that is trained"):
            check_trainable(model)
    assert parameter_count(frozen) == 0


class ByHand(nn.Module):
    """A linear model with something done to the records by hand."""

    def __init__(self, operation):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.operation = operation
        nn.init.zeros_(self.linear.weight)  # a start that hides everything before it

    def forward(self, records):
        return self.linear(self.operation(records))


MIXING = {
    "centred by the batch": lambda x: x - x.mean(0),
    "scaled by the batch": lambda x: x / x.norm(),
    "batch norm as a function": lambda x: nn.functional.batch_norm(x, None, None, training=True),
    "softmax over the records": lambda x: x.softmax(0),
    "summed up along the records": lambda x: x.cumsum(0),
    "summed up from the last record": lambda x: x.flip(0).cumsum(0).flip(0),
    "a trace of the batch": lambda x: x + 1e-3 * x.mean(0),
    "shifted by one record": lambda x: x.roll(1, 0),
    "centred in a crowd only": lambda x: x - x.mean(0) if len(x) > 100 else x,
}


@pytest.mark.parametrize("name", MIXING)
def test_mixing_by_hand_is_found_by_behaviour(name):
    model = ByHand(MIXING[name])
    check_trainable(model)  # no layer gives it away
    with pytest.raises(InputError, match="mixes the records of a batch"):
        check_trainable(model, input_shape=(4,))


def test_a_recurrent_layer_that_takes_records_for_time_is_found():
    class Reader(nn.Module):
        def __init__(self, *, batch_first):
            super().__init__()
            self.read = nn.GRU(5, 4, batch_first=batch_first)

        def forward(self, records):
            return self.read(records)[0][:, -1]

    check_trainable(Reader(batch_first=True), input_shape=(6, 5), classes=4)
    with pytest.raises(InputError, match="batch_first"):
        check_trainable(Reader(batch_first=False), input_shape=(6, 5), classes=4)


SEPARATE = {
    "centred by the record": lambda x: x - x.mean(1, keepdim=True),
    "dropout": lambda x: nn.functional.dropout(x, 0.5, training=True),
    "in place": lambda x: x.mul_(2.0),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_what_treats_records_one_by_one_passes(name):
    check_trainable(ByHand(SEPARATE[name]), input_shape=(4,), classes=3)


@pytest.mark.parametrize(
    "layer",
    [
        nn.LayerNorm(8),
        nn.InstanceNorm1d(8),
        nn.MultiheadAttention(8, 2, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        nn.LSTM(8, 8, batch_first=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_common_layers_pass_by_their_kind(layer):
    check_trainable(nn.Sequential(nn.Linear(2, 2), layer))


class Remembers(nn.Module):
    """Keeps a running mean of raw records, in place or by a new tensor."""

    def __init__(self, *, in_place):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.in_place = in_place
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, records):
        if self.in_place:
            self.seen.mul_(0.9).add_(records.detach().mean(0))
        else:
            self.seen = 0.9 * self.seen + records.detach().mean(0)
        return self.linear(records)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_that_stores_raw_records_is_refused_and_left_as_it_was(in_place):
    model = Remembers(in_place=in_place)
    with pytest.raises(InputError, match="changes its buffer 'seen'"):
        check_trainable(model, input_shape=(4,))
    assert torch.equal(model.seen, torch.zeros(4))


def test_the_check_leaves_weights_gradients_and_randomness_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 3))
    weights = [p.detach().clone() for p in model.parameters()]
    before = torch.get_rng_state()
    check_trainable(model, input_shape=(4,), classes=3)
    assert torch.equal(torch.get_rng_state(), before)
    for now, then in zip(model.parameters(), weights, strict=True):
        assert torch.equal(now, then)
        assert now.grad is None


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda x: (x, x), "'tuple' is not allowed"),
        (lambda x: x[:, :2], r"\(3, 2\) is not allowed"),
        (lambda x: x.sum(1), r"\(3,\) is not allowed"),
        (lambda x: x[:1], r"\(1, 3\) is not allowed"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(output, message):
    class Ends(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, records):
            return output(self.linear(records))

    with pytest.raises(InputError, match=message):
        check_trainable(Ends(), input_shape=(4,), classes=3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(value):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with torch.no_grad():
        model[1].bias[2] = value
    with pytest.raises(InputError, match=r"'1\.bias' starts with numbers that are not finite"):
        check_trainable(model)


def test_what_is_drawn_depends_on_the_seed_alone():
    drawn = []
    for outer in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(outer)
            with seeded(5):
                drawn.append(torch.rand(4))
    assert torch.equal(*drawn)
    with seeded(6):
        assert not torch.equal(torch.rand(4), drawn[0])
