"""Keeps one service advertised over multicast DNS, whatever becomes of the network: a thread and its three orders.

The two modules that know zeroconf hand in how to open it and how to describe the service.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Any, Protocol

from fleet.interfaces import OwnAddress, ips, own

log = logging.getLogger(__name__)

#: Interfaces are looked at this often, seconds; nobody tells us when one comes or goes.
POLL_S = 2.0
#: How long `close` waits for the goodbye to be sent, seconds.
_CLOSE_S = 5.0


class Air(Protocol):
    """What a beacon uses of a Zeroconf instance."""

    def register_service(self, info: Any, *, allow_name_change: bool) -> None:
        """Advertises; changes the name in `info` when another has it."""

    def update_service(self, info: Any) -> None:
        """Says a registered service's new records."""

    def update_interfaces(self) -> None:
        """Opens and closes sockets as interfaces came and went."""

    def close(self) -> None:
        """Says goodbye."""


#: Describes the service: its full name, ips and TXT fields.
Describe = Callable[[str, list[str], dict[str, str]], Any]


class Beacon:
    """One advertised service. Never blocks its user, and ends nothing when it fails: it tries again."""

    def __init__(
        self,
        full_name: str,
        text: dict[str, str],
        *,
        open_air: Callable[[], Air],
        describe: Describe,
        tend: Callable[[Any], object] | None = None,
        addresses: Callable[[], tuple[OwnAddress, ...]] = own,
    ) -> None:
        """`tend`, where it is given, is called every few seconds with what `open_air` opened."""
        self._full_name = full_name
        self._text = text
        self._open = open_air
        self._describe = describe
        self._tend = tend
        self._addresses = addresses
        self._poke = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="beacon", daemon=True)
        self._thread.start()

    @property
    def full_name(self) -> str:
        """The name advertised, which is another than asked for when two machines have one name."""
        return self._full_name

    def say(self, text: dict[str, str]) -> None:
        """Other TXT fields from now on."""
        if text != self._text:
            self._text = text
            self._poke.set()

    def close(self) -> None:
        """Says goodbye and ends the thread."""
        self._closed = True
        self._poke.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        failed = False
        while not self._closed:
            try:
                self._advertise()
            except Exception as error:  # no network, port 5353 taken: the rest of us works without
                if not failed:
                    log.warning("not advertised for now: %s: %s", type(error).__name__, error)
                failed = True
                self._poke.wait(POLL_S)
                self._poke.clear()

    def _advertise(self) -> None:
        air = self._open()
        try:
            addresses, text = self._addresses(), self._text
            info = self._news(addresses, text)
            air.register_service(info, allow_name_change=True)
            self._full_name = info.name
            while not self._closed:
                self._poke.wait(POLL_S)
                self._poke.clear()
                before = addresses
                if (self._addresses(), self._text) != (addresses, text):
                    addresses, text = self._addresses(), self._text
                    air.update_service(self._news(addresses, text))
                if addresses != before:
                    air.update_interfaces()  # last: on a new interface it announces what is registered
                if self._tend is not None and not self._closed:
                    self._tend(air)
        finally:
            air.close()

    def _news(self, addresses: tuple[OwnAddress, ...], text: dict[str, str]) -> Any:
        """Never the same twice: zeroconf tells its browsers nothing of a record that it had within the last seconds, so
        that one who says A, B and A again would be known as B."""
        return self._describe(self._full_name, ips(addresses), {**text, "n": secrets.token_hex(4)})
