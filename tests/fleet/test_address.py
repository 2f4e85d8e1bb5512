"""Addresses as people write them."""

import pytest

from fleet.address import PORT, Address
from fleet.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("studio.local", "studio.local", PORT),
        ("studio.local:7000", "studio.local", 7000),
        ("192.168.1.20:7633", "192.168.1.20", 7633),
        ("[::1]:7000", "::1", 7000),
        ("[fe80::1%en0]:7000", "fe80::1%en0", 7000),
        ("fe80::1%en0", "fe80::1%en0", PORT),
        ("::1", "::1", PORT),
        (" studio ", "studio", PORT),
    ],
)
def test_hosts_with_and_without_ports_are_understood(text, host, port):
    assert Address.parse(text) == Address(host, port)


@pytest.mark.parametrize("address", [Address("a.b", 1), Address("::1", 2), Address("fe80::1%en0", 3)])
def test_what_is_written_is_read_back(address):
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", ":7633", "host:", "host:0", "host:99999", "host:x", "a b", "user@host:1", "[::1"])
def test_what_is_no_address_is_told_with_the_form_expected(text):
    with pytest.raises(UsageError, match=r"HOST:PORT or \[IPv6\]:PORT"):
        Address.parse(text)
