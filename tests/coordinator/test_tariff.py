"""Watts, prices, and what work costs."""

import argparse

import pytest

from coordinator.planning.tariff import Tariff, Watts, money, price, watts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60", Watts(each=60.0)),
        ("studio=270, air=30", Watts(by_name={"studio": 270.0, "air": 30.0})),
        ("45,anna's=mac=60", Watts(each=45.0, by_name={"anna's=mac": 60.0})),
    ],
)
def test_watts_are_one_figure_or_one_for_each_name(text: str, expected: Watts) -> None:
    assert watts(text) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "inf", "nan", "air=", "=5", "air=30,", "1e999"])
def test_what_are_no_watts_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected watts"):
        watts(text)


@pytest.mark.parametrize("text", ["", "0,32", "-0.1", "nan"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"like 0\.32"):
        price(text)


def test_energy_is_watts_times_time() -> None:
    tariff = Tariff(watts=watts("100,studio=300"), price=None)
    assert tariff.kwh([("studio", 3600.0), ("air", 7200.0)]) == pytest.approx(0.5)


def test_a_million_tokens_cost_what_the_macs_draw_meanwhile() -> None:
    tariff = Tariff(watts=watts("360"), price=0.5)
    assert tariff.cost_per_million(["a", "b"], tps=1000.0) == pytest.approx(0.1)  # 720 W for 1,000 s


@pytest.mark.parametrize(
    ("tariff", "tps"),
    [
        (Tariff(watts=watts("0"), price=1.0), 5.0),
        (Tariff(watts=watts("9"), price=1.0), 0.0),
        (Tariff(watts=watts("9"), price=None), 5.0),
    ],
)
def test_without_watts_tokens_or_a_price_there_is_no_cost(tariff: Tariff, tps: float) -> None:
    assert tariff.cost_per_million(["a"], tps) is None


@pytest.mark.parametrize(
    ("amount", "words"), [(0.0101, "0.01"), (0.0123, "0.012"), (0.1, "0.10"), (1234.5, "1,234.50")]
)
def test_small_amounts_keep_two_figures(amount: float, words: str) -> None:
    assert money(amount) == words
