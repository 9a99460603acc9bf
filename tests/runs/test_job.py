# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from dpcohort import Population, Training, make_plan, plugin, train
from dpcohort.config import load_config
from dpcohort.data import Partition, dataset_from_arrays, load_dataset, paper_partition
from dpcohort.engine import Streams
from dpcohort.errors import FileFormatError, InputError, VerificationError
from dpcohort.models import FixedFeatures, build_model
from dpcohort.runs import configured_data, resolve_device
from dpcohort.runs._folder import settings_sha256
from dpcohort.runs._job import make_job

from .conftest import small_plan


@plugin("features")
class Cells(FixedFeatures):
    """Means over squares of pixels."""

    def __init__(self, input_shape, *, side=4):
        super().__init__()
        self.side, self.width = side, math.prod(input_shape) // side**2

    def forward(self, images):
        return nn.functional.avg_pool2d(images, self.side).flatten(1)


CELLS = f"{__name__}:Cells"


def test_the_default_partition_has_exactly_the_planned_sizes(plan, digits):
    job = make_job(plan, "logistic", digits, device="cpu", seed=1)
    assert np.array_equal(job.partition.sizes, plan.population.sizes)
    again = make_job(plan, "logistic", digits, device="cpu", seed=1)
    other = make_job(plan, "logistic", digits, device="cpu", seed=2)
    assert job.partition.sha256 == again.partition.sha256 != other.partition.sha256


def test_records_mapped_from_a_file_stay_there_and_train_to_the_same_bits(plan, tmp_path):
    rng = np.random.default_rng(0)
    size = int(plan.population.sizes.sum())
    arrays = {
        "train_inputs": rng.integers(0, 256, (size, 64), np.uint8),
        "train_labels": np.arange(size) % 10,
        "test_inputs": rng.integers(0, 256, (20, 64), np.uint8),
        "test_labels": np.arange(20) % 10,
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    held, mapped = dataset_from_arrays("held", **arrays), load_dataset(tmp_path)
    runs = [train(plan, "logistic", data, device="cpu", simulate=0) for data in (held, mapped)]
    for name, values in runs[0].model.items():
        assert np.array_equal(values, runs[1].model[name])
    records = make_job(plan, "logistic", mapped, device="cpu", simulate=0).records()
    assert records._inputs.data_ptr() == mapped.train_inputs.ctypes.data


def test_a_model_of_another_size_is_refused_with_both_numbers(plan, digits):
    with pytest.raises(InputError, match=r"650 parameters.*trains 2,410.*dimension = 2410"):
        make_job(plan, "mlp", digits, device="cpu", model_options={"hidden": [32]})


def test_a_module_of_ones_own(plan, digits):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    job = make_job(plan, module, digits, device="cpu")
    assert job.model_name == "Sequential"
    with pytest.raises(InputError, match="BatchNorm"):
        make_job(plan, nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64)), digits, device="cpu")
    with pytest.raises(InputError, match="name of a model"):
        make_job(plan, 3, digits, device="cpu")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"records": 99}, "99 records"),
        ({"sizes": [150] * 7}, "8 clients but the partition has 7"),
        ({"sizes": [150] * 7 + [100]}, "'client-7' has 100 records but was planned with 150"),
    ],
)
def test_a_partition_that_does_not_fit_the_plan(plan, digits, change, words):
    rng = np.random.default_rng(0)
    if "sizes" in change:
        partition = paper_partition(digits.train_labels, sizes=change["sizes"], rng=rng)
    else:
        partition = Partition(indices=np.arange(99), offsets=np.array([0, 99]), records=99)
    with pytest.raises(InputError, match=words):
        make_job(plan, "logistic", digits, partition=partition, device="cpu")


def test_a_partition_that_names_other_clients(plan, digits):
    base = paper_partition(
        digits.train_labels, sizes=plan.population.sizes, rng=np.random.default_rng(0)
    )
    named = Partition(
        indices=base.indices, offsets=base.offsets, records=base.records, names=tuple("abcdefgh")
    )
    with pytest.raises(InputError, match="other clients"):
        make_job(plan, "logistic", digits, partition=named, device="cpu")


def test_a_plan_for_more_records_than_there_are(digits):
    clients = Population.from_arrays(sizes=[2000], epsilon=1.0, delta=1e-5)
    plan = make_plan(clients, Training(rounds=1, cohort_size=1, dimension=650), seed=0)
    with pytest.raises(InputError, match="2000"):
        make_job(plan, "logistic", digits, device="cpu")


def test_bad_settings(plan, digits):
    for settings in (
        {"engine": "fast"},
        {"seed": -1},
        {"evaluate_every": 0},
        {"checkpoint_every": 0},
        {"device": "tpu"},
        {"device": "cuda:99"},
    ):
        with pytest.raises(InputError):
            make_job(plan, "logistic", digits, **{"device": "cpu", **settings})
    assert resolve_device("auto") in ("cpu", "cuda")


def test_merged_noise_is_recorded_and_only_for_simulations_of_the_mean(plan, digits, secret):
    job = make_job(plan, "logistic", digits, device="cpu", merged_noise=True)
    assert job.experiment().merged_noise
    assert job.settings()["merged_noise"] is True
    plain = make_job(plan, "logistic", digits, device="cpu")
    assert not plain.experiment().merged_noise
    assert "merged_noise" not in plain.settings()  # runs of earlier versions can be resumed
    assert settings_sha256(job.settings()) != settings_sha256(plain.settings())
    for data, rule in ((secret, "mean"), (digits, "trimmed-mean")):
        with pytest.raises(InputError, match="merged_noise"):
            make_job(plan, "logistic", data, device="cpu", merged_noise=True, aggregation=rule)


def test_a_private_job_keeps_every_round(plan, secret):
    job = make_job(plan, "logistic", secret, device="cpu", checkpoint_every=9)
    assert job.checkpoint_every == 1
    assert not job.streams.is_reproducible
    assert job.settings()["randomness"] == "entropy"


def test_a_job_has_one_source_of_randomness_and_a_changed_copy_its_own(plan, digits, secret):
    private = make_job(plan, "logistic", secret, device="cpu")
    assert private.experiment().streams is private.streams
    first, again = (private.streams.noise_key(round=0, client=0) for _ in range(2))
    assert first != again  # trained twice, it has other noise
    seeded = make_job(plan, "logistic", digits, device="cpu", seed=5)
    assert (seeded.streams.seed, dataclasses.replace(seeded, simulate=6).streams.seed) == (5, 6)


def test_large_data_stays_bytes_and_gives_the_same_batches(monkeypatch):
    rng = np.random.default_rng(0)
    data = dataset_from_arrays(
        "bytes",
        train_inputs=rng.integers(0, 256, (1200, 1, 8, 8)).astype(np.uint8),
        train_labels=rng.integers(0, 10, 1200),
        test_inputs=np.zeros((2, 1, 8, 8), np.uint8),
        test_labels=[0, 9],
        public=True,
    )
    job = make_job(small_plan(), "logistic", data, device="cpu")
    resident, labels = job.records().gather(np.arange(5))
    monkeypatch.setattr("dpcohort.runs._job._MOST_RESIDENT_FLOATS", 0)
    lazy, same_labels = job.records().gather(np.arange(5))
    np.testing.assert_allclose(lazy.numpy(), resident.numpy(), rtol=1e-6)
    assert (labels == same_labels).all()


def test_fixed_features_are_computed_once_and_the_head_is_trained():
    clients = Population.from_arrays(sizes=[200] * 3, epsilon=[2.0, 4.0, 8.0], delta=1e-5)
    options = {"features": CELLS, "side": 2}
    probe = build_model("logistic", input_shape=(1, 8, 8), classes=10, seed=0, options=options)
    dimension = sum(p.numel() for p in probe.parameters())
    plan = make_plan(
        clients, Training(rounds=2, cohort_size=2, batch_size=30, dimension=dimension), seed=0
    )
    job = make_job(plan, "logistic", "digits", model_options=options, device="cpu")
    assert any(isinstance(layer, FixedFeatures) for layer in job.model.modules())
    assert not any(isinstance(layer, FixedFeatures) for layer in job.trained.modules())
    inputs, _ = job.records().gather(job.records().indices[:2])
    with torch.no_grad():
        for parameter in job.model.parameters():
            parameter.normal_()  # a zero start would agree with anything
    direct = job.model(torch.as_tensor(job.data.normalised(job.data.train_inputs)))
    row = int(job.records().indices[0])
    with torch.no_grad():
        assert torch.allclose(job.trained(inputs)[0], direct[row], atol=1e-5)


def test_a_plan_with_too_little_noise_is_not_trained(plan, digits):
    half = plan.noise_multipliers / 2
    with pytest.raises(VerificationError, match="would spend more than promised"):
        make_job(
            dataclasses.replace(plan, noise=dataclasses.replace(plan.noise, multipliers=half)),
            "logistic",
            digits,
            device="cpu",
        )


def test_an_epsilon_that_the_noise_cannot_keep_is_refused(digits, secret):
    """e^ε times the error of drawing must stay far below δ; without privacy nobody minds."""
    people = Population.from_arrays(sizes=[240] * 6, epsilon=[1, 1, 1, 1, 1, 75], delta=1e-5)
    training = Training(rounds=4, cohort_size=6, batch_size=60, dimension=650)
    plan = make_plan(people, training, seed=1)
    make_job(plan, "logistic", digits, device="cpu")
    with pytest.raises(InputError, match=r"client-5.*epsilon 75"):
        make_job(plan, "logistic", secret, device="cpu")


def test_a_model_of_another_size_is_not_gone_on_with(plan, digits):
    job = make_job(plan, "logistic", digits, device="cpu")
    with pytest.raises(InputError, match="trained a model of 7 parameters and the plan is for 650"):
        dataclasses.replace(job, carried={"parameters": np.zeros(7)})


def _own_arrays(tmp_path, **said):
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(80, 4)).astype(np.float32)
    arrays = {"train_inputs": inputs[:60], "train_labels": np.arange(60) % 3}
    arrays |= {"test_inputs": inputs[60:], "test_labels": np.arange(20) % 3}
    np.savez(tmp_path / "own.npz", **arrays, **said)
    return tmp_path / "own.npz"


def _own_plan(tmp_path, outputs):
    people = Population.from_arrays(sizes=[30, 30], epsilon=[4.0, 8.0], delta=1e-3)
    settings = {"rounds": 1, "cohort_size": 2, "sampling_rate": 0.5, "dimension": 5 * outputs}
    return make_plan(people, Training(**settings), selection="unbiased", seed=0)


def test_a_private_run_refuses_classes_counted_from_its_records(tmp_path):
    path = str(_own_arrays(tmp_path))
    with pytest.raises(InputError, match=r"(?s)how many classes.*classes = \.\.\. in \[data\]"):
        make_job(_own_plan(tmp_path, 3), "logistic", path)
    told = make_job(_own_plan(tmp_path, 3), "logistic", path, simulate=0).data.remarks
    assert "counted from the training labels" in told[0]
    # one record more of another class changes no shape where the classes are stated
    stated = str(_own_arrays(tmp_path, classes=5))
    job = make_job(_own_plan(tmp_path, 5), "logistic", stated)
    assert job.data.classes == 5
    assert job.data.remarks == ()


@pytest.mark.parametrize("engine", ["batched", "reference"])
@pytest.mark.parametrize("changes", [{"label": 7}, {"input": np.nan}, {"label": -1, "input": 3.0}])
def test_a_private_record_that_cannot_be_used_contributes_nothing(
    monkeypatch, capfd, tmp_path, changes, engine
):
    """Whatever else is in it; without noise of its own the models are equal to the bit."""
    monkeypatch.setattr(Streams, "from_entropy", lambda: Streams(None, bytes))
    rng = np.random.default_rng(3)
    inputs, labels = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    halves = Partition(indices=np.arange(60), offsets=np.array([0, 30, 60]), records=60, rule={})

    def model(
        label: int = 0, private: bool = True, name: str = "run", **row: float
    ) -> dict[str, object]:
        own, classes = inputs.copy(), labels.copy()
        classes[5] = label
        own[5, : len(row)] = list(row.values())
        data = dataset_from_arrays(
            "own",
            train_inputs=own,
            train_labels=classes,
            test_inputs=inputs[:3],
            test_labels=labels[:3],
            classes=3,
        )
        settings = {"partition": halves, "simulate": None if private else 0, "engine": engine}
        out = tmp_path / name
        run = train(_own_plan(tmp_path, 3), "logistic", data, out=out, device="cpu", **settings)
        return {name: array.tolist() for name, array in run.model.items()}

    found = model(**changes)
    assert found == model(9, name="other", first=5.0, second=np.inf)
    assert found != model(0, name="usable")
    written = "".join(
        path.read_text(errors="replace")
        for path in (tmp_path / "run").rglob("*")
        if path.suffix in (".json", ".jsonl")
    )
    assert "[5" not in written + "".join(capfd.readouterr())
    with pytest.raises(InputError, match=r"train_(labels|inputs)\[5"):
        model(private=False, name="simulated", **changes)


@pytest.mark.parametrize("public", [False, True])
def test_test_arrays_are_public_only_where_they_are_called_so(tmp_path, public):
    said = {"test_public": True} if public else {}
    path = str(_own_arrays(tmp_path, classes=3, **said))
    private = make_job(_own_plan(tmp_path, 3), "logistic", path)
    assert private.may_test is public
    assert make_job(_own_plan(tmp_path, 3), "logistic", path, simulate=0).may_test
    train(_own_plan(tmp_path, 3), "logistic", path, out=tmp_path / "run")
    written = (tmp_path / "run" / "rounds.jsonl").read_text()
    assert ('"test"' in written) is public


def test_a_config_says_what_an_array_file_leaves_open(tmp_path):
    _own_arrays(tmp_path)
    text = '[population]\ncount = 2\nepsilon = 1.0\ndelta = 1e-3\n[data]\nname = "./own.npz"\n'
    path = tmp_path / "own.toml"
    path.write_text(text + "classes = 4\ntest_public = true\n")
    data = configured_data(load_config(path))
    assert (data.classes, data.test_public, data.counted_classes) == (4, True, False)
    _own_arrays(tmp_path, classes=3)
    with pytest.raises(InputError, match="as the file itself says"):
        configured_data(load_config(path))
    path.write_text(text.replace("./own.npz", "digits") + "classes = 4\n")
    with pytest.raises(FileFormatError, match="classes is for arrays"):
        load_config(path)
