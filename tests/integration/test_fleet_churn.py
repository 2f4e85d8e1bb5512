"""Eight hosts that come and go while a job runs on them."""

import random
import signal
import time

import pytest

from fleet.errors import Exit
from tests.fleet_hosts import HostFleet, until
from tests.hosts import Network
from tests.models import tiny_llama
from tests.runner import read_lines, write_prompts

ROWS = 2000
#: A row takes two seconds, a worker has eight at a time: about a minute for all eight.
SLOW = {"fake": "yes", "FAKE_CAP": "8", "FAKE_STEP_S": "0.1"}


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
