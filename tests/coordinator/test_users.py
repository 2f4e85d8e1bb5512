"""The broker's users: what each may do, on a real broker. An ordinary run's innocence is in integration/test_join."""

import pytest
import redis

from coordinator.broker.broker import Broker, connect
from coordinator.control.processes import Processes
from coordinator.joining.accounts import Accounts
from coordinator.joining.users import Users, join_rule, worker_rule
from fleet import keys
from fleet.config import StateDir
from fleet.errors import BrokerError
from tests.guarded_broker import GuardedBroker

WID, OTHER = "0123456789ab", "ba9876543210"


class House(GuardedBroker):
    def admit(self, wid=WID):
        return self.log_in(wid, self.users.admit(self.client, wid, f"mac {wid}", "proof"))


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    house = House(StateDir(tmp_path_factory.mktemp("house")))
    yield house
    house.close()


@pytest.fixture
def worker(house):
    return house.admit()


@pytest.fixture
def joiner(house):
    return house.log_in("join", house.users.accounts.secrets.secret)


def test_whoever_reaches_the_socket_without_a_login_may_nothing(house):
    bare = connect(f"unix://{house.broker.socket}")
    for words in (["PING"], ["GET", "x"], ["ACL", "WHOAMI"], ["CONFIG", "GET", "*"]):
        with pytest.raises(redis.AuthenticationError):
            bare.execute_command(*words)
    bare.close()


def test_a_wrong_password_opens_nothing(house, worker):
    worker.ping()
    for user in (WID, "join", "coordinator", "nobody"):
        with pytest.raises(redis.AuthenticationError):
            house.log_in(user, "0" * 32).ping()


def test_a_joiner_may_ask_and_read_an_answer_whose_name_it_knows(house, joiner):
    joiner.xadd(keys.JOIN, {"m": "hello"})
    house.client.set(keys.reply("a"), "welcome")
    assert joiner.get(keys.reply("a")) == b"welcome"
    assert joiner.get(keys.EPOCH) == house.broker.epoch.encode()


def test_a_joiner_may_nothing_else(joiner):
    for words in (
        ["XRANGE", keys.JOIN, "-", "+"],
        ["XREAD", "STREAMS", keys.JOIN, "0"],
        ["DEL", keys.JOIN],
        ["SET", keys.reply("a"), "x"],
        ["SET", keys.EPOCH, "x"],
        ["GET", keys.lease(WID)],
        ["SCAN", "0"],
        *FORBIDDEN,
    ):
        refused(joiner, words)


#: What no user but the coordinator's may do at all.
FORBIDDEN = [
    ["EVAL", "return 1", "0"],
    ["EVALSHA", "0" * 40, "0"],
    ["EVAL_RO", "return 1", "0"],
    ["SCRIPT", "LOAD", "return 1"],
    ["FUNCTION", "LIST"],
    ["FCALL", "f", "0"],
    ["CONFIG", "GET", "*"],
    ["CONFIG", "SET", "save", "1 1"],
    ["FLUSHALL"],
    ["FLUSHDB"],
    ["SWAPDB", "0", "0"],
    ["KEYS", "*"],
    ["SCAN", "0"],
    ["RANDOMKEY"],
    ["DBSIZE"],
    ["PUBLISH", "rq:pubsub:x", "x"],
    ["SUBSCRIBE", "rq:pubsub:x"],
    ["PSUBSCRIBE", "*"],
    ["CLIENT", "KILL", "TYPE", "normal"],
    ["CLIENT", "LIST"],
    ["CLIENT", "NO-EVICT", "on"],
    ["CLIENT", "PAUSE", "1000"],
    ["ACL", "LIST"],
    ["ACL", "WHOAMI"],
    ["ACL", "SETUSER", "x"],
    ["MONITOR"],
    ["SHUTDOWN"],
    ["SAVE"],
    ["REPLICAOF", "127.0.0.1", "1"],
    ["MODULE", "LIST"],
    ["COMMAND", "COUNT"],
    ["LATENCY", "RESET"],
    ["SLOWLOG", "GET"],
    ["MEMORY", "DOCTOR"],
    ["OBJECT", "HELP"],
    ["SORT", "x"],
    ["MIGRATE", "127.0.0.1", "1", "x", "0", "1"],
    ["DUMP", "x"],
    ["RENAME", "x", "y"],
    ["COPY", "x", "y"],
]


def refused(client, words):
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*words)


@pytest.mark.parametrize("words", FORBIDDEN, ids=lambda words: " ".join(words[:2]))
def test_no_worker_may(worker, words):
    refused(worker, words)


def test_a_worker_may_read_the_epoch_and_not_change_it(house, worker):
    assert worker.get(keys.EPOCH) == house.broker.epoch.encode()
    refused(worker, ["SET", keys.EPOCH, "x"])
    refused(worker, ["DEL", keys.EPOCH])


@pytest.mark.parametrize(
    "words",
    [
        ["SET", keys.lease(OTHER), "x"],
        ["GET", keys.lease(OTHER)],
        ["DEL", keys.lease(OTHER)],
        ["XADD", keys.results(OTHER), "*", "m", "x"],
        ["XRANGE", keys.results(OTHER), "-", "+"],
        ["XREAD", "STREAMS", keys.control(OTHER), "0"],
        ["LRANGE", f"rq:queue:{OTHER}", "0", "-1"],
        ["LMOVE", f"rq:queue:{OTHER}", f"rq:queue:{WID}", "LEFT", "RIGHT"],
        ["LMOVE", f"rq:queue:{WID}", f"rq:queue:{OTHER}", "LEFT", "RIGHT"],
        ["HGETALL", f"rq:job:{OTHER}-1"],
        ["DEL", f"rq:job:{OTHER}-1"],
        ["HSET", f"rq:worker:{OTHER}.a", "x", "y"],
        ["SADD", f"rq:workers:{OTHER}", "x"],
        ["ZADD", f"rq:wip:{OTHER}", "1", "x"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_worker_may_touch_no_key_of_another(house, worker, words):
    house.admit(OTHER)
    refused(worker, words)


@pytest.mark.parametrize(
    "words",
    [
        ["DEL", keys.results(WID)],
        ["SET", keys.results(WID), "x"],
        ["XTRIM", keys.results(WID), "MAXLEN", "0"],
        ["XADD", keys.control(WID), "*", "m", "x"],
        ["DEL", keys.control(WID)],
        ["SET", f"rq:queue:{WID}", "x"],
        ["RPUSH", f"rq:queue:{WID}", "x"],
        ["SET", f"rq:job:{WID}-1", "x"],
        ["DEL", "rq:workers"],
        ["SET", "rq:workers", "x"],
        ["SMEMBERS", "rq:workers"],
        ["SADD", "rq:queues", "x"],
        ["XRANGE", keys.JOIN, "-", "+"],
        ["DEL", keys.JOIN],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_worker_may_not_spoil_what_the_coordinator_reads(worker, words):
    refused(worker, words)


def test_a_removed_worker_is_cut_off_and_cannot_come_back(house):
    worker = house.admit("feedfeedfeed")
    worker.xadd(keys.results("feedfeedfeed"), {"m": "x"})
    waiting = worker.connection_pool.get_connection()  # a connection that is open and says nothing
    waiting.send_command("XREAD", "BLOCK", "4000", "STREAMS", keys.control("feedfeedfeed"), "0")
    house.users.remove(house.client, "feedfeedfeed")
    with pytest.raises(redis.ConnectionError):
        waiting.read_response()
    for words in (["PING"], ["XADD", keys.results("feedfeedfeed"), "*", "m", "x"], ["GET", keys.EPOCH]):
        with pytest.raises(redis.AuthenticationError):
            worker.execute_command(*words)
    assert "feedfeedfeed" not in house.client.acl_users()
    assert house.client.xlen(keys.results("feedfeedfeed")) == 1


def test_a_restarted_broker_knows_its_users_before_anybody_asks(house):
    worker = house.admit()
    removed = house.admit("dddddddddddd")
    house.users.remove(house.client, "dddddddddddd")
    house.broker.restart()
    assert worker.ping()  # within its first commands, and with the password it had
    with pytest.raises(redis.AuthenticationError):
        removed.ping()
    assert house.client.ping()


def test_a_worker_of_this_machine_has_a_user_like_others_and_is_on_no_disk(house):
    own = connect(house.broker.url_of(house.users.admit_own(house.client, "aaaaaaaaaaaa", "studio")))
    house.clients.append(own)
    assert own.get(keys.EPOCH)
    refused(own, ["GET", keys.lease(WID)])
    house.broker.restart()
    assert own.ping()
    assert house.users.workers["aaaaaaaaaaaa"].name == "studio"
    assert "aaaaaaaaaaaa" not in house.users.accounts.workers


def test_a_new_token_makes_the_old_secret_worthless_and_leaves_workers(house):
    worker, old = house.admit(), house.users.accounts.secrets.secret
    house.users.rotate(house.client)
    with pytest.raises(redis.AuthenticationError):
        house.log_in("join", old).ping()
    assert house.log_in("join", house.users.accounts.secrets.secret).ping()
    assert worker.ping()


def test_the_brokers_configuration_holds_hashes_and_no_password(house):
    worker_password = house.users.admit(house.client, WID, "air", "proof")
    house.broker.restart()
    text = (house.broker.socket.parent / "broker.conf").read_text()
    for secret in (house.users.login.partition(":")[2], worker_password, house.users.accounts.secrets.secret):
        assert secret not in text


@pytest.mark.parametrize("wid", ["", "air", "0123456789a", "0123456789ab ~*", "*" * 12, "0123456789AB"])
def test_only_an_id_becomes_part_of_a_rule(wid):
    with pytest.raises(ValueError, match="no worker's id"):
        worker_rule(wid, "0" * 64)


def test_a_rule_holds_the_hash_and_not_the_secret():
    assert "sesame" not in join_rule("sesame")


def test_a_fleet_refuses_a_redis_that_a_person_brings(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEET_REDIS_URL", "redis://localhost")
    state = StateDir(tmp_path)
    with pytest.raises(BrokerError, match="unset FLEET_REDIS_URL"):
        Broker(state, Processes(state), users=Users(Accounts(state)))
