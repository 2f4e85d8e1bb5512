"""Reports on their way: unsent, sent, taken."""

from dataclasses import replace

import pytest

from fleet.job import Finish
from fleet.messages import Crashed, Finished, Returned, RowResult
from worker import outbox as module
from worker.outbox import MAX_ROWS, Outbox, parse


def result(row, text="t"):
    return RowResult(id=row, text=text, finish=Finish.STOP, input_tokens=1, output_tokens=1)


def rows(letter):
    return [row.id for row in letter.rows]


def send_all(outbox, epoch, first_id=1):
    letters = []
    while (letter := outbox.draft()) is not None:
        outbox.sent(letter, epoch, f"{first_id + len(letters)}-0")
        letters.append(letter)
    return letters


def test_results_share_a_letter_and_keep_their_order_around_others():
    outbox = Outbox()
    crash = Crashed(rows=(9,), latest=(9,), reason="x", cap=1)
    outbox.put([result(1), result(2), crash, result(3)])
    letters = send_all(outbox, "e")
    assert letters == [Finished(rows=(result(1), result(2))), crash, Finished(rows=(result(3),))]
    assert outbox.draft() is None


def test_vectors_count_like_text(monkeypatch):
    monkeypatch.setattr(module, "MAX_TEXT_BYTES", 10)
    outbox = Outbox()
    outbox.put([replace(result(row, ""), vector=b"12345678") for row in (1, 2)])
    assert [rows(letter) for letter in send_all(outbox, "e")] == [[1], [2]]


def test_a_draft_stays_until_it_is_sent():
    outbox = Outbox()
    outbox.put([result(1)])
    assert outbox.draft() == outbox.draft()
    assert (outbox.unsent, outbox.sent_count) == (1, 0)


def test_letters_are_bounded_by_rows_and_by_text(monkeypatch):
    outbox = Outbox()
    outbox.put(result(i) for i in range(MAX_ROWS + 1))
    assert [len(letter.rows) for letter in send_all(outbox, "e")] == [MAX_ROWS, 1]
    monkeypatch.setattr(module, "MAX_TEXT_BYTES", 10)
    outbox.put([result(1, "x" * 100), result(2, "xxxx"), result(3, "xxxx"), result(4, "xxxx")])
    assert [rows(letter) for letter in send_all(outbox, "e")] == [[1], [2, 3], [4]]


def test_what_left_the_stream_was_taken():
    outbox = Outbox()
    crash = Returned(rows=(9,))
    outbox.put([result(1), crash, result(2)])
    send_all(outbox, "e", 5)
    outbox.taken("e", "6-0")
    assert (outbox.taken_count, outbox.sent_count, outbox.put_count) == (1, 3, 3)
    outbox.taken("e", "7-0")
    assert outbox.taken_count == 2
    outbox.taken("e", None)
    assert outbox.taken_count == 3


def test_entries_compare_as_numbers():
    assert parse("9-10") < parse("10-2")
    outbox = Outbox()
    outbox.put([result(1)])
    outbox.sent(outbox.draft(), "e", "9-11")
    outbox.taken("e", "9-9")
    assert outbox.taken_count == 0


def test_a_wiped_broker_hears_again_what_was_not_taken():
    outbox = Outbox()
    outbox.put([result(1)])
    send_all(outbox, "old", 1)
    outbox.taken("old", None)
    outbox.put([result(2)])
    send_all(outbox, "old", 2)
    outbox.put([result(3)])
    outbox.taken("new", None)
    assert (outbox.taken_count, outbox.sent_count) == (1, 1)
    assert rows(outbox.draft()) == [2, 3]
    send_all(outbox, "new", 1)
    outbox.taken("new", None)
    assert outbox.taken_count == 3


def test_a_letter_sent_to_the_new_broker_before_the_wipe_was_noticed_goes_again_in_order():
    """The counts are prefixes: taking the second letter while the first is unsent would settle the wrong shard."""
    outbox = Outbox()
    outbox.put([result(1)])
    send_all(outbox, "old", 7)
    outbox.put([result(2)])
    send_all(outbox, "new", 1)
    outbox.taken("new", "1-0")
    assert outbox.taken_count == 0
    assert rows(outbox.draft()) == [1, 2]


def test_a_full_letter_or_rows_given_back_are_urgent():
    outbox = Outbox()
    outbox.put([result(1)])
    assert not outbox.urgent
    outbox.put([Returned(rows=(2,))])
    assert outbox.urgent
    send_all(outbox, "e")
    outbox.put(result(i) for i in range(MAX_ROWS))
    assert outbox.urgent


@pytest.mark.parametrize(("limit", "value"), [("FULL_ROWS", 3), ("FULL_TEXT_BYTES", 12)])
def test_it_is_full_until_the_coordinator_takes(monkeypatch, limit, value):
    monkeypatch.setattr(module, limit, value)
    outbox = Outbox()
    outbox.put([result(1, "xxxxx"), result(2, "xxxxx")])
    assert not outbox.full
    outbox.put([result(3, "xxxxx")])
    assert outbox.full
    send_all(outbox, "e")
    assert outbox.full
    outbox.taken("e", None)
    assert not outbox.full
