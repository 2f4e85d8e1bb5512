"""The coordinator's certificate: made once, kept, private."""

import hashlib
import socket
import ssl
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.joining.certificate import Certificate
from fleet.config import StateDir
from fleet.errors import StorageError


@pytest.fixture
def state(tmp_path):
    return StateDir(tmp_path)


def test_it_is_made_once_and_kept(state):
    first = Certificate.of(state)
    assert Certificate.of(state) == first
    assert first.fingerprint == hashlib.sha256(ssl.PEM_cert_to_DER_cert(first.path.read_text())).digest()


def test_two_fleets_have_different_ones(tmp_path):
    fingerprints = {Certificate.of(StateDir(tmp_path / name)).fingerprint for name in "ab"}
    assert len(fingerprints) == 2


def test_its_key_is_for_the_owner_alone_even_out_of_a_backup(state):
    made = Certificate.of(state)
    assert stat.S_IMODE(made.key_path.stat().st_mode) == 0o600
    made.key_path.chmod(0o644)
    Certificate.of(state)
    assert stat.S_IMODE(made.key_path.stat().st_mode) == 0o600


def test_it_is_p256_names_this_host_and_does_not_end(state):
    found = x509.load_pem_x509_certificate(Certificate.of(state).path.read_bytes())
    key = found.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert socket.gethostname() in names.get_values_for_type(x509.DNSName)
    assert (found.not_valid_before_utc.year, found.not_valid_after_utc.year) == (2000, 2999)


@pytest.mark.parametrize("name", ["certificate.pem", "certificate.key"])
def test_a_damaged_file_is_told_and_not_replaced(state, name):
    Certificate.of(state)
    (state.root / name).write_text("rubbish")
    with pytest.raises(StorageError, match="damaged: remove both"):
        Certificate.of(state)
    assert (state.root / name).read_text() == "rubbish"


def test_a_certificate_without_its_key_is_made_anew(state):
    first = Certificate.of(state)
    first.key_path.unlink()
    assert Certificate.of(state).fingerprint != first.fingerprint
