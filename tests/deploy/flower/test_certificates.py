# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import ssl
import stat

import pytest

from dpcohort.deploy.flower._certificates import key_fingerprint, make_certificates, make_node_key
from dpcohort.errors import InputError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"), hosts=["fl.example.org", "127.0.0.1"])


def handshake(made, *, authority, host):
    """A client's handshake with a server of these certificates, in memory."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made / "server.pem", made / "server.key")
    client = ssl.create_default_context(cafile=str(authority / "ca.crt"))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.wrap_bio(up, down, server_side=True)
    asking = client.wrap_bio(down, up, server_hostname=host)
    for end in (asking, server, asking, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()


@pytest.mark.parametrize("host", ["fl.example.org", "127.0.0.1"])
def test_a_certificate_holds_for_its_hosts(made, host):
    handshake(made, authority=made, host=host)


def test_another_authority_and_another_host_are_refused(made, tmp_path):
    make_certificates(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made, authority=tmp_path, host="127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="other"):
        handshake(made, authority=made, host="other")


def test_private_keys_are_the_owners_alone_and_never_replaced(made, tmp_path):
    make_node_key(tmp_path / "node.key")
    for path in (made / "server.key", tmp_path / "node.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = (tmp_path / "node.key").read_bytes()
    with pytest.raises(InputError, match=r"node\.key cannot be written"):
        make_node_key(tmp_path / "node.key")
    assert (tmp_path / "node.key").read_bytes() == before


def test_the_authoritys_key_is_not_kept(made):
    assert sorted(p.name for p in made.iterdir()) == ["ca.crt", "server.key", "server.pem"]


def test_a_key_has_one_fingerprint_in_both_spellings(tmp_path):
    from cryptography.hazmat.primitives import serialization

    public = make_node_key(tmp_path / "node.key")
    key = serialization.load_ssh_public_key(public.encode())
    pem = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert key_fingerprint(public) == key_fingerprint(pem) == key_fingerprint(f"{public} me@here\n")
    other = make_node_key(tmp_path / "other.key")
    assert key_fingerprint(other) != key_fingerprint(public)


@pytest.mark.parametrize("text", ["", "ssh-ed25519 AAAA", "ecdsa-sha2-nistp384 !!", "-----BEGIN X"])
def test_what_is_no_key_is_refused(text):
    with pytest.raises(InputError, match=r"node\.pub"):
        key_fingerprint(text)
