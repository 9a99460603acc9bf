# SPDX-License-Identifier: Apache-2.0
"""Code that a server ships, running as another user: it can ask, and open nothing."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest

from dpcohort.deploy._formats import replace
from dpcohort.deploy.guard._protocol import decode, encode
from dpcohort.deploy.guard._service import GuardService

#: What the server ships. It needs nothing of ours: a socket and the standard library.
SHIPPED = """
import base64, json, os, socket, struct, sys
data, sock, request = sys.argv[1], sys.argv[2], base64.b64decode(sys.argv[3])
opened, refused = [], []
book = "ward.ledger"
for name in ["ward.npz", book, book + "-wal", book + "-shm", book + ".counter"]:
    for mode in ("rb", "ab"):
        try:
            open(os.path.join(data, name), mode).close()
            opened.append(name)
        except PermissionError:
            refused.append(name)
try:
    listed = os.listdir(data)
except PermissionError:
    listed = None
answer = b""
try:
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    plain.settimeout(2)
    plain.connect(sock)
    try:
        plain.sendall(request)
    except OSError:
        pass  # the guard may have said no already
    while part := plain.recv(65536):
        answer += part
        magic, head, body = struct.unpack("<4sIQ", answer[:16])
        if len(answer) >= 16 + head + body:
            break
except OSError as error:
    answer = answer or repr(error).encode()
print(json.dumps([os.getuid(), opened, len(refused), listed, base64.b64encode(answer).decode()]))
"""
PYTHON = "/usr/bin/python3"
CLIENT_APP, STRANGER = 65534, 65533

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0,
        reason="NOT TESTED HERE: that another user cannot open the data. Only root can become one.",
    ),
    pytest.mark.skipif(
        not os.access(PYTHON, os.X_OK),
        reason=f"NOT TESTED HERE: there is no {PYTHON} that another user could run.",
    ),
]


@pytest.fixture
def guard(folder, open_handler, terms):
    folder.chmod(0o711)
    private = folder / "private"
    private.mkdir(mode=0o700)
    allowed = replace(terms, same_user=False, allowed_users=(CLIENT_APP,))
    handler = open_handler(allowed, ledger=private / "ward.ledger")  # reads the data, then
    (folder / "ward.npz").rename(private / "ward.npz")
    with GuardService(handler, folder / "g.sock") as service:
        os.chown(service.path, -1, CLIENT_APP)
        service.start()
        yield service


def ship(guard, request, uid):
    done = subprocess.run(
        [PYTHON, "-c", SHIPPED, str(guard.path.parent / "private"), str(guard.path),
         base64.b64encode(encode(request)).decode()],
        capture_output=True, text=True, timeout=60, cwd="/", env={},
        user=uid, group=CLIENT_APP, extra_groups=[],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *found, answer = json.loads(done.stdout)
    return found, decode(base64.b64decode(answer))


def test_shipped_code_gets_noisy_updates_and_opens_nothing(guard, good):
    (uid, opened, refused, listed), answer = ship(guard, good(), CLIENT_APP)
    assert uid == CLIENT_APP
    assert opened == []
    assert refused == 10  # five files, to read and to write
    assert listed is None
    assert answer.vector.shape == (18,)


def test_shipped_code_cannot_ask_for_more(guard, good):
    _, answer = ship(guard, good(noise_multiplier=0.1), CLIENT_APP)
    assert answer.code == "terms"
    assert guard.handler.ledger.head[0] == 3


def test_a_user_the_owner_did_not_name_is_refused(guard, good):
    (uid, opened, _, _), answer = ship(guard, good(), STRANGER)
    assert (uid, opened, answer.code) == (STRANGER, [], "not-allowed")
    assert guard.handler.ledger.head[0] == 3


def test_the_test_would_see_an_open_file(guard, good):
    private = Path(guard.path.parent / "private")
    private.chmod(0o711)
    (private / "ward.npz").chmod(0o644)
    (_, opened, _, _), _ = ship(guard, good(), CLIENT_APP)
    assert opened == ["ward.npz"]
