"""The coordinator's certificate: self-signed, made once and kept. Workers know it by its fingerprint."""

from __future__ import annotations

import datetime
import socket
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fleet import private
from fleet.config import StateDir
from fleet.errors import StorageError

#: Whoever pins a certificate needs no dates, and a Mac whose clock is wrong must get in all the same.
_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(2999, 12, 31, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The files that a TLS server needs."""

    #: certificate, PEM
    path: Path
    #: its private key, PEM, readable by its owner alone
    key_path: Path
    #: sha256 of the certificate (DER)
    fingerprint: bytes

    @classmethod
    def of(cls, state: StateDir) -> Certificate:
        """The state folder's certificate; made when it has none. StorageError when it is damaged."""
        path, key_path = state.root / "certificate.pem", state.root / "certificate.key"
        if private.read(path) is None or private.read(key_path) is None:
            certificate, key = _make()
            private.write(key_path, key)
            private.write(path, certificate)
        try:
            found = x509.load_pem_x509_certificate(path.read_bytes())
            serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise StorageError(
                f"{path} or {key_path.name} is damaged: remove both; every Mac then joins again with a new token"
            ) from error
        key_path.chmod(0o600)  # as it may come out of a backup
        return cls(path=path, key_path=key_path, fingerprint=found.fingerprint(hashes.SHA256()))


def _make() -> tuple[str, str]:
    """A new certificate and its key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mlx-fleet")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    host = socket.gethostname().encode("ascii", "ignore").decode()[:253] or "localhost"
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host), x509.DNSName("localhost")]), critical=False)
        # It is its own root: those who trust exactly it need it to be one, Python 3.13 strictly.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, secret.decode()
