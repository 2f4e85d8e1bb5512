"""A large upload and a large answer pass through the coordinator without staying in its memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.client.fleet_client import FleetClient
from coordinator.client.parcels import Parcel
from tests.runner import ROOT

SIZE_BYTES = 200 << 20
#: Of buffers on the way, TLS and Python's heap; the file is ten times as large.
GROWTH_BYTES = 20 << 20
BLOCK = b"x" * (1 << 20)

#: Serves an API without a controller until its standard input ends; says its port first.
SERVER = """
import sys
from pathlib import Path
from coordinator.api.app import build_app
from coordinator.api.server import ApiServer
from coordinator.joining.certificate import Certificate
from coordinator.control.front_desk import FrontDesk
from fleet.config import StateDir
state = StateDir(Path(sys.argv[1]))
state.make()
server = ApiServer(build_app(FrontDesk(), state, "key"), port=0, certificate=Certificate.of(state))
server.start()
print(server.port, flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.communicate(timeout=20)


def peak_bytes(pid: int) -> int:
    """Most memory the process has held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_two_hundred_megabytes_go_up_and_come_down_in_flat_memory(
    server: tuple[subprocess.Popen[str], int], tmp_path: Path
) -> None:
    process, port = server
    certificate = (tmp_path / "certificate.pem").read_text()
    sent = 0

    def count(size: int) -> None:
        nonlocal sent
        sent += size

    with FleetClient(f"https://127.0.0.1:{port}", "key", certificate) as client:
        client.upload(Parcel(name="small.jsonl", size_bytes=None, blocks=iter([BLOCK])), count)
        before = peak_bytes(process.pid)
        blocks = (BLOCK for _ in range(SIZE_BYTES // len(BLOCK)))
        id = client.upload(Parcel(name="large.jsonl", size_bytes=SIZE_BYTES, blocks=blocks), count)
        up = peak_bytes(process.pid)
        assert client.get(f"/v1/files/{id}")["bytes"] == SIZE_BYTES
        with client.opened(f"/v1/files/{id}/content") as (stream, _):
            received = sum(len(block) for block in iter(lambda: stream.read(1 << 20), b""))
        down = peak_bytes(process.pid)
    assert sent == received + len(BLOCK) == SIZE_BYTES + len(BLOCK)
    assert up - before < GROWTH_BYTES
    assert down - up < GROWTH_BYTES
    print(f"upload +{(up - before) >> 10} KB, download +{(down - up) >> 10} KB")
