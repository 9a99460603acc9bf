# SPDX-License-Identifier: Apache-2.0
"""A whole federation on one machine, each part a process of its own: for the demo and for tests.

SuperLink, gate, SuperNodes and guards are started as a kit's units would start them, with TLS and
authentication, on free ports of the loopback address. Guards run as the same user here, which a
real client's owner would not do.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcohort.deploy.flower.adapter import QUIET
from dpcohort.deploy.flower.kit import Kit
from dpcohort.deploy.flower.processes import Processes
from dpcohort.errors import DpcohortError, InputError

__all__ = ["Trial", "write_client_data"]

_START = 90.0
Records = tuple[NDArray[Any], NDArray[np.int64]]


def write_client_data(kit: Kit, records: Mapping[str, Records]) -> None:
    """Put each client's records where its guard looks for them, readable by the owner alone."""
    for client, (inputs, labels) in records.items():
        path = kit.client(client) / "data.npz"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            np.savez(file, inputs=inputs, labels=labels)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The processes of a federation.

    Attributes:
        kit: what they are started from.
        processes: where they run.
        sockets: folder of the guards' sockets; its path must be short.
        superlink_port: as in the kit.
        gate_port: as in the kit.
        node_ports: one for each client, for the SuperNode's own processes.
    """

    kit: Kit
    processes: Processes
    sockets: Path
    superlink_port: int
    gate_port: int
    node_ports: Mapping[str, int]

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients, in the plan's order."""
        return tuple(self.node_ports)

    def socket(self, client: str) -> Path:
        """Where a client's guard listens."""
        return self.sockets / f"{self.clients.index(client)}.sock"

    def start_server(self) -> None:
        """Start SuperLink and gate; return when both listen."""
        self.processes.start("gate", self._gate(), env=self._env())
        self.start_superlink()
        self.processes.await_port("gate", self.gate_port, seconds=_START)

    def start_superlink(self) -> None:
        """Start the SuperLink; return when it listens."""
        tls = self.kit.tls
        command = [
            _program("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.superlink_port),
            "--database", str(self.kit.server / "state.db"),
            "--disable-runtime-dependency-installation", "--enable-supernode-auth",
            "--ssl-ca-certfile", str(tls / "ca.crt"), "--ssl-certfile", str(tls / "server.pem"),
            "--ssl-keyfile", str(tls / "server.key"),
        ]  # fmt: skip
        self.processes.start("superlink", command, env=self._env())
        self.processes.await_port("superlink", self.superlink_port, seconds=_START)

    def start_guard(self, client: str, *, new_ledger: bool = False) -> None:
        """Start a client's guard, without waiting for it; the first time with a new ledger."""
        folder, name = self.kit.client(client), f"guard-{self._number(client)}"
        self.socket(client).unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "dpcohort", "guard",
            "--terms", str(folder / "terms.toml"), "--data", str(folder / "data.npz"),
            "--ledger", str(folder / "client.ledger"), "--socket", str(self.socket(client)),
        ]  # fmt: skip
        command += ["--new-ledger"] if new_ledger else []
        self.processes.start(name, command, env=self._env())

    def await_guard(self, client: str) -> None:
        """Wait until a client's guard listens."""
        name = f"guard-{self._number(client)}"
        self.processes.await_that(
            name, self.socket(client).is_socket, "listen on its socket", seconds=_START
        )

    def register(self) -> None:
        """Register all nodes' public keys, by the operator, on the loopback address."""
        for client in self.clients:
            name = f"register-{self._number(client)}"
            public = self.kit.client(client) / "node.pub"
            command = [_program("flwr"), "supernode", "register", str(public), "dpcohort"]
            self.processes.start(name, [*command, "--name", client], env=self._env())
        for client in self.clients:
            name = f"register-{self._number(client)}"
            if self.processes.wait(name, seconds=_START) != 0:
                raise DpcohortError(
                    f"{client} could not be registered:\n{self.processes.tail(name)}"
                )

    def start_supernode(self, client: str) -> None:
        """Start a client's SuperNode, which reaches the SuperLink through the gate alone."""
        folder = self.kit.client(client)
        command = [
            _program("flower-supernode"), "--superlink", f"127.0.0.1:{self.gate_port}",
            "--root-certificates", str(folder / "ca.crt"),
            "--auth-supernode-private-key", str(folder / "node.key"),
            "--host", "127.0.0.1", "--port", str(self.node_ports[client]),
            "--node-config", f'guard="{self.socket(client)}"',
        ]  # fmt: skip
        home = folder / "flwr"
        home.mkdir(exist_ok=True)
        env = {**self._env(), "FLWR_HOME": str(home)}
        self.processes.start(f"supernode-{self._number(client)}", command, env=env)

    def start_run(self, out: Path, *, resume: bool = False) -> None:
        """Start the federated run, or go on with it."""
        config = f"out={json.dumps(str(out.resolve()))} resume={'true' if resume else 'false'}"
        command = [
            _program("flwr"), "run", str(self.kit.app), "dpcohort", "--stream",
            "--run-config", config,
        ]  # fmt: skip
        self.processes.start("run", command, env=self._env())

    def await_run(self, out: Path, *, seconds: float) -> None:
        """Wait for the run to be finished.

        Raises:
            DpcohortError: it failed, or takes longer; with the server's last words.
        """
        deadline = time.monotonic() + seconds
        while not (out / "result.json").exists():
            if not self.processes.is_running("run"):
                raise DpcohortError(f"the run failed.\n{self.last_words()}")
            if not self.processes.is_running("superlink"):
                raise DpcohortError(f"the SuperLink ended:\n{self.processes.tail('superlink')}")
            if time.monotonic() > deadline:
                raise DpcohortError(
                    f"the run did not finish within {seconds:g} s.\n{self.last_words()}"
                )
            time.sleep(0.2)

    def last_words(self) -> str:
        """What the server app said last; its own error alone if it named one."""
        lines = self.processes.tail("run", lines=200).splitlines()
        errors = [place for place, line in enumerate(lines) if line.startswith("error: ")]
        if not errors:
            return "\n".join(lines[-14:])
        own = itertools.takewhile(lambda line: "ERROR" not in line, lines[errors[-1] :])
        return "\n".join(own)

    def _gate(self) -> list[str]:
        tls = self.kit.tls
        return [
            sys.executable, "-m", "dpcohort", "flower", "gate", "--host", "127.0.0.1",
            "--port", str(self.gate_port), "--superlink", str(self.superlink_port),
            "--certificate", str(tls / "server.pem"), "--key", str(tls / "server.key"),
            "--authority", str(tls / "ca.crt"),
        ]  # fmt: skip

    def _number(self, client: str) -> int:
        return self.clients.index(client)

    def _env(self) -> dict[str, str]:
        folder = str(Path(sys.executable).parent)
        return {
            **QUIET,
            "FLWR_HOME": str(self.kit.home),
            # Flower starts its own programs by name.
            "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError.because(
            f"Flower's program {name} is not there. "
            'Get it with: python -m pip install "dpcohort[flower]"'
        )
    return found
