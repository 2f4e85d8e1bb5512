"""Several machines on one: a network namespace each, joined by switches (bridges) in a namespace of their own.

No default route, IPv4 and IPv6 link-local, names that no other run has, and nothing left behind. Needs root and `ip`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
_PREFIX = "mlxf"


class Network:
    """Segments and hosts; a context manager that takes everything down."""

    def __init__(self) -> None:
        self._name = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"
        self._switch = f"{self._name}-sw"
        self._segments = 0
        self._left = ExitStack()

    def __enter__(self) -> Network:
        if reason := missing():
            pytest.skip(reason)
        _clear_stale()
        self._add(self._switch)
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def segment(self) -> Segment:
        """Another switch, with addresses of its own: 10.77.<number>.0/24."""
        self._segments += 1
        return Segment(self._switch, self._segments)

    def host(self, name: str, *segments: Segment, ipv4: bool = True, ipv6: bool = True) -> Host:
        """A machine on `segments`: eth0 on the first, eth1 on the second, and so on."""
        namespace = f"{self._name}-{name}"
        self._add(namespace)
        host = Host(namespace, name, ipv4=ipv4, ipv6=ipv6)
        for segment in segments:
            host.plug(segment)
        return host

    def _add(self, namespace: str) -> None:
        """One more namespace, taken down at the end whatever fails until then, here or with another."""
        self._left.callback(_take_down, namespace)
        _ip("netns", "add", namespace)


class Segment:
    """One switch."""

    def __init__(self, namespace: str, number: int) -> None:
        self.namespace = namespace
        self.bridge = f"br{number}"
        self.net = f"10.77.{number}"
        self.ports: list[str] = []
        _ip("-n", namespace, "link", "add", self.bridge, "type", "bridge", "mcast_snooping", "0")
        _ip("-n", namespace, "link", "set", self.bridge, "up")

    def multicast(self, *, through: bool) -> None:
        """Lets multicast through or not, as an access point may; anything else passes."""
        for port in self.ports:
            flood = "on" if through else "off"
            _ip("-n", self.namespace, "link", "set", port, "type", "bridge_slave", "mcast_flood", flood)


class Host:
    """One machine."""

    def __init__(self, namespace: str, name: str, *, ipv4: bool, ipv6: bool) -> None:
        self.namespace = namespace
        self.name = name
        self._ipv4 = ipv4
        #: (segment, port of its switch), by the number of the interface
        self._links: list[tuple[Segment, str]] = []
        #: its first IPv4 address
        self.address = ""
        setting = "accept_dad" if ipv6 else "disable_ipv6"
        self.run(["sh", "-c", f"echo {int(not ipv6)} >/proc/sys/net/ipv6/conf/default/{setting}"])
        _ip("-n", namespace, "link", "set", "lo", "up")

    def plug(self, segment: Segment) -> None:
        """One interface more, with an address of the segment."""
        number = len(self._links)
        port = f"{segment.bridge}p{len(segment.ports)}"
        wire = ("type", "veth", "peer", "name", f"eth{number}", "netns", self.namespace)
        _ip("link", "add", port, "netns", segment.namespace, *wire)
        _ip("-n", segment.namespace, "link", "set", port, "master", segment.bridge, "up")
        segment.ports.append(port)
        self._links.append((segment, port))
        _ip("-n", self.namespace, "link", "set", f"eth{number}", "up")
        if self._ipv4:
            address = f"{segment.net}.{len(segment.ports)}"
            _ip("-n", self.namespace, "addr", "add", f"{address}/24", "dev", f"eth{number}")
            self.address = self.address or address

    def link(self, *, up: bool, number: int = 0) -> None:
        """Pulls the cable of an interface, or puts it back."""
        segment, port = self._links[number]
        _ip("-n", segment.namespace, "link", "set", port, "up" if up else "down")

    def change_address(self) -> str:
        """Gives eth0 another address, as a router may; the new one."""
        net, _, last = self.address.rpartition(".")
        new = f"{net}.{int(last) + 100}"
        _ip("-n", self.namespace, "addr", "del", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.namespace, "addr", "add", f"{new}/24", "dev", "eth0")
        self.address = new
        return new

    def run(self, command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command on this host to its end."""
        how.setdefault("timeout", 60)
        return subprocess.run(self._inside(command), text=True, capture_output=True, check=True, **_quiet(how))

    def popen(self, command: Sequence[str], **how: Any) -> subprocess.Popen[str]:
        """Starts a command on this host; `ip` becomes it, so its pid is the command's."""
        return subprocess.Popen(self._inside(command), text=True, **_quiet(how))

    def python(self, *args: str, **how: Any) -> subprocess.Popen[str]:
        """Starts our Python on this host, with our packages; its stdout and stdin are pipes."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return self.popen([sys.executable, *args], **{**pipes, **how})

    def _inside(self, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *command]


def missing() -> str:
    """Why there can be no namespaces here, empty when there can."""
    if not sys.platform.startswith("linux") or shutil.which("ip") is None:
        return "network namespaces need Linux and iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        _ip("netns", "del", name)
    return "" if made.returncode == 0 else f"network namespaces are not allowed here: {made.stderr.strip()}"


def _clear_stale() -> None:
    """Takes down what a killed run left."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name = line.split()[0]
        prefix, _, rest = name.partition("-")
        pid = rest.partition("-")[0]
        if prefix == _PREFIX and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _take_down(name)


def _take_down(namespace: str) -> None:
    """Ends every process in a namespace and takes it down, if it is there."""
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    for pid in map(int, listed.stdout.split()):
        _kill(pid)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}/ns/net").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _quiet(how: Mapping[str, Any]) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **how.get("env", {})}
    return {"cwd": ROOT, **how, "env": env}


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(args)}: {done.stderr}"
