# SPDX-License-Identifier: Apache-2.0
"""Texts of a kit that machines read: the Flower app, systemd units, the proxy's rule.

Units say ``Restart=always``, not ``on-failure``: a SuperNode whose SuperLink has forgotten it ends
with exit code 0, and one that was killed is refused until its old heartbeat has lapsed, so the
supervisor must try again. systemd also takes dead processes off the list, without which Flower
believes a killed SuperNode alive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

__all__ = [
    "APP_PACKAGE",
    "app_files",
    "connection_file",
    "gate_unit",
    "guard_unit",
    "nginx_rule",
    "superlink_unit",
    "supernode_unit",
]

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
