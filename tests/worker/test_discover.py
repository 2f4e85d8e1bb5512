"""Finding, where macOS is in the way; the rest is in tests/integration/test_discovery.py on real networks."""

import errno

import pytest

from worker import discover
from worker.discover import LocalNetworkError, find, forbidden


def test_no_route_to_a_host_that_is_there_is_macos_forbidding_it():
    told = forbidden(OSError(errno.EHOSTUNREACH, "No route to host"), system="darwin")
    assert "System Settings" in told
    assert forbidden(OSError(errno.EHOSTUNREACH, "No route to host"), system="linux") is None
    assert forbidden(OSError(errno.ECONNREFUSED, "refused"), system="darwin") is None


def blocked():
    raise OSError(errno.EHOSTUNREACH, "No route to host")


def test_finding_nothing_on_a_mac_that_forbids_it_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(discover.sys, "platform", "darwin")
    monkeypatch.setattr(discover.forbidden, "__defaults__", ("darwin",))
    monkeypatch.setattr(discover, "_call_out", blocked)
    with pytest.raises(LocalNetworkError, match="Local Network access is blocked by macOS"):
        find(b"x" * 32, timeout_s=0.1)


def test_finding_nothing_is_no_error_and_takes_no_longer_than_asked():
    assert find(b"x" * 32, timeout_s=0.2) == []
    discover._call_out()
