"""A certificate authority for the length of a cloud, and certificates of host names, Google's among
them.

Clients that use these names unchanged reach the bed, and check its certificate as they check
Google's.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

API_HOSTS = (
    "compute.googleapis.com",
    "oauth2.googleapis.com",
    "iam.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "www.googleapis.com",
)
METADATA_HOST = "metadata.google.internal"
_SYSTEM_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
BUNDLE = str(_SYSTEM_BUNDLE)
"""Where machines have the authorities that they trust, the bed's among them."""


class Authority:
    """Signs the bed's certificate. `image` is the directory that makes a machine trust it."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="simcloud-ca-")
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "simcloud")])
        self.certificate = self._sign(self._name, self._key.public_key())
        self.image = Path(self._directory.name, "image")
        bundle = self.image / BUNDLE.lstrip("/")
        bundle.parent.mkdir(parents=True)
        system = _SYSTEM_BUNDLE.read_bytes() if _SYSTEM_BUNDLE.exists() else b""
        bundle.write_bytes(system + _pem(self.certificate))
        self.bundle = bundle

    def close(self) -> None:
        self._directory.cleanup()

    def server_context(self, hosts: Sequence[str] = API_HOSTS) -> ssl.SSLContext:
        """TLS for a server that has all of these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        certificate = self._sign(name, key.public_key(), hosts)
        chain = Path(self._directory.name, "server.pem")
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        chain.write_bytes(private + _pem(certificate))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(chain)
        return context

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, hosts: Sequence[str] = ()
    ) -> x509.Certificate:
        """The certificate of a server with these names; without names, that of the authority."""
        now = datetime.now(timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if not hosts:
            usage = x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            )
            builder = builder.add_extension(usage, critical=True)
        else:
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
