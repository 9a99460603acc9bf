# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files: what the present code makes, kept so that a change of it is seen.

::

    PYTHONPATH=CHECKOUT OMP_NUM_THREADS=1 python tests/golden/make.py FOLDER

writes everything into FOLDER; the tests here make the same things and compare them with the files
beside this script. The script speaks to the package through its command line and its public names;
the few others are in ``HOMES``.

The files are renewed when a format changes on purpose, and only then: never to make a test pass.
Before new ones are kept, compare them with the old: what the change does not touch, as the hashes
of models, draws, rounds and test results, must be the same to the bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import shutil
import sys
import tempfile
import tomllib
import warnings
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
#: Plans, trainings and commands: what is asked for in each case.
CASES: dict[str, Any] = tomllib.loads((HERE / "cases.toml").read_text())

_PROTOCOL, _LEDGER = "dpcohort.deploy.guard._protocol", "dpcohort.deploy.ledger"
#: Modules of the names that are not public; imported when asked for, as some need extras.
HOMES: dict[str, str] = {
    "main": "dpcohort.cli",
    "app": "dpcohort.cli",
    "other_commands": "dpcohort.cli",
    "Event": "dpcohort.accounting._events",
    "ClientLedger": _LEDGER,
    "DrawKey": _LEDGER,
    "LifetimeCap": _LEDGER,
    "RunTerms": _LEDGER,
    "decode": _PROTOCOL,
    "encode": _PROTOCOL,
    "DrawRequest": _PROTOCOL,
    "DrawUpdate": _PROTOCOL,
    "Hello": _PROTOCOL,
    "HelloRequest": _PROTOCOL,
    "ReceiptRequest": _PROTOCOL,
    "Refusal": _PROTOCOL,
    "RunReceipt": _PROTOCOL,
    "draw_message": "dpcohort.deploy.flower._messages",
    "hello_message": "dpcohort.deploy.flower._messages",
    "open_message": "dpcohort.deploy.flower._messages",
    "carry_to": "dpcohort.deploy.flower.client_app",
    "Federation": "dpcohort.deploy.flower._federation",
    "FederatedJob": "dpcohort.deploy.flower._record",
    "federate": "dpcohort.deploy.flower._rounds",
    "InProcess": "dpcohort.deploy.flower._exchange",
    "Identity": "dpcohort.deploy.secure_aggregation",
    "Optimiser": "dpcohort.engine",
}


def named(name: str) -> Any:
    """A name of the package that is not public."""
    return getattr(importlib.import_module(HOMES[name]), name)


def dpcohort(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and output of a command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
        code = named("main")([str(one) for one in arguments])
    return code, out.getvalue() if code in (0, 1) else err.getvalue()


def done(*arguments: str | Path) -> str:
    """The output of a command that must succeed."""
    code, words = dpcohort(*arguments)
    assert code == 0, f"dpcohort {' '.join(map(str, arguments))}: exit {code}: {words}"
    return words


def _sets(changes: list[str]) -> list[str]:
    return [part for one in changes for part in ("--set", one.replace("HERE", HERE.as_posix()))]


# Plans ------------------------------------------------------------------------------------------

PLANS = {**CASES["planned"], **CASES["adaptive"]}


def plan_file(name: str, path: Path) -> None:
    """Make a plan anew."""
    done("plan", HERE / "base.toml", *_sets(PLANS[name]), "--out", path)


def without_version(text: str) -> str:
    """A plan's file without the version of the package that wrote it."""
    import re

    return re.sub(r'"dpcohort": "[^"]*"', '"dpcohort": "*"', text, count=1)


# Runs -------------------------------------------------------------------------------------------

TRAINED: dict[str, list[str]] = CASES["trained"]
#: Run folders that are kept whole.
KEPT = ("batched", "projected-plus", "momentum", "power-of-choice", "raw-reports", "federated")
#: Trainings that were stopped after two of four rounds: plan and what else was asked.
STOPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "stopped": ("eta", {"aggregation": "projected-plus"}),
    "stopped-adaptive": ("clustered", {}),
    "stopped-reports": ("rpow-d-caps", {"engine": "reference"}),
}
_MOMENTUM = {"server_momentum": 0.5, "average_decay": 0.5}


class Stopped(Exception):  # noqa: N818  # a visitor with a stop sign, not an error
    """Stops a training."""


class StopAfter:
    """A callback that stops a training after a round."""

    def __init__(self, round: int) -> None:
        self._round = round

    def on_round(self, record: Any, run: Any) -> None:
        if record.round == self._round:
            raise Stopped


def train_stopped(name: str, out: Path, *, resume: bool, stop: int | None = None) -> None:
    """Begin a stopped training, or go on with it."""
    from dpcohort import Plan, train

    plan, options = STOPPED[name]
    with contextlib.suppress(Stopped):
        train(
            Plan.load(HERE / "plans" / f"{plan}.json"),
            "logistic",
            "digits",
            seed=7,
            device="cpu",
            evaluate_every=2,
            checkpoint_every=1,
            optimiser=named("Optimiser")(**_MOMENTUM),
            out=out,
            resume=resume,
            callbacks=[] if stop is None else [StopAfter(stop)],
            **options,
        )


def train_case(name: str, out: Path) -> None:
    """Train a case from its beginning to its end."""
    if name in STOPPED:
        train_stopped(name, out, resume=False, stop=1)
        train_stopped(name, out, resume=True)
    elif name == "federated":
        federate_case(out)
    else:
        done("train", HERE / "base.toml", *_sets(TRAINED[name]), "--out", out, "--json")


RUNS = (*TRAINED, *STOPPED, "federated")


def described(folder: Path) -> dict[str, Any]:
    """A run folder without times and versions: what must stay."""
    found: dict[str, Any] = {
        "files": sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()),
        "ledger": (folder / "ledger.jsonl").read_text(),
        "rounds": [
            {key: value for key, value in json.loads(line).items() if key != "seconds"}
            for line in (folder / "rounds.jsonl").read_text().splitlines()
        ],
        "receipts": [receipt_facts(_json(p)) for p in sorted(folder.glob("receipts/*"))],
        "run": _json(folder / "run.json"),
        "plan": hashlib.sha256(without_version((folder / "plan.json").read_text()).encode())
        .hexdigest(),
        "result": _result(_json(folder / "result.json")),
        "environment": sorted(_json(folder / "environment.json")),
    }  # fmt: skip
    for name in ("config.toml", "exchange.jsonl"):
        if (folder / name).exists():
            found[name] = (folder / name).read_text()
    for path in sorted(folder.glob("*.safetensors")):
        found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _result(values: dict[str, Any]) -> dict[str, Any]:
    """What ``result.json`` says, of sealed files the names alone, as some hold times.

    Also without counts of test records and the words on them: they follow from the model, and
    cannot be compared roughly.
    """
    found = _without(values, "seconds", "seal", "check", "warnings")
    for name in ("metrics", "trivial"):
        found[name] = _without(values[name], "confusion_matrix")
    return {**found, "sha256": sorted(values["sha256"])}


def receipt_facts(values: dict[str, Any]) -> dict[str, Any]:
    """Without the version."""
    return _without(values, "dpcohort")


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in keys}


def verified(folder: Path) -> dict[str, Any]:
    """What ``dpcohort verify`` finds in a run folder, with its exit code."""
    code, words = dpcohort("verify", folder, "--json")
    found = _without(json.loads(words)[0], "path", "seal", "whose_word")
    return {"exit code": code, **found}


def side_by_side(scratch: Path) -> dict[str, Any]:
    """Runs of a grid, two seeds each, trained at once by ``dpcohort compare``."""
    out = scratch / "grid"
    grid = 'grid={selection={rule=["unbiased","power-of-choice"]}}'
    rule = "aggregation.rule=projected-plus"
    done(
        "compare", HERE / "base.toml", *_sets([grid, rule]), "--seeds", "2", "--out", out, "--json"
    )  # fmt: skip
    folders = sorted(path.parent for path in out.rglob("run.json"))
    return {folder.relative_to(out).as_posix(): described(folder) for folder in folders}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in ("seconds", "device")}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


# A federation with guards that answer by heart --------------------------------------------------


class GuardByHeart:
    """Answers like a guard of the plan's client, with updates that follow from their names."""

    def __init__(self, federation: Any, client: str) -> None:
        plan, job = federation.plan, named("FederatedJob").of(federation)
        self._identity = named("Identity")(hashlib.sha256(client.encode()).digest())
        k = plan.population.index_of(client)
        self._says = {
            "dpcohort": "0",
            "dataset": client,
            "records": int(plan.population.sizes[k]),
            "dimension": job.dimension,
            "model": federation.model.sha256(),
            "layout": job.layout,
            "accepted": {
                "sampling_rate": float(plan.sampling_rates[k]),
                "batch_size": int(plan.batch_sizes[k]),
                "local_steps": plan.training.local_steps,
                "sampler": plan.contract.sampler.name,
                "neighbours": plan.contract.neighbours,
                "draws": int(plan.counts[k]),
                "rounds": plan.training.rounds,
                "clip": plan.training.clip,
                "least_noise_multiplier": float(plan.noise_multipliers[k]),
            },
            "plan": plan.sha256,
            "counted": 0,
            "key": self._identity.public,
        }
        self._asked = 0
        self.letters: list[str] = []

    def __enter__(self) -> GuardByHeart:
        return self

    def __exit__(self, *how: object) -> None:
        pass

    def ask(self, request: Any) -> Any:
        return self.draw(request) if hasattr(request, "draw") else self.hello(request.run)

    def hello(self, run: str) -> Any:
        return named("Hello")(**self._says)

    def draw(self, request: Any) -> Any:
        self._asked += 1
        self.letters.append(request.sha256())
        dice = np.random.default_rng([request.round, request.draw, self._says["records"]])
        vector = dice.integers(-64, 65, request.vector.size).astype(np.float32) / 1024
        update = named("DrawUpdate")(
            run=request.run, round=request.round, draw=request.draw, resent=False, vector=vector
        )
        client, sign = self._says["dataset"], self._identity.sign_bytes
        return update.signed(client, request.plan, key=self._identity.public, sign=sign)

    def receipt(self, run: str) -> Any:
        return named("RunReceipt")(
            dataset=self._says["dataset"],
            spending={"counted_draws": self._asked},
            entries=1,
            head="h",
            ledger="l",
        )


def federate_case(out: Path) -> dict[str, list[str]]:
    """Train ``federation.toml`` over a transport in this process; the requests by client."""
    federation = named("Federation").load(HERE / "federation.toml")
    guards = {client: GuardByHeart(federation, client) for client in federation.clients}

    def node(guard: GuardByHeart) -> Any:
        return lambda body: named("carry_to")(lambda: guard, body)

    keys = federation.fingerprints
    transport = named("InProcess")({keys[c]: node(guard) for c, guard in guards.items()})
    named("federate")(federation, transport, out=out, poll=0.0)
    return {client: guard.letters for client, guard in guards.items()}


# The CPU engine ---------------------------------------------------------------------------------


def networks() -> dict[str, tuple[Any, Any]]:
    """Model and records of every layer with a way of its own to clip; seeded."""
    import torch
    from torch import nn

    dice = np.random.default_rng(4)
    images = dice.normal(size=(2, 120, 2, 10, 10)).astype(np.float32)
    digits = dice.normal(size=(2, 120, 1, 28, 28)).astype(np.float32)
    lines = dice.normal(size=(2, 120, 3, 17)).astype(np.float32)
    words = dice.integers(0, 20, size=(2, 120, 7))
    torch.manual_seed(3)
    return {
        "linear": (
            nn.Sequential(nn.Flatten(), nn.Linear(200, 9), nn.Tanh(), nn.Linear(9, 4, bias=False)),
            images,
        ),
        "convolution, max pool": (
            nn.Sequential(
                nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(6, 4),
            ),
            images,
        ),
        "strides, groups, mean pool": (
            nn.Sequential(
                nn.Conv2d(2, 6, 3, stride=2, bias=False), nn.Tanh(), nn.Conv2d(6, 6, 2, groups=3),
                nn.ReLU(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(6, 4),
            ),
            images,
        ),
        "normalisation": (
            nn.Sequential(
                nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
                nn.LayerNorm(256), nn.Linear(256, 4),
            ),
            images,
        ),
        "lines": (
            nn.Sequential(nn.Conv1d(3, 5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(70, 4)),
            lines,
        ),
        "embedding": (
            nn.Sequential(nn.Embedding(20, 6), nn.Flatten(), nn.Linear(42, 4)),
            words,
        ),
        "mnist-cnn": ("mnist-cnn", digits),
    }  # fmt: skip


def engine(scratch: Path) -> dict[str, Any]:
    """Hash of each network after two rounds without an output file."""
    from dpcohort import Population, Training, load_dataset, make_plan, train

    labels = np.random.default_rng(5).integers(0, 4, size=(2, 120))
    clients = Population.from_arrays(
        sizes=[40, 30, 50], epsilon=[2.0, 8.0, float("nan")], delta=[1e-5, 1e-5, float("nan")],
        public=[False, False, True],
    )  # fmt: skip
    found = {}
    for name, (model, records) in networks().items():
        path = scratch / "records.npz"
        np.savez(
            path, train_inputs=records[0], train_labels=labels[0], test_inputs=records[1],
            test_labels=labels[1], classes=4,
        )  # fmt: skip
        data = load_dataset(path)
        if isinstance(model, str):
            from dpcohort.models import build_model

            module = build_model(model, input_shape=data.input_shape, classes=4, seed=1)
        else:
            module = model
        settings = Training(
            rounds=2, cohort_size=4, local_steps=2, batch_size=10, clip=0.5,
            dimension=sum(p.numel() for p in module.parameters()),
        )  # fmt: skip
        plan = make_plan(clients, settings, selection="unbiased", seed=1)
        run = train(plan, model, data, seed=1, simulate=1, device="cpu")
        digest = hashlib.sha256()
        for key in sorted(run.model):
            digest.update(np.ascontiguousarray(run.model[key]).tobytes())
        total = float(sum(np.abs(value.astype(np.float64)).sum() for value in run.model.values()))
        found[name] = {"sha256": digest.hexdigest(), "sum": total, "loss": run.test.loss}
    return found


def requests(scratch: Path) -> dict[str, list[str]]:
    """Hash of every request that clients of the federation are sent."""
    return federate_case(scratch / "asked")


#: What is computed without a run folder to keep, by its name.
COMPUTED = {"engine": engine, "requests": requests}


# Guard ------------------------------------------------------------------------------------------

_VECTOR = (np.arange(-9, 9) / 8).astype(np.float32)
_TERMS = {
    "sampling_rate": 0.25,
    "batch_size": 10,
    "local_steps": 2,
    "sampler": "poisson",
    "neighbours": "zero-out",
}


def messages() -> dict[str, Any]:
    """One message of each kind, and of kinds with empty fields two."""
    accepted = {**_TERMS, "draws": 6, "rounds": 8, "clip": 1.0, "least_noise_multiplier": 2.0}
    hello = {
        "dpcohort": "0.1.0", "dataset": "wärd 7", "records": 40, "dimension": 18, "model": "b" * 64,
        "layout": "c" * 64, "key": "d" * 64,
    }  # fmt: skip
    where = {"run": "spring", "round": 3, "draw": 1}
    return {
        "hello?": named("HelloRequest")(run="spring"),
        "hello": named("Hello")(**hello, accepted=accepted, plan="a" * 64, counted=2),
        "hello, not accepted": named("Hello")(**hello, accepted=None, plan=None, counted=0),
        "draw?": named("DrawRequest")(
            **where, **_TERMS, plan="a" * 64, clip=1.0, noise_multiplier=2.125,
            step_sizes=[0.5, 0.25], model="b" * 64, layout="c" * 64, vector=_VECTOR,
        ),
        "update": named("DrawUpdate")(
            **where, resent=True, key="d" * 64, signature="e" * 128, vector=-_VECTOR
        ),
        "receipt?": named("ReceiptRequest")(run="spring"),
        "receipt": named("RunReceipt")(
            dataset="wärd 7", spending={"counted_draws": 3, "epsilon": 0.5}, entries=9,
            head="d" * 64, ledger="e" * 32,
        ),
        "refused": named("Refusal")(code="lost", message="its output is lost.", counted=True),
    }  # fmt: skip


def frames() -> dict[str, str]:
    """The messages and letters as bytes, in hexadecimal."""
    made = messages()
    found = {name: named("encode")(message).hex() for name, message in made.items()}
    found["letter: hello"] = named("hello_message")("ward 7", run="spring").hex()
    letter = named("draw_message")("ward 7", made["draw?"], draws=[1, 0])
    return {**found, "letter: draws": letter.hex()}


def checked_terms(path: Path) -> Any:
    """What ``dpcohort guard check`` says of a file of terms."""
    return json.loads(done("guard", "check", "--terms", path, "--records", "40", "--json"))


def make_ledger(folder: Path) -> None:
    """A client's ledger with every kind of row, and what is written from it."""
    terms = {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0, "sampling_rate": 0.1, "local_steps": 2}
    run_terms = named("RunTerms")(
        **terms, rounds=60, draws=20, least_noise_multiplier=2.0, sampler="poisson"
    )
    path = folder / "client.ledger"
    step = named("Event").of(noise_multiplier=2.5, sampling_rate=0.1, steps=2)
    with named("ClientLedger").create(path) as ledger:
        for dataset, across, mark in (("ward", "summed", "a"), ("lab", "composed", "b")):
            cap = named("LifetimeCap")(
                epsilon=4.0, delta=1e-4, across_runs=across, fingerprint=mark * 64
            )
            ledger.register(dataset, cap)
            for run in ("spring", "autumn"):
                ledger.accept(dataset, run, run_terms)
                for t in range(2):
                    key = named("DrawKey")(dataset=dataset, run=run, round=t, draw=0)
                    ledger.reserve(key, step, clip=1.0)
                    if (run, t) != ("autumn", 1):  # the last is lost
                        ledger.release(key, f"update {dataset} {run} {t}".encode() * 3)
        ledger.discard_outputs("lab", "spring")


def ledger_facts(path: Path) -> dict[str, Any]:
    """What the commands say of a ledger."""
    return {
        "verify": json.loads(done("ledger", "verify", path, "--json")),
        "show": json.loads(done("ledger", "show", path, "--json")),
        "receipt": json.loads(done("ledger", "receipt", path, "--dataset", "ward", "--json")),
    }


# The command line -------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """Every command with its arguments and options, without the words of its help."""
    import click
    import typer

    app = named("app")  # with one command at a time
    root = typer.main.get_command(app())
    found: dict[str, Any] = {}

    def walk(words: str, command: Any, context: Any) -> None:
        found[words] = {one.name: _parameter(one) for one in command.params if one.name != "help"}
        if hasattr(command, "list_commands"):
            inner = type(context)(command, info_name=command.name, parent=context)
            for name in command.list_commands(inner):
                if command is root:
                    walk(f"{words} {name}", typer.main.get_command(app(name)).commands[name], inner)
                else:
                    walk(f"{words} {name}", command.get_command(inner, name), inner)

    context = getattr(root, "context_class", click.Context)(root, info_name="dpcohort")
    walk("dpcohort", root, context)
    return found


def _parameter(one: Any) -> dict[str, Any]:
    default = None if callable(one.default) else one.default
    return {
        "kind": one.param_type_name,
        "options": sorted([*one.opts, *one.secondary_opts]),
        "required": one.required,
        "many": bool(getattr(one, "multiple", False)) or one.nargs != 1,
        "type": one.type.name,
        "default": str(default) if isinstance(default, Path) else default,
    }


def exit_codes(scratch: Path) -> dict[str, int]:
    """Commands that end well and badly, with their codes."""
    broken = shutil.copytree(HERE / "runs" / "batched", scratch / "broken")
    (broken / "model.safetensors").write_bytes(b"other")
    meant = {
        "BASE": HERE / "base.toml",
        "RUN": HERE / "runs" / "batched",
        "BROKEN": broken,
        "MISSING": scratch / "missing.npz",
        "PAGE": scratch / "page.html",
    }
    found = {}
    for name, arguments in CASES["commands"].items():
        for word, path in meant.items():
            arguments = [one.replace(word, path.as_posix()) for one in arguments]
        found[name] = dpcohort(*arguments)[0]
    return found


def surface() -> dict[str, Any]:
    """What users type: public names, commands, rules and the groups of entry points."""
    import dpcohort as package

    rules, others = json.loads(done("rules", "--json")), named("other_commands")()
    every = commands()
    return {
        "names": sorted(package.__all__),
        "commands": {words: every[words] for words in every if not _is_of(others, words)},
        "rules": {
            kind: {one["name"]: one["settings"] for one in found} for kind, found in rules.items()
        },
        "groups": ["dpcohort.adaptive", "dpcohort.aggregation", "dpcohort.selection"],
        "accepted": CASES["accepted"],
    }


def _is_of(others: Any, words: str) -> bool:
    """Whether a command is of another package that is installed, as the laboratory."""
    return any(word in others for word in words.split()[1:2])


# What numbers depend on -------------------------------------------------------------------------


def probe() -> dict[str, Any]:
    """Versions and hashes of plain computations: where they differ, bits may differ too."""
    import scipy
    import torch
    from scipy import special

    dice = np.random.default_rng(0)
    wide = dice.normal(size=(96, 96))
    parts = [
        np.exp(wide), np.log(np.abs(wide)), np.tanh(wide), np.sqrt(np.abs(wide)), wide @ wide,
        wide.sum(axis=0), np.fft.rfft(wide), special.log_ndtr(wide), special.ndtr(wide),
        np.expm1(wide), np.log1p(np.abs(wide)), special.logsumexp(wide, axis=0),
    ]  # fmt: skip
    # The accountants add up by dot products of vectors of any length, which every processor's BLAS
    # adds in an order of its own.
    flat = wide.reshape(-1)
    parts += [np.array(flat[:n] @ flat[-n:]) for n in (3, 16, 33, 100, 257, 1000, 4097, 9216)]
    parts += [wide[:50, :n] @ wide[0, :n] for n in (5, 31, 96)]
    parts += [np.array(np.linalg.norm(flat)), np.multiply.outer(flat[:40], flat) @ flat]
    planning = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))
    made = torch.Generator().manual_seed(0)
    images = torch.randn(6, 3, 12, 12, generator=made)
    kernels = torch.randn(5, 3, 3, 3, generator=made, requires_grad=True)
    matrix = torch.randn(70, 650, generator=made)
    seen = torch.nn.functional.conv2d(images, kernels)
    (slopes,) = torch.autograd.grad(seen.square().sum(), kernels)
    tensors = [
        seen, slopes, matrix @ matrix.T, matrix.T @ matrix, matrix.exp(), matrix.tanh(),
        torch.log_softmax(matrix, 1), matrix.norm(dim=1), matrix.sum(0), matrix.std(1),
        torch.einsum("bi,bj->bij", matrix[:, :9], matrix[:, :8]).sum(0),
        torch.bmm(matrix.view(7, 10, 650), matrix.view(7, 650, 10)),
    ]  # fmt: skip
    training = hashlib.sha256(
        b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)
    )
    return {
        "planning": {
            "numpy": np.__version__, "scipy": scipy.__version__, "bits": planning.hexdigest()
        },
        "training": {"torch": torch.__version__, "bits": training.hexdigest()},
    }  # fmt: skip


def different(found: Any, golden: Any, *, exact: bool, where: str = "") -> list[str]:
    """Where two plain values differ; not exact: numbers nearly alike, hashes of numbers any."""
    if isinstance(golden, dict) and isinstance(found, dict) and set(golden) == set(found):
        pairs = [(found[key], golden[key], f"{where}/{key}") for key in golden]
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        pairs = [(a, b, f"{where}/{i}") for i, (a, b) in enumerate(zip(found, golden, strict=True))]
    elif found == golden and type(found) is type(golden):
        return []
    elif not exact and isinstance(golden, float) and isinstance(found, float):
        return [] if abs(found - golden) <= 0.1 * (1 + abs(golden)) else [f"{where}: {found}"]
    elif not exact and isinstance(golden, str) and isinstance(found, str):
        return []
    else:
        return [f"{where}: {found!r:.200} instead of {golden!r:.200}"]
    return [words for a, b, place in pairs for words in different(a, b, exact=exact, where=place)]


def one_thread() -> None:
    """Sums in one order."""
    import torch

    torch.set_num_threads(1)


def _write(path: Path, value: Any) -> None:
    """JSON with one line for each entry of the outermost object, so that changes can be read."""
    lines = [f"{json.dumps(key)}: {json.dumps(value[key])}" for key in value]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _make(out: Path) -> None:
    one_thread()
    warnings.simplefilter("ignore")
    for folder in ("plans", "runs", "guard"):
        shutil.rmtree(out / folder, ignore_errors=True)
        (out / folder).mkdir(parents=True)
    _write(out / "probe.json", probe())
    for name in PLANS:
        plan_file(name, out / "plans" / f"{name}.json")
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        _make_runs(out, scratch)
        _write(out / "side_by_side.json", side_by_side(scratch))
        _write(out / "computed.json", {name: make(scratch) for name, make in COMPUTED.items()})
        _make_guard(out)
        _write(out / "surface.json", {**surface(), "exit codes": exit_codes(scratch)})


def _make_runs(out: Path, scratch: Path) -> None:
    runs = {}
    for name in RUNS:
        train_case(name, scratch / name)
        runs[name] = described(scratch / name)
        if name in KEPT:
            shutil.copytree(scratch / name, out / "runs" / name)
    for name in STOPPED:
        train_stopped(name, out / "runs" / name, resume=False, stop=1)
    private = out / "runs" / "private"
    done("train", HERE / "base.toml", "--set", "data.public=false", "--json", "--out", private)
    _write(out / "runs.json", runs)
    folders = sorted((out / "runs").iterdir())
    _write(out / "verified.json", {folder.name: verified(folder) for folder in folders})


def _make_guard(out: Path) -> None:
    make_ledger(out / "guard")
    terms, ledger = out / "terms.toml", out / "guard" / "client.ledger"
    (out / "guard" / "export.jsonl").write_text(done("ledger", "export", ledger))
    facts = {"frames": frames(), "terms": checked_terms(terms), "ledger": ledger_facts(ledger)}
    _write(out / "guard.json", facts)
    for left in ("-shm", "-wal"):  # empty: whoever looked last has nothing to add
        ledger.with_name(ledger.name + left).unlink(missing_ok=True)


if __name__ == "__main__":
    SOURCE, HERE = HERE, Path(sys.argv[1]).resolve()
    HERE.mkdir(parents=True, exist_ok=True)
    for one in (*SOURCE.glob("*.toml"), SOURCE / "clients.csv", SOURCE / "federation.json"):
        if SOURCE != HERE:
            shutil.copyfile(one, HERE / one.name)
    _make(HERE)
