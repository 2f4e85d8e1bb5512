"""Eight hosts that come and go while a job runs on them."""

import random
import signal
import statistics
import time

import pytest

from fleet.errors import Exit
from tests.fleet_hosts import HostFleet, until
from tests.hosts import Network
from tests.models import tiny_llama
from tests.runner import read_lines, write_prompts

ROWS = 2000
KILLS = 20
#: A row takes two seconds, a worker has eight at a time: about a minute for all eight.
SLOW = {"fake": "yes", "FAKE_CAP": "8", "FAKE_STEP_S": "0.1"}
#: A row takes a second.
STEADY = {**SLOW, "FAKE_STEP_S": "0.05"}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_job_is_complete_whatever_became_of_eight_hosts_meanwhile(tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    model = tiny_llama(tmp_path / "m")
    with Network() as network:
        lan = network.segment()
        studio, *hosts = (network.host(f"h{number}", lan) for number in range(9))
        fleet = HostFleet(tmp_path)
        try:
            up = fleet.up(studio)
            workers = {host: fleet.join(host, **SLOW) for host in hosts}
            for worker in workers.values():
                worker.says("idle", within_s=60)
            backlog = write_prompts(tmp_path / "backlog.jsonl", [f"Say {number}." for number in range(ROWS)])
            out = tmp_path / "out.jsonl"
            flags = ["--max-tokens", "20", "--wait", "-o", out]
            job = fleet.start(studio, "submit", "generate", backlog, "-m", model, *flags)
            until(lambda: all(fleet.running(host) for host in hosts), 60)
            while job.process.poll() is None:
                churn(fleet, workers, rng)
                time.sleep(rng.uniform(1.0, 4.0))
            print(up.output, job.output, sep="\n")
            assert job.ends() == Exit.OK
            assert [line["id"] for line in read_lines(out)] == [f"r{number}" for number in range(ROWS)]
            fleet.validate(studio)
        finally:
            fleet.close()


def churn(fleet, workers, rng):
    """One of the hosts is killed and joins again, falls asleep, or is unplugged for a while."""
    host = rng.choice(sorted(workers, key=lambda host: host.name))
    fate = rng.choice(["die", "sleep", "unplug"])
    print(f"{time.strftime('%H:%M:%S')} {host.name}: {fate}")
    if fate == "die":
        workers[host].signal(signal.SIGKILL)
        workers[host].ends()
        workers[host] = fleet.join(host, token="", **SLOW)
    elif fate == "sleep":
        workers[host].signal(signal.SIGSTOP)
        time.sleep(rng.choice([1.0, 5.0, 15.0]))
        workers[host].signal(signal.SIGCONT)
    else:
        host.link(up=False)
        time.sleep(rng.choice([1.0, 5.0, 15.0]))
        host.link(up=True)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_twenty_kills_each_with_full_batches_and_shards_queued(tmp_path):
    """Says how long rows take into the pool, and until the last of the victim's batch runs elsewhere, where no slot is
    free: a second for the batch there, one for the rows that wait, and what is queued before them."""
    model = tiny_llama(tmp_path / "m")
    took = []
    with Network() as network:
        lan = network.segment()
        studio, *hosts = (network.host(name, lan) for name in ("studio", "air", "pro", "mini"))
        fleet = HostFleet(tmp_path)
        try:
            fleet.up(studio)
            workers = {host: fleet.join(host, **STEADY) for host in hosts}
            for number in range(KILLS):
                for worker in workers.values():
                    worker.says("idle", within_s=60)
                backlog = write_prompts(tmp_path / "backlog.jsonl", [f"Say {number} {row}." for row in range(400)])
                flags = ["-m", model, "--max-tokens", "20", "--wait"]
                job = fleet.start(studio, "submit", "generate", backlog, *flags)
                took.append(kill(fleet, studio, workers, hosts[number % len(hosts)]))
                assert job.ends(90) == Exit.OK, job.output
            fleet.validate(studio)
        finally:
            fleet.close()
    for what, times in zip(("in the pool", "running elsewhere"), zip(*took, strict=True), strict=True):
        print(f"{what}: median {statistics.median(times):.1f} s, worst {max(times):.1f} s of {KILLS} kills")
    assert max(pool for pool, _ in took) <= 14.0


def kill(fleet, studio, workers, victim):
    """Kills a worker with all it started, and has it join again; seconds to the pool, and to running elsewhere."""
    before = {host: fleet.running(host) for host in workers}  # what was killed there is for ever unfinished

    def batch(host):
        return fleet.running(host) - before[host]

    until(lambda: all(len(batch(host)) == 8 for host in workers), 60)
    time.sleep(3.0)
    rows, at, at_wall = batch(victim), time.monotonic(), time.time()
    workers[victim].signal(signal.SIGKILL)
    workers[victim].ends()

    def elsewhere():
        time.sleep(0.2)
        notes = [fleet.admitted(host) for host in workers if host is not victim]
        return {key: max(found.get(key, 0.0) for found in notes) for key in rows}

    times = until(lambda: min((found := elsewhere()).values()) > at and found, 40)
    events = fleet.snapshot(studio)["events"]
    lost = [each["at"] for each in events if f"{victim.name} is lost" in each["text"] and each["at"] > at_wall]
    workers[victim] = fleet.join(victim, token="", **STEADY)
    print(f"{victim.name}: in the pool after {lost[0] - at_wall:.1f} s, elsewhere {max(times.values()) - at:.1f} s")
    return lost[0] - at_wall, max(times.values()) - at
