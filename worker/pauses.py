"""When a Mac should rest from the fleet's work: it is carried about, it is too hot, or its owner needs it."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker.desk import Desk
from worker.machine import ask, read

log = logging.getLogger(__name__)

#: Conditions are looked at this often, seconds.
POLL_S = 10.0
#: A file of this name in the state folder pauses the worker for as long as it is there.
PAUSED_FILE = "paused"

#: Available memory under which a worker pauses, and over which it goes on again, as shares of the machine's.
LOW_MEMORY, ENOUGH_MEMORY = 0.03, 0.10
#: macOS's levels of thermal pressure are nominal, moderate, heavy, trapping, sleeping. A fanless Mac works for hours at
#: heavy, only slower; at trapping the system wants the load to go.
TRAPPING = 3
#: macOS's levels of memory pressure are 1 normal, 2 warning, 4 critical.
CRITICAL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What counts for a pause; a machine that cannot tell something has the harmless value."""

    #: running from a built-in battery
    on_battery: bool = False
    #: the system asks for less load: it is hot
    too_hot: bool = False
    #: available memory as a share of the machine's
    free_memory: float = 1.0
    #: the owner asked for it
    by_user: bool = False


def pause_reason(now: Conditions, *, before: str = "", works_on_battery: bool = False) -> str:
    """Why to pause, in a word, or empty; `before` is the reason up to now, empty while working."""
    if now.by_user:
        return "user"
    if now.on_battery and not works_on_battery:
        return "battery"
    if now.too_hot:
        return "heat"
    return "memory" if now.free_memory < (ENOUGH_MEMORY if before == "memory" else LOW_MEMORY) else ""


def conditions(state: Path) -> Conditions:
    """Those of this machine now; `state` is the worker's state folder."""
    by_user = (state / PAUSED_FILE).exists()
    if sys.platform == "darwin":
        return mac_conditions(ask, by_user=by_user)
    return linux_conditions(Path("/sys/class/power_supply"), read(Path("/proc/meminfo")), by_user=by_user)


def mac_conditions(tell: Callable[[list[str]], str], *, by_user: bool = False) -> Conditions:
    """From what macOS's programs say; `tell` runs one."""
    power = tell(["/usr/bin/pmset", "-g", "batt"])
    heat = tell(["/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel"])
    pressure = tell(["/usr/sbin/sysctl", "-n", "kern.memorystatus_vm_pressure_level"])
    free = tell(["/usr/sbin/sysctl", "-n", "kern.memorystatus_level"])
    share = min(int(free), 100) / 100 if free.isdigit() else 1.0
    return Conditions(
        on_battery="'Battery Power'" in power and "InternalBattery" in power,
        too_hot=_last_number(heat) >= TRAPPING,
        free_memory=0.0 if _last_number(pressure) >= CRITICAL else share,
        by_user=by_user,
    )


def linux_conditions(supplies: Path, meminfo: str, *, by_user: bool = False) -> Conditions:
    """From the kernel's files; a battery of a mouse is not the machine's."""
    batteries = [folder for folder in supplies.glob("*") if read(folder / "type").strip() == "Battery"]
    built_in = [folder for folder in batteries if read(folder / "scope").strip() != "Device"]
    sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo, re.MULTILINE))
    total = int(sizes.get("MemTotal", 0))
    return Conditions(
        on_battery=any(read(folder / "status").strip() == "Discharging" for folder in built_in),
        free_memory=int(sizes.get("MemAvailable", total)) / total if total else 1.0,
        by_user=by_user,
    )


class Pauses:
    """Looks at the conditions and pauses the desk, on a thread of its own."""

    def __init__(self, desk: Desk, look: Callable[[], Conditions], *, works_on_battery: bool = False) -> None:
        self._desk = desk
        self._look = look
        self._works_on_battery = works_on_battery
        self._reason = ""

    def run(self) -> None:
        """Until the desk closes."""
        while not self._desk.closed:
            self.turn()
            self._desk.await_closed(POLL_S)

    def turn(self) -> None:
        """Looks once."""
        reason = pause_reason(self._look(), before=self._reason, works_on_battery=self._works_on_battery)
        if reason == self._reason:
            return
        log.info("paused: %s", reason or "no more")
        self._reason = reason
        self._desk.pause(reason)


def _last_number(text: str) -> int:
    found = re.search(r"(\d+)\s*$", text)
    return int(found[1]) if found else 0
