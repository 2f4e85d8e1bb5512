"""A leashed child ends when its parent does, however the parent ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fleet import leash


def gone(pid: int, within_s: float = 8.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").exists() and ") Z " in Path(f"/proc/{pid}/stat").read_text():
            return True
        time.sleep(0.02)
    return False


def wait_for(path: Path, within_s: float = 8.0) -> str:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.strip()
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written")


LAST = (
    "import sys; from pathlib import Path; from fleet import leash;"
    "leash.hold(last=lambda: (Path(sys.argv[1]).write_text('last\\n'), 1 / 0)); __import__('time').sleep(60)"
)
HOLDER = (
    "import sys, time; from fleet import leash; leash.hold(); open(sys.argv[1], 'w').write('on\\n'); time.sleep(60)"
)
PROGRAM = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\n'); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + PROGRAM


def test_a_child_that_holds_its_leash_ends_when_the_pipe_closes(tmp_path: Path) -> None:
    child = leash.start([sys.executable, "-c", HOLDER, str(tmp_path / "on")])
    wait_for(tmp_path / "on")
    assert child.poll() is None
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(8) == 1


def test_what_is_to_be_done_last_is_done_and_cannot_keep_it_alive(tmp_path: Path) -> None:
    child = leash.start([sys.executable, "-c", LAST, str(tmp_path / "last")], log=subprocess.DEVNULL)
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(8) == 1
    assert (tmp_path / "last").read_text() == "last\n"


def test_a_program_under_the_leash_ends_even_if_it_ignores_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fleet.leash", sys.executable, "-c", STUBBORN, str(tmp_path / "pid")]
    child = leash.start(command)
    pid = int(wait_for(tmp_path / "pid"))
    assert child.stdin is not None
    child.stdin.close()
    assert gone(pid)
    child.wait(8)


def test_kill_9_of_the_parent_takes_the_program_along(tmp_path: Path) -> None:
    parent_code = (
        "import sys, time; from fleet import leash; "
        "leash.start([sys.executable, '-m', 'fleet.leash', sys.executable, '-c', sys.argv[1], sys.argv[2]]); "
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_code, PROGRAM, str(tmp_path / "pid")])
    pid = int(wait_for(tmp_path / "pid"))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(pid)


def test_the_status_of_the_program_is_passed_on() -> None:
    child = leash.start([sys.executable, "-m", "fleet.leash", sys.executable, "-c", "raise SystemExit(7)"])
    assert child.wait(8) == 7
    assert child.stdin is not None
    child.stdin.close()
