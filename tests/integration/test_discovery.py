"""Finding and being found over real multicast DNS, between hosts in network namespaces."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.hosts import Network

OURS, OTHERS = "ab" * 32, "cd" * 32
#: For what happens on the network; a name is probed for about 1.5 s before it is advertised.
UP_S = 60.0


@pytest.fixture
def network():
    with Network() as network:
        yield network


class Peer:
    """A process of tests.mdns_peer on a host; the last line it printed is its state."""

    def __init__(self, host, *args):
        self.process = host.python("-m", "tests.mdns_peer", *map(str, args))
        self.state = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.state = json.loads(line)

    def say(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self._close()

    def end(self):
        self.process.stdin.close()
        self._close()

    def _close(self):
        self.process.wait(15)
        self._reader.join(5)
        self.process.stdout.close()
        self.process.stdin.close()

    def mac(self, name):
        return next((mac for mac in self.state.get("macs", []) if mac["name"] == name), None)


@pytest.fixture
def peer():
    peers = []

    def start(host, *args):
        peers.append(Peer(host, *args))
        return peers[-1]

    yield start
    for each in peers:
        if each.process.poll() is None:
            each.kill()
        each._close()


def find(host, fingerprint=OURS, timeout_s=3.0):
    """What a process on `host` finds, and in which time."""
    process = host.python("-m", "tests.mdns_peer", "find", fingerprint, str(timeout_s))
    out, _ = process.communicate(timeout=100)
    told = json.loads(out)
    return told["found"], told["took_s"]


def until(what, within_s=UP_S):
    """Waits until `what()` is true; it, and the seconds it took."""
    began = time.monotonic()
    while not (value := what()):
        assert time.monotonic() - began < within_s, "not in time"
        time.sleep(0.02)
    return value, time.monotonic() - began


def found_within(host, fingerprint=OURS, within_s=UP_S):
    """A process that seeks from now on finds a coordinator before the time is out."""
    return find(host, fingerprint, within_s)[0]


def both(host):
    """The two coordinators of a test, as a search finds them; an answer given before may be late."""
    return until(lambda: len(found := find(host, "-", 2.0)[0]) == 2 and found)[0]


def test_a_coordinator_is_found_at_once_and_only_the_one_that_is_meant(network, peer):
    lan = network.segment()
    studio, other, air = (network.host(name, lan) for name in ("studio", "other", "air"))
    peer(studio, "coordinator", "studio", OURS, 7633)
    peer(other, "coordinator", "other", OTHERS, 9000)
    assert found_within(air), "advertised"
    (found,), took_s = find(air, timeout_s=20.0)
    print(f"found in {took_s:.3f} s")
    assert took_s < 10
    assert found["name"] == "studio"
    assert (found["port"], found["api_port"]) == (7633, 7634)
    assert found["fingerprint"] == OURS
    assert found["addresses"][0] == studio.address
    assert found["addresses"][1].startswith("fe80::")
    assert "%" in found["addresses"][1], "a link-local address says on which link"
    assert len(found["addresses"]) == 2
    assert {each["name"] for each in both(air)} == {"studio", "other"}


def test_a_worker_is_seen_with_its_state_and_the_fleet_it_wants_until_it_says_goodbye(network, peer):
    lan = network.segment()
    studio, air = network.host("studio", lan), network.host("air", lan)
    watch = peer(studio, "coordinator", "studio", OURS, 7633)
    worker = peer(air, "worker", "anna's air", "0123456789ab", OTHERS)
    mac, _ = until(lambda: watch.mac("anna's air"))
    assert mac["wid"] == "0123456789ab"
    assert mac["chip"] == "Apple M4"
    assert mac["memory_bytes"] == 16 << 30
    assert mac["state"] == "present"
    assert mac["fleet"] == OTHERS[:16], "a wrong token shows"
    assert mac["addresses"][0] == air.address
    worker.say("joined")
    until(lambda: watch.mac("anna's air")["state"] == "joined")
    worker.end()
    until(lambda: watch.mac("anna's air") is None)


def test_another_address_is_told_soon(network, peer):
    lan = network.segment()
    studio, air = network.host("studio", lan), network.host("air", lan)
    watch = peer(studio, "coordinator", "studio", OURS, 7633)
    peer(air, "worker", "air", "0123456789ab", OURS)
    until(lambda: watch.mac("air"))
    new = air.change_address()
    _, took_s = until(lambda: watch.mac("air")["addresses"][0] == new)
    print(f"a worker's new address was seen after {took_s:.1f} s")
    new = studio.change_address()
    until(lambda: any(new in each["addresses"] for each in find(air)[0]))
    (found,), _ = find(air)
    assert [address for address in found["addresses"] if ":" not in address] == [new], "and the old one is gone"


def test_machines_of_one_name_that_start_together_are_told_apart(network, peer):
    lan = network.segment()
    hosts = [network.host(name, lan) for name in ("one", "two", "three")]
    peers = [peer(hosts[number], "coordinator", "studio", OURS if number else OTHERS, 7633) for number in (0, 1)]
    for number, host in enumerate(hosts):
        peer(host, "worker", "air", f"0123456789a{number}", OURS)
    until(lambda: [mac["name"] for mac in peers[0].state.get("macs", [])] == ["air", "air-2", "air-3"])
    assert [mac["addresses"][0] for mac in peers[0].state["macs"]] == [host.address for host in hosts]
    assert found_within(hosts[2], OURS)
    assert found_within(hosts[2], OTHERS)
    found = both(hosts[2])
    assert [each["name"] for each in found] == ["studio", "studio-2"]
    assert [each["fingerprint"] for each in found] == [OURS, OTHERS]
    for each, host in zip(found, (hosts[1], hosts[0]), strict=True):
        assert [text for text in each["addresses"] if ":" not in text] == [host.address]


@pytest.mark.soak
def test_one_identity_on_two_machines_is_seen_twice(network, peer):
    """A state folder was copied with everything in it: the name, the id and the key."""
    lan = network.segment()
    studio, one, two = (network.host(name, lan) for name in ("studio", "one", "two"))
    watch = peer(studio, "coordinator", "studio", OURS, 7633)
    peer(one, "worker", "air", "0123456789ab", OURS)
    until(lambda: watch.mac("air"))
    peer(two, "worker", "air", "0123456789ab", OURS)
    until(lambda: watch.mac("air-2"))


def test_after_a_kill_the_one_that_starts_again_is_found_and_not_what_it_left(network, peer):
    lan = network.segment()
    studio, air = network.host("studio", lan), network.host("air", lan)
    first = peer(studio, "coordinator", "studio", OURS, 7633)
    watch = peer(studio, "coordinator", "watch", OTHERS, 7000)
    worker = peer(air, "worker", "air", "0123456789ab", OURS)
    until(lambda: watch.mac("air"))
    assert found_within(air)
    first.kill()
    worker.say("joined")
    until(lambda: watch.mac("air")["state"] == "joined")
    worker.kill()
    assert find(air, timeout_s=1.0)[0] == [], "nobody answers for the dead"
    assert watch.mac("air")["state"] == "joined", "presence is not liveness"
    peer(studio, "coordinator", "studio", OURS, 8000)
    peer(air, "worker", "air", "0123456789ab", OURS)
    (found,) = found_within(air)
    assert (found["name"], found["port"]) == ("studio", 8000)
    until(lambda: watch.mac("air")["state"] == "present")


def test_where_multicast_is_blocked_nothing_is_found_in_time(network, peer):
    lan = network.segment()
    studio, air = network.host("studio", lan), network.host("air", lan)
    peer(studio, "coordinator", "studio", OURS, 7633)
    assert found_within(air)
    lan.multicast(through=False)
    found, took_s = find(air)
    assert found == []
    assert took_s < 20
    lan.multicast(through=True)
    assert found_within(air)


LISTEN = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.create_server((sys.argv[1], 7633), family=family):
    print("up", flush=True)
    sys.stdin.read()
"""


def test_on_two_networks_every_address_is_offered_and_the_near_one_comes_first(network, peer):
    office, lab = network.segment(), network.segment()
    studio, air = network.host("studio", office, lab), network.host("air", lab)
    peer(studio, "coordinator", "studio", OURS, 7633)
    (found,) = found_within(air)
    ipv4 = [address for address in found["addresses"] if ":" not in address]
    assert ipv4 == ["10.77.2.1", "10.77.1.1"]
    assert found["addresses"][:2] == ipv4, "IPv6 link-local comes last"
    gate = studio.python("-c", LISTEN, "0.0.0.0")
    assert gate.stdout.readline() == "up\n"
    assert [connects(air, address) for address in ipv4] == [True, False]
    gate.communicate()


def test_without_ipv4_a_coordinator_is_found_and_reached_by_its_link_local_address(network, peer):
    lan = network.segment()
    studio, air = network.host("studio", lan, ipv4=False), network.host("air", lan, ipv4=False)
    peer(studio, "coordinator", "studio", OURS, 7633)
    (found,) = found_within(air)
    gate = studio.python("-c", LISTEN, "::")
    assert gate.stdout.readline() == "up\n"
    assert [connects(air, address) for address in found["addresses"]] == [True]
    gate.communicate()


def connects(host, address):
    script = "import socket, sys; socket.create_connection((sys.argv[1], 7633), timeout=1).close()"
    process = host.popen([sys.executable, "-c", script, address], stderr=subprocess.DEVNULL)
    return process.wait(20) == 0


@pytest.mark.soak
def test_a_cable_that_is_pulled_and_put_back_changes_nothing(network, peer):
    lan = network.segment()
    studio, air = network.host("studio", lan), network.host("air", lan)
    watch = peer(studio, "coordinator", "studio", OURS, 7633)
    worker = peer(air, "worker", "air", "0123456789ab", OURS)
    until(lambda: watch.mac("air"))
    assert found_within(air)
    studio.link(up=False)
    assert find(air, timeout_s=0.5)[0] == []
    studio.link(up=True)
    assert found_within(air)
    worker.say("joined")
    until(lambda: watch.mac("air")["state"] == "joined")


@pytest.mark.soak
def test_an_interface_that_comes_later_is_used(network, peer):
    lan, cable = network.segment(), network.segment()
    studio, air = network.host("studio", lan), network.host("air", cable)
    peer(studio, "coordinator", "studio", OURS, 7633)
    time.sleep(2.0)
    assert find(air, timeout_s=0.5)[0] == []
    studio.plug(cable)
    found, _ = until(lambda: find(air, timeout_s=2.0)[0])
    assert found[0]["addresses"][0] == "10.77.2.2"


@pytest.mark.soak
def test_a_host_without_any_network_finds_nothing_and_advertises_once_there_is_one(network, peer):
    lan = network.segment()
    alone, air = network.host("alone"), network.host("air", lan)
    peer(alone, "coordinator", "alone", OURS, 7633)
    assert find(alone, OTHERS, 0.5)[0] == []
    alone.plug(lan)
    found, _ = until(lambda: find(air, timeout_s=2.0)[0])
    assert found[0]["addresses"][0] == alone.address


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_one_that_was_killed_is_shown_for_two_minutes_and_no_longer(network, peer):
    lan = network.segment()
    studio, air = network.host("studio", lan), network.host("air", lan)
    watch = peer(studio, "coordinator", "studio", OURS, 7633)
    worker = peer(air, "worker", "air", "0123456789ab", OURS)
    until(lambda: watch.mac("air"))
    worker.kill()
    _, took_s = until(lambda: watch.mac("air") is None, within_s=180)
    print(f"forgotten after {took_s:.0f} s")
    assert took_s > 60
