"""What somebody may try against a fleet: impostors, wrong tokens, jobs that are none, orders that are not ours."""

import json
import pickle
import socket
import time
from contextlib import suppress

import pytest
from rq import Queue
from rq.job import Job

from coordinator.joining.certificate import Certificate
from fleet import codec, keys
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.job import Finish
from fleet.messages import Finished, RowResult
from fleet.token import Token
from tests.gatekeeper import Gatekeeper, Mac
from tests.impostor import Impostor
from tests.relay import Relay
from tests.worker_process import until


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Gatekeeper(StateDir(tmp_path_factory.mktemp("fleet")))
    yield fleet
    fleet.close()


@pytest.fixture
def mac(tmp_path):
    return Mac(tmp_path / "mac")


@pytest.fixture(scope="module")
def worker(fleet, tmp_path_factory):
    """A Mac at work, joined through a relay that remembers what went over the wire; its id."""
    mac = Mac(tmp_path_factory.mktemp("worker"))
    with Relay(("127.0.0.1", fleet.gate.port)) as relay:
        process = mac.start("join", f"{fleet.token.format()}@127.0.0.1:{relay.port}")
        mac.says("idle")
        mac.relay, mac.process, mac.wid = relay, process, mac.credentials.user
        yield mac
        mac.close()


# -- who is there ----------------------------------------------------------------------------------


def test_an_impostor_with_the_coordinators_address_gets_not_a_byte(fleet, mac, tmp_path):
    impostor = Impostor(Certificate.of(StateDir(tmp_path / "impostor")))
    refused = mac.call("join", fleet.token.format(), "--coordinator", f"127.0.0.1:{impostor.port}")
    impostor.close()
    assert (refused.returncode, impostor.connections) == (Exit.AUTH, 1)
    assert "another coordinator" in refused.stderr
    assert impostor.received == b""
    assert mac.credentials is None


def test_a_mac_that_has_joined_does_not_fall_for_an_impostor_later(fleet, mac, tmp_path):
    process = mac.start("join", fleet.line)
    mac.says("idle")
    process.terminate()
    process.wait()
    impostor = Impostor(Certificate.of(StateDir(tmp_path / "impostor")))
    refused = mac.call("join", FLEET_COORDINATOR=f"127.0.0.1:{impostor.port}")
    impostor.close()
    assert refused.returncode == Exit.AUTH
    assert impostor.received == b""


def test_the_right_certificate_with_a_wrong_secret_lets_nobody_in(fleet, mac):
    wrong = Token(fingerprint=fleet.certificate.fingerprint, secret="0" * 32, key="0" * 32)
    refused = mac.call("join", wrong.format(fleet.address))
    assert refused.returncode == Exit.AUTH
    assert "does not accept this token" in refused.stderr
    assert mac.credentials is None


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["fl1-abc", "--coordinator", "127.0.0.1:1"], Exit.USAGE, "cut or mistyped"),
        (["hello", "--coordinator", "127.0.0.1:1"], Exit.USAGE, "no token"),
        (["--coordinator", "127.0.0.1:1"], Exit.AUTH, "has no token yet"),
        (["--coordinator", "no such place"], Exit.USAGE, "HOST:PORT"),
        (["--token-file", "/no/such/file"], Exit.USAGE, "cannot be read"),
    ],
)
def test_what_is_missing_or_wrong_is_told(mac, words, code, told):
    refused = mac.call("join", *words)
    assert (refused.returncode, told in refused.stderr) == (code, True)
    assert "Traceback" not in refused.stderr


def test_nobody_there_is_told_with_every_way_to_say_where(fleet, mac):
    refused = mac.call("join", fleet.token.format(), "--coordinator", "127.0.0.1:1")
    assert refused.returncode == Exit.NO_COORDINATOR
    for way in ("--coordinator HOST:PORT", "FLEET_COORDINATOR", "@HOST:PORT", "fleet up"):
        assert way in refused.stderr


# -- what goes over the wire ------------------------------------------------------------------------


class Overheard:
    """What the worker `wid` says to the broker, as the broker hears it; a context manager."""

    def __init__(self, fleet, wid):
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(str(fleet.broker.socket))
        self._line.sendall(f"AUTH {fleet.users.login.replace(':', ' ')}\r\nMONITOR\r\n".encode())
        self._line.settimeout(0.05)
        self._own = (b'"BLMOVE"', b'"XADD" "' + keys.results(wid).encode())
        self._heard = b""

    def heard(self):
        with suppress(TimeoutError):
            self._heard += self._line.recv(65536)
        return self._heard

    def words(self):
        """Its commands until now, of those that no one else gives."""
        return b"\n".join(line for line in self.heard().splitlines() if any(own in line for own in self._own))

    def __enter__(self):
        until(lambda: self.heard().count(b"+OK") == 2)
        return self

    def __exit__(self, *_):
        self._line.close()


def test_the_wire_shows_neither_commands_nor_names_nor_answers(fleet, worker):
    """Words of five bytes or more, as they are written: shorter ones are in some kilobytes of TLS by chance."""
    words = (b"BLMOVE", b"fleet:", b"rq:queue:", b"answer to", worker.wid.encode())
    with Overheard(fleet, worker.wid) as overheard:
        fleet.send(worker.wid, 1, range(8))
        until(lambda: fleet.has(worker.wid, range(8)))
        until(lambda: all(word in overheard.words() for word in words))
    wire = bytes(worker.relay.sent) + bytes(worker.relay.received)
    assert len(wire) > 4000
    assert [word for word in words if word in wire] == []


# -- jobs that are none -----------------------------------------------------------------------------


def enqueue(fleet, wid, number, name=keys.SHARD_FUNCTION, args=(b"x",), **fields):
    """An RQ job as an attacker with the coordinator's rights would put it, with fields of his own."""
    queue = Queue(wid, connection=fleet.client, serializer=codec.RqSerializer)
    job = Job.create(
        name, args=args, id=keys.shard(wid, number), connection=fleet.client, serializer=codec.RqSerializer, origin=wid
    )
    job.save()
    if fields:
        fleet.client.hset(job.key, mapping=fields)
    fleet.client.rpush(queue.key, job.id)
    return job


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def bad_jobs(fleet, wid, path):
    """Each way in which a job can name or carry code, by number."""
    bomb = pickle.dumps(Bomb(path))
    enqueue(fleet, wid, 101, "os.system", (f"touch {path}",))
    enqueue(fleet, wid, 102, "builtins.open", (str(path), "w"))
    enqueue(fleet, wid, 103, data=bomb)
    enqueue(fleet, wid, 104, data=pickle.dumps(("os.system", None, (f"touch {path}",), {})))
    enqueue(fleet, wid, 105, meta=bomb)
    enqueue(fleet, wid, 106, success_callback_name="os.system", failure_callback_name="os.system")
    enqueue(fleet, wid, 107, stopped_callback_name="os.abort", failure_callback_name="os.abort")
    enqueue(fleet, wid, 108, exc_info=bomb, result=bomb, kwargs=bomb)
    enqueue(fleet, wid, 109, retries_left="5", retry_intervals="[1]", dependency_ids="[]", enqueue_at_front="1")
    enqueue(fleet, wid, 110, webhooks=json.dumps([{"url": "http://127.0.0.1:1/"}]), repeats_left="3")
    fleet.client.rpush(f"rq:queue:{wid}", "no-such-job", keys.shard(wid, 111))


def test_jobs_that_name_or_carry_code_run_nothing_are_logged_and_stop_nobody(fleet, worker, tmp_path):
    path = tmp_path / "pwned"
    bad_jobs(fleet, worker.wid, path)
    fleet.send(worker.wid, 2, range(100, 108))
    until(lambda: fleet.has(worker.wid, range(100, 108)), 20)
    time.sleep(0.2)
    assert not path.exists()
    assert worker.process.poll() is None
    log = worker.log
    for number in (101, 102, 103, 104, 106, 107):
        assert f"job {keys.shard(worker.wid, number)} is refused" in log
    assert "touch" not in log
    assert fleet.client.llen(f"rq:queue:{worker.wid}") == 0


def test_a_shard_whose_meta_is_a_pickle_is_either_run_as_a_shard_or_refused(fleet, worker, tmp_path):
    path = tmp_path / "pwned"
    fleet.send(worker.wid, 3, range(200, 208))
    fleet.client.hset(f"rq:job:{keys.shard(worker.wid, 3)}", "meta", pickle.dumps(Bomb(path)))
    fleet.send(worker.wid, 4, range(300, 308))
    until(lambda: fleet.has(worker.wid, range(300, 308)), 20)
    assert not path.exists()


def test_a_shutdown_over_rqs_pubsub_reaches_nobody(fleet, worker):
    names = [name.decode() for name in fleet.client.smembers("rq:workers") if worker.wid.encode() in name]
    assert names
    for name in names:
        channel = f"rq:pubsub:{name.removeprefix('rq:worker:')}"
        assert fleet.client.publish(channel, json.dumps({"command": "shutdown"})) == 0
    assert worker.process.poll() is None


def test_nonsense_on_the_control_stream_is_passed_over_and_logged(fleet, worker):
    fleet.client.xadd(keys.control(worker.wid), {keys.FIELD: pickle.dumps("x")})
    until(lambda: "is no message" in worker.log)
    result = RowResult(id=1, text="secret words", finish=Finish.STOP, input_tokens=1, output_tokens=1)
    fleet.client.xadd(keys.control(worker.wid), {keys.FIELD: codec.encode(Finished(rows=(result,)))})
    fleet.send(worker.wid, 5, range(400, 408))
    until(lambda: fleet.has(worker.wid, range(400, 408)))
    assert "secret words" not in worker.log


def test_a_job_of_another_worker_cannot_even_be_read(fleet, worker, caplog):
    enqueue(fleet, "ba9876543210", 1)
    fleet.client.rpush(f"rq:queue:{worker.wid}", keys.shard("ba9876543210", 1))
    fleet.send(worker.wid, 6, range(500, 508))
    until(lambda: fleet.has(worker.wid, range(500, 508)), 20)
    assert "job ba9876543210-1 is passed over" in worker.log
    until(lambda: f"user {worker.wid} was refused: key rq:job:ba9876543210-1" in caplog.text)
