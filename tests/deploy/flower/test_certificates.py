# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import stat
import sys
from datetime import UTC, datetime, timedelta

import pytest

from dpcohort.deploy.flower.certificates import (
    check_certificate,
    key_fingerprint,
    make_certificates,
    make_node_key,
)
from dpcohort.errors import FileFormatError, InputError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"), hosts=["fl.example.org", "127.0.0.1"])


@pytest.mark.parametrize("host", ["fl.example.org", "127.0.0.1"])
def test_a_certificate_holds_for_its_hosts(made, host):
    check_certificate(made / "server.pem", authority=made / "ca.crt", host=host)


def test_an_expired_certificate_is_named_with_its_day(made):
    later = datetime.now(UTC) + timedelta(days=31)
    with pytest.raises(FileFormatError, match=r"server\.pem: the certificate expired on 20"):
        check_certificate(
            made / "server.pem", authority=made / "ca.crt", host="127.0.0.1", at=later
        )


def test_a_certificate_of_tomorrow_names_the_clock(made):
    earlier = datetime.now(UTC) - timedelta(days=2)
    with pytest.raises(FileFormatError, match="clock"):
        check_certificate(
            made / "server.pem", authority=made / "ca.crt", host="127.0.0.1", at=earlier
        )


def test_another_authority_is_refused(made, tmp_path):
    make_certificates(tmp_path)
    with pytest.raises(FileFormatError, match="not signed by the authority"):
        check_certificate(made / "server.pem", authority=tmp_path / "ca.crt", host="127.0.0.1")


def test_another_host_is_refused_with_those_it_is_for(made):
    with pytest.raises(FileFormatError, match=r"for fl\.example\.org, 127\.0\.0\.1, not for other"):
        check_certificate(made / "server.pem", authority=made / "ca.crt", host="other")


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nAA\n", b"\x00\xff"])
def test_what_is_no_certificate_is_said(made, tmp_path, content):
    path = tmp_path / "odd.pem"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"odd\.pem: it is not a certificate"):
        check_certificate(path, authority=made / "ca.crt", host="127.0.0.1")
    with pytest.raises(FileFormatError, match="cannot be read"):
        check_certificate(tmp_path / "none", authority=made / "ca.crt", host="127.0.0.1")


def test_private_keys_are_the_owners_alone_and_never_replaced(made, tmp_path):
    make_node_key(tmp_path / "node.key")
    for path in (made / "server.key", tmp_path / "node.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = (tmp_path / "node.key").read_bytes()
    with pytest.raises(InputError, match=r"node\.key cannot be written"):
        make_node_key(tmp_path / "node.key")
    assert (tmp_path / "node.key").read_bytes() == before


def test_the_authoritys_key_is_not_kept(made):
    assert sorted(p.name for p in made.iterdir()) == [
        "ca.crt",
        "server.key",
        "server.pem",
    ]


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


@pytest.mark.parametrize("hosts", [[], [""]])
def test_a_certificate_needs_hosts(tmp_path, hosts):
    with pytest.raises(InputError, match="hosts"):
        make_certificates(tmp_path, hosts=hosts)
    assert list(tmp_path.iterdir()) == []


def test_without_cryptography_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "dpcohort.deploy.flower.certificates")
    with pytest.raises(InputError, match=r"dpcohort\[flower\]"):
        importlib.import_module("dpcohort.deploy.flower.certificates")
