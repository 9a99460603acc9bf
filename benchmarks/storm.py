# SPDX-License-Identifier: Apache-2.0
"""A federation over real SuperLink, nodes and guards, with parts of it killed.

    python benchmarks/storm.py --kills 20          everything at random, nobody's hand
    python benchmarks/storm.py                     all cases, about ten minutes
    python benchmarks/storm.py --case guard        one of them
    python benchmarks/storm.py --doors             who may connect
    python benchmarks/storm.py --compare           accuracy beside the local engine's
    python benchmarks/storm.py --offline           the demo without a network, calls noted
    python benchmarks/storm.py --distributed 10         ten clients pool noise, a guard is
    killed python benchmarks/storm.py --app record        an app with strategy and mod, no
    guards

A case kills one part with SIGKILL while a guard is computing a draw, and lets a supervisor start it
again as systemd would; the service goes on with a run that Flower has given up. Then
every client's ledger must have counted exactly the planned draws, each once, with at most the
killed draw lost, and the run folder must verify.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpcohort.accounting import Contract
from dpcohort.clients import Population
from dpcohort.data import load_dataset
from dpcohort.deploy.flower._adapter import QUIET
from dpcohort.deploy.flower._certificates import make_certificates, make_node_key
from dpcohort.deploy.flower._federation import drawn_clients
from dpcohort.deploy.flower._kit import client_folder, write_app
from dpcohort.deploy.flower._trial import (
    Processes,
    Trial,
    demo_partition,
    demo_settings,
    free_ports,
    program,
    start_all,
    trial,
)
from dpcohort.deploy.ledger import ClientLedger, LifetimeCap, RunTerms, read_state
from dpcohort.errors import DpcohortError
from dpcohort.plan import Plan, make_plan
from dpcohort.runs import verify_run
from dpcohort.runs._folder import read_json, read_log

CASES = ("guard", "node", "serverapp", "superlink", "service", "supernode", "clientapp")
#: Cases in which clients have Flower's own SuperNodes.
_SUPERNODES = ("supernode", "clientapp")
VICTIM = "east"
_RUN_SECONDS = 420.0


def slow_settings(rounds: int, local_steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The demo's federation with draws that take about a second, so that a kill can hit one."""
    (port,) = free_ports(1)
    settings, records = demo_settings(rounds=rounds, superlink_port=port, timeout=240.0)
    plan = settings["plan"]
    training = replace(plan.training, local_steps=local_steps)
    slow = make_plan(plan.population, training, seed=plan.seed)
    return {**settings, "plan": slow, "optimiser": {"learning_rate": 0.05}}, records


def start_supernode(federation: Trial, client: str) -> None:
    """Start Flower's own SuperNode in the place of a client's node."""
    folder = client_folder(federation.kit, client)
    federation.start(federation.named("node", client), [
        program("flower-supernode"), "--superlink", f"127.0.0.1:{federation.superlink_port}",
        "--root-certificates", folder / "ca.crt",
        "--auth-supernode-private-key", folder / "node.key",
        "--host", "127.0.0.1", "--port", free_ports(1)[0],
        "--node-config", f'guard="{federation.sockets[client]}"',
    ], home=folder / "flwr")  # fmt: skip


def node_starter(case: str) -> Callable[[Trial, str], None]:
    """How the clients' nodes are started in a case."""
    return start_supernode if case in _SUPERNODES else Trial.start_node


@contextlib.contextmanager
def supervised(federation: Trial, case: str, out: Path) -> Iterator[None]:
    """Start again what has ended, as units with Restart=always."""
    start_node = node_starter(case)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(5.0):
            if not federation.processes.is_running("superlink"):
                federation.start_superlink()
            if not (federation.processes.is_running("run") or (out / "result.json").exists()):
                federation.start_run(out)
            for place, client in enumerate(federation.clients):
                if not federation.processes.is_running(f"guard-{place}"):
                    federation.start_guard(client)
                if not federation.processes.is_running(f"node-{place}"):
                    start_node(federation, client)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def draws_of(federation: Trial, client: str) -> dict[tuple[int, int], Any]:
    """The draws in a client's own ledger."""
    state = read_state(client_folder(federation.kit, client) / "client.ledger")
    draws = next(iter(state.accounts.values()))["demo"].draws
    return {(key.round, key.draw): stored for key, stored in draws.items()}


def await_computing(federation: Trial, *, rounds_done: int, out: Path) -> None:
    """Wait until the victim's guard has counted a draw and not yet released it."""
    deadline = time.monotonic() + _RUN_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(DpcohortError, OSError, StopIteration):
            done = len(read_log(out / "rounds.jsonl"))
            draws = draws_of(federation, VICTIM)
            if done >= rounds_done and any(d is None for d in draws.values()):
                return
        time.sleep(0.02)
    raise DpcohortError("the victim never computed a draw")


def child(federation: Trial, parent: str, program: str) -> int:
    """The process of that program among those that one of ours has started."""
    ours = federation.processes.pid(parent)
    for pid in federation.processes.descendants():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            if program in words and ours in _ancestors(pid):
                return pid
    raise DpcohortError(f"no {program} under {parent}")


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def kill(federation: Trial, case: str, client: str = VICTIM) -> None:
    """Kill one part, without warning."""
    place = federation.clients.index(client)
    processes = federation.processes
    if case == "clientapp":
        os.kill(child(federation, f"node-{place}", "flwr-clientapp"), signal.SIGKILL)
    elif case == "serverapp":
        os.kill(child(federation, "superlink", "flwr-serverapp"), signal.SIGKILL)
    elif case in ("superlink", "service"):
        processes.kill("run" if case == "service" else case)
    else:
        processes.kill(f"{'node' if case == 'supernode' else case}-{place}")


def outcome(federation: Trial, settings: dict[str, Any], out: Path) -> dict[str, Any]:
    """What the ledgers and the run folder say afterwards."""
    plan = settings["plan"]
    found: dict[str, Any] = {"planned": {}, "counted": {}, "lost": {}}
    for client in federation.clients:
        k = plan.population.index_of(client)
        draws = draws_of(federation, client)
        planned = {
            (t, d)
            for t in range(plan.training.rounds)
            for d in range(int((plan.schedule.cohorts[t] == k).sum()))
        }
        if set(draws) != planned:
            raise DpcohortError(f"{client} counted {sorted(draws)}, planned {sorted(planned)}")
        found["planned"][client] = len(planned)
        found["counted"][client] = len(draws)
        found["lost"][client] = sum(d is None for d in draws.values())
    verification = verify_run(out)
    exchanges = read_log(out / "exchange.jsonl")
    found["exchanges"] = exchanges
    found["resent"] = sum(entry["resent"] for entry in exchanges)
    found["verifies"] = verification.holds
    found["accuracy"] = read_json(out / "result.json")["test"]["accuracy"]
    return found


def await_result(
    federation: Trial,
    out: Path,
    *,
    seconds: float = _RUN_SECONDS,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Wait until the run is finished, whatever has ended meanwhile."""
    deadline = time.monotonic() + seconds
    while not (out / "result.json").exists():
        meanwhile()
        if time.monotonic() > deadline:
            raise DpcohortError(f"not finished.\n{federation.processes.tail('run', lines=40)}")
        time.sleep(0.2)


def run_storm(kills: int, *, seed: int, every: float) -> dict[str, Any]:
    """So many kills of anything at random, one after the other, in a run that outlasts them."""
    began, rng = time.monotonic(), random.Random(seed)
    settings, records = slow_settings(rounds=8 * kills, local_steps=8)
    folder = Path(tempfile.mkdtemp(prefix="dpc-storm-"))
    out = folder / "run"
    killed: list[tuple[str, int]] = []
    due = 0.0

    def strike() -> None:
        nonlocal due
        rounds = len(read_log(out / "rounds.jsonl")) if out.exists() else 0
        if rounds == 0 or len(killed) == kills or time.monotonic() < due:
            return
        part = rng.choice(("guard", "node", "serverapp", "superlink", "service"))
        with contextlib.suppress(DpcohortError, KeyError, OSError):  # not there now
            kill(federation, part, rng.choice(federation.clients))
            killed.append((part, rounds))
            print(f"{time.monotonic() - began:6.1f} s  {part}, {rounds} rounds", file=sys.stderr)
        due = time.monotonic() + rng.uniform(0, 2 * every)

    with trial(settings, records, folder) as federation:
        start_all(federation, lambda words: None)
        with supervised(federation, "storm", out):
            federation.start_run(out)
            due = time.monotonic() + every
            await_result(federation, out, seconds=120 + 4 * every * kills, meanwhile=strike)
        found = outcome(federation, settings, out)
        said = federation.processes.tail("run", lines=10**6).splitlines()
        found["said"] = [line for line in said if "round" not in line]
    shutil.rmtree(folder)
    lost = sum(line["passed_over"] for line in found.pop("exchanges"))
    ok = found["planned"] == found["counted"] and found["verifies"] and len(killed) == kills
    shown = {"kills": len(killed), "ok": ok, "rounds_lost": lost, **found}
    return {**shown, "seconds": round(time.monotonic() - began, 1)}


def run_case(case: str, *, rounds: int, local_steps: int) -> dict[str, Any]:
    """One case from start to finish."""
    began = time.monotonic()
    settings, records = slow_settings(rounds, local_steps)
    folder = Path(tempfile.mkdtemp(prefix="dpc-faults-"))
    out = folder / "run"
    with trial(settings, records, folder) as federation:
        start_all(federation, lambda words: None, node_starter(case))
        with supervised(federation, case, out):
            federation.start_run(out)
            await_computing(federation, rounds_done=1, out=out)
            kill(federation, case)
            killed = time.monotonic()
            await_result(federation, out)
        found = outcome(federation, settings, out)
        del found["exchanges"]
    shutil.rmtree(folder)
    ok = (
        found["planned"] == found["counted"]
        and sum(found["lost"].values()) <= 1
        and found["verifies"]
    )
    return {
        "case": case,
        "ok": ok,
        **found,
        "seconds_after_kill": round(time.monotonic() - killed, 1),
        "seconds": round(time.monotonic() - began, 1),
    }


def run_distributed(clients: int, rounds: int, case: str) -> dict[str, Any]:
    """Masked sums of so many guards; a part is killed in the second round, a guard for good."""
    began = time.monotonic()
    (port,) = free_ports(1)
    settings, records = demo_settings(rounds=rounds, superlink_port=port, distributed=clients)
    folder = Path(tempfile.mkdtemp(prefix="dpc-faults-"))
    out = folder / "run"

    def account(client: str) -> Any:
        state = read_state(client_folder(federation.kit, client) / "client.ledger")
        return next(iter(state.accounts.values()))["demo"]

    with trial(settings, records, folder) as federation:
        start_all(
            federation,
            lambda words: print(words, file=sys.stderr, flush=True),
            node_starter(case),
        )
        with contextlib.nullcontext() if case == "guard" else supervised(federation, case, out):
            federation.start_run(out)
            started, deadline = time.monotonic(), time.monotonic() + _RUN_SECONDS
            while not any(key.round == 1 for key in account(VICTIM).draws):
                if time.monotonic() > deadline or not federation.processes.is_running("run"):
                    raise DpcohortError(f"no second round.\n{federation.processes.tail('run')}")
                time.sleep(0.02)
            kill(federation, case)
            killed = time.monotonic()
            await_result(federation, out)
            ended = time.monotonic()
        counted = {client: len(account(client).draws) for client in federation.clients}
        unmasked = {client: len(account(client).unmasked) for client in federation.clients}
    exchanges = read_log(out / "exchange.jsonl")
    verifies = verify_run(out).holds
    others = [client for client in counted if client != VICTIM]
    found = {
        "killed": case,
        "clients": clients,
        "honest": settings["plan"].noise.honest,
        "counted": counted,
        "unmasked": unmasked,
        "came": [entry["came"] for entry in exchanges],
        "passed_over": [entry["passed_over"] for entry in exchanges],
        "verifies": verifies,
        "accuracy": read_json(out / "result.json")["test"]["accuracy"],
        "seconds_to_kill": round(killed - started, 1),
        "seconds_after_kill": round(ended - killed, 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    right = all(counted[c] == unmasked[c] == rounds for c in others)
    right &= counted[VICTIM] == (2 if case == "guard" else rounds)
    shutil.rmtree(folder)
    return {"ok": right and verifies and not any(found["passed_over"]), **found}


def run_doors() -> dict[str, Any]:
    """Who may connect."""
    (port,) = free_ports(1)
    settings, records = demo_settings(superlink_port=port)
    folder = Path(tempfile.mkdtemp(prefix="dpc-doors-"))
    found: dict[str, Any] = {}
    with trial(settings, records, folder) as federation:
        federation.start_superlink()
        federation.start_run(folder / "run")
        federation.start_node(VICTIM)
        name = f"node-{federation.clients.index(VICTIM)}"
        federation.processes.await_that(
            name,
            lambda: "joined as node" in federation.processes.tail(name),
            "join",
            seconds=60,
        )
        strange = folder / "strange"
        strange.mkdir()
        make_node_key(strange / "mallory.key")
        make_certificates(strange)
        own = client_folder(federation.kit, VICTIM)
        keyless = ["--root-certificates", str(own / "ca.crt")]
        attempts = {
            "no key": keyless,
            "unregistered key": [
                *keyless, "--auth-supernode-private-key", str(strange / "mallory.key"),
            ],
            "key used twice": [*keyless, "--auth-supernode-private-key", str(own / "node.key")],
            "wrong CA": [
                "--root-certificates", str(strange / "ca.crt"),
                "--auth-supernode-private-key", str(own / "node.key"),
            ],
            "plaintext": ["--insecure"],
        }  # fmt: skip
        for name, arguments in attempts.items():
            found[name] = _rejected(federation.processes, name, arguments, port, strange)
    shutil.rmtree(folder)
    return found


def _rejected(
    processes: Processes, name: str, arguments: list[str], port: int, home: Path
) -> dict[str, Any]:
    """What becomes of a SuperNode with these arguments: it must end by itself, with an error."""
    label = name.replace(" ", "-")
    command = [
        str(Path(sys.executable).parent / "flower-supernode"), "--superlink", f"127.0.0.1:{port}",
        "--host", "127.0.0.1", "--port", str(free_ports(1)[0]), "--max-retries", "1",
    ]  # fmt: skip
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**QUIET, "FLWR_HOME": str(home), "PATH": path}
    processes.start(label, [*command, *arguments], env=env)
    code = processes.wait(label, seconds=90)
    if code is None:
        processes.kill(label)
    lines = processes.tail(label, lines=1000).splitlines()
    came_in = any("SuperNode ID" in line for line in lines)
    words = next((line for line in reversed(lines) if "rror" in line or "ailed" in line), "")
    return {"rejected": code not in (None, 0) and not came_in, "exit": code, "words": words[-160:]}


def run_compare(seeds: int) -> dict[str, Any]:
    """The federation's accuracy, cohorts and noise beside those of the local engine."""
    from dpcohort.deploy.flower._trial import run_demo
    from dpcohort.engine import Optimiser
    from dpcohort.runs import train

    folder = Path(tempfile.mkdtemp(prefix="dpc-compare-"))
    result = run_demo(folder / "run", say=lambda words: print(f"  {words}", flush=True))
    settings, _ = demo_settings()
    plan = settings["plan"]
    rate = float(settings["optimiser"]["learning_rate"])
    digits = load_dataset("digits")
    partition = demo_partition(plan, digits)
    local = [
        train(
            plan,
            "logistic",
            replace(digits, public=False),
            partition=partition,
            seed=seed,
            device="cpu",
            optimiser=Optimiser(local_step=rate),
        ).test_accuracy
        for seed in range(seeds)
    ]
    rounds = read_log(folder / "run" / "rounds.jsonl")
    stds = plan.noise_multipliers * plan.training.clip / plan.batch_sizes
    same_cohorts = [entry["clients"] for entry in rounds] == plan.schedule.cohorts.tolist()
    same_noise = all(
        np.allclose(entry["noise_stds"], stds[entry["clients"]], rtol=1e-12) for entry in rounds
    )
    mean, spread = float(np.mean(local)), float(np.std(local, ddof=1))
    low, high = mean - 1.96 * spread, mean + 1.96 * spread
    shutil.rmtree(folder)
    return {
        "federated accuracy": result["accuracy"],
        "local mean": mean,
        "local 95 % range of one run": [low, high],
        "within": low <= result["accuracy"] <= high,
        "same cohorts": same_cohorts,
        "same noise": same_noise,
        "draws": {c: list(one.values()) for c, one in result["draws"].items()},
        "seconds": round(result["seconds"], 1),
    }


#: Loaded by every Python process of the demo; notes whoever wants to go outside.
_HOOK = """
import os, socket, sys
_inside = ("127.0.0.1", "localhost", "::1", None, "")
def _note(what, host):
    if host not in _inside:
        with open(os.environ["DPCOHORT_LOOKUPS"], "a") as file:
            file.write(f"{what} {host} {sys.argv[:2]}\\n")
_look, _connect = socket.getaddrinfo, socket.socket.connect
def getaddrinfo(host, *rest, **more):
    _note("look-up", host.decode() if isinstance(host, bytes) else host)
    return _look(host, *rest, **more)
def connect(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6):
        _note("connect", address[0])
    return _connect(self, address)
socket.getaddrinfo, socket.socket.connect = getaddrinfo, connect
with open(os.environ["DPCOHORT_LOOKUPS"] + ".processes", "a") as file:
    file.write(f"{os.getpid()}\\n")
"""


def run_offline() -> dict[str, Any]:
    """The demo in a network namespace with the loopback device alone."""
    folder = Path(tempfile.mkdtemp(prefix="dpc-offline-"))
    (folder / "sitecustomize.py").write_text(_HOOK)
    noted = folder / "lookups.txt"
    noted.touch()
    flags = "-n" if os.geteuid() == 0 else "-rn"
    demo = f"{sys.executable} -m dpcohort flower demo --json --out {folder / 'run'}"
    done = subprocess.run(
        ["unshare", flags, "sh", "-c", f"ip link set lo up && exec {demo}"],
        env={**os.environ, "PYTHONPATH": str(folder), "DPCOHORT_LOOKUPS": str(noted)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {
        "exit": done.returncode,
        "processes watched": len(Path(f"{noted}.processes").read_text().split()),
        "outside look-ups and connections": noted.read_text().splitlines(),
        "demo": json.loads(done.stdout) if done.returncode == 0 else done.stderr[-500:],
    }
    shutil.rmtree(folder)
    return found


def run_app(unit: str, rounds: int) -> dict[str, Any]:
    """The app of ``dpcohort flower new`` over a real SuperLink and three SuperNodes.

    Args:
        unit: ``record`` as it is written; ``client`` with a mod that protects clients as a whole.
        rounds: of the plan.
    """
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="dpcohort-"))
    app = write_app(folder / "app", rounds=rounds)
    plan = Plan.load(app / "plan.json")
    if unit == "client":
        plan = _whole_clients(app, plan)
    clients = list(plan.population.ids)
    superlink, *ports = free_ports(1 + len(clients))
    home = folder / "flwr"
    home.mkdir()
    address = f'address = "127.0.0.1:{superlink}"'
    (home / "config.toml").write_text(f"[superlink.trial]\n{address}\ninsecure = true\n")
    programs = Path(sys.executable).parent
    env = {**QUIET, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    env["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    with Processes(folder / "logs") as processes:

        def start(name: str, program: str, *options: str) -> None:
            processes.start(name, [str(programs / program), *options], env=env)

        local = ("--insecure", "--host", "127.0.0.1", "--port")
        quiet = "--disable-runtime-dependency-installation"
        start("superlink", "flower-superlink", *local, str(superlink), quiet)
        processes.await_port("superlink", superlink, seconds=90)
        for i, (client, port) in enumerate(zip(clients, ports, strict=True)):
            ledger = json.dumps(str(app / "ledgers" / f"{client}.ledger"))
            said = f'partition-id={i} num-partitions={len(clients)} client="{client}"'
            more = ("--superlink", f"127.0.0.1:{superlink}")
            said = f"{said} ledger={ledger}"
            start(f"node-{i}", "flower-supernode", *local, str(port), *more, "--node-config", said)
        start("run", "flwr", "run", str(app), "trial", "--stream")
        processes.await_that(
            "run", (app / "run" / "result.json").exists, "finish", seconds=_RUN_SECONDS
        )
        time.sleep(1.0)  # its last words
        said = processes.tail("run", lines=200)
    counted = dict.fromkeys(clients, 0)
    for name in drawn_clients(plan):
        accounts = read_state(app / "ledgers" / f"{name}.ledger").accounts
        counted[name] = len(accounts[name]["quickstart"].draws)
    verification = verify_run(app / "run")
    planned = dict(zip(clients, plan.counts.tolist(), strict=True))
    found = {
        "unit": unit,
        "rounds": rounds,
        "accuracy": [float(one) for one in re.findall(r"'accuracy': ([\d.]+)", said)],
        "planned": planned,
        "counted": counted,
        "noise_to_clip": round(plan.noise_to_clip, 2),
        "verified": verification.holds,
        "receipts": verification.clients,
        "seconds": round(time.monotonic() - began, 1),
        "ok": verification.holds and counted == planned,
    }
    if found["ok"]:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _whole_clients(app: Path, plan: Plan) -> Plan:
    """Make the app's mod protect clients as a whole: a plan for that, and fresh ledgers."""
    names, budgets = plan.population.ids, plan.population.epsilon
    clients = Population.from_arrays(
        ids=names, sizes=[1] * len(names), epsilon=budgets, delta=plan.population.delta
    )
    training = replace(plan.training, local_steps=1, sampling_rate=1.0, clip=1.0)
    whole = make_plan(clients, training, seed=0, accountant=Contract(neighbours="replace-one"))
    whole.save(app / "plan.json")
    shutil.rmtree(app / "ledgers")
    (app / "ledgers").mkdir()
    for name, epsilon in zip(names, budgets.tolist(), strict=True):
        with ClientLedger.create(app / "ledgers" / f"{name}.ledger") as ledger:
            cap = LifetimeCap(epsilon=epsilon, delta=1e-5, neighbours="replace-one")
            ledger.register(name, cap)
            if name in drawn_clients(whole):
                ledger.accept(name, "quickstart", RunTerms.of_plan(whole, name))
    path = app / "quickstart" / "client_app.py"
    mod = "PrivacyMod(records=records, network=Net)"
    path.write_text(path.read_text().replace(mod, "PrivacyMod()"))
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--local-steps", type=int, default=8)
    parser.add_argument("--kills", type=int, help="a storm of so many")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--doors", action="store_true")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--distributed", type=int, metavar="CLIENTS")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--app", choices=("record", "client"))
    arguments = parser.parse_args()
    if arguments.kills:
        stormed = run_storm(arguments.kills, seed=arguments.seed, every=arguments.every)
        print(json.dumps(stormed, indent=2))
        return 0 if stormed["ok"] else 1
    if arguments.distributed:
        told = [
            run_distributed(arguments.distributed, arguments.rounds, case)
            for case in arguments.case or ["guard"]
        ]
        print(json.dumps(told, indent=2))
        return 0 if all(one["ok"] for one in told) else 1
    if arguments.app:
        found = run_app(arguments.app, arguments.rounds)
        print(json.dumps(found, indent=2))
        return 0 if found["ok"] else 1
    if arguments.doors:
        print(json.dumps(run_doors(), indent=2))
        return 0
    if arguments.compare:
        print(json.dumps(run_compare(arguments.seeds), indent=2))
        return 0
    if arguments.offline:
        print(json.dumps(run_offline(), indent=2))
        return 0
    ok = True
    for case in arguments.case or CASES:
        found = run_case(case, rounds=arguments.rounds, local_steps=arguments.local_steps)
        print(json.dumps(found), flush=True)
        ok &= bool(found["ok"])
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
