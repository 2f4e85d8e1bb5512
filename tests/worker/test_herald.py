"""What a person reads while a Mac works for its fleet."""

import json
import threading

from fleet.messages import Beat, WorkerState
from worker.herald import Herald


def beat(state=WorkerState.IDLE, note=""):
    return Beat(worker="w", nonce="n", epoch="e", state=state, shards=(), running=(), waiting=0, engine=None, note=note)


def told(*steps, **options):
    lines = []
    herald = Herald(lines.append, **options)
    for step in steps:
        step(herald)
    herald.close()
    return lines


def texts(lines):
    return [line.partition(" ")[2] for line in lines]


def test_a_line_for_each_change_and_none_between():
    lines = told(
        lambda herald: herald.told(beat()),
        lambda herald: herald.told(beat()),
        lambda herald: herald.told(beat(WorkerState.WORKING)),
        lambda herald: herald.told(beat(WorkerState.PAUSED, "battery")),
        lambda herald: herald.told(beat(WorkerState.PAUSED, "heat")),
    )
    assert texts(lines) == ["idle", "working", "paused: battery", "paused: heat"]


def test_a_coordinator_that_goes_and_comes_is_told():
    lines = told(lambda herald: herald.told(beat()), Herald.away, lambda herald: herald.told(beat()))
    assert texts(lines) == [
        "idle",
        "the coordinator cannot be reached: trying again until it can",
        "the coordinator is back",
    ]


def test_as_json_each_line_is_an_object():
    lines = told(
        lambda herald: herald.say("joined", "text", name="air"), lambda herald: herald.told(beat()), as_json=True
    )
    first, second = map(json.loads, lines)
    assert (first["event"], first["name"]) == ("joined", "air")
    assert (second["event"], second["state"], second["note"]) == ("state", "idle", "")
    assert second["at"] >= first["at"] > 0


def test_a_terminal_that_stopped_holds_nobody_up():
    stopped = threading.Event()
    herald = Herald(lambda _: stopped.wait(30))
    for number in range(1000):
        herald.say("state", str(number))
    stopped.set()


def test_a_terminal_that_is_gone_does_no_harm():
    lines = []

    def write(line):
        if not lines:
            lines.append("lost")
            raise BrokenPipeError
        lines.append(line)

    herald = Herald(write)
    herald.say("a", "one")
    herald.say("b", "two")
    herald.close()
    assert texts(lines[1:]) == ["two"]
