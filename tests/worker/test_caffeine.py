"""Keeping macOS awake, through a stand-in for its program."""

import sys

from tests.worker_process import gone, until
from worker.caffeine import awake, command


def test_macos_is_kept_awake_until_this_process_ends_and_its_display_is_not():
    assert command(42, "darwin") == ["/usr/bin/caffeinate", "-is", "-w", "42"]
    assert command(42, "linux") == []


def test_the_program_runs_inside_and_ends_with_it(tmp_path):
    note = tmp_path / "pid"
    script = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with awake([sys.executable, "-c", script]):
        pid = int(until(lambda: note.exists() and note.read_text()))
        assert not gone(pid)
    assert gone(pid)


def test_a_system_without_it_works_all_the_same():
    with awake(["/no/such/program"]):
        pass
    with awake([]):
        pass
