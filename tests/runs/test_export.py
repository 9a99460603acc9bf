# SPDX-License-Identifier: Apache-2.0
"""Models written for other programs say there what they say here, in a process without dpcohort."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors import safe_open

from dpcohort import Population, Training, make_plan, train
from dpcohort.cli import main
from dpcohort.data import column_partition, dataset_from_table
from dpcohort.runs import Run
from dpcohort.runs._export import FORMATS, Exported
from dpcohort.runs._prediction import predicted_table
from dpcohort.tasks import Task

for needed in ("onnx", "onnxruntime", "skops"):
    pytest.importorskip(needed)
pandas = pytest.importorskip("pandas")

RNG = np.random.default_rng(5)
ROWS = 240
DAYS = np.datetime64("2020-01-01") + RNG.integers(0, 900, ROWS)
TABLE = {
    "age": RNG.uniform(0, 100, ROWS).tolist(),
    "seen": DAYS.astype(str).tolist(),
    "sex": RNG.choice(["m", "f"], ROWS).tolist(),
    "grade": RNG.choice([3, 1, 2], ROWS).tolist(),
    "ward": ["a", "b"] * (ROWS // 2),
}
TABLE["sick"] = ["yes" if age > 90 else "no" for age in TABLE["age"]]
TABLE["kind"] = [int(age // 34) for age in TABLE["age"]]
TABLE["stay"] = [age / 5 + 3 for age in TABLE["age"]]
TABLE["visits"] = [int(age // 20) for age in TABLE["age"]]
TABLE["fever"] = [int(age > 50) for age in TABLE["age"]]
#: Rows as people have them: missing, beyond the bounds, of other values.
NEW = {
    "age": [30.0, None, 140.0, 96.5],
    "seen": ["2021-03-01", "2020-06-06", None, "2031-01-01"],
    "sex": ["m", "x", "f", "f"],
    "grade": [1, 2, 9, 3],
}
CASES = {
    "rare": {"label": "sick", "labels": ["no", "yes"], "task": Task(
        names=("no", "yes"), class_shares=(0.9, 0.1), class_weights=(1.0, 5.0))},
    "several": {"label": "kind", "labels": [2, 0, 1], "task": Task(
        outputs=3, names=("2", "0", "1"))},
    "number": {"label": "stay", "task": Task(kind="regression", outputs=1, bounds=(0.0, 30.0))},
    "counts": {"label": "visits", "task": Task(kind="counts", outputs=1)},
    "labels": {"label": ["fever", "kind2"], "task": Task(
        kind="multi-label", outputs=2, names=("fever", "kind2"))},
    "deep": {"label": "sick", "labels": ["no", "yes"], "model": "mlp"},
}  # fmt: skip
WRITTEN = {
    "onnx": tuple(CASES),
    "sklearn": ("rare", "several", "number", "counts"),
    "torch": ("rare", "number"),  # compiling takes seconds
}


def trained(case: str) -> Run:
    given = dict(CASES[case])
    model = given.pop("model", "logistic")
    table = TABLE | ({"kind2": TABLE["fever"]} if case == "labels" else {})
    data = dataset_from_table(
        table,
        client="ward",
        features=["age", "seen", "sex", "grade"],
        bounds={"age": (0, 100), "seen": ["2020-01-01", "2023-01-01"]},
        categories={"sex": ["m", "f"], "grade": [3, 1, 2]},
        missing={"age": "indicator", "seen": 18500.0},
        test_public=True,
        **given,
    )
    partition = column_partition(data.clients)
    clients = Population.from_arrays(
        ids=partition.names, sizes=partition.sizes, epsilon=50.0, delta=1e-5
    )
    options = {"hidden": [5]} if model == "mlp" else {}
    outputs = data.task.outputs
    dimension = 11 * outputs if model == "logistic" else 11 * 5 + 6 * outputs
    settings = Training(rounds=8, cohort_size=2, sampling_rate=1.0, dimension=dimension, clip=3.0)
    plan = make_plan(clients, settings, seed=0)
    return train(
        plan, model, data, partition=partition, seed=1, simulate=1, model_options=options
    )  # fmt: skip


PROGRAM = """
import json, sys
import numpy as np, onnxruntime, pandas as pd, skops.io, torch
folder, new = sys.argv[1], json.loads(sys.argv[2])
days = [None if d is None else float(np.datetime64(d).astype(int)) for d in new["seen"]]
numbers = {"age": new["age"], "seen": days}
found = {}
written = json.loads(sys.argv[3])
for name in written["onnx"]:
    session = onnxruntime.InferenceSession(f"{folder}/{name}.onnx")
    feed = {k: np.array(v, np.float32)[:, None] for k, v in numbers.items()}
    feed |= {k: np.array([[str(w)] for w in new[k]], object) for k in ("sex", "grade")}
    told = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed)))
    found[name] = {"onnx": [told.get("probabilities"), told["prediction"]]}
    if name in written["torch"]:
        program = torch.export.load(f"{folder}/{name}.torch").module()
        places = [[["m", "f"].index(s) if s in "mf" else -1 for s in new["sex"]],
                  [[3, 1, 2].index(g) if g < 9 else -1 for g in new["grade"]]]
        rows = torch.tensor(np.array([*numbers.values(), *places], np.float32).T)
        found[name]["torch"] = [part.detach().numpy() for part in program(rows)]
    if name in written["sklearn"]:
        model = skops.io.load(f"{folder}/{name}.sklearn", trusted=["numpy.dtype"])
        frame = pd.DataFrame({**numbers, **{k: new[k] for k in ("sex", "grade")}})
        chances = model.predict_proba(frame) if hasattr(model, "predict_proba") else None
        found[name]["sklearn"] = [chances, model.predict(frame)]
assert "dpcohort" not in sys.modules
plain = lambda one: None if one is None else np.asarray(one).tolist()
print(json.dumps({n: {k: [plain(p) for p in v] for k, v in f.items()} for n, f in found.items()}))
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What is predicted here, and there."""
    folder = tmp_path_factory.mktemp("exported")
    runs = {case: trained(case) for case in CASES}
    for case, run in runs.items():
        model = Exported.of(run)
        for form, cases in WRITTEN.items():
            if case in cases:
                FORMATS[form](model, folder / f"{case}.{form}")
    command = [
        sys.executable,
        "-P",
        "-c",
        PROGRAM,
        str(folder),
        json.dumps(NEW),
        json.dumps(WRITTEN),
    ]
    there = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert there.returncode == 0, there.stderr
    here = {case: predicted_table(run, NEW)[0] for case, run in runs.items()}
    return here, json.loads(there.stdout)


@pytest.mark.parametrize("case", CASES)
def test_exported_models_predict_the_same_elsewhere(both, case):
    here, task = both[0][case], CASES[case].get("task", Task(names=("no", "yes")))
    names = [task.called(k) for k in range(task.outputs)]
    chances = [here.get(f"probability of {name}") for name in names]
    for form, (shares, prediction) in both[1][case].items():
        if task.kind in ("regression", "counts"):
            assert np.ravel(prediction) == pytest.approx(here["prediction"], rel=1e-5), form
            continue
        assert np.allclose(np.array(shares).T, chances, atol=1e-6), form
        if task.kind == "multi-label":
            assert np.array(prediction).T.tolist() == [here[name] for name in names], form
        elif form == "torch" or not task.names:
            assert [names[k] for k in prediction] == here["prediction"], form
        else:
            assert prediction == here["prediction"], form


def test_a_frame_is_predicted_by_name(tmp_path):
    run = trained("rare")
    assert run.predict(pandas.DataFrame(NEW)).tolist() == predicted_table(run, NEW)[0]["prediction"]
    labels = trained("labels").predict(pandas.DataFrame(NEW))
    assert labels.shape == (4, 2)
    assert set(labels.ravel().tolist()) <= {0, 1}


def test_commands_write_a_card_and_refuse_what_they_cannot_write(tmp_path, capsys):
    few = ["--set", "training.rounds=2", "--set", "run.evaluate_every=2"]
    for name in ("heart-disease", "digits"):
        config = str(tmp_path / f"{name}.toml")
        assert main(["new", config, "--from", name]) == 0
        assert main(["train", config, "--out", str(tmp_path / name), *few]) == 0
    heart, digits = str(tmp_path / "heart-disease"), str(tmp_path / "digits")
    with safe_open(f"{heart}/model.safetensors", "np") as file:
        about = json.loads(file.metadata()["dpcohort"])
    assert about["task"]["names"][1] == "disease"
    assert about["columns"]["bounds"]["age"] == [20, 80]
    assert main(["export", heart, "--onnx", str(tmp_path / "heart.onnx")]) == 0
    card = (tmp_path / "model-card.md").read_text()
    for words in ("cleveland", "epsilon promised", "NOT PRIVATE", "best constant", "simulation"):
        assert words in card
    for run, options, words in (
        (heart, [], "name a file to write"),
        (heart, ["--onnx", str(tmp_path / "heart.onnx")], "--force"),
        (digits, ["--sklearn", str(tmp_path / "d.skops"), "--force"], "linear models of a table"),
    ):
        capsys.readouterr()
        assert main(["export", run, *options]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "d.skops").exists()
