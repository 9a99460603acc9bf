# SPDX-License-Identifier: Apache-2.0
"""docs/how-to/operate.md, section by section, in the middle of a run."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest

from dpcohort.cli import main
from dpcohort.deploy.flower import Federation, federate
from dpcohort.deploy.flower._certificates import make_node_key
from dpcohort.deploy.flower._kit import client_folder
from dpcohort.deploy.flower._messages import hello_message
from dpcohort.deploy.guard._protocol import PROTOCOL
from dpcohort.errors import InputError, VerificationError
from dpcohort.runs import verify_run
from dpcohort.runs._folder import read_json, read_log

from .test_service import Script, _finish, _service

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "operate.md").read_text()


def block(title):
    """The indented lines of a section."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return [line.strip() for line in re.findall(r"(?m)^    (.*)$", section)]


def run_block(title, folder, monkeypatch):
    """Run the one command of a section in a folder."""
    (line,) = block(title)
    monkeypatch.chdir(folder)
    return main(line.split()[1:])


class Stop:
    """Ends a run after a round, as a maintenance does."""

    def __init__(self, done):
        self.done = done

    def on_round(self, record, run):
        if run.rounds_done == self.done:
            raise KeyboardInterrupt


@pytest.fixture
def go(small):
    """Goes on with the run, for so many rounds or to its end."""

    def on(rounds=None):
        federation = Federation.load(small.kit / "server" / "federation.toml")
        with small.guards() as guards:
            callbacks = [] if rounds is None else [Stop(rounds)]
            how = {"out": small.kit / "run", "resume": True, "poll": 0.0, "callbacks": callbacks}
            try:
                return federate(federation, guards.transport(federation), **how)
            except KeyboardInterrupt:
                return None

    return on


@pytest.fixture
def lab(small):
    return client_folder(small.kit, "lab")


def test_a_backup_is_restored_and_an_older_one_spends_nothing(small, go, lab, monkeypatch):
    go(1)
    title = "Back up and restore a ledger"
    assert run_block(title, lab, monkeypatch) == 0
    shutil.copy(lab / "backup.ledger", lab / "old.ledger")
    (lab / "client.ledger").write_bytes(b"a broken disk")
    for left in lab.glob("client.ledger-*"):
        left.unlink()
    shutil.copy(lab / "backup.ledger", lab / "client.ledger")
    go(2)
    counted = set(small.counted("lab"))
    for left in lab.glob("client.ledger-*"):
        left.unlink()
    shutil.copy(lab / "old.ledger", lab / "client.ledger")
    with small.guards() as guards, pytest.raises(VerificationError, match="older"):
        guards.carry(hello_message("lab", run="spring"))
    assert len(counted) > 1


def test_a_node_gets_a_new_key_in_mid_run(small, go, lab, tmp_path):
    go(1)
    path = small.kit / "server" / "federation.toml"
    public = make_node_key(tmp_path / "node.key")
    old = (lab / "node.pub").read_text().strip()
    path.write_text(path.read_text().replace(old, public))
    script = Script(lambda: _finish(small.kit / "server" / "run"))
    before = {
        key: (place, "lab") for place, key in enumerate(small.federation.fingerprints.values())
    }
    script.registered = {small.federation.fingerprints["lab"]: (0, "lab")}
    _service(small, script).run()
    now = Federation.load(path).fingerprints["lab"]
    assert now != before
    assert {key for key, (_, name) in script.registered.items() if name == "lab"} == {now}
    assert go().is_finished
    assert verify_run(small.kit / "run").holds


def test_certificates_are_renewed_and_who_has_the_new_ones_accepts_both(small, lab, monkeypatch):
    tls = small.kit / "server" / "tls"
    assert run_block("Renew keys and certificates", tls.parent, monkeypatch) == 0
    assert _shakes_hands(tls, tls / "next" / "ca.crt")
    assert _shakes_hands(tls / "next", tls / "next" / "ca.crt")
    assert not _shakes_hands(tls / "next", lab / "ca.crt")
    assert main(["flower", "renew", str(tls)]) == 2  # there is a next one


def _shakes_hands(server, authority):
    ours, theirs = socket.socketpair()
    offers = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    offers.load_cert_chain(server / "server.pem", server / "server.key")
    asks = ssl.create_default_context(cadata=authority.read_text())

    def answer():
        try:
            with offers.wrap_socket(ours, server_side=True):
                pass
        except OSError:
            ours.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with asks.wrap_socket(theirs, server_hostname="localhost"):
            return True
    except ssl.SSLError:
        return False
    finally:
        theirs.close()
        thread.join()


def test_a_revoked_client_is_asked_nothing_and_let_in_no_more(small, go):
    go(1)
    counted = small.counted("lab")
    path = small.kit / "server" / "federation.toml"
    (line,) = block("Revoke a client")
    path.write_text(f"{line}\n{path.read_text()}")
    script = Script(lambda: _finish(small.kit / "server" / "run"))
    script.registered = {
        key: (i, c) for i, (c, key) in enumerate(small.federation.fingerprints.items())
    }
    _service(small, script).run()
    assert [name for _, name in script.registered.values()] == ["ward 7"]
    run = go()
    assert small.counted("lab") == counted
    lost = [one["lost"].get("lab", {}) for one in read_log(run.path / "exchange.jsonl")[1:]]
    assert {why for draws in lost for why in draws.values()} == {"revoked by the operator"}
    assert verify_run(run.path).holds
    path.write_text(path.read_text().replace('"lab"]', '"nobody"]', 1))
    with pytest.raises(InputError, match="revoked = 'nobody'"):
        Federation.load(path)


def test_a_guard_of_another_version(small, go, lab, monkeypatch):
    go(1)
    assert run_block("Upgrade a guard", lab, monkeypatch) == 0
    said = read_json(small.kit / "run" / "client-ledgers.json")
    assert {one["dpcohort"] for one in said.values()} == {__import__("dpcohort").__version__}
    monkeypatch.setattr("dpcohort.deploy.guard._handler.PROTOCOL", PROTOCOL + 1)
    words = f"this guard speaks protocol {PROTOCOL + 1}"
    with pytest.raises(InputError, match=rf"lab: malformed: .*{words}"):
        go()
    monkeypatch.undo()
    assert go().is_finished


def test_a_client_moves_to_another_machine(small, go, lab):
    go(1)
    shutil.move(lab, small.kit / "moved")
    with small.guards() as guards, pytest.raises(InputError):
        federate(
            small.federation, guards.transport(small.federation), out=small.kit / "new", poll=0.0
        )
    shutil.move(small.kit / "moved", lab)  # where the new machine has it
    assert go().is_finished
    assert verify_run(small.kit / "run").holds
