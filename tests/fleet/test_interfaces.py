"""The order in which addresses are tried."""

import ipaddress
from types import SimpleNamespace

import ifaddr

from fleet.interfaces import OwnAddress, ips, own, worth_trying

MINE = (
    OwnAddress(ip="192.0.2.7", index=2, prefix=24),
    OwnAddress(ip="fe80::7", index=2, prefix=64),
    OwnAddress(ip="169.254.8.8", index=5, prefix=16),
    OwnAddress(ip="fe80::8", index=5, prefix=64),
)


def test_the_same_network_comes_first_and_what_is_only_right_on_one_machine_last():
    told = ["127.0.0.1", "fe80::1%5", "169.254.3.3", "2001:db8::1", "198.51.100.1", "192.0.2.1"]
    assert worth_trying(told, MINE) == (
        "192.0.2.1",
        "198.51.100.1",
        "2001:db8::1",
        "169.254.3.3",
        "fe80::1%5",
        "127.0.0.1",
    )


def test_a_link_local_address_without_its_link_is_tried_on_each():
    assert worth_trying(["fe80::1"], MINE) == ("fe80::1%2", "fe80::1%5")
    assert worth_trying(["fe80::1%5"], MINE) == ("fe80::1%5",)
    assert worth_trying(["fe80::1"], ()) == ()


def adapter(index, *addresses):
    return SimpleNamespace(index=index, ips=[SimpleNamespace(ip=ip, network_prefix=64) for ip in addresses])


def test_a_macs_inner_interfaces_are_not_told(monkeypatch):
    mac = [
        adapter(1, "127.0.0.1", ("::1", 0, 0), ("fe80::1", 0, 1)),
        adapter(4, "192.0.2.7", ("fe80::4", 0, 4), ("2001:db8::4", 0, 0)),
        adapter(5, ("fe80::5", 0, 5)),
        adapter(6, ("2001:db8::6", 0, 0), ("fe80::6", 0, 6)),
    ]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: mac)
    assert ips(own()) == ["192.0.2.7", "2001:db8::4", "fe80::4", "2001:db8::6"]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: mac[2:3])
    assert ips(own()) == ["fe80::5"], "better than nothing"
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: [adapter(1, "127.0.0.1")])
    assert ips(own()) == ["127.0.0.1"]


def test_this_machine_has_addresses_and_tells_loopback_only_for_want_of_others():
    found = [ipaddress.ip_address(ip) for ip in ips(own())]
    assert found
    assert len({ip.is_loopback for ip in found}) == 1
