"""What work costs in electricity: watts of the Macs and the price of a kilowatt-hour. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: Seconds in an hour times watts in a kilowatt.
_WATT_S_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Watts:
    """What Macs draw while they work."""

    #: of each that is not named
    each: float = 0.0
    by_name: Mapping[str, float] = field(default_factory=dict)

    def of(self, name: str) -> float:
        """Watts of this Mac; 0 when nothing was said of it."""
        return self.by_name.get(name, self.each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """Watts and price."""

    watts: Watts
    #: of a kilowatt-hour, in the person's money; None when only energy is asked for
    price: float | None

    def kwh(self, working_s: Iterable[tuple[str, float]]) -> float:
        """Energy of Macs that work for so many seconds each."""
        return sum(self.watts.of(name) * seconds for name, seconds in working_s) / _WATT_S_PER_KWH

    def cost_per_million(self, names: Iterable[str], tps: float) -> float | None:
        """Money for a million new tokens when these Macs make `tps` a second together; None when that is not known."""
        watts = sum(map(self.watts.of, names))
        if self.price is None or tps <= 0 or watts <= 0:
            return None
        return watts * self.price * (1e6 / tps) / _WATT_S_PER_KWH


def add_tariff_flags(parser: argparse.ArgumentParser) -> None:
    """`--watts` and `--price`."""
    group = parser.add_argument_group("cost")
    group.add_argument(
        "--watts",
        type=watts,
        metavar="W",
        help="watts a Mac draws at work: one figure for each, or NAME=W,NAME=W (those of others after a bare W)",
    )
    group.add_argument("--price", type=price, metavar="P", help="price of a kilowatt-hour; needs --watts")


def tariff(args: argparse.Namespace) -> Tariff | None:
    """What the flags say; None without watts."""
    return Tariff(watts=args.watts, price=args.price) if args.watts is not None else None


def money(amount: float) -> str:
    """An amount in whatever money the price was in: to the hundredth, small ones to two figures."""
    return f"{amount:,.2f}" if amount >= 0.1 else f"{amount:.2g}"


def watts(text: str) -> Watts:
    """The type of `--watts`."""
    each, by_name = 0.0, {}
    for part in text.split(","):
        name, separator, figure = part.rpartition("=")
        value = _number(figure)
        if value is None or (separator and not name.strip()):
            raise argparse.ArgumentTypeError(f"expected watts like 60 or studio=270,air=30, found {text!r}")
        if separator:
            by_name[name.strip()] = value
        else:
            each = value
    return Watts(each=each, by_name=by_name)


def price(text: str) -> float:
    """The type of `--price`."""
    value = _number(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"expected the price of a kilowatt-hour like 0.32, found {text!r}")
    return value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
