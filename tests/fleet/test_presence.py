"""What is said and read over multicast DNS, where anybody may say anything."""

from fleet.presence import WORKER, CoordinatorCard, WorkerCard, distinct, instance


def heard(text):
    return {key.encode(): value.encode() for key, value in text.items()}


def test_cards_come_back_as_they_were_said():
    coordinator = CoordinatorCard(name="b\u00fcro.2", api_port=7634, fingerprint="ab" * 32)
    assert CoordinatorCard.read(heard(coordinator.text())) == coordinator
    worker = WorkerCard(
        name="Anna's Air",
        wid="0123456789ab",
        chip="Apple M4 Max",
        memory_bytes=128 << 30,
        state="present",
        fleet="ab" * 8,
    )
    assert WorkerCard.read(heard(worker.text())) == worker


def test_nonsense_reads_as_nothing():
    assert CoordinatorCard.read({b"api": b"-1", b"fp": None}) == CoordinatorCard(name="", api_port=0, fingerprint="")
    assert CoordinatorCard.read({b"api": b"99999999"}).api_port == 65535
    card = WorkerCard.read({b"mem": "\u0663".encode(), b"chip": b"\xff\x1b[2Jx", b"state": b"\r\n"})
    assert (card.memory_bytes, card.state) == (0, "")
    assert card.chip == "\ufffd[2Jx", "no escape reaches a terminal"


def test_what_is_said_fits_a_txt_record():
    card = WorkerCard(name="w", wid="w", chip="\u00fc" * 300, memory_bytes=1, state="present", fleet="")
    assert max(len(f"{key}={value}".encode()) for key, value in card.text().items()) <= 255


def test_a_service_is_named_for_people_and_by_an_id():
    assert instance("Anna's MacBook Pro", "0123456789abcdef", WORKER) == f"Anna's MacBook Pro 0123456789ab.{WORKER}"
    assert instance("\u00fc" * 100, "a" * 64, WORKER) == f"{chr(0xFC) * 20} {'a' * 12}.{WORKER}"
    assert instance("\x07 .", "a", WORKER) == f" a.{WORKER}"


def test_a_second_of_a_name_is_told_apart():
    assert distinct(["air", "pro", "pro", "pro-2", "pro"]) == ["air", "pro", "pro-2", "pro-2-2", "pro-3"]
