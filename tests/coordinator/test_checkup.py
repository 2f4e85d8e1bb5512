"""What `fleet doctor` finds, and what it makes of it."""

import errno
import json
import os
import socket
from pathlib import Path

import pytest

from coordinator.screens import checkup, filesystems, power
from coordinator.screens.checkup import Level
from fleet.cli import main
from fleet.config import StateDir

MAC_MOUNTS = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse, protect)
//anna@nas._smb._tcp.local/share on /Volumes/My (old) Share (smbfs, nodev, nosuid, mounted by anna)
"""
LINUX_MOUNTS = "/dev/sda1 / ext4 rw 0 0\nnas:/home /mnt/my\\040home nfs4 rw 0 0\nproc /proc proc rw 0 0\n"


def test_this_machine_is_well_enough_to_run_these_tests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEET_REDIS_URL", raising=False)
    status = main(["doctor", "--json", "--state-dir", str(tmp_path / "state")])
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert [*found] == ["python", "mlx", "broker", "folder", "disk", "ports", "discovery", "clock", "power"]
    assert found["mlx"]["said"].startswith("MLX 0.")
    assert (found["mlx"]["level"], found["broker"]["level"]) == ("ok", "ok")
    assert status == int(any(finding["level"] == "failed" for finding in found.values()))
    assert not (tmp_path / "state").exists()


def test_a_failure_is_told_in_its_line_and_in_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_REDIS_URL", f"unix://{tmp_path}/nobody.sock")
    monkeypatch.setattr(checkup, "mlx", lambda: (Level.WARNING, "slow"))
    assert main(["doctor", "--state-dir", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "warning  mlx        slow"
    assert lines[2].startswith("failed   broker     the broker does not answer")


@pytest.mark.parametrize(
    ("system", "machine", "level"),
    [
        ("darwin", "arm64", Level.OK),
        ("linux", "x86_64", Level.OK),
        ("darwin", "x86_64", Level.FAILED),
        ("linux", "aarch64", Level.WARNING),
    ],
)
def test_python_is_one_that_mlx_is_built_for(system: str, machine: str, level: Level) -> None:
    assert checkup.python(system, machine, "3.12.1")[0] is level


@pytest.mark.parametrize(
    ("system", "device", "openblas", "level"),
    [
        ("darwin", "GPU", False, Level.OK),
        ("darwin", "CPU", False, Level.WARNING),
        ("linux", "CPU", True, Level.OK),
        ("linux", "CPU", False, Level.WARNING),
        ("linux", "GPU", False, Level.OK),
    ],
)
def test_mlx_computes_on_what_is_fast_here(system: str, device: str, openblas: bool, level: Level) -> None:
    assert checkup.judge_mlx(system, "0.32.4", "0.32.2", device, openblas)[0] is level


def test_mlx_that_does_not_load_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "_ASK_MLX", "import no_such_mlx")
    level, said = checkup.mlx()
    assert level is Level.FAILED
    assert "No module named 'no_such_mlx'" in said


@pytest.mark.parametrize(("free", "level"), [(100 << 20, Level.FAILED), (5 << 30, Level.WARNING), (50 << 30, Level.OK)])
def test_free_disk_is_judged(free: int, level: Level) -> None:
    assert checkup.disk(free)[0] is level


def test_a_state_folder_on_another_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkup.folder(StateDir(tmp_path / "not" / "there"))[0] is Level.OK
    monkeypatch.setattr(filesystems, "of", lambda _: "nfs4")
    level, said = checkup.folder(StateDir(tmp_path))
    assert (level, "nfs4" in said, "--state-dir" in said) == (Level.FAILED, True, True)
    monkeypatch.setattr(filesystems, "of", lambda _: "apfs")
    cloud = tmp_path / "Mobile Documents" / "fleet"
    cloud.mkdir(parents=True)
    assert "iCloud" not in checkup.folder(StateDir(tmp_path))[1]
    assert checkup.folder(StateDir(cloud))[0] is Level.FAILED


def test_a_state_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert checkup.folder(StateDir(tmp_path))[0] is Level.FAILED


def test_a_port_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(checkup, "PORT", port)
        level, said = checkup.ports(StateDir(tmp_path))
    assert (level, said.split()[0]) == (Level.WARNING, str(port))


def test_the_port_of_the_plain_api_is_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(checkup, "PORT", port - 2)
        level, said = checkup.ports(StateDir(tmp_path))
    assert level is Level.WARNING
    assert str(port) in said.split(" in use")[0]


def test_a_blocked_network_is_told_from_one_that_is_not_there() -> None:
    assert checkup.judge_discovery("darwin", errno.EHOSTUNREACH, "")[0] is Level.FAILED
    level, said = checkup.judge_discovery("linux", errno.ENETUNREACH, "Network is unreachable")
    assert (level, "--coordinator" in said) == (Level.WARNING, True)


def test_a_clock_that_was_never_set_is_told() -> None:
    assert checkup.clock(0.0) == (
        Level.FAILED,
        "1970-01-01 00:00 UTC is in the past: set the clock, or let the system set it from the network",
    )
    assert checkup.clock(1.8e9)[0] is Level.OK


# -- filesystems -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "kind"),
    [
        (MAC_MOUNTS, "/Users/anna", "apfs"),
        (MAC_MOUNTS, "/Volumes/My (old) Share/state", "smbfs"),
        ("", "/Users/anna", ""),
    ],
)
def test_macos_tells_the_filesystem_of_a_folder(text: str, place: str, kind: str) -> None:
    assert filesystems.kind_of(Path(place), filesystems.mac_mounts(text)) == kind


@pytest.mark.parametrize(("place", "kind"), [("/home/anna", "ext4"), ("/mnt/my home/state", "nfs4"), ("/proc", "proc")])
def test_linux_tells_the_filesystem_of_a_folder(place: str, kind: str) -> None:
    assert filesystems.kind_of(Path(place), filesystems.linux_mounts(LINUX_MOUNTS)) == kind


def test_remote_filesystems_are_known_and_this_one_is_none_of_them(tmp_path: Path) -> None:
    assert {"nfs4", "smbfs"} <= filesystems.REMOTE
    assert filesystems.of(tmp_path) not in filesystems.REMOTE


# -- power -----------------------------------------------------------------------------------------

_MAINS = "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t80%; charging\n"


@pytest.mark.parametrize(
    ("battery", "settings", "words"),
    [
        (_MAINS, "Battery Power:\n lowpowermode         1\nAC Power:\n lowpowermode         0\n", ""),
        (_MAINS, "Battery Power:\n lowpowermode 0\nAC Power:\n lowpowermode         1\n", "low power mode is on"),
        (_MAINS.replace("AC", "Battery"), "", "on battery"),
        ("", "", "pmset tells nothing"),
    ],
)
def test_power_settings_that_slow_work_are_told(battery: str, settings: str, words: str) -> None:
    complaint = power.judged(battery, settings)
    assert complaint.startswith(words)
    assert bool(complaint) == bool(words)
