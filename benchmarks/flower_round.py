# SPDX-License-Identifier: Apache-2.0
"""How long a round over Flower takes, beside an empty one on the same SuperLink and nodes.

    python benchmarks/flower_round.py                 both kinds of node, about four minutes
    python benchmarks/flower_round.py --distributed        the same with masked sums
    python benchmarks/flower_round.py --nodes own     only dpcohort's own nodes

Three clients with guards, TLS and keys, a model of 650 parameters. An empty round is Flower's own
``send_and_receive`` of one small message to each node; a SuperNode starts a client app that sends
it back, a node of dpcohort's refuses it. Empty rounds are run before and after the rounds of the
plan. Printed are medians of a round's seconds, processes started and processor seconds a round (of
all parts together, sampled, with the start of the run), ratios, and which parts use the processor
after the first round.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from storm import start_supernode

from dpcohort.deploy.flower._adapter import FLOWER_VERSION
from dpcohort.deploy.flower._trial import (
    Trial,
    demo_settings,
    free_ports,
    program,
    start_all,
    trial,
)
from dpcohort.runs import verify_run

_SECONDS = 600.0
_ECHO = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "echo"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "dpcohort"
[tool.flwr.app.components]
serverapp = "echo.app:server"
clientapp = "echo.app:client"
[tool.flwr.app.config]
out = ""
rounds = 3
""",
    "echo/__init__.py": "",
    "echo/app.py": """
import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@client.train()
def train(message, context):
    return Message(message.content, reply_to=message)

@server.main()
def main(grid, context):
    nodes, seconds, replies = list(grid.get_node_ids()), [], []
    for number in range(int(context.run_config["rounds"]) + 1):
        began = time.monotonic()
        content = [RecordDict({"c": ConfigRecord({"round": number})}) for _ in nodes]
        sent = [Message(c, node, "train") for c, node in zip(content, nodes)]
        replies.append(len(list(grid.send_and_receive(sent, timeout=300))))
        seconds.append(time.monotonic() - began)
    path = Path(context.run_config["out"])
    told = {"seconds": seconds[1:], "replies": replies[1:]}  # the first brings the app
    path.with_suffix(".new").write_text(json.dumps(told))
    path.with_suffix(".new").rename(path)
""",
}


def processor_seconds(federation: Trial) -> dict[str, float]:
    """What each kind of part has used until now."""
    programs = (
        "flower-superlink",
        "flwr-serverapp",
        "flower node",
        "dpcohort guard",
    )
    found: dict[str, float] = {}
    for pid in federation.processes.descendants():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            part = next((name for name in programs if name in words), "others")
            found[part] = found.get(part, 0.0) + _used(pid)
    return found


def _used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def watched(federation: Trial) -> Iterator[Callable[[], dict[str, float]]]:
    """What the processes of a federation used while the block ran."""
    used: dict[int, float] = {}
    before: dict[int, float] = {}
    done = threading.Event()

    def look() -> None:
        for pid in federation.processes.descendants():
            with contextlib.suppress(OSError):
                used[pid] = _used(pid)

    def watch() -> None:
        while not done.wait(0.2):
            look()

    look()
    before |= used
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()

    def found() -> dict[str, float]:
        spent = sum(now - before.get(pid, 0.0) for pid, now in used.items())
        return {"processes": len(set(used) - set(before)), "cpu": spent}

    try:
        yield found
    finally:
        done.set()
        watcher.join()
        look()


def empty_rounds(federation: Trial, folder: Path, rounds: int) -> dict[str, Any]:
    """Rounds of one message to each node, by Flower's own way."""
    app, out = folder / "echo", folder / "echo.json"
    out.unlink(missing_ok=True)
    for name, text in _ECHO.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text)
    with watched(federation) as used:
        config = f"out={json.dumps(str(out))} rounds={rounds}"
        command = [program("flwr"), "run", app, "dpcohort", "--stream", "--run-config", config]
        federation.start("run", command)
        federation.processes.await_that("run", out.exists, "answer", seconds=_SECONDS)
        federation.processes.wait("run", seconds=60)
    told = json.loads(out.read_text())
    if set(told["replies"]) != {len(federation.clients)}:
        raise SystemExit(f"replies of an empty round: {told['replies']}")
    return {"seconds": told["seconds"], **used()}


def plan_rounds(federation: Trial, out: Path) -> dict[str, Any]:
    """The rounds of the plan; a round's seconds are those between its line and the one before."""
    seen: list[float] = []
    parts: list[tuple[int, dict[str, float]]] = []
    log = out / "rounds.jsonl"

    def look() -> None:
        with contextlib.suppress(OSError):
            lines = log.read_bytes().count(b"\n")
            if lines > len(seen):
                seen.extend([time.monotonic()] * (lines - len(seen)))
                parts.append((lines, processor_seconds(federation)))

    with watched(federation) as used:
        federation.start_run(out)
        federation.await_run(out, seconds=_SECONDS, meanwhile=look)
        federation.processes.wait("run", seconds=60)
    if not verify_run(out).holds:
        raise SystemExit("the run does not verify")
    # The server app has ended when the last round is looked at.
    (first, before), (last, after) = parts[0], parts[-2]
    by_part = {name: (after[name] - before.get(name, 0.0)) / (last - first) for name in after}
    seconds = [b - a for a, b in itertools.pairwise(seen)]
    return {"seconds": seconds, "parts": by_part, **used()}


def measure(*, own: bool, rounds: int, distributed: bool) -> dict[str, Any]:
    """Empty rounds, rounds of the plan, and empty rounds again, over one set of processes."""
    (port,) = free_ports(1)
    settings, records = demo_settings(
        rounds=rounds, superlink_port=port, distributed=3 if distributed else 0
    )
    folder = Path(tempfile.mkdtemp(prefix="dpc-round-"))
    with trial(settings, records, folder) as federation:
        start_node = Trial.start_node if own else start_supernode
        start_all(federation, lambda words: print(f"  {words}", file=sys.stderr), start_node)
        time.sleep(5.0)
        empty = [empty_rounds(federation, folder, (rounds + 1) // 2)]
        planned = plan_rounds(federation, folder / "run")
        empty.append(empty_rounds(federation, folder, (rounds + 1) // 2))
    shutil.rmtree(folder)
    many = sum(len(one["seconds"]) + 1 for one in empty)
    return {
        "empty": statistics.median(s for one in empty for s in one["seconds"]),
        "round": statistics.median(planned["seconds"]),
        "empty_processes": sum(one["processes"] for one in empty) / many,
        "round_processes": planned["processes"] / rounds,
        "empty_cpu": sum(one["cpu"] for one in empty) / many,
        "round_cpu": planned["cpu"] / rounds,
        "parts": planned["parts"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10, help="of the plan; four or more")
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--nodes", choices=("own", "supernode"))
    arguments = parser.parse_args()
    kinds = [arguments.nodes] if arguments.nodes else ["supernode", "own"]
    words = "masked sums" if arguments.distributed else "updates"
    print(f"Flower {FLOWER_VERSION}, {os.cpu_count()} cores, 3 clients, {words}", flush=True)
    print("nodes      |          empty round         |     round of the plan        | ratio")
    found = {}
    for kind in kinds:
        one = found[kind] = measure(
            own=kind == "own", rounds=arguments.rounds, distributed=arguments.distributed
        )
        shown = [
            f"{one[part]:6.2f} s, {one[f'{part}_processes']:4.1f} proc., "
            f"{one[f'{part}_cpu']:5.2f} cpu s"
            for part in ("empty", "round")
        ]
        print(f"{kind:10} | {' | '.join(shown)} | {one['round'] / one['empty']:.2f}")
        parts = sorted(one["parts"].items(), key=lambda part: -part[1])
        shown = [f"{name} {seconds:.2f}" for name, seconds in parts]
        print(f"  processor s a round: {', '.join(shown)}", flush=True)
    if len(found) == 2:
        ratio = found["own"]["round"] / found["supernode"]["empty"]
        print(f"a round over own nodes against an empty round over SuperNodes: {ratio:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
