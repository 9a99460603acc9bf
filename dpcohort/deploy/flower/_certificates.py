# SPDX-License-Identifier: Apache-2.0
"""TLS certificates and node keys for a trial.

A trial's certificates are made and its authority's key is thrown away, so nobody can sign another
server into the same federation. A real federation brings its own certificates. Needs
``cryptography``, which comes with Flower.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat

from dpcohort._validate import whole_number
from dpcohort.atomic_file import atomic_writer
from dpcohort.deploy.guard._files import write_secret
from dpcohort.errors import InputError

_AUTHORITY = "dpcohort trial authority"


def make_certificates(
    folder: Path, *, hosts: Sequence[str] = ("127.0.0.1", "localhost"), days: int = 30
) -> Path:
    """Write an authority's certificate and a server certificate for these hosts.

    ``ca.crt`` is the authority's certificate, which every client gets; ``server.pem`` the server's,
    with the names it may go by; ``server.key`` its private key, readable by its owner alone.

    Args:
        folder: where; it must be there.
        hosts: names and addresses by which nodes reach the server.
        days: how long they are valid.

    Returns:
        The folder.

    Raises:
        InputError: a host is empty.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sorted(path.name for path in make_certificates(Path(folder)).iterdir())
        ['ca.crt', 'server.key', 'server.pem']
    """
    whole_number("days", days, at_least=1, at_most=3650)
    if not hosts or not all(hosts):
        raise InputError("hosts", given=list(hosts), allowed="one or more names or addresses")
    authority, server = _new_key(), _new_key()
    signer = authority.public_key()
    root = _certificate(
        _AUTHORITY,
        signer,
        authority,
        days,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage("key_cert_sign", "crl_sign"), True),
        (x509.SubjectKeyIdentifier.from_public_key(signer), False),
    )
    own = _certificate(
        hosts[0],
        server.public_key(),
        authority,
        days,
        (x509.SubjectAlternativeName([_host(host) for host in hosts]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), False),
    )
    _write(folder / "ca.crt", root)
    _write(folder / "server.pem", own)
    _write_secret(folder / "server.key", server, PrivateFormat.PKCS8)
    return folder


def renew_certificates(folder: Path, *, days: int = 30) -> Path:
    """Write new certificates for the same hosts into the folder ``next``, which must not be there.

    Its ``ca.crt`` holds the new authority and the old ones: who has it accepts a server with
    either certificate, so that nodes and server need not change at one moment.

    Args:
        folder: with the present ``ca.crt`` and ``server.pem``.
        days: how long the new ones are valid.

    Returns:
        The folder ``next``.

    Raises:
        InputError: the present ones cannot be read, or there is a ``next`` already.
    """
    try:
        old = (folder / "ca.crt").read_bytes()
        own = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (folder / "next").mkdir(mode=0o700)
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise InputError.because(
            f"{folder}: no new certificates were made ({error}). Needed are ca.crt and server.pem "
            "of a kit, and no folder next."
        ) from None
    hosts = [str(name.value) for name in names]
    made = make_certificates(folder / "next", hosts=hosts, days=days)
    _write(made / "ca.crt", (made / "ca.crt").read_bytes() + old)
    return made


def make_node_key(path: Path) -> str:
    """Write a node's private key (OpenSSH, P-384) and beside it the public one; the public text.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make_node_key(Path(folder) / "node.key").split()[0]
        'ecdsa-sha2-nistp384'
    """
    key = _new_key()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write_secret(path, key, PrivateFormat.OpenSSH)
    _write(path.with_suffix(".pub"), public + b"\n")
    return public.decode()


def key_fingerprint(public: str | bytes) -> str:
    """SHA-256 of a public key, the same whether it is written as OpenSSH or as PEM.

    Raises:
        InputError: it is not a public key on a NIST curve, which Flower asks for.
    """
    content = public.encode() if isinstance(public, str) else public
    is_pem = content.lstrip().startswith(b"-----")
    load = serialization.load_pem_public_key if is_pem else serialization.load_ssh_public_key
    try:
        key: object = load(content.strip())
    except Exception:  # the library raises many kinds for what is not a key
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        allowed = "a public key as in node.pub: ecdsa-sha2-nistp384 AAAA..."
        raise InputError("public key", given=content[:40].decode(errors="replace"), allowed=allowed)
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*allowed: str) -> x509.KeyUsage:
    every = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement "
        "key_cert_sign crl_sign encipher_only decipher_only"
    )
    return x509.KeyUsage(**{use: use in allowed for use in every.split()})


def _certificate(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    authority: ec.EllipticCurvePrivateKey,
    days: int,
    *extensions: tuple[x509.ExtensionType, bool],
) -> bytes:
    """A certificate of a public key, signed by the trial's authority, in PEM.

    Each extension comes with whether it is critical.
    """

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text[:64])])

    # An hour back: clocks of two machines differ.
    begin = datetime.now(UTC) - timedelta(hours=1)
    builder = x509.CertificateBuilder(
        issuer_name=named(_AUTHORITY),
        subject_name=named(subject),
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=begin,
        not_valid_after=begin + timedelta(days=days),
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(authority, hashes.SHA384()).public_bytes(Encoding.PEM)


def _write(path: Path, content: bytes) -> None:
    with atomic_writer(path, binary=True) as file:
        file.write(content)


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    try:
        write_secret(path, key.private_bytes(Encoding.PEM, form, serialization.NoEncryption()))
    except OSError as error:
        raise InputError.because(
            f"{path} cannot be written: {error.strerror or error}. Choose another place."
        ) from None
