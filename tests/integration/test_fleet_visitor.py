"""A host that holds the token and has not joined: it submits, fetches and kicks, over IPv4 and link-local IPv6."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import Exit
from tests.fleet_hosts import HostFleet, until
from tests.hosts import Host, Network, missing
from tests.models import tiny_llama
from tests.runner import read_lines, write_prompts

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "hosts in namespaces")


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


@pytest.fixture
def fleet(tmp_path: Path, network: Network) -> Iterator[HostFleet]:  # noqa: ARG001  # hosts go after what runs on them
    fleet = HostFleet(tmp_path)
    yield fleet
    fleet.close()


def link_local(host: Host) -> str:
    """The host's IPv6 address on its one segment."""
    command = ["ip", "-6", "-j", "addr", "show", "dev", "eth0", "scope", "link"]
    shown = host.run(command)
    return str(json.loads(shown.stdout)[0]["addr_info"][0]["local"])


def test_a_host_with_the_token_alone_uses_the_fleet(fleet: HostFleet, network: Network, tmp_path: Path) -> None:
    lan, model = network.segment(), tiny_llama(tmp_path / "model")
    studio, air, laptop = (network.host(name, lan) for name in ("studio", "air", "laptop"))
    fleet.up(studio)
    fleet.join(air, fake="yes")
    until(lambda: len(fleet.snapshot(studio)["macs"]) == 1)
    env = {"FLEET_TOKEN": f"{fleet.token}@{studio.address}"}
    backlog, out = write_prompts(tmp_path / "in.jsonl", ["one", "two"]), tmp_path / "out.jsonl"
    flags = ("-m", model, "--max-tokens", 4)
    job = fleet.run(laptop, "submit", "generate", backlog, *flags, "--wait", "-o", out, **env)
    assert job.ends() == Exit.OK, job.output
    assert [line["id"] for line in read_lines(out)] == ["r0", "r1"]
    found = fleet.run(laptop, "jobs", "--json", FLEET_TOKEN=fleet.token)
    assert [job["state"] for job in json.loads(found.output)] == ["finished"], "over multicast DNS"
    scoped = ("--coordinator", f"[{link_local(studio)}%eth0]:7633")
    jobs = fleet.run(laptop, "jobs", "--json", *scoped, **env)
    assert [job["state"] for job in json.loads(jobs.output)] == ["finished"]
    at_air = fleet.run(air, "jobs", "--json")
    assert [job["state"] for job in json.loads(at_air.output)] == ["finished"]
    kicked = fleet.run(laptop, "kick", "air", *scoped, **env)
    assert "air is out of the fleet; its rows run elsewhere" in kicked.output
    until(lambda: fleet.snapshot(studio)["macs"][0]["state"] == "kicked")
    at_air = fleet.run(air, "jobs")
    assert (at_air.ends(), "was removed from the fleet" in at_air.output) == (Exit.AUTH, True)
    nobody = fleet.run(laptop, "jobs", "--coordinator", laptop.address, **env)
    assert nobody.ends() == Exit.NO_COORDINATOR
    assert fleet.token.removeprefix("fl1-") not in "".join(command.output for command in (job, jobs, kicked, nobody))
