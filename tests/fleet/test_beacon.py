"""A beacon keeps a service advertised; the air is a fake that notes what it was told."""

import time
from types import SimpleNamespace

import pytest

from fleet import beacon
from fleet.beacon import Beacon
from fleet.interfaces import OwnAddress

LAN = (OwnAddress(ip="192.0.2.1", index=2, prefix=24),)
OTHER = (OwnAddress(ip="192.0.2.9", index=2, prefix=24),)


class Network:
    """Fails to open for the first `broken` times."""

    def __init__(self, broken=0):
        self.broken = broken
        self.addresses = LAN
        self.told = []

    def open(self):
        if self.broken:
            self.broken -= 1
            raise OSError("no network")
        return self

    def register_service(self, info, *, allow_name_change):
        assert allow_name_change
        info.name = f"{info.name}-2"
        self.told.append(("register", info))

    def update_service(self, info):
        self.told.append(("update", info))

    def update_interfaces(self):
        self.told.append(("interfaces", None))

    def close(self):
        self.told.append(("close", None))

    def words(self):
        return [word for word, _ in self.told]


def start(network, text=None):
    return Beacon(
        "studio",
        text or {"state": "present"},
        open_air=network.open,
        describe=lambda name, ips, text: SimpleNamespace(name=name, ips=ips, text=text),
        addresses=lambda: network.addresses,
    )


def until(what):
    deadline = time.monotonic() + 5
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(beacon, "POLL_S", 0.02)


def test_it_registers_follows_a_change_of_name_and_says_goodbye():
    network = Network()
    light = start(network)
    until(lambda: network.words() == ["register"])
    until(lambda: light.full_name == "studio-2")
    light.close()
    assert network.words() == ["register", "close"]


def test_another_state_is_said_under_the_name_that_it_got_and_the_same_is_not_said_again():
    network = Network()
    light = start(network)
    until(lambda: light.full_name == "studio-2")
    light.say({"state": "present"})
    light.say({"state": "joined"})
    until(lambda: network.words() == ["register", "update"])
    light.close()
    (_, first), (_, second) = network.told[:2]
    assert (second.name, second.text["state"]) == ("studio-2", "joined")
    assert first.text["n"] != second.text["n"], "no two announcements are equal"
    assert network.words() == ["register", "update", "close"]


def test_new_addresses_are_said_before_new_interfaces_announce_them():
    network = Network()
    light = start(network)
    until(lambda: network.words() == ["register"])
    network.addresses = OTHER
    until(lambda: network.words() == ["register", "update", "interfaces"])
    light.close()
    assert network.told[1][1].ips == ["192.0.2.9"]


def test_it_tries_again_until_there_is_a_network():
    network = Network(broken=3)
    light = start(network)
    until(lambda: network.words() == ["register"])
    light.close()


def test_it_can_be_closed_while_there_is_none():
    network = Network(broken=1000)
    light = start(network)
    until(lambda: network.broken < 999)
    light.close()
    assert network.told == []
