# SPDX-License-Identifier: Apache-2.0
"""The strategy and the mod in Flower apps: on Flower's own messages, mods and strategies."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from dpcohort import Contract, Population, Training, make_plan
from dpcohort.clients import PUBLIC
from dpcohort.deploy.flower import PrivacyAwareStrategy, PrivacyMod, clients_of
from dpcohort.deploy.flower._kit import write_app
from dpcohort.deploy.guard._handler import RefusedError
from dpcohort.deploy.ledger import ClientLedger, LifetimeCap, RunTerms, read_state
from dpcohort.engine import Lattice
from dpcohort.errors import InputError
from dpcohort.runs import Run, verify_run

flwr_app = pytest.importorskip("flwr.app")
clientapp = pytest.importorskip("flwr.clientapp")
strategies = pytest.importorskip("flwr.serverapp.strategy")
pytestmark = pytest.mark.usefixtures("task")

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "flower-app.md"
WHOLE = {"accountant": Contract(neighbours="replace-one")}


class _Grid:
    """Flower's grid with the ClientApp of every node in this process."""

    def __init__(self, app, nodes, run_config=None):
        self.app, self.nodes, self.run_config = app, nodes, run_config or {}
        self.replies, self.sent = {}, []

    def get_nodes(self):
        return [type("Node", (), {"node_id": node})() for node in self.nodes]

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        return [self._pushed(message) for message in messages]

    def _pushed(self, message):
        name = message.metadata.__dict__["_message_id"] = f"id-{len(self.sent)}"
        self.sent.append(name)
        node = message.metadata.dst_node_id
        context = _context(self.nodes[node], self.run_config, node)
        try:
            self.replies[name] = self.app(message, context)
        except Exception as error:  # as Flower does
            failed = flwr_app.Error(code=1, reason=str(error))
            self.replies[name] = flwr_app.Message(failed, reply_to=message)
        return name

    def pull_messages(self, names):
        return [self.replies[name] for name in names]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(list(messages)))


def _context(node_config, run_config, node=0):
    return flwr_app.Context(
        run_id=1,
        node_id=node,
        node_config=node_config,
        state=flwr_app.RecordDict(),
        run_config=run_config,
    )


def _arrays(**arrays):
    made = {name: flwr_app.Array(np.asarray(one)) for name, one in arrays.items()}
    return flwr_app.ArrayRecord(made)


@dataclass
class _Federation:
    """Clients whose apps add a vector to the model, and a plan that protects them as a whole."""

    folder: Path
    moves: dict
    rounds: int = 1
    dimension: int = 40
    epsilon: float = 8.0
    mods: list = field(default_factory=lambda: [PrivacyMod()])
    accept: bool = True

    def __post_init__(self):
        self.names = list(self.moves)
        count = len(self.names)
        clients = Population.from_arrays(
            ids=self.names, sizes=[1] * count, epsilon=[self.epsilon] * count, delta=1e-5
        )
        training = Training(
            rounds=self.rounds, cohort_size=count, sampling_rate=1.0, dimension=self.dimension
        )
        self.plan = make_plan(clients, training, seed=0, **WHOLE)
        for name in self.names:
            self.ledger(name, RunTerms.of_plan(self.plan, name) if self.accept else None)
        self.told = []

    def ledger(self, name, terms=None):
        cap = LifetimeCap(epsilon=2 * self.epsilon, delta=1e-4, neighbours="replace-one")
        with ClientLedger.create(self.folder / f"{name}.ledger") as ledger:
            ledger.register(name, cap)
            if terms is not None:
                ledger.accept(name, "spring", terms)

    def node(self, name):
        return {"client": name, "ledger": str(self.folder / f"{name}.ledger")}

    def app(self):
        app = clientapp.ClientApp(mods=self.mods)

        @app.train()
        def train(message, context):
            self.told.append(dict(message.content["config"]))
            arrays = message.content["arrays"]
            moved = self.moves[context.node_config["client"]](arrays["w"].numpy())
            content = {
                "arrays": _arrays(w=moved, steps=arrays["steps"].numpy() + 7),
                "metrics": flwr_app.MetricRecord({"num-examples": 123, "loss": 0.5}),
            }
            return flwr_app.Message(flwr_app.RecordDict(content), reply_to=message)

        @app.evaluate()
        def evaluate(message, context):
            raise AssertionError("nobody may evaluate")

        return app

    def grid(self, nodes=None):
        given = {i + 1: self.node(name) for i, name in enumerate(self.names)}
        return _Grid(self.app(), given if nodes is None else nodes)

    def start(self, grid=None, **changes):
        first = _arrays(w=np.zeros(self.dimension, np.float32), steps=np.array(3))
        said = {"initial_arrays": first, "timeout": 0.2, **changes}
        strategy = PrivacyAwareStrategy(self.plan, run="spring", out=self.folder / "run")
        return strategy.start(grid=grid or self.grid(), **said)

    def counted(self, name):
        account = read_state(self.folder / f"{name}.ledger").accounts[name].get("spring")
        return 0 if account is None else len(account.draws)


def _by(value):
    return lambda w: w + np.float32(value)


# --- what is released -------------------------------------------------------------------------


def test_a_whole_update_is_clipped_and_carries_the_plans_noise(tmp_path):
    """An update a million times too long arrives as one of length C, in noise of z C."""
    fed = _Federation(tmp_path, {"a": _by(1e6)}, dimension=10_000)
    moved = fed.start().arrays["w"].numpy().astype(np.float64)
    z = float(fed.plan.noise_multipliers[0])
    assert fed.plan.training.clip == 1.0
    along = moved.sum() / np.sqrt(moved.size)  # the direction that the app took
    assert abs(along - 1.0) < 6 * z
    rest = moved - moved.mean()
    assert abs(rest.std() / z - 1) < 0.05


def test_without_noise_it_would_be_the_mean_of_clipped_updates(tmp_path, monkeypatch):
    """Short updates as they are, long ones cut to C, whatever numbers of examples apps report."""

    def bare(lattice, total, key, *, scale):
        assert len(key) == 32
        return total * lattice.unit * scale

    monkeypatch.setattr(Lattice, "release", bare)
    fed = _Federation(tmp_path, {"a": _by(0.05), "b": _by(-3.0)}, dimension=16)
    moved = fed.start().arrays["w"].numpy()
    came = [{"a": 0.05, "b": -0.25}[fed.names[k]] for k in fed.plan.schedule.cohorts[0]]
    assert len(set(came)) == 2
    assert moved == pytest.approx(np.full(16, np.mean(came)), abs=1e-5)


def test_nothing_but_the_noisy_update_leaves(tmp_path):
    fed = _Federation(tmp_path, {"a": _by(0.1)})
    grid = fed.grid()
    result = fed.start(grid, train_config=flwr_app.ConfigRecord({"lr": 0.5}))
    for reply in grid.replies.values():
        assert list(reply.content) == ["dpcohort"]
        assert not reply.content.metric_records
    assert result.arrays["steps"].numpy() == 3  # what has no fraction stays as the server has it
    assert fed.told == [{"lr": 0.5, "server-round": 1}]
    assert not result.train_metrics_clientapp


def test_every_update_is_counted_by_its_client_and_the_run_verifies(tmp_path):
    fed = _Federation(tmp_path, {"a": _by(0.1), "b": _by(0.2)}, rounds=2)
    fed.start()
    assert verify_run(tmp_path / "run").holds
    planned = dict(zip(fed.names, fed.plan.counts.tolist(), strict=True))
    assert {name: fed.counted(name) for name in fed.names} == planned
    receipt = Run.load(tmp_path / "run").receipt(fed.names[0])
    assert receipt.holds
    assert receipt.unit == "all records of this client together"
    assert "without the wall of a guard" in receipt.stamp


def test_a_training_that_fails_is_not_told(tmp_path, capsys):
    """That it failed may tell of a record: noise alone is sent, and the client's log says so."""

    def fail(w):
        raise ValueError("record 7 is ill")

    def other(w):
        return np.zeros(3, np.float32)

    def nan(w):
        return w * np.nan

    fed = _Federation(tmp_path, {"a": fail, "b": other, "c": nan}, dimension=2000)
    moved = fed.start().arrays["w"].numpy()
    spread = np.sqrt((fed.plan.noise_multipliers[fed.plan.schedule.cohorts[0]] ** 2).sum()) / 3
    assert 0.8 < moved.std() / spread < 1.2
    log = capsys.readouterr().err
    assert "the training failed (ValueError, test_dropin.py, line" in log
    assert "ill" not in log
    assert verify_run(tmp_path / "run").holds


def test_a_run_goes_on_and_counted_updates_come_again(tmp_path):
    fed = _Federation(tmp_path, {"a": _by(0.1)}, rounds=3)
    first = {"initial_arrays": _arrays(w=np.zeros(40, np.float32)), "timeout": 0.2}

    def stop(server_round, arrays):
        if server_round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PrivacyAwareStrategy(fed.plan, run="spring", out=tmp_path / "run").start(
            fed.grid(), evaluate_fn=stop, **first
        )
    with pytest.raises(InputError, match="go on with that run"):
        PrivacyAwareStrategy(fed.plan, run="spring", out=tmp_path / "run2").start(
            fed.grid(), **first
        )
    again = PrivacyAwareStrategy(fed.plan, run="spring", out=tmp_path / "run", resume=True)
    again.start(fed.grid(), **first)
    assert fed.counted("a") == 3
    assert verify_run(tmp_path / "run").holds


# --- bad input: one message, nothing spent ----------------------------------------------------


def _without_ledger(fed):
    return fed.grid({1: {"client": "a"}})


def _ledger_gone(fed):
    return fed.grid({1: {"client": "a", "ledger": str(fed.folder / "none.ledger")}})


def _stranger(fed):
    fed.ledger("west")
    return fed.grid({1: fed.node("a"), 2: fed.node("west")})


def _other_name(fed):
    return fed.grid({1: {**fed.node("a"), "client": "b"}})


def _twice(fed):
    return fed.grid({1: fed.node("a"), 2: fed.node("a")})


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (_without_ledger, "no ledger, so nothing can be counted"),
        (_ledger_gone, "is not there. Its owner makes it with: dpcohort ledger init"),
        (_stranger, "says that it is 'west', whom the plan does not know"),
        (_other_name, "its ledger knows no data set 'b'"),
        (_twice, "two nodes say that they are 'a'"),
        (lambda fed: fed.grid({}), "a, whom the plan draws, did not come online"),
    ],
)
def test_clients_that_cannot_be_counted_on_stop_the_run_before_it(tmp_path, capsys, nodes, words):
    fed = _Federation(tmp_path, {"a": _by(0.1)})
    with pytest.raises(InputError, match=re.escape(words)):
        fed.start(nodes(fed))
    assert "error: " in capsys.readouterr().out
    assert fed.counted("a") == 0
    assert not (tmp_path / "run").exists()


def _local():
    return clientapp.mod.LocalDpMod(1.0, 1.0, 1.0, 1e-5)


@pytest.mark.parametrize(
    ("mods", "named"),
    [
        (lambda: [PrivacyMod(), _local()], "LocalDpMod"),
        (lambda: [clientapp.mod.message_size_mod, PrivacyMod(), _local()], "LocalDpMod"),
        (lambda: [PrivacyMod(), clientapp.mod.fixedclipping_mod], "fixedclipping_mod"),
        (lambda: [PrivacyMod(), PrivacyMod()], "PrivacyMod"),
    ],
)
def test_two_mods_that_both_add_noise_are_refused(tmp_path, mods, named):
    fed = _Federation(tmp_path, {"a": _by(0.1)}, mods=mods())
    with pytest.raises(InputError, match=rf"{named} is among the app's mods beside PrivacyMod"):
        fed.start()
    assert (fed.counted("a"), fed.told) == (0, [])


def test_an_app_without_the_mod_is_noticed(tmp_path):
    fed = _Federation(tmp_path, {"a": _by(0.1)}, mods=[])
    with pytest.raises(InputError, match=r"needs PrivacyMod in ClientApp\(mods=\[...\]\)"):
        fed.start()
    assert fed.counted("a") == 0


def test_without_the_owners_word_nothing_is_spent(tmp_path):
    fed = _Federation(tmp_path, {"a": _by(0.1)}, accept=False)
    with pytest.raises(InputError, match="a: its owner has not accepted the run 'spring'"):
        fed.start()
    assert fed.told == []


def test_terms_for_records_are_refused_where_updates_get_noise(tmp_path):
    """Under zero-out half the noise would do, which a whole update must not have."""
    fed = _Federation(tmp_path, {"a": _by(0.1)}, accept=False)
    terms = RunTerms.of_plan(fed.plan, "a").to_dict() | {"neighbours": "zero-out"}
    with ClientLedger(tmp_path / "a.ledger") as ledger:
        ledger.accept("a", "spring", RunTerms(**terms))
    with pytest.raises(InputError, match="here the client as a whole is protected"):
        fed.start()
    assert (fed.counted("a"), fed.told) == (0, [])


@pytest.mark.parametrize("kind", ["evaluate", "query", "train"])
def test_other_messages_are_not_answered(tmp_path, kind):
    """A server of another strategy gets no metrics, and no model without noise."""
    fed = _Federation(tmp_path, {"a": _by(0.1)})
    app = fed.app()
    if kind == "query":
        app.query()(lambda message, context: message)
    content = flwr_app.RecordDict({"arrays": _arrays(w=np.zeros(40, np.float32))})
    message = flwr_app.Message(content, 1, kind)
    reply = app(message, _context(fed.node("a"), {}))
    assert "PrivacyAwareStrategy and no others" in reply.error.reason
    assert (fed.counted("a"), fed.told) == (0, [])


def test_a_greedy_server_gets_no_draw_more_and_no_noise_less(tmp_path):
    """The mod holds every request against what the owner accepted, whatever plan it names."""
    fed = _Federation(tmp_path, {"a": _by(0.1)}, rounds=2)
    loud = make_plan(
        fed.plan.population.with_scaled_budgets(10.0), fed.plan.training, seed=0, **WHOLE
    )
    assert loud.noise_multipliers[0] < fed.plan.noise_multipliers[0]
    honest, fed.plan = fed.plan, loud
    with pytest.raises(InputError, match="its terms ask for noise multiplier"):
        fed.start()
    assert fed.counted("a") == 0
    fed.plan = honest
    fed.start()
    with pytest.raises(InputError, match="2 draws of a run of this name are counted"):
        fed.start()
    assert fed.counted("a") == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_rounds": 3}, "num_rounds = 3 is not allowed: it must be 1, as in the plan"),
        ({"initial_arrays": _arrays(w=np.zeros(39))}, "training.dimension = 39"),
        ({"initial_arrays": _arrays(**{"bn.running_var": np.ones(40)})}, "Use GroupNorm"),
    ],
)
def test_what_does_not_fit_the_plan_is_said_before_anything_is_asked(tmp_path, changes, words):
    fed = _Federation(tmp_path, {"a": _by(0.1)})
    grid = fed.grid()
    with pytest.raises(InputError, match=re.escape(words)):
        fed.start(grid, **changes)
    assert (grid.sent, fed.counted("a")) == ([], 0)


def test_plans_that_a_mod_cannot_keep_are_refused(tmp_path):
    clients = Population.from_arrays(sizes=[1] * 3, epsilon=[4.0] * 3, delta=1e-5)
    settings = Training(rounds=2, cohort_size=2, sampling_rate=1.0, dimension=4)
    with pytest.raises(InputError, match="moves by up to 2C"):  # zero-out: half of the noise
        PrivacyAwareStrategy(make_plan(clients, settings, seed=0), run="a", out=tmp_path)
    public = Population.from_arrays(sizes=[9] * 2, epsilon=[4.0, 4.0], delta=1e-5).with_budget(
        "client-1", PUBLIC
    )
    plan = make_plan(public, Training(rounds=2, cohort_size=2, batch_size=3), seed=0)
    with pytest.raises(InputError, match="public client"):
        PrivacyAwareStrategy(plan, run="a", out=tmp_path)
    distributed = make_plan(
        Population.from_arrays(sizes=[90] * 4, epsilon=[4.0] * 4, delta=1e-5),
        Training(rounds=2, cohort_size=3, batch_size=9),
        seed=0,
        accountant=Contract(trust="distributed"),
    )
    with pytest.raises(InputError, match="need guards"):
        PrivacyAwareStrategy(distributed, run="a", out=tmp_path)


def test_it_cannot_be_put_into_another_strategy(tmp_path):
    fed = _Federation(tmp_path, {"a": _by(0.1)})
    strategy = PrivacyAwareStrategy(fed.plan, run="spring", out=tmp_path / "run")
    assert isinstance(strategy, strategies.Strategy)
    wrapped = strategies.DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, 1)
    with pytest.raises(InputError, match="cannot be inside of another strategy"):
        wrapped.start(fed.grid(), _arrays(w=np.zeros(40, np.float32)), num_rounds=1)
    assert fed.counted("a") == 0


# --- apps -------------------------------------------------------------------------------------


def _hunks(page, file):
    """Old and new text of each hunk of the page's diff of a file."""
    for block in re.findall(r"```diff\n(.*?)```", page, flags=re.S):
        for part in re.split(r"^--- ", block, flags=re.M)[1:]:
            name, *hunks = re.split(r"^@@\n", part, flags=re.M)
            if name.startswith(file):
                for hunk in hunks:
                    lines = hunk.splitlines()
                    old = [line[1:] for line in lines if line[:1] != "+"]
                    new = [line[1:] for line in lines if line[:1] != "-"]
                    yield "\n".join(old), "\n".join(new)


def _stock(text, page, file):
    """A file of the template with what the page's diff adds taken out again."""
    hunks = list(_hunks(page, file))
    assert hunks, file
    for old, new in hunks:
        assert text.count(new) == 1, new
        text = text.replace(new, old)
    return text


@pytest.fixture
def imported(monkeypatch):
    """Both apps of a folder; they are forgotten afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as everybody else on this machine does

    def load(folder):
        monkeypatch.syspath_prepend(str(folder))
        for name in ("task", "client_app", "server_app"):
            sys.modules.pop(f"quickstart.{name}", None)
        sys.modules.pop("quickstart", None)
        importlib.invalidate_caches()
        return (
            importlib.import_module("quickstart.client_app"),
            importlib.import_module("quickstart.server_app"),
        )

    yield load
    torch.set_num_threads(before)
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        del sys.modules[name]


def _config(app):
    import tomllib

    return tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def _partitions(count):
    return {i + 1: {"partition-id": i, "num-partitions": count} for i in range(count)}


def test_the_template_protects_records_and_learns(tmp_path, imported, capsys):
    app = write_app(tmp_path / "app", rounds=3)
    client, server = imported(app)
    grid = _Grid(client.app, _partitions(3), _config(app))
    server.app(grid, _context({}, _config(app)))
    said = re.findall(r"'accuracy': ([\d.]+)", capsys.readouterr().out)
    assert float(said[-1]) > 0.25
    assert verify_run(app / "run").holds
    run = Run.load(app / "run")
    for k, name in enumerate(run.plan.population.ids):
        draws = read_state(app / "ledgers" / f"{name}.ledger").accounts[name]["quickstart"].draws
        assert len(draws) == run.plan.counts[k]
    receipt = run.receipt("0")
    assert (receipt.unit, receipt.promised_epsilon) == ("one record of this client", 2.0)


def test_what_an_apps_code_says_of_a_record_is_not_logged(capsys):
    def records(context):
        raise ValueError("record 7 is ill")

    mod = PrivacyMod(records=records, network=lambda: torch.nn.Linear(2, 2))
    with pytest.raises(RefusedError, match="its log says why"):
        mod._trainer(None, None, None)
    log = capsys.readouterr().err
    assert "cannot be used: ValueError, test_dropin.py, line" in log
    assert "ill" not in log


def test_a_mod_for_whole_clients_does_not_serve_a_plan_for_records(tmp_path, imported):
    app = write_app(tmp_path / "app", rounds=1)
    path = app / "quickstart" / "client_app.py"
    mod = "PrivacyMod(records=records, network=Net)"
    path.write_text(path.read_text().replace(mod, "PrivacyMod()"))
    client, server = imported(app)
    with pytest.raises(InputError, match="the accepted terms are for records"):
        server.app(_Grid(client.app, _partitions(3), _config(app)), _context({}, _config(app)))


def test_the_pages_diff_is_small_and_turns_a_stock_app_into_the_template(tmp_path, imported):
    """Without what the diff adds it is an app of Flower's alone, which FedAvg trains."""
    page, app = PAGE.read_text(), write_app(tmp_path / "app", rounds=1)
    changed = 0
    for file in ("quickstart/client_app.py", "quickstart/server_app.py"):
        path = app / file
        path.write_text(_stock(path.read_text(), page, file))
        assert "dpcohort" not in path.read_text()
        for old, new in [*_hunks(page, file)]:
            before, after = old.splitlines(), new.splitlines()
            changed += max(
                sum(bool(line.strip()) for line in after if line not in before),
                sum(bool(line.strip()) for line in before if line not in after),
            )
    assert 0 < changed + 3 <= 10  # with the three lines of the run-config
    client, server = imported(app)
    grid = _Grid(client.app, _partitions(3), _config(app))
    server.app(grid, _context({}, _config(app)))
    replies = [reply for reply in grid.replies.values() if reply.has_content()]
    assert any("num-examples" in reply.content["metrics"] for reply in replies)


# --- flwr-datasets ----------------------------------------------------------------------------


class _Natural:
    """As ``NaturalIdPartitioner``: partitions by a column."""

    num_partitions = 2

    def __init__(self):
        self.partition_id_to_natural_id = {0: "north", 1: "lake"}

    def load_partition(self, partition_id):
        return [None] * (30, 50)[partition_id]


class _Federated:
    """As ``FederatedDataset``."""

    def __init__(self):
        self.partitioners = {"train": _Natural()}


def test_natural_ids_are_the_clients_and_sizes_are_those_of_the_unit(tmp_path):
    clients = clients_of(_Natural(), epsilon=[2.0, 8.0], delta=1e-5, records=True)
    assert clients.ids == ("north", "lake")
    assert clients.sizes.tolist() == [30, 50]
    assert clients.epsilon.tolist() == [2.0, 8.0]
    clients.to_csv(tmp_path / "clients.csv")
    assert Population.from_csv(tmp_path / "clients.csv") == clients
    whole = clients_of(fds := _Federated(), epsilon=4.0, delta=1e-5)
    assert whole.sizes.tolist() == [1, 1]
    with pytest.raises(InputError, match="it must be train"):
        clients_of(fds, epsilon=4.0, delta=1e-5, split="test")
    with pytest.raises(InputError, match="a partitioner of flwr-datasets"):
        clients_of([1, 2], epsilon=4.0, delta=1e-5)
