"""The ports that other tests rely on."""

import socket

import pytest

from tests.ports import ALL, SHARE, TOGETHER, free_port

#: Where the kernel's own begin on Linux.
KERNELS = 32_768


def test_a_port_and_those_behind_it_are_free_and_none_of_the_kernels():
    first = free_port()
    assert first + TOGETHER <= KERNELS
    for port in range(first, first + TOGETHER):
        socket.create_server(("127.0.0.1", port)).close()


def test_a_process_has_no_port_of_another(monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw2")
    assert ALL[2] <= free_port() < ALL[2] + len(SHARE) * TOGETHER == ALL[3]


def test_a_place_with_a_port_that_is_taken_is_passed_over(monkeypatch):
    first = free_port()
    monkeypatch.setattr("tests.ports.ALL", [first])
    monkeypatch.setattr("tests.ports.SHARE", [0])
    assert free_port() == first
    with socket.create_server(("127.0.0.1", first + 1)), pytest.raises(StopIteration):
        free_port()
