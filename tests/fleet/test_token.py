"""The token: what it carries, and what is said of one that is not right."""

import pytest

from fleet import token
from fleet.address import Address
from fleet.errors import UsageError

ONE = token.Token(fingerprint=bytes(range(32)), secret="ab" * 16, key="cd" * 16)


def test_a_token_carries_fingerprint_secret_and_key():
    assert token.parse(ONE.format()) == (ONE, None)


def test_an_address_may_stand_behind_it():
    place = Address("192.168.1.20", 7000)
    assert ONE.format(place).endswith("@192.168.1.20:7000")
    assert token.parse(ONE.format(place)) == (ONE, place)
    assert token.parse(ONE.format(Address("fe80::1%en0"))) == (ONE, Address("fe80::1%en0", 7633))


def test_it_is_one_word_without_anything_a_shell_minds():
    text = ONE.format()
    assert text.startswith("fl1-")
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def test_spaces_around_it_do_no_harm():
    assert token.parse(f"  {ONE.format()}\n")[0] == ONE


@pytest.mark.parametrize("cut", [5, 40, 90])
def test_a_token_that_was_cut_is_told_as_cut(cut):
    with pytest.raises(UsageError, match="cut or mistyped"):
        token.parse(ONE.format()[:cut])


def test_one_wrong_character_anywhere_is_seen():
    text = ONE.format()
    for place in range(4, len(text)):
        other = "A" if text[place] != "A" else "B"
        with pytest.raises(UsageError):
            token.parse(text[:place] + other + text[place + 1 :])


@pytest.mark.parametrize("text", ["", "hello", "fl2-abc", "FL1-abc"])
def test_what_is_no_token_is_told_so_and_where_to_find_one(text):
    with pytest.raises(UsageError, match=r"this is no token.*fleet token"):
        token.parse(text)


@pytest.mark.parametrize("text", ["fl1-\u00e9", "fl1-" + "*" * 91, "fl1-" + "A" * 10_000])
def test_rubbish_behind_the_prefix_is_an_error_and_no_traceback(text):
    with pytest.raises(UsageError, match="cut or mistyped"):
        token.parse(text)


def test_a_bad_address_behind_it_is_told():
    with pytest.raises(UsageError, match="HOST:PORT"):
        token.parse(f"{ONE.format()}@not an address")


def test_its_secrets_are_in_no_repr():
    assert "ab" * 16 not in repr(ONE)
    assert "cd" * 16 not in repr(ONE)


def test_secrets_are_new_each_time():
    assert len({token.new_secret() for _ in range(50)}) == 50
