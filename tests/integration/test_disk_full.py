"""A disk that fills up ends the run with a sentence; with room again the same command ends the job."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models import tiny_llama
from tests.runner import Fleet, read_lines, wait_until, write_prompts

ROWS = 400


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 96 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root on Linux")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Takes every free byte of the folder's disk."""
    filler = folder / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), bytes(1 << 16))
        except OSError:
            return filler


def test_a_full_disk_under_the_ledger_ends_the_run_and_room_lets_it_go_on(tmp_path: Path, small_disk: Path) -> None:
    model = tiny_llama(tmp_path / "tiny")
    backlog = write_prompts(tmp_path / "in.jsonl", [f"told {n}" for n in range(ROWS)])
    fleet = Fleet(small_disk, fake=True, env={"FAKE_STEP_S": "0.03"})
    fleet.out = tmp_path / "out.jsonl"
    command = ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "20", "--batch", "8"]
    process = fleet.start(*command)
    wait_until(lambda: fleet.counts().done >= 8, story="eight rows")
    filler = fill(small_disk)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "full" in err or "space" in err, err
    assert not fleet.out.exists()
    filler.unlink()
    fleet.validate()
    fleet.run(*command, env={"FAKE_STEP_S": "0.002"}).expect(0)
    assert [line["id"] for line in read_lines(fleet.out)] == [f"r{n}" for n in range(ROWS)]
    fleet.validate()


def test_a_full_disk_under_the_output_leaves_the_old_output_whole(tmp_path: Path, small_disk: Path) -> None:
    model = tiny_llama(tmp_path / "tiny")
    backlog = write_prompts(tmp_path / "in.jsonl", ["told"] * 300)
    fleet = Fleet(tmp_path, fake=True)
    fleet.out = small_disk / "out.jsonl"
    fleet.out.write_text("old\n")
    command = ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "20", "--batch", "8"]
    process = fleet.start(*command, env={"FAKE_STEP_S": "0.1"})
    wait_until(lambda: fleet.pids("worker"), story="the start")
    filler = fill(small_disk)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "full" in err or "space" in err, err
    assert fleet.out.read_text() == "old\n"
    filler.unlink()
    fleet.run(*command).expect(0)
    assert len(read_lines(fleet.out)) == 300


def test_too_little_room_is_found_before_any_work(tmp_path: Path, small_disk: Path) -> None:
    model = tiny_llama(tmp_path / "tiny")
    backlog = write_prompts(tmp_path / "in.jsonl", ["told"] * 3)
    fill(small_disk)
    fleet = Fleet(tmp_path, fake=True)
    ended = fleet.run("run", "generate", backlog, "-m", model, "-o", small_disk / "out.jsonl").expect(1)
    assert "MB free" in ended.err
