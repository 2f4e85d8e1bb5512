"""The agent-engine pipe."""

import socket
import struct
import threading

import pytest

from fleet.errors import DecodeError
from fleet.job import Finish
from fleet.messages import Admitted, Finished, RowResult
from worker.link import Link


def pair():
    ours, theirs = socket.socketpair()
    return Link(ours), Link(theirs)


def test_a_message_arrives_as_it_was_sent():
    ours, theirs = pair()
    message = Finished(rows=(RowResult(id=7, text="é\x00", finish=Finish.STOP, input_tokens=3, output_tokens=1),))
    ours.send(message)
    assert theirs.receive() == message
    ours.close()
    theirs.close()


def test_the_other_end_closing_is_none():
    ours, theirs = pair()
    ours.send(Admitted(rows=(1,)))
    ours.close()
    assert theirs.receive() == Admitted(rows=(1,))
    assert theirs.receive() is None
    theirs.close()


def test_a_frame_cut_by_a_death_is_end_of_file():
    raw, other = socket.socketpair()
    link = Link(other)
    raw.sendall(struct.pack(">I", 100) + b"half")
    raw.close()
    assert link.receive() is None
    link.close()


def test_a_frame_over_the_limit_is_refused_unread():
    raw, other = socket.socketpair()
    link = Link(other)
    raw.sendall(struct.pack(">I", 1 << 31))
    with pytest.raises(DecodeError):
        link.receive()
    raw.close()
    link.close()


def test_closing_here_wakes_a_blocked_receive():
    ours, theirs = pair()
    got = []
    reader = threading.Thread(target=lambda: got.append(ours.receive()))
    reader.start()
    ours.close()
    reader.join(5)
    assert got == [None]
    theirs.close()


def test_messages_of_many_threads_do_not_mix():
    ours, theirs = pair()
    senders = [
        threading.Thread(target=lambda n=n: [ours.send(Admitted(rows=tuple(range(n * 100)))) for _ in range(50)])
        for n in range(4)
    ]
    for sender in senders:
        sender.start()
    lengths = [len(theirs.receive().rows) for _ in range(200)]
    for sender in senders:
        sender.join()
    assert {n: lengths.count(n) for n in set(lengths)} == {0: 50, 100: 50, 200: 50, 300: 50}
    ours.close()
    theirs.close()
