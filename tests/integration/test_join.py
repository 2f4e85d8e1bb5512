"""`fleet join` and `fleet leave` as processes, at a real gate, with the fake engine."""

import json
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from fleet import keys
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.messages import WorkerState
from tests.fake_engine import answer
from tests.gatekeeper import Gatekeeper, Mac
from tests.worker_process import gone, key_of, until

#: A lease that nobody renews ends by itself after 9 to 12 seconds.
LEFT_S = 8.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Gatekeeper(StateDir(tmp_path_factory.mktemp("fleet")))
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def macs(tmp_path_factory):
    made = []

    def make():
        made.append(Mac(tmp_path_factory.mktemp("mac")))
        return made[-1]

    yield make
    for mac in made:
        mac.close()


@pytest.fixture
def mac(macs):
    return macs()


def join(fleet, mac, **environment):
    """The Mac at work, its process and its id."""
    process = mac.start("join", fleet.line, **environment)
    mac.says("idle")
    return mac, process, mac.credentials.user


@pytest.fixture(scope="module")
def settled(fleet, macs):
    """A Mac that outlives the tests it is in."""
    return join(fleet, macs())


@pytest.fixture
def joined(fleet, mac):
    """A Mac of this test's own."""
    return join(fleet, mac)


def beat(fleet, wid):
    lease = fleet.dispatch.lease(wid)
    return lease.beat if lease else None


def running(fleet, wid, row):
    """Waits until the worker's beat shows the row in its batch."""
    until(lambda: (now := beat(fleet, wid)) and row in dict(now.running))


def test_a_joined_mac_works_and_is_refused_nothing_it_needs(fleet, joined):
    mac, process, wid = joined
    fleet.client.acl_log_reset()
    for number in range(1, 6):
        fleet.send(wid, number, range(number * 10, number * 10 + 8))
    until(lambda: fleet.has(wid, range(50, 58)))
    assert fleet.done[13] == answer(key_of(13))
    told = until(lambda: beat(fleet, wid))
    assert (told.host.name, told.host.version) == (mac.credentials.name, fleet.joined[-1].host.version)
    until(lambda: not beat(fleet, wid).shards)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert fleet.client.acl_log() == []
    assert beat(fleet, wid).state is WorkerState.STOPPING
    until(lambda: beat(fleet, wid) is None, LEFT_S)
    assert "left studio" in mac.said


def test_what_is_kept_is_for_the_owner_alone_and_enough_for_the_next_time(joined):
    mac, process, wid = joined
    for name in ("fleet.json", "identity.json"):
        assert stat.S_IMODE((mac.state.root / name).stat().st_mode) == 0o600
    name = mac.credentials.name
    assert mac.call("leave").stdout == "this Mac has left\n"
    assert process.wait(1) == 0
    mac.start("join", "--json")
    mac.says('"state": "idle"')
    assert (mac.credentials.user, mac.credentials.name) == (wid, name)
    events = [json.loads(line) for line in mac.said.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events] == ["joined", "state"]
    assert (events[0]["id"], events[0]["coordinator"]) == (wid, "studio")


def test_neither_token_nor_password_is_on_a_command_line_or_in_a_log(fleet, settled):
    mac, process, wid = settled
    fleet.send(wid, 1, range(8))
    until(lambda: fleet.has(wid, range(8)))
    secrets = [mac.credentials.token, mac.credentials.password, fleet.token.secret, fleet.token.key]
    secrets.append(fleet.users.login.partition(":")[2])
    pids = [process.pid, mac.engine(), fleet.gate.pid, fleet.broker.pid]
    listing = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-p", ",".join(map(str, pids))], capture_output=True, text=True
    )
    environment = Path(f"/proc/{mac.engine()}/environ")
    told = listing.stdout + (environment.read_text() if environment.exists() else "")
    assert "fleet join" in listing.stdout
    logs = [*mac.state.root.rglob("*.log"), *fleet.state.root.rglob("*.log"), mac.out]
    for text in (told, *(log.read_text(errors="replace") for log in logs)):
        assert [secret for secret in secrets if secret in text] == []


@pytest.mark.parametrize("way", ["FLEET_TOKEN", "--token-file"])
def test_a_token_need_not_be_on_a_command_line_at_all(fleet, mac, tmp_path, way):
    file = tmp_path / "token"
    file.write_text(fleet.line + "\n")
    words, environment = (["--token-file", str(file)], {}) if way == "--token-file" else ([], {way: fleet.line})
    mac.start("join", *words, **environment)
    mac.says("idle")


def test_a_second_join_of_a_state_folder_is_refused(settled):
    mac, process, _ = settled
    again = mac.call("join")
    assert (again.returncode, process.poll()) == (Exit.ERROR, None)
    assert "fleet leave" in again.stderr


def test_two_macs_of_a_name_have_different_names(fleet, macs):
    first, second = macs(), macs()
    for mac in (first, second):
        mac.start("join", fleet.line, "--name", "twin")
        mac.says("idle")
    assert [mac.credentials.name for mac in (first, second)] == ["twin", "twin-2"]
    assert "as twin-2" in second.said


def test_a_kicked_mac_is_cut_off_and_told_why(fleet, joined):
    mac, process, wid = joined
    fleet.send(wid, 1, range(100, 108), tokens=100_000)
    running(fleet, wid, 100)
    engine = mac.engine()
    fleet.kick(wid)
    assert process.wait(60) == Exit.AUTH
    assert "removed from the fleet" in mac.said
    assert gone(engine)
    assert [key for key in fleet.client.scan_iter() if wid.encode() in key] == []
    again = mac.call("join")
    assert (again.returncode, "fleet kick" in again.stderr) == (Exit.AUTH, True)
    fleet.users.rotate(fleet.client)
    mac.start("join", fleet.line)
    mac.says("idle")


def test_broker_and_gate_may_be_replaced_under_a_working_mac(fleet, settled):
    mac, process, wid = settled
    engine = None
    for number in range(11, 14):
        fleet.send(wid, number, range(number * 100, number * 100 + 8), tokens=600)
        until(lambda number=number: keys.shard(wid, number) in beat(fleet, wid).shards)
        engine = engine or mac.engine()
        fleet.broker.restart() if number != 12 else fleet.gate.restart()
        until(lambda number=number: fleet.has(wid, range(number * 100, number * 100 + 8)), 20)
    assert mac.engine() == engine
    assert process.poll() is None


def test_a_mac_waits_for_a_coordinator_that_went_away(fleet, settled):
    mac, _, wid = settled
    port = fleet.gate.port
    fleet.gate.stop()
    fleet.gate = fleet.new_gate(port)
    mac.says("cannot be reached")
    fleet.gate.start()
    mac.says("the coordinator is back")
    fleet.send(wid, 21, range(500, 508))
    until(lambda: fleet.has(wid, range(500, 508)))


def test_leaving_finishes_the_batch_and_gives_the_rest_back(fleet, mac):
    mac, process, wid = join(fleet, mac, FAKE_STEP_S="0.02")
    fleet.send(wid, 1, range(600, 680), tokens=200)
    running(fleet, wid, 600)
    leaving = mac.start("leave", "--forget")
    until(lambda: [fleet.take(wid), leaving.poll()][1] is not None)
    assert process.wait(60) == 0
    mac.says("this Mac has left; its token is forgotten")
    done = fleet.done.keys() & set(range(600, 680))
    batches, part = divmod(len(done), 8)
    assert part == 0, "each batch that was begun is finished"
    assert 1 <= batches < 10, "a batch takes 4 s, and `fleet leave` as long to start where much else runs"
    assert fleet.returned == set(range(600, 680)) - done
    assert mac.credentials is None
    assert mac.call("leave").stdout == "this Mac works for no fleet\n"
    assert json.loads(mac.call("leave", "--json").stdout) == {"left": False, "forgot": False}


def test_a_mac_killed_inside_its_lease_comes_back_as_the_same_worker_and_leaves_at_once_when_told_twice(fleet, joined):
    mac, process, wid = joined
    fleet.send(wid, 1, range(8), tokens=100_000)
    running(fleet, wid, 0)
    nonce, engine = beat(fleet, wid).nonce, mac.engine()
    process.kill()
    process.wait()
    until(lambda: gone(engine))
    process = mac.start("join")
    until(lambda: (told := beat(fleet, wid)) and told.nonce != nonce)
    fleet.send(wid, 2, range(700, 708), tokens=100_000)
    running(fleet, wid, 700)
    engine = mac.engine()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == Exit.INTERRUPTED
    until(lambda: gone(engine))


def test_a_broker_of_another_wire_version_is_not_worked_for(fleet, settled):
    mac, process, _ = settled
    fleet.client.set(keys.EPOCH, "99-abc")
    mac.says("does not know this Mac any more")
    fleet.client.set(keys.EPOCH, fleet.broker.epoch)
    until(lambda: mac.said.count("joined studio") == 2)
    assert process.poll() is None
