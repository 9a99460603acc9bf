# SPDX-License-Identifier: Apache-2.0
"""TLS certificates and node keys for a trial, and the checks of those that are given.

A trial's certificates are made and its authority's key is thrown away, so nobody can sign another
server into the same federation. A real federation brings its own certificates; they are checked the
same way. Needs ``cryptography``, which comes with Flower.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from dpcohort._validate import whole_number
from dpcohort.atomic_file import atomic_writer
from dpcohort.errors import FileFormatError, InputError

__all__ = [
    "ServerCertificate",
    "check_certificate",
    "key_fingerprint",
    "make_certificates",
    "make_node_key",
]

_MISSING = (
    "Certificates and keys are made with the package cryptography, which comes with Flower and is "
    'not installed. Get it with: python -m pip install "dpcohort[flower]"'
)


@dataclass(frozen=True, kw_only=True)
class ServerCertificate:
    """Where the files of a server's certificate are.

    Attributes:
        authority: the authority's certificate; every client gets it.
        certificate: the server's certificate, with the names it may go by.
        key: its private key, readable by its owner alone.
    """

    authority: Path
    certificate: Path
    key: Path


def make_certificates(
    folder: Path, *, hosts: Sequence[str] = ("127.0.0.1", "localhost"), days: int = 30
) -> ServerCertificate:
    """Write an authority's certificate and a server certificate for these hosts.

    Args:
        folder: where; it must be there.
        hosts: names and addresses by which nodes reach the server.
        days: how long they are valid.

    Raises:
        InputError: a host is empty, or ``cryptography`` is missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = make_certificates(Path(folder))
        ...     check_certificate(made.certificate, authority=made.authority, host="127.0.0.1")
    """
    x509, ec = _modules()
    whole_number("days", days, at_least=1, at_most=3650)
    if not hosts or not all(hosts):
        raise InputError("hosts", given=list(hosts), allowed="one or more names or addresses")
    ca_key = ec.generate_private_key(ec.SECP384R1())
    server_key = ec.generate_private_key(ec.SECP384R1())
    ca_name = _name(x509, "dpcohort trial authority")
    ca = _builder(x509, ca_name, ca_name, ca_key.public_key(), days)
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(_usage(x509, signs=True), critical=True)
    ca = ca.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False
    )
    own = _builder(x509, _name(x509, hosts[0]), ca_name, server_key.public_key(), days)
    names = x509.SubjectAlternativeName([_host(x509, host) for host in hosts])
    own = own.add_extension(names, critical=False)
    own = own.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    own = own.add_extension(_usage(x509, signs=False), critical=True)
    server_auth = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    own = own.add_extension(server_auth, critical=False)
    own = own.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
    )
    made = ServerCertificate(
        authority=folder / "ca.crt", certificate=folder / "server.pem", key=folder / "server.key"
    )
    _write(made.authority, _pem(_signed(ca, ca_key)))
    _write(made.certificate, _pem(_signed(own, ca_key)))
    _write(made.key, _private(server_key), secret=True)
    return made


def make_node_key(path: Path) -> str:
    """Write a node's private key (OpenSSH, P-384) and beside it the public one; the public text.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make_node_key(Path(folder) / "node.key").split()[0]
        'ecdsa-sha2-nistp384'
    """
    _, ec = _modules()
    from cryptography.hazmat.primitives import serialization

    key = ec.generate_private_key(ec.SECP384R1())
    content: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public: bytes = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(path, content, secret=True)
    _write(path.with_suffix(".pub"), public + b"\n")
    return public.decode()


def key_fingerprint(public: str | bytes) -> str:
    """SHA-256 of a public key, the same whether it is written as OpenSSH or as PEM.

    Raises:
        InputError: it is not a public key on a NIST curve, which Flower asks for.
    """
    _, ec = _modules()
    from cryptography.hazmat.primitives import serialization

    content = public.encode() if isinstance(public, str) else public
    reader = (
        serialization.load_pem_public_key
        if content.lstrip().startswith(b"-----")
        else serialization.load_ssh_public_key
    )
    try:
        key = reader(content.strip())
    except Exception:  # the library raises many kinds for what is not a key
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        allowed = "a public key as in node.pub: ecdsa-sha2-nistp384 AAAA..."
        raise InputError("public key", given=content[:40].decode(errors="replace"), allowed=allowed)
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def check_certificate(
    certificate: Path, *, authority: Path, host: str, at: datetime | None = None
) -> None:
    """Refuse a server certificate that nodes would not accept, before anything is started.

    Args:
        certificate: the server's.
        authority: what the nodes are given to check it with.
        host: the name or address by which they reach it.
        at: when; now by default.

    Raises:
        InputError: expired, not valid yet, of another authority, or for other hosts.
    """
    x509, _ = _modules()
    now = datetime.now(UTC) if at is None else at
    own, ca = (_read(x509, path) for path in (certificate, authority))
    for path, found in ((certificate, own), (authority, ca)):
        if now > found.not_valid_after_utc:
            raise FileFormatError(
                path,
                f"the certificate expired on {found.not_valid_after_utc:%Y-%m-%d}. Make new ones "
                "and give every client the new ca.crt.",
            )
        if now < found.not_valid_before_utc:
            begin = f"{found.not_valid_before_utc:%Y-%m-%d %H:%M}"
            raise FileFormatError(
                path, f"the certificate is valid from {begin} UTC on. Check this machine's clock."
            )
    try:
        own.verify_directly_issued_by(ca)
    except Exception:  # of another name, another key, or a signature that does not hold
        raise FileFormatError(
            certificate, f"it was not signed by the authority in {authority}. Use its own ca.crt."
        ) from None
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if _host(x509, host) not in list(names):
        listed = ", ".join(str(name.value) for name in names)
        raise FileFormatError(
            certificate, f"it is for {listed}, not for {host}. Make one that names {host}."
        )


def _modules() -> tuple[Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError:
        raise InputError.because(_MISSING) from None
    found: tuple[ModuleType, ModuleType] = (x509, ec)
    return found


def _name(x509: Any, text: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text[:64])])


def _host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(x509: Any, subject: Any, issuer: Any, key: Any, days: int) -> Any:
    # An hour back: clocks of two machines differ.
    begin = datetime.now(UTC) - timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
    )


def _usage(x509: Any, *, signs: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: Any, key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA384())


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    content: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return content


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    content: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return content


def _read(x509: Any, path: Path) -> Any:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise FileFormatError(path, f"it cannot be read: {error.strerror}.") from None
    except ValueError:
        raise FileFormatError(path, "it is not a certificate in PEM.") from None


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    if not secret:
        with atomic_writer(path, binary=True) as file:
            file.write(content)
        return
    # Never readable by others, not even while it is written; never over another key.
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError.because(
            f"{path} cannot be written: {error.strerror or error}. Choose another place."
        ) from None
