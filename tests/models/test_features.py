# SPDX-License-Identifier: Apache-2.0
"""Fixed features of other packages: found by name, and computed record by record in private."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from dpcohort import plugin, plugins
from dpcohort.data import dataset_from_arrays
from dpcohort.errors import InputError
from dpcohort.models import FixedFeatures, build_features, precompute_features, split_features


@plugin("features")
class Halves(FixedFeatures):
    """The record, divided; and where it is told to, less the mean of the batch."""

    def __init__(self, input_shape, *, by=2.0, mixing_above=1000):
        super().__init__()
        (self.width,), self.by, self.mixing_above = input_shape, by, mixing_above

    def forward(self, records):
        if len(records) > self.mixing_above:
            return records - records.mean(0)
        return records / self.by


@pytest.fixture
def announced(monkeypatch):
    """Halves, announced as a package in the group dpcohort.features would do."""
    entries = [metadata.EntryPoint("halves", f"{__name__}:Halves", "dpcohort.features")]
    monkeypatch.setattr(
        metadata, "entry_points", lambda group: entries if group == "dpcohort.features" else []
    )
    monkeypatch.setattr(plugins, "metadata", SimpleNamespace(entry_points=metadata.entry_points))
    plugins._entry_points.cache_clear()
    yield entries
    plugins._entry_points.cache_clear()


def data(records=40):
    inputs = np.arange(records * 3, dtype=np.float32).reshape(records, 3)
    labels = np.arange(records) % 2
    return dataset_from_arrays(
        "mnist", train_inputs=inputs, train_labels=labels, test_inputs=inputs, test_labels=labels
    )


def test_an_installed_package_announces_features_by_name(announced):
    assert build_features("halves", (3,), by=4.0).by == 4.0
    assert build_features(f"{__name__}:Halves", (3,)).width == 3
    announced.append(metadata.EntryPoint("halves", "elsewhere:Halves", "dpcohort.features"))
    plugins._entry_points.cache_clear()
    with pytest.raises(InputError, match="features 'halves' is announced by more than one package"):
        build_features("halves", (3,))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("halvs", {}, "one of none, halves, or module:Class.*dpcohort-lab has oriented"),
        ("halves", {"bye": 2}, "halves features have no option 'bye'; they have by.*mean 'by'"),
        ("none", {"by": 2}, "by is for features"),
        (None, {}, "features = None"),
        ("torch.nn:Linear", {}, "features = 'torch.nn:Linear' would run"),
    ],
)
def test_bad_requests_are_refused(announced, name, options, words):
    with pytest.raises(InputError, match=words):
        build_features(name, (3,), **options)


def test_what_mixes_records_above_a_size_meets_one_at_a_time_in_a_private_run():
    features = Halves((3,), mixing_above=30)
    shared = precompute_features(data(), features).train_inputs
    alone = precompute_features(data(), features, isolated=True).train_inputs
    assert not np.array_equal(shared, data().train_inputs / 2)
    assert np.array_equal(alone, data().train_inputs / 2)
    model = nn.Sequential(features, nn.Linear(3, 2))
    split = split_features(model, data(), isolated=True)[1]
    assert np.array_equal(split.train_inputs, alone)


def test_a_published_set_may_be_kept_by_the_features_and_no_other(monkeypatch):
    asked = []

    class Keeping(Halves):
        def kept(self, parts, shape, compute):
            asked.append(shape)
            return compute()

    own = data()
    split_features(nn.Sequential(Keeping((3,)), nn.Linear(3, 2)), own)
    assert asked == []
    monkeypatch.setattr("dpcohort.data._load._PUBLISHED", {own})
    found = split_features(nn.Sequential(Keeping((3,), by=3.0), nn.Linear(3, 2)), own)[1]
    assert asked == [(80, 3)]
    assert np.allclose(found.test_inputs, own.test_inputs / 3)
