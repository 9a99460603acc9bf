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
from pathlib import Path
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

__all__ = [
    "APP_PACKAGE",
    "Kit",
    "KitSettings",
    "app_files",
    "connection_file",
    "file_name",
    "gate_unit",
    "guard_unit",
    "nginx_rule",
    "operator_page",
    "owner_page",
    "superlink_unit",
    "supernode_unit",
    "write_kit",
]


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


def operator_page(*, run: str, host: str, gate: int, superlink: int, clients: int) -> str:
    """The page of whoever runs the server.

    Example:
        >>> operator_page(run="spring", host="fl.example.org", gate=443, superlink=8000,
        ...               clients=3).splitlines()[0]
        '# The run "spring": for the operator'
    """
    return f"""# The run "{run}": for the operator

You run the server. You see public things (sizes, budgets, who is drawn when) and updates that carry
their noise already. The clients' guards refuse whatever their owners did not accept.

| folder | what it is | who gets it |
|---|---|---|
| `app/` | the Flower app; Flower sends it to every client | everyone |
| `server/` | plan, federation, certificates, units | stays with you |
| `clients/NAME/` | terms, CA certificate, node key, units, a page | the owner of NAME alone |

The keys and certificates in here are for a trial: each owner should make its own node key
(`ssh-keygen -t ecdsa -b 384 -N "" -f node.key`) and send you `node.pub`, which goes into [clients]
of `server/federation.toml`; the certificates should come from your own authority.

## Once
1. Install `dpcohort[flower]` into /opt/dpcohort, copy `server/` to /srv/dpcohort (owner
   `dpcohort-server`, mode 0700), the units to /etc/systemd/system, and start `dpcohort-superlink`.
   `flwr/config.toml` names ca.crt where this kit lies: change that to /srv/dpcohort/tls/ca.crt.
2. Close the door: either `nginx.conf` or `dpcohort-gate.service`. The SuperLink itself listens on
   127.0.0.1:{superlink} alone. **Never open that port**: the open-source SuperLink also serves its
   operator's calls there and asks for no credential, so whoever reaches it can run code on every
   client. From outside, only `POST https://{host}:{gate}/v1/fleet/...` answers; check it:

       curl --cacert ca.crt https://{host}:{gate}/docs             # 403
       curl --cacert ca.crt -X POST https://{host}:{gate}/v1/control/list-runs    # 403

3. Register the {clients} nodes, on the server:

       export FLWR_HOME=/srv/dpcohort/flwr FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
       flwr supernode register NAME.pub dpcohort --name NAME

## The run
    flwr run app dpcohort --stream --run-config \\
        'federation="/srv/dpcohort/federation.toml" out="/srv/dpcohort/run"'
    dpcohort verify /srv/dpcohort/run

Before the first draw every client's guard is asked what its owner accepted. If a client is not
there or its terms do not cover the plan, the run ends with a message and nothing is spent.

## When something dies
Flower does not go on with a run whose server or SuperLink was killed; dpcohort does. Start the same
command again with `resume=true` in the run-config. The run has the same name, so the draws have the
same names: guards send updates they have stored and compute only what was never asked for.

| what died | what to do | what it costs |
|---|---|---|
| SuperLink, server app | start the run again with `resume=true` | nothing |
| a SuperNode | systemd starts it; it is let in within a minute | nothing, if the round lasts |
| a guard | systemd starts it | at most the draw it was computing |
| a client for good | nothing; its draws are lost and stay counted | its part of the rounds |

`exchange.jsonl` in the run folder tells of each round what came, what came from a client's ledger
and what was lost. Treat `state.db` as confidential: it holds updates (with their noise).
"""


def owner_page(client: str, *, run: str, host: str, port: int) -> str:
    """The page of whoever owns a client's data."""
    return f"""# The run "{run}": for the owner of {client}

Your data never leave your machine. A *guard*, which you start, holds them together with a ledger
of everything they have ever spent. A *SuperNode* (Flower's client) runs whatever code the server
ships; it can ask the guard for noisy updates and gets them only within `terms.toml`. So read that
file: it is yours, the server cannot change it, and every number in it is explained there.

1. Make two users, `dpcohort-guard` and `flower`, and install `dpcohort[flower]` into /opt/dpcohort.
   Two users, because code of the server runs as `flower` and must not be able to open your data.
2. `terms.toml` to /etc/dpcohort-guard (owner `dpcohort-guard`, mode 0600). Change what you do not
   agree with: a larger noise, fewer draws, a smaller epsilon. The server is told before anything is
   spent. `allowed_users` names the user of the SuperNode.
3. Your data to /var/lib/dpcohort-guard/data.npz (mode 0600): `inputs`, one record a row, and
   `labels`.
4. `node.key` and `ca.crt` to /etc/flower (owner `flower`, mode 0600). The SuperNode's unit puts
   `flower` into the group of the guard's socket; it opens nothing else of the guard's. The key is
   who you are to the server: keep it to yourself, or better make your own and send only `node.pub`.
5. Make the ledger, once, as `dpcohort-guard`, who must be able to write /etc/dpcohort-guard:

       dpcohort guard pin --terms /etc/dpcohort-guard/terms.toml \\
           --ledger /var/lib/dpcohort-guard/client.ledger --new-ledger

   Its id is written into your terms: a guard that finds no ledger, or another one, does not start,
   for an empty ledger would let everything be spent again. Keep copies of it
   (`dpcohort ledger export --backup`).
6. Start `dpcohort-guard.service` and `dpcohort-supernode.service`. The guard first times a draw of
   all your records; if `answer_seconds` is shorter it says what to set and does not start, because
   the time of an answer would tell how many records were drawn.

The units hide the guard's processes from `flower` (ProtectProc, ProcSubset, InaccessiblePaths), who
could otherwise read from its processor time how large the batches are. Without systemd, mount /proc
with `hidepid=invisible`, or run the SuperNode in a container of its own.

The SuperNode connects to {host}:{port} and needs no open port of yours. What the server ships might
try other addresses; the unit says how to close them.

    dpcohort ledger show /var/lib/dpcohort-guard/client.ledger       # what was spent, ever
    dpcohort ledger verify /var/lib/dpcohort-guard/client.ledger     # that nobody changed it
    dpcohort ledger receipt /var/lib/dpcohort-guard/client.ledger --dataset NAME --out receipt.json

The ledger counts a draw before it is computed. A crash may lose a draw's update, never its count.
Never restore an old ledger: the guard notices and answers nothing. To leave the run, stop the
guard.
"""


APP_PACKAGE = "dpcohort_app"

_SPDX = "# SPDX-License-Identifier: Apache-2.0\n"
_QUIET = "Environment=FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1"
#: No unit sees processes of other users, or anything of /proc but processes: what the machine's
#: processors do tells how large a guard's batches are. Not PrivateUsers: a guard asks the kernel
#: who is at the other end of its socket.
_HARDENED = """NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
ProcSubset=pid
PrivateTmp=yes
PrivateDevices=yes
PrivateIPC=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
UMask=0077
Restart=always
RestartSec=5"""
_NETWORK = "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK"
#: Not where torch computes: its convolutions are compiled when they are first used.
_FIXED_CODE = "MemoryDenyWriteExecute=yes"


def app_files(*, federation: str) -> Mapping[str, str]:
    """The files of a runnable Flower app, by their path in it.

    Args:
        federation: path of ``federation.toml`` on the server.

    Example:
        >>> sorted(app_files(federation="/srv/federation.toml"))[-1]
        'pyproject.toml'
    """
    return {
        "pyproject.toml": f"""# A Flower app that executes a dpcohort plan.
# Flower sends this folder to every client: put nothing here that they should not see.
[project]
name = "dpcohort-app"
version = "1.0.0"
description = "Executes a dpcohort plan; the clients' guards hold data, ledger and noise."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "dpcohort"

[tool.flwr.app.components]
serverapp = "{APP_PACKAGE}.server_app:app"
clientapp = "{APP_PACKAGE}.client_app:app"

[tool.flwr.app.config]
federation = {json.dumps(federation)}
out = ""
resume = false
guards = ""
""",
        f"{APP_PACKAGE}/__init__.py": f'{_SPDX}"""A Flower app that executes a dpcohort plan."""\n',
        f"{APP_PACKAGE}/server_app.py": (
            f'{_SPDX}"""The server: executes the plan that the run-config names."""\n\n'
            "from dpcohort.deploy.flower.apps import server_app\n\napp = server_app()\n"
        ),
        f"{APP_PACKAGE}/client_app.py": (
            f'{_SPDX}"""The client: a courier to the guard that the node-config names."""\n\n'
            "from dpcohort.deploy.flower.apps import client_app\n\napp = client_app()\n"
        ),
    }


def connection_file(*, port: int, authority: str) -> str:
    """``config.toml`` of the operator's ``FLWR_HOME``: how ``flwr`` reaches the SuperLink."""
    return f"""# FLWR_HOME/config.toml: the SuperLink, reached on the loopback address,
# not through the gate.
[superlink]
default = "dpcohort"

[superlink.dpcohort]
address = "127.0.0.1:{port}"
root-certificates = {json.dumps(authority)}
"""


def superlink_unit(*, port: int) -> str:
    """The unit of the SuperLink; it listens on the loopback address only."""
    return f"""[Unit]
Description=Flower SuperLink of a dpcohort federation
After=network.target

[Service]
User=dpcohort-server
WorkingDirectory=/srv/dpcohort
{_QUIET}
Environment=FLWR_HOME=/srv/dpcohort/flwr
# --database: without one, a restart forgets the nodes and every SuperNode ends.
ExecStart=/opt/dpcohort/bin/flower-superlink --host 127.0.0.1 --port {port} \\
    --database /srv/dpcohort/state.db --disable-runtime-dependency-installation \\
    --ssl-ca-certfile tls/ca.crt --ssl-certfile tls/server.pem --ssl-keyfile tls/server.key \\
    --enable-supernode-auth
ReadWritePaths=/srv/dpcohort
# A graphics card for the server's evaluation needs PrivateDevices=no below.
{_NETWORK}
{_HARDENED}

[Install]
WantedBy=multi-user.target
"""


def gate_unit(*, port: int, upstream: int) -> str:
    """The unit of the small gate, for a trial without nginx."""
    return f"""[Unit]
Description=Gate of a dpcohort federation: only the calls of nodes
After=network.target

[Service]
User=dpcohort-server
WorkingDirectory=/srv/dpcohort
ExecStart=/opt/dpcohort/bin/dpcohort flower gate --host 0.0.0.0 --port {port} \\
    --superlink {upstream} --certificate tls/server.pem --key tls/server.key \\
    --authority tls/ca.crt
{_NETWORK}
{_FIXED_CODE}
{_HARDENED}

[Install]
WantedBy=multi-user.target
"""


def nginx_rule(*, host: str, port: int, upstream: int) -> str:
    """The reverse proxy's rule: POST below ``/v1/fleet/``, and nothing else."""
    return f"""# Clients reach this server block. The SuperLink listens on 127.0.0.1 alone,
# because its port also serves the operator's calls (start a run, register a node) and asks for no
# credential.
server {{
    listen {port} ssl;
    server_name {host};
    ssl_certificate     /srv/dpcohort/tls/server.pem;
    ssl_certificate_key /srv/dpcohort/tls/server.key;
    ssl_protocols TLSv1.2 TLSv1.3;
    client_max_body_size 64m;
    merge_slashes off;

    location / {{ return 403; }}

    location ~ "^/v1/fleet/[a-z0-9]+([-_][a-z0-9]+)*$" {{
        limit_except POST {{ deny all; }}
        proxy_pass https://127.0.0.1:{upstream};
        proxy_ssl_trusted_certificate /srv/dpcohort/tls/ca.crt;
        proxy_ssl_verify on;
        proxy_ssl_name 127.0.0.1;
        proxy_read_timeout 120s;
    }}
}}
"""


def guard_unit(client: str) -> str:
    """The unit of a client's guard, under a user of its own."""
    return f"""[Unit]
Description=dpcohort guard of {_one_line(client)}: holds the data, counts every draw

[Service]
# Without --new-ledger: the ledger is made once, by hand. One that is gone must stop the guard.
# Not the SuperNode's user: what the server ships runs as that one and must not open the data.
User=dpcohort-guard
Group=dpcohort-guard
RuntimeDirectory=dpcohort-guard
RuntimeDirectoryMode=0755
ExecStart=/opt/dpcohort/bin/dpcohort guard --terms /etc/dpcohort-guard/terms.toml \\
    --data /var/lib/dpcohort-guard/data.npz --ledger /var/lib/dpcohort-guard/client.ledger \\
    --socket /run/dpcohort-guard/guard.sock
StateDirectory=dpcohort-guard
StateDirectoryMode=0700
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
{_HARDENED}

[Install]
WantedBy=multi-user.target
"""


def supernode_unit(client: str, *, host: str, port: int) -> str:
    """The unit of a client's SuperNode, which runs what the server ships."""
    return f"""[Unit]
Description=Flower SuperNode of {_one_line(client)}
After=network.target dpcohort-guard.service

[Service]
User=flower
# May open the guard's socket; the guard's folders are closed to the group.
SupplementaryGroups=dpcohort-guard
{_QUIET}
Environment=FLWR_HOME=/var/lib/flower
StateDirectory=flower
ExecStart=/opt/dpcohort/bin/flower-supernode --superlink {host}:{port} \\
    --root-certificates /etc/flower/ca.crt --auth-supernode-private-key /etc/flower/node.key \\
    --host 127.0.0.1 --port 9094 --node-config 'guard="/run/dpcohort-guard/guard.sock"'
# What the server ships can reach the network from here. Name the server's address to close the
# rest: IPAddressDeny=any and IPAddressAllow=localhost ADDRESS
# Nor may it read how long the guard computed, from the guard's control group or from systemd.
InaccessiblePaths=-/sys/fs/cgroup -/run/dbus
{_NETWORK}
{_FIXED_CODE}
{_HARDENED}

[Install]
WantedBy=multi-user.target
"""


def _one_line(text: str) -> str:
    # A percent sign means something to systemd.
    return " ".join(text.split()).replace("%", "%%")


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
    gate, superlink = settings.gate_port, settings.superlink_port
    texts = {
        kit.federation: federation.to_toml(plan="plan.json"),
        kit.home / "config.toml": connection_file(
            port=superlink, authority=str(final.tls / "ca.crt")
        ),
        kit.server / "dpcohort-superlink.service": superlink_unit(port=superlink),
        kit.server / "dpcohort-gate.service": gate_unit(port=gate, upstream=superlink),
        kit.server / "nginx.conf": nginx_rule(host=settings.host, port=gate, upstream=superlink),
        kit.path / "README.md": operator_page(
            run=settings.run,
            host=settings.host,
            gate=gate,
            superlink=superlink,
            clients=len(clients),
        ),
    }
    for name, text in app_files(federation=str(final.federation)).items():
        texts[kit.app / name] = text
    for path, text in texts.items():
        write_text(path, text)
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
    write_text(folder / "dpcohort-guard.service", guard_unit(client))
    write_text(
        folder / "dpcohort-supernode.service",
        supernode_unit(client, host=settings.host, port=settings.gate_port),
    )
    write_text(
        folder / "README.md",
        owner_page(client, run=settings.run, host=settings.host, port=settings.gate_port),
    )
    return make_node_key(folder / "node.key")
