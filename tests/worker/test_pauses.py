"""When a worker pauses, and what it does then; the systems' answers are written out here."""

import threading
import time

import pytest

from fleet.messages import Host, WorkerState
from tests.worker_process import shard
from worker.desk import Desk
from worker.pauses import POLL_S, Conditions, Pauses, conditions, linux_conditions, mac_conditions, pause_reason

LAPTOP_ON_BATTERY = """Now drawing from 'Battery Power'
 -InternalBattery-0 (id=21823587)\t81%; discharging; 5:05 remaining present: true"""
LAPTOP_ON_MAINS = """Now drawing from 'AC Power'
 -InternalBattery-0 (id=21823587)\t100%; charged; 0:00 remaining present: true"""
DESKTOP = "Now drawing from 'AC Power'"
DESKTOP_ON_UPS = """Now drawing from 'UPS Power'
 -Back-UPS ES (id=1000)\t90%; discharging; 0:40 remaining present: true"""


def mac(*, batt=DESKTOP, heat="com.apple.system.thermalpressurelevel 0", pressure="1", free="60"):
    answers = {"batt": batt, "com.apple.system.thermalpressurelevel": heat}
    memory = {"kern.memorystatus_vm_pressure_level": pressure, "kern.memorystatus_level": free}
    return mac_conditions(lambda command: {**answers, **memory}[command[-1]])


@pytest.mark.parametrize(
    ("batt", "reason"),
    [(LAPTOP_ON_BATTERY, "battery"), (LAPTOP_ON_MAINS, ""), (DESKTOP, ""), (DESKTOP_ON_UPS, ""), ("", "")],
)
def test_only_a_built_in_battery_pauses_a_mac(batt, reason):
    assert pause_reason(mac(batt=batt)) == reason
    assert pause_reason(mac(batt=batt), works_on_battery=True) == ""


@pytest.mark.parametrize(("level", "reason"), [(0, ""), (1, ""), (2, ""), (3, "heat"), (4, "heat")])
def test_a_mac_that_is_only_slow_for_heat_works_on(level, reason):
    assert pause_reason(mac(heat=f"com.apple.system.thermalpressurelevel {level}")) == reason


@pytest.mark.parametrize(
    ("pressure", "free", "reason"), [("1", "60", ""), ("2", "20", ""), ("4", "20", "memory"), ("1", "2", "memory")]
)
def test_memory_pauses_a_mac_when_it_is_critical(pressure, free, reason):
    assert pause_reason(mac(pressure=pressure, free=free)) == reason


def test_a_mac_that_tells_nothing_works():
    assert mac_conditions(lambda _: "") == Conditions()


def test_memory_must_be_well_back_before_work_goes_on():
    some = Conditions(free_memory=0.06)
    assert pause_reason(some) == ""
    assert pause_reason(some, before="memory") == "memory"
    assert pause_reason(some, before="heat") == ""
    assert pause_reason(Conditions(free_memory=0.2), before="memory") == ""


def test_the_owners_wish_comes_first():
    everything = Conditions(on_battery=True, too_hot=True, free_memory=0.0, by_user=True)
    assert pause_reason(everything, works_on_battery=True) == "user"


def supply(folder, name, **files):
    (folder / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / name / file).write_text(text + "\n")


def test_a_linux_laptop_pauses_on_battery_and_a_mouse_does_not_count(tmp_path):
    meminfo = "MemTotal:       16000000 kB\nMemFree:  100 kB\nMemAvailable:    8000000 kB\n"
    supply(tmp_path, "hidpp_battery_0", type="Battery", scope="Device", status="Discharging")
    assert linux_conditions(tmp_path, meminfo) == Conditions(free_memory=0.5)
    supply(tmp_path, "BAT0", type="Battery", status="Charging")
    assert not linux_conditions(tmp_path, meminfo).on_battery
    (tmp_path / "BAT0" / "status").write_text("Discharging\n")
    assert linux_conditions(tmp_path, meminfo).on_battery
    assert linux_conditions(tmp_path / "nothing", "") == Conditions()


def test_a_file_in_the_state_folder_is_the_owners_wish(tmp_path):
    assert not conditions(tmp_path).by_user
    (tmp_path / "paused").touch()
    assert conditions(tmp_path).by_user


def test_a_pause_gives_back_what_waits_says_why_and_ends_by_itself():
    desk = Desk("mac", "n", host=Host(name="air"))
    desk.take(shard(1, [1, 2]))
    now = [Conditions(too_hot=True)]
    pauses = Pauses(desk, lambda: now[0])
    pauses.turn()
    beat = desk.beat()
    assert (beat.state, beat.note, beat.host.name) == (WorkerState.PAUSED, "heat", "air")
    assert desk.draft().rows == (1, 2)
    assert not desk.await_room(0.0)
    now[0] = Conditions()
    pauses.turn()
    beat = desk.beat()
    assert (beat.state, beat.note) == (WorkerState.IDLE, "")
    assert desk.await_room(0.0)


def test_the_watch_ends_when_the_desk_closes():
    desk = Desk("mac", "n")
    thread = threading.Thread(target=Pauses(desk, Conditions).run)
    thread.start()
    began = time.monotonic()
    desk.close()
    thread.join(60)
    assert not thread.is_alive()
    assert time.monotonic() - began < POLL_S
