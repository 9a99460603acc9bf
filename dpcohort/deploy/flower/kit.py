# SPDX-License-Identifier: Apache-2.0
"""The deployment kit: a folder with everything for SuperLink, gate, SuperNodes and guards.

::

    README.md              the operator's page
    app/                   the Flower app, which Flower sends to every client
    server/                plan.json, federation.toml, flwr/config.toml, tls/, units, nginx.conf
    clients/NAME/          terms.toml, ca.crt, node.key, node.pub, units, the owner's page

Units say ``Restart=always``, not ``on-failure``: a SuperNode whose SuperLink has forgotten it ends
with exit code 0, and one that was killed is refused until its old heartbeat has lapsed, so the
supervisor must try again. systemd also takes dead processes off the list, without which Flower
believes a killed SuperNode alive.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

from dpcohort._validate import whole_number
from dpcohort.atomic_file import write_text
from dpcohort.data.dataset import Normalisation
from dpcohort.deploy.flower.certificates import make_certificates, make_node_key
from dpcohort.deploy.flower.federation import Federation
from dpcohort.deploy.guard.terms import ModelTerms, terms_from_plan
from dpcohort.errors import InputError
from dpcohort.plan import Plan

__all__ = ["Kit", "KitSettings", "file_name", "kit_text", "write_kit"]


_LONGEST = 120


def file_name(client: str) -> str:
    """The id with everything escaped that means something in a path; long ones are cut and hashed.

    Example:
        >>> file_name("ward 7/a"), file_name("..")
        ('ward%207%2Fa', '%2E%2E')
    """
    name = quote(client, safe="")
    if not name.strip("."):
        name = name.replace(".", "%2E")
    if len(name) > _LONGEST:
        digest = hashlib.sha256(client.encode()).hexdigest()[:16]
        name = f"{name[:_LONGEST].rpartition('%')[0] or name[:_LONGEST]}-{digest}"
    return name


def kit_text(name: str, **values: object) -> str:
    """A file of a kit, filled in; the files as they are lie in ``kit_files``.

    All units share ``hardened.conf``: no unit sees processes of other users, or anything of /proc
    but processes, because what the machine's processors do tells how large a guard's batches are.
    It does not say PrivateUsers: a guard asks the kernel who is at the other end of its socket.
    MemoryDenyWriteExecute is not where torch computes, whose convolutions are compiled when they
    are first used.

    Args:
        name: of the file.
        values: what is filled in, by name; more than are needed may be given.

    Example:
        >>> page = kit_text("operator.md", run="spring", host="fl.example.org", gate=443,
        ...                 superlink=8000, clients=3)
        >>> page.splitlines()[0]
        '# The run "spring": for the operator'
    """
    files = resources.files("dpcohort.deploy.flower") / "kit_files"
    if name.endswith(".service"):
        values["hardened"] = (files / "hardened.conf").read_text(encoding="utf-8").rstrip("\n")
        # One line, whatever the client is called; a percent sign means something to systemd.
        values["client"] = " ".join(str(values.get("client", "")).split()).replace("%", "%%")
    return Template((files / name).read_text(encoding="utf-8")).substitute(values)


_APP = {
    "__init__.py": '"""A Flower app that executes a dpcohort plan."""\n',
    "server_app.py": (
        '"""The server: executes the plan that the run-config names."""\n\n'
        "from dpcohort.deploy.flower.apps import server_app\n\napp = server_app()\n"
    ),
    "client_app.py": (
        '"""The client: a courier to the guard that the node-config names."""\n\n'
        "from dpcohort.deploy.flower.apps import client_app\n\napp = client_app()\n"
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class KitSettings:
    """What a kit is made for.

    Attributes:
        plan: cohorts and noise.
        model: what is trained.
        run: name of the run.
        optimiser: step sizes, as in a configuration's [optimiser].
        aggregation: ``rule`` and its settings, as in a configuration's [aggregation].
        normalisation: public constants that scale the clients' inputs.
        seed: of the initial weights.
        test: public test data of the server; empty for none.
        host: name or address by which clients reach the gate.
        gate_port: where the gate listens.
        superlink_port: where the SuperLink listens, on the loopback address.
        days: how long the certificates are valid.
        timeout: seconds for a round.
        trial: guards may be asked by their own user, and answer at once.
    """

    plan: Plan
    model: ModelTerms
    run: str
    optimiser: Mapping[str, Any] = field(default_factory=dict)
    aggregation: Mapping[str, Any] = field(default_factory=lambda: {"rule": "mean"})
    normalisation: Normalisation = field(default_factory=Normalisation)
    seed: int = 0
    test: str = ""
    host: str = "127.0.0.1"
    gate_port: int = 9443
    superlink_port: int = 8000
    days: int = 30
    timeout: float = 600.0
    trial: bool = False

    def __post_init__(self) -> None:
        for port in ("gate_port", "superlink_port"):
            whole_number(port, getattr(self, port), at_least=1, at_most=65535)
        if self.gate_port == self.superlink_port:
            allowed = "two different ports"
            raise InputError("gate_port, superlink_port", given=self.gate_port, allowed=allowed)
        if not self.host or any(c.isspace() or c in "\"'/\\;{}" for c in self.host):
            raise InputError("host", given=self.host, allowed="a name or address of the server")


@dataclass(frozen=True)
class Kit:
    """Paths inside a kit.

    Example:
        >>> str(Kit(Path("kit")).client("ward 7"))
        'kit/clients/ward%207'
    """

    path: Path

    @property
    def app(self) -> Path:
        """The Flower app."""
        return self.path / "app"

    @property
    def server(self) -> Path:
        """What stays on the server."""
        return self.path / "server"

    @property
    def tls(self) -> Path:
        """Certificates and the server's key."""
        return self.server / "tls"

    @property
    def federation(self) -> Path:
        """The server's side in one file."""
        return self.server / "federation.toml"

    @property
    def home(self) -> Path:
        """``FLWR_HOME`` of the operator."""
        return self.server / "flwr"

    def client(self, client: str) -> Path:
        """What one client's owner gets."""
        return self.path / "clients" / file_name(client)


def write_kit(folder: str | Path, settings: KitSettings) -> Kit:
    """Write a kit; the folder must not be there, or be empty. All of it is written, or nothing.

    Raises:
        InputError: the folder is in use, or something cannot be written.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError.because(f"{target} exists and is not empty. Choose another folder.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise InputError.because(
            f"{target} cannot be made: {error.strerror or error}. Choose another place."
        ) from None
    try:
        _write(Kit(scratch), settings, final=Kit(target.resolve()))
        if target.exists():
            target.rmdir()
        os.replace(scratch, target)
    except OSError as error:
        raise InputError.because(f"{target} cannot be written: {error.strerror}.") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Kit(target)


def _write(kit: Kit, settings: KitSettings, *, final: Kit) -> None:
    """Write into a scratch folder what will lie in the final one."""
    for place in (kit.app / "dpcohort_app", kit.tls, kit.home, kit.path / "clients"):
        place.mkdir(parents=True)
    hosts = dict.fromkeys([settings.host, "127.0.0.1", "localhost"])
    certificates = make_certificates(kit.tls, hosts=list(hosts), days=settings.days)
    plan = settings.plan
    clients = [plan.population.ids[k] for k in plan.drawn.nonzero()[0].tolist()]
    keys = {client: _write_client(kit.client(client), client, settings) for client in clients}
    for client in clients:
        shutil.copyfile(certificates.authority, kit.client(client) / "ca.crt")
    federation = Federation(
        run=settings.run,
        plan=plan,
        model=settings.model,
        clients=keys,
        optimiser=settings.optimiser,
        aggregation=settings.aggregation,
        seed=settings.seed,
        timeout=settings.timeout,
        test=settings.test,
        out="run",
    )
    # A model or rule that is not there, or not the plan's, is refused here, not at the first round.
    from dpcohort.deploy.flower.record import FederatedJob

    FederatedJob.of(federation)
    plan.save(kit.server / "plan.json")
    values = _values(
        settings,
        clients=len(clients),
        federation=json.dumps(str(final.federation)),
        authority=json.dumps(str(final.tls / "ca.crt")),
    )
    write_text(kit.federation, federation.to_toml(plan="plan.json"))
    write_text(kit.path / "README.md", kit_text("operator.md", **values))
    write_text(kit.home / "config.toml", kit_text("config.toml", **values))
    for name in ("dpcohort-superlink.service", "dpcohort-gate.service", "nginx.conf"):
        write_text(kit.server / name, kit_text(name, **values))
    write_text(kit.app / "pyproject.toml", kit_text("app.toml", **values))
    for name, text in _APP.items():
        write_text(
            kit.app / "dpcohort_app" / name, f"# SPDX-License-Identifier: Apache-2.0\n{text}"
        )
    os.chmod(kit.server, 0o700)


def _write_client(folder: Path, client: str, settings: KitSettings) -> str:
    """What a client's owner gets; its public key."""
    folder.mkdir()
    os.chmod(folder, 0o700)
    terms = terms_from_plan(
        settings.plan,
        client,
        run=settings.run,
        model=settings.model,
        normalisation=settings.normalisation,
        allowed_users=() if settings.trial else ("flower",),
        same_user=settings.trial,
        answer_seconds=0.0 if settings.trial else 1.0,
    )
    write_text(folder / "terms.toml", terms)
    os.chmod(folder / "terms.toml", 0o600)
    values = _values(settings, client=client)
    for name in ("dpcohort-guard.service", "dpcohort-supernode.service"):
        write_text(folder / name, kit_text(name, **values))
    write_text(folder / "README.md", kit_text("owner.md", **values))
    return make_node_key(folder / "node.key")


def _values(settings: KitSettings, **more: object) -> dict[str, object]:
    """What is filled into the files of a kit."""
    return {
        "run": settings.run,
        "host": settings.host,
        "gate": settings.gate_port,
        "superlink": settings.superlink_port,
        **more,
    }
