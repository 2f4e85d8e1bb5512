"""Trust in one certificate: compared before a byte is sent, pinned afterwards."""

import socket
import ssl

import pytest

from coordinator.joining.certificate import Certificate
from fleet import pin
from fleet.address import Address
from fleet.config import StateDir
from tests.impostor import Impostor
from tests.ports import free_port


@pytest.fixture
def certificate(tmp_path):
    return Certificate.of(StateDir(tmp_path / "right"))


@pytest.fixture
def other(tmp_path):
    return Certificate.of(StateDir(tmp_path / "other"))


@pytest.fixture
def serve():
    servers = []

    def start(*args, **more):
        servers.append(Impostor(*args, **more))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def at(server):
    return Address("127.0.0.1", server.port)


def test_the_right_certificate_is_met_and_comes_back_as_it_is_on_disk(certificate, serve):
    server = serve(certificate)
    met = pin.meet(at(server), certificate.fingerprint)
    assert ssl.PEM_cert_to_DER_cert(met) == ssl.PEM_cert_to_DER_cert(certificate.path.read_text())
    server.close()
    assert server.received == b""


def test_another_certificate_is_told_as_an_impostor_which_got_not_a_byte(certificate, other, serve):
    server = serve(other)
    with pytest.raises(pin.ImpostorError, match="another coordinator"):
        pin.meet(at(server), certificate.fingerprint)
    server.close()
    assert (server.connections, server.received) == (1, b"")


def test_a_pinned_context_refuses_another_certificate_of_the_same_names(certificate, other, serve):
    server = serve(other)
    context = pin.context(certificate.path.read_text())
    with (
        socket.create_connection(("127.0.0.1", server.port), 5) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(plain)
    server.close()
    assert server.received == b""


def test_a_pinned_context_accepts_the_certificate_itself_strictly(certificate, serve):
    server = serve(certificate)
    context = pin.context(certificate.path.read_text())
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 has it by itself
    with (
        socket.create_connection(("127.0.0.1", server.port), 5) as plain,
        context.wrap_socket(plain) as secured,
    ):
        assert secured.version() == "TLSv1.3"


def test_a_pinned_context_trusts_none_of_the_systems_certificates(certificate):
    trusted = pin.context(certificate.path.read_text()).get_ca_certs(binary_form=True)
    assert trusted == [ssl.PEM_cert_to_DER_cert(certificate.path.read_text())]


def test_older_tls_is_not_spoken(certificate, serve):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.load_cert_chain(certificate.path, certificate.key_path)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(pin.UnreachableError, match="not as a coordinator"):
        pin.meet(at(serve(context=old)), certificate.fingerprint)


def test_a_server_without_tls_is_told_as_no_coordinator(certificate, serve):
    with pytest.raises(pin.UnreachableError, match=r"127\.0\.0\.1"):
        pin.meet(at(serve()), certificate.fingerprint)


def test_nobody_there_is_told(certificate):
    port = free_port()
    with pytest.raises(pin.UnreachableError, match=f"127.0.0.1:{port}: nothing listens there"):
        pin.meet(Address("127.0.0.1", port), certificate.fingerprint)


def test_a_name_that_no_machine_has_is_told(certificate):
    with pytest.raises(pin.UnreachableError, match="no machine of this name"):
        pin.meet(Address("no-such-host.invalid"), certificate.fingerprint)


def test_a_server_that_takes_connections_and_says_nothing_is_given_up(certificate, monkeypatch):
    monkeypatch.setattr(pin, "HANDSHAKE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(pin.UnreachableError, match="no answer"):
        pin.meet(Address("127.0.0.1", silent.getsockname()[1]), certificate.fingerprint)
