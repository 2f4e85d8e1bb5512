"""A disk that fills up under a fleet's record or its outputs is told in a sentence, and room again heals it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault_yard import FaultYard, away
from tests.models import tiny_llama
from tests.runner import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
SEED = 20261130


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[FaultYard]:
    with FaultYard(tmp_path / "yard", FAKE_STEP_S="0.05") as yard:
        yield yard


@pytest.fixture
def small_disks() -> Iterator[list[Path]]:
    """Folders that are made disks of their own with `mount`; unmounted at the end."""
    mounted: list[Path] = []
    yield mounted
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def mount(folder: Path, mounted: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root on Linux")
    mounted.append(folder)


def fill(folder: Path) -> Path:
    """Takes every free byte of the folder's disk."""
    filler = folder / "filler"
    with filler.open("wb") as file:
        try:
            while True:
                os.write(file.fileno(), bytes(1 << 16))
        except OSError:
            return filler


def test_a_full_disk_under_the_record_ends_the_coordinator_with_a_sentence(
    yard: FaultYard, model: Path, small_disks: list[Path]
) -> None:
    mount(yard.state.root, small_disks)
    yard.begin("ab")
    job = yard.order(model, 600, SEED)
    yard.grows(job)
    filler = fill(yard.state.root)
    assert yard.up_ is not None
    away(yard.up_, story="the end of the coordinator")
    said = "\n".join(yard.up_.lines)
    assert yard.up_.process.returncode == 1, said
    assert "full" in said
    assert "Traceback" not in said
    filler.unlink()
    yard.up_again()
    yard.await_over(job)
    yard.check(job, "a full disk under the record")


def test_a_full_disk_under_the_outputs_fails_the_job_and_costs_no_row(
    yard: FaultYard, model: Path, small_disks: list[Path]
) -> None:
    yard.begin("ab")
    job = yard.order(model, 200, SEED)
    folder = Path(yard.record(job).spec.output).parent
    mount(folder, small_disks)
    filler = fill(folder)
    wait_until(lambda: yard.job(job).get("state") in ("failed", "finished"), within_s=100)
    line = yard.job(job)
    assert (line["state"], "full" in line["error"] or "space" in line["error"]) == ("failed", True), line
    filler.unlink()
    computed = len(yard.computed())
    again = yard.order(model, 200, SEED)
    yard.await_over(again)
    yard.check(again, "a full disk under the outputs")
    assert len(yard.computed()) == computed
