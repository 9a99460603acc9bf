# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest

from dpcohort.consent import allow_code
from dpcohort.deploy.flower._kit import kit_text, own_model_files

VALUES = {"host": "fl.example.org", "gate": 9443, "superlink": 8000}
CLIENTS = {"guard": "ward 7 100%", "node": "ward 7\nExecStart=evil"}
UNITS = {
    name: kit_text(f"dpcohort-{name}.service", **VALUES, client=CLIENTS.get(name))
    for name in ("superlink", "guard", "node")
}


def _service(text: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read_string(text.replace("\\\n", " "))
    return dict(parser["Service"])


@pytest.mark.parametrize("name", UNITS)
def test_units_start_again_always_and_run_as_a_user(name):
    service = _service(UNITS[name])
    assert service["Restart"] == "always"
    assert service["User"] not in ("root", "")
    assert service["NoNewPrivileges"] == "yes"
    assert service["ExecStart"].startswith("/opt/dpcohort/bin/")


def test_the_guard_is_another_user_without_a_network():
    guard, node = _service(UNITS["guard"]), _service(UNITS["node"])
    assert guard["User"] != node["User"]
    assert node["SupplementaryGroups"] == guard["Group"]  # the socket's mode is 0660
    assert guard["PrivateNetwork"] == "yes"
    assert guard["StateDirectoryMode"] == "0700"
    assert "ward 7 100%%" in UNITS["guard"]


@pytest.mark.parametrize("name", UNITS)
def test_units_see_no_processes_of_others_and_hold_no_rights(name):
    service = _service(UNITS[name])
    wanted = {
        "ProtectProc": "invisible",
        "ProcSubset": "pid",
        "CapabilityBoundingSet": "",
        "SystemCallFilter": "@system-service",
        "UMask": "0077",
    }
    assert wanted.items() <= service.items()
    assert "PrivateUsers" not in service  # a guard must know who asks
    # torch compiles convolutions: the guard and the server could not train under it.
    assert ("MemoryDenyWriteExecute" in service) == (name == "node")


def test_the_node_cannot_read_the_guards_processor_time():
    """Neither from /proc (see above) nor from its control group, nor by asking systemd."""
    assert _service(UNITS["node"])["InaccessiblePaths"] == "-/sys/fs/cgroup -/run/dbus"
    assert _service(UNITS["guard"])["RestrictAddressFamilies"] == "AF_UNIX"


def test_the_guard_makes_no_ledger_when_it_starts():
    assert "--new-ledger" not in shlex.split(_service(UNITS["guard"])["ExecStart"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_understands_every_line(name, tmp_path):
    path = tmp_path / f"{name}.service"
    # The program need not be there; all else is as it is shipped.
    path.write_text(re.sub(r"/opt/dpcohort/bin/\S+", "/bin/true", UNITS[name]))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    own = [line for line in done.stderr.splitlines() if path.name in line]
    assert own == []


def test_the_node_asks_the_socket_the_guard_listens_on():
    command = shlex.split(_service(UNITS["guard"])["ExecStart"])
    socket = command[command.index("--socket") + 1]
    asked = shlex.split(_service(UNITS["node"])["ExecStart"])
    assert asked[asked.index("--guard") + 1] == socket


def test_the_superlink_listens_on_loopback_with_tls_keys_and_a_database():
    command = shlex.split(_service(UNITS["superlink"])["ExecStart"])
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert "--enable-supernode-auth" in command
    assert "--database" in command
    assert "--insecure" not in command


def test_a_clients_name_cannot_add_a_line():
    assert "\nExecStart=evil" not in UNITS["node"]
    assert len(re.findall(r"^ExecStart=", UNITS["node"], re.MULTILINE)) == 1


#: What reaches the SuperLink's port through the proxy, and what must not.
ASKED = [
    ("POST", "/v1/fleet/pull-messages", True),
    ("POST", "/v1/fleet/push_object", True),
    ("GET", "/v1/fleet/pull-messages", False),
    ("PUT", "/v1/fleet/pull-messages", False),
    ("POST", "/v1/fleet/", False),
    ("POST", "/v1/fleet", False),
    ("POST", "/v1/fleet/a/b", False),
    ("POST", "/v1/fleet/../control/start-run", False),
    ("POST", "/v1/fleet/%2e%2e/control/start-run", False),
    ("POST", "/v1/fleet/x/../../control/start-run", False),
    ("POST", "/v1/control/../fleet/pull-messages", False),
    ("POST", "/v1/control/%2e%2e/fleet/pull-messages", False),
    ("POST", "/v1/fleet//control", False),
    ("POST", "//v1/fleet/pull-messages", False),
    ("POST", "/v1/fleet/pull-messages?x=/v1/control", False),
    ("POST", "/v1/fleet/pull-messages.x", False),
    ("POST", "/v1/control/list-runs", False),
    ("POST", "/v1/runtime/acquire-task", False),
    ("GET", "/docs", False),
]


def test_the_proxy_passes_the_calls_of_nodes_and_nothing_else():
    text = kit_text("nginx.conf", **VALUES)
    (pattern,) = re.findall(r'if \(\$request_uri !~ "(.*)"\) { return 403; }', text)
    for method, path, passes in ASKED:
        assert (method == "POST" and re.search(pattern, path) is not None) is passes, path
    assert "location / { return 403; }" in text
    assert "limit_except POST { deny all; }" in text
    assert "proxy_ssl_verify on;" in text


def test_the_app_names_its_parts_and_every_setting_of_a_run():
    project = tomllib.loads(
        kit_text("app.toml", federation=json.dumps('/srv/with "quotes"/federation.toml'))
    )
    app = project["tool"]["flwr"]["app"]
    assert app["components"] == {
        "serverapp": "dpcohort_app.server_app:app",
        "clientapp": "dpcohort_app.client_app:app",
    }
    assert app["config"]["federation"] == '/srv/with "quotes"/federation.toml'
    assert set(app["config"]) == {"federation", "out", "resume", "after", "guards"}
    assert project["project"]["dependencies"] == []


def test_the_file_of_ones_own_model_goes_along_with_the_packages_it_lies_in(tmp_path, monkeypatch):
    package = tmp_path / "wardnets"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from dpcohort import plugin\n@plugin('model')\ndef whole(**options): ...\n"
    )
    small = "from dpcohort import plugin\n@plugin('model')\ndef net(**options): ...\n"
    (package / "small.py").write_text(small)
    monkeypatch.syspath_prepend(str(tmp_path))
    allow_code("wardnets", "torch")
    inside = own_model_files("wardnets.small:net")
    assert set(inside) == {"wardnets/__init__.py", "wardnets/small.py"}
    assert inside["wardnets/small.py"] == small
    assert set(own_model_files("wardnets:whole")) == {"wardnets/__init__.py"}
    assert own_model_files("torch.nn:Linear") == {}
    for name in ("wardnets", "wardnets.small"):
        monkeypatch.delitem(sys.modules, name)
