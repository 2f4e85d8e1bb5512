"""Whatever stands in a fleet's streams, queues and leases, the coordinator and the workers go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
import redis

from fleet import codec, keys
from fleet.job import Finish
from fleet.messages import Beat, Crashed, Figures, Finished, Ready, Returned, RowResult, Stop, WorkerState
from tests.fault_yard import FaultYard
from tests.models import tiny_llama
from tests.runner import wait_until

HUGE = (1 << 64) - 1
SECRET = "words of a row"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def good(row: int, **more: object) -> RowResult:
    fields = {"text": SECRET, "finish": Finish.STOP, "input_tokens": 1, "output_tokens": 1, **more}
    return RowResult(id=row, **fields)  # type: ignore[arg-type]


def broken_reports() -> list[bytes]:
    """What is no message of this version, and what claims rows that nobody sent or figures that cannot be."""
    whole = codec.encode(Finished(rows=(good(1),)))
    other_version = msgpack.packb([codec.VERSION + 1, 2, [[1, SECRET]]])
    return [
        b"",
        b"\xc1" * 100,
        SECRET.encode(),
        whole[: len(whole) // 2],
        whole + b"\0",
        other_version,
        msgpack.packb([codec.VERSION, 99]),
        msgpack.packb([codec.VERSION, 2, [[1, 2, 3]]]),
        msgpack.packb({SECRET: 1}),
        bytes(10 << 20),
        codec.encode(Finished(rows=(good(1, text="x" * (10 << 20)),))),
        codec.encode(Stop()),
        codec.encode(Finished(rows=(good(HUGE), good(-1), good(0)))),
        codec.encode(Crashed(rows=(HUGE, -1), latest=(7,), reason=SECRET, cap=-3, id="x" * 1000)),
        codec.encode(Crashed(rows=(), latest=(), reason="", cap=0)),
        codec.encode(Returned(rows=(HUGE, -1, 10**6), reason="")),
    ]


def broken_beats(beat: Beat) -> list[bytes]:
    nan, infinite = float("nan"), float("inf")
    wrong = Figures(output_tokens=-5, steps=HUGE, step_rows=HUGE, decode_s=nan, prefill_s=-infinite)
    engine = Ready(model_hash="", cap=0, kv_bytes=0, budget_bytes=-1, context_tokens=-1)
    return [
        b"",
        SECRET.encode(),
        bytes(10 << 20),
        codec.encode(Stop()),
        codec.encode(replace(beat, figures=wrong, pace=nan)),
        codec.encode(replace(beat, engine=engine, waiting=-4)),
        codec.encode(replace(beat, running=((HUGE, HUGE), (-1, -1)), shards=("x", ""))),
        codec.encode(replace(beat, state=WorkerState.MEASURING, shards=("y" * 1000,) * 10_000)),
    ]


def flood(client: redis.Redis, wid: str) -> None:
    """Puts all of it in once."""
    for data in broken_reports():
        client.xadd(keys.results(wid), {keys.FIELD: data})
    client.xadd(keys.results(wid), {b"other": b"field"})
    client.xadd(keys.control(wid), {keys.FIELD: b"\xc1"})
    client.xadd(keys.control(wid), {keys.FIELD: bytes(10 << 20)})
    for entry in (b"", b"\xff\xfe", b"no such job", b"x" * (10 << 20)):
        client.rpush(f"rq:queue:{wid}", entry)
        client.rpush(f"rq:queue:{wid}:intermediate", entry)
    client.hset(f"rq:job:{wid}-1", mapping={"data": b"\xc1", "created_at": b"\xff"})
    client.rpush(f"rq:queue:{wid}", f"{wid}-1")
    client.xadd(keys.JOIN, {keys.FIELD: b"\xff"})
    client.xadd(keys.JOIN, {b"": b""})


@pytest.mark.timeout(240)
def test_messages_that_are_none_are_passed_over_and_change_nothing(tmp_path: Path, model: Path) -> None:
    with FaultYard(tmp_path / "yard", FAKE_STEP_S="0.05") as yard:
        yard.begin("ab")
        job = yard.order(model, 500, 1)
        yard.grows(job)
        wid, lease = yard.worker_id("a"), keys.lease(yard.worker_id("a"))
        with yard.broker() as client:
            for data in broken_beats(beat_of(client, lease)):
                client.set(lease, data, px=12_000)
                yard.grows(job, 1)
                wait_until(lambda sent=data: client.get(lease) != sent, within_s=20, story="another beat")
            flood(client, wid)
            wait_until(lambda: client.xlen(keys.results(wid)) < 5, within_s=20, story="the stream read")
        yard.await_over(job)
        yard.check(job, "messages that are none")
        logs = (yard.state.logs / "coordinator.log").read_text()
        logs += "".join(path.read_text() for path in yard.folder.glob("*/worker/log/worker.log"))
        assert "is passed over" in logs
        assert SECRET not in logs
        assert "Traceback" not in logs, logs[logs.index("Traceback") :][:3000]
        assert yard.up_ is not None
        assert [p.process.poll() for p in (yard.up_, *yard.workers.values())] == [None] * 3


def beat_of(client: redis.Redis, lease: str) -> Beat:
    found = codec.decode(wait_until(lambda: client.get(lease)))
    assert isinstance(found, Beat)
    return found
