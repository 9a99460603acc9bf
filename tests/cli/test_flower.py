# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import signal
import zipfile

import pytest

from dpcohort.cli import main
from dpcohort.clients import Population
from dpcohort.deploy.flower import Federation
from dpcohort.plan import make_plan
from dpcohort.training import Training

pytest.importorskip("flwr")


@pytest.fixture
def plan(tmp_path):
    population = Population.from_arrays(
        ids=["ward 7", "lab"], sizes=[300, 400], epsilon=[4.0, 8.0], delta=1e-5
    )
    training = Training(rounds=2, cohort_size=2, batch_size=60, dimension=650)
    made = make_plan(population, training, seed=3)
    made.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def _init(plan, out, *more):
    base = ["flower", "init", str(out), "--plan", str(plan)]
    model = ["--model", "logistic", "--input-shape", "1,8,8", "--classes", "10"]
    return main([*base, *model, *more])


def test_init_writes_a_kit_from_a_plan(plan, tmp_path, capsys):
    assert _init(plan, tmp_path / "kit", "--run", "spring", "--learning-rate", "0.5") == 0
    words = capsys.readouterr().out
    assert "Kit for 2 clients" in words
    federation = Federation.load(tmp_path / "kit" / "server" / "federation.toml")
    assert (federation.run, federation.optimiser) == ("spring", {"learning_rate": 0.5})


def test_init_writes_a_kit_from_a_config(tmp_path, capsys):
    assert main(["new", str(tmp_path / "c.toml"), "--from", "digits"]) == 0
    changes = ["--set", "training.rounds=2"]
    arguments = ["flower", "init", str(tmp_path / "kit"), "--config", str(tmp_path / "c.toml")]
    assert main([*arguments, *changes]) == 0
    federation = Federation.load(tmp_path / "kit" / "server" / "federation.toml")
    assert federation.plan.training.rounds == 2
    assert federation.test == "digits"
    assert federation.model.input_shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either --config FILE.toml or --plan"),
        (["--plan", "p.json"], "Give --model, --input-shape, --classes as well"),
        (["--plan", "p.json", "--config", "c.toml"], "either --config"),
    ],
)
def test_init_says_what_is_missing(tmp_path, capsys, arguments, words):
    assert main(["flower", "init", str(tmp_path / "kit"), *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "kit").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--set", "training.rounds=2"], "a finished plan cannot be changed"),
        (["--input-shape", "8xy"], "such as 64 or 1x28x28"),
        (["--host", "a b"], "host"),
        (["--model", "logistik"], "Did you mean 'logistic'"),
        (["--model", "mlp"], "the plan was made for a model of 650 parameters"),
        (["--port", "8000"], "two different ports"),
        (["--learning-rate", "-1"], "learning_rate"),
        (["--run", " "], "run"),
    ],
)
def test_init_refuses_what_cannot_work(plan, tmp_path, capsys, more, words):
    assert _init(plan, tmp_path / "kit", *more) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "kit").exists()


@pytest.fixture
def same_signals():
    """The demo takes signals over; here they are given back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("same_signals")
@pytest.mark.parametrize("distributed", [True, False])
def test_the_demo_says_on_whom_its_promises_count(tmp_path, capsys, monkeypatch, distributed):
    trust = {"honest": 3, "alone_epsilon": 5.0706} if distributed else {}
    result = {
        "check": "test accuracy 67.9 %",
        "draws": {"north": {"planned": 3, "counted": 3}},
        "verification": {"clients": 3, **trust},
        "seconds": 56.0,
    }
    monkeypatch.setattr("dpcohort.cli._flower.run_demo", lambda *given, **settings: result)
    more = ["--distributed"] if distributed else []
    assert main(["flower", "demo", "--out", str(tmp_path / "run"), *more]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "no client spent more than it promised" in words
    for said in (
        "with 3 honest members in each cohort, no client",
        "Noise was distributed",
        "5.071",
    ):
        assert (said in words) is distributed, said


def test_init_writes_how_guards_read_their_tables(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kit_net.py").write_text(
        "from dpcohort import plugin\nfrom torch import nn\n@plugin('model')\n"
        "def build(input_shape, outputs):\n"
        "    return nn.Linear(input_shape[0], outputs)\n"
    )
    rows = [f"{20 + k % 40},{'ab'[k % 2]},{k % 3 == 0}" for k in range(400)]
    (tmp_path / "t.csv").write_text("\n".join(["age,ward,sick", *rows]))
    (tmp_path / "c.csv").write_text("id,epsilon,delta\na,4,1e-5\nb,8,1e-5\n")
    (tmp_path / "my.toml").write_text(
        'population = { clients = "c.csv" }\n'
        "training = { rounds = 2, cohort_size = 2, sampling_rate = 0.5 }\n"
        'data = { name = "t.csv", label = "sick", labels = [false, true], client = "ward",'
        " bounds = { age = [0, 110] }, seed = 4 }\n"
        'model = { name = "kit_net:build" }\n'
    )
    kit = tmp_path / "kit"
    config = str(tmp_path / "my.toml")
    init = ["flower", "init", str(kit), "--config", config, "--trial"]
    assert main([*init, "--allow-code", "kit_net"]) == 0
    # A table holds clients' records: the server tests on nothing of it.
    assert Federation.load(kit / "server" / "federation.toml").test == ""
    for name in ("a", "b"):
        folder = kit / "clients" / name
        assert "data.csv" in (folder / "dpcohort-guard.service").read_text()
        page = (folder / "README.md").read_text()
        assert "/var/lib/dpcohort-guard/data.csv" in page
        assert "dpcohort guard allow-code" in page
        assert "data.npz" not in (folder / "README.md").read_text()
        monkeypatch.chdir(folder)  # where the model's file lies
        own = folder / "data.csv"
        own.write_text("\n".join(["age,ward,sick", *(r for r in rows if f",{name}," in r)]))
        own.chmod(0o600)
        capsys.readouterr()
        terms = str(folder / "terms.toml")
        assert main(["guard", "check", "--terms", terms, "--data", str(own), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["records"] == 160  # a fifth is held out, as in the plan


def test_a_node_that_cannot_start_says_why(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *what: None)
    files = ["--authority", tmp_path / "ca.crt", "--key", tmp_path / "k", "--guard", tmp_path / "s"]
    for address in ("fl.example.org", ":9443", "fl.example.org:0", "fl.example.org:x"):
        assert main(["flower", "node", "--superlink", address, *map(str, files)]) == 2
        assert "HOST:9443" in capsys.readouterr().err
    assert main(["flower", "node", "--superlink", "127.0.0.1:1", *map(str, files)]) == 2
    assert "ca.crt cannot be read" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_new_writes_an_app_that_flower_takes(tmp_path, capsys):
    """What ``flwr run`` does first: read the configuration, check the parts, pack the app."""
    from flwr.cli.build import build_fab_from_disk

    app = tmp_path / "app"
    assert main(["flower", "new", str(app), "--rounds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"] == 3
    packed = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))).namelist()
    assert {f"quickstart/{part}.py" for part in ("task", "client_app", "server_app")} < {*packed}
    assert not [name for name in packed if "ledgers" in name]  # what is shipped holds no ledger
    assert main(["flower", "new", str(app)]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
