"""Asking to be let in, at a real gate with a real doorkeeper."""

from dataclasses import replace

import pytest

from coordinator.joining.certificate import Certificate
from fleet import __version__, pin
from fleet.config import StateDir
from fleet.errors import AuthError, NoCoordinatorError
from fleet.messages import Host
from tests.gatekeeper import Gatekeeper
from worker import enrol as enrolment
from worker.enrol import Applicant, enrol
from worker.finding import Met
from worker.identity import Identity
from worker.road import Road


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Gatekeeper(StateDir(tmp_path_factory.mktemp("fleet")))
    yield fleet
    fleet.close()


@pytest.fixture
def met(fleet):
    return Met(certificate=fleet.certificate.path.read_text(), addresses=(fleet.address,))


@pytest.fixture
def applicant(tmp_path):
    host = Host(name=tmp_path.name, chip="M4", memory_bytes=16 << 30, version=__version__)
    return Applicant(identity=Identity.of(StateDir(tmp_path)), host=host)


def works(credentials):
    client = Road(credentials.certificate, credentials.places).client(credentials.user, credentials.password)
    try:
        return client.ping()
    finally:
        client.close()


def test_a_token_is_enough_to_get_a_user_of_ones_own(fleet, met, applicant):
    credentials = enrol(met, fleet.token, applicant, None)
    assert (credentials.user, credentials.name) == (applicant.identity.wid, applicant.host.name)
    assert (credentials.coordinator, credentials.api_port) == ("studio", 4433)
    assert credentials.parsed == fleet.token
    assert works(credentials)
    assert fleet.joined[-1].host == applicant.host


def test_a_secret_that_is_wrong_is_an_error_of_trust(fleet, met, applicant):
    with pytest.raises(AuthError, match="does not accept this token"):
        enrol(met, replace(fleet.token, secret="0" * 32), applicant, None)


def test_after_a_new_token_those_who_joined_come_back_with_what_they_kept(fleet, met, applicant):
    old = fleet.token
    credentials = enrol(met, old, applicant, None)
    fleet.users.rotate(fleet.client)
    again = enrol(met, old, applicant, credentials)
    assert works(again)
    with pytest.raises(AuthError, match="does not accept this token any more: `fleet join TOKEN`"):
        enrol(met, old, applicant, None)


def test_a_removed_mac_is_told_so_and_a_new_token_lets_it_in(fleet, met, applicant):
    credentials = enrol(met, fleet.token, applicant, None)
    fleet.kick(credentials.user)
    with pytest.raises(AuthError, match=r"removed from the fleet \(`fleet kick`\).*`fleet join TOKEN` with that"):
        enrol(met, fleet.token, applicant, credentials)
    fleet.users.rotate(fleet.client)
    assert works(enrol(met, fleet.token, applicant, credentials))


def test_what_is_kept_of_another_fleet_is_not_shown_to_this_one(fleet, met, applicant):
    credentials = enrol(met, fleet.token, applicant, None)
    elsewhere = replace(credentials, token=replace(fleet.token, fingerprint=bytes(32)).format(), password="0" * 32)
    assert works(enrol(met, fleet.token, applicant, elsewhere))


def test_another_version_is_told(fleet, met, applicant):
    old = replace(applicant, host=replace(applicant.host, version="0.0.1"))
    with pytest.raises(AuthError, match="install the same version on both"):
        enrol(met, fleet.token, old, None)


def test_a_coordinator_that_does_not_look_is_told_after_a_while(fleet, met, applicant, monkeypatch):
    monkeypatch.setattr(enrolment, "REPLY_S", 0.5)
    fleet.looks = False
    with pytest.raises(NoCoordinatorError, match="gave no answer"):
        enrol(met, fleet.token, applicant, None)
    fleet.looks = True


def test_the_certificate_that_was_met_is_the_only_one_trusted_when_asking(fleet, met, applicant, tmp_path, monkeypatch):
    monkeypatch.setattr(enrolment, "REPLY_S", 0.3)
    other = Certificate.of(StateDir(tmp_path / "other"))
    with pytest.raises(NoCoordinatorError, match="broker is away"):
        enrol(replace(met, certificate=other.path.read_text()), fleet.token, applicant, None)
    assert pin.meet(fleet.address, fleet.certificate.fingerprint)


def test_a_broker_that_is_replaced_meanwhile_is_asked_again(fleet, met, applicant):
    fleet.broker.restart()
    assert works(enrol(met, fleet.token, applicant, None))
