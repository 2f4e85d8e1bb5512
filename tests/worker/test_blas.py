"""The engine child's environment."""

import subprocess
import sys
from pathlib import Path

import pytest

from worker import blas

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="OpenBLAS is put in front on Linux alone")


def test_a_library_goes_in_front_of_what_was_there_once() -> None:
    once = blas.with_library({"LD_PRELOAD": "/a.so", "HOME": "/h"}, Path("/b.so"), Path("/libs"))
    assert once == {"LD_PRELOAD": "/b.so:/a.so", "LD_LIBRARY_PATH": "/libs", "HOME": "/h"}
    assert blas.with_library(once, Path("/b.so"), Path("/libs")) == once


def test_macos_keeps_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas.engine_environment({"HOME": "/h"}) == {"HOME": "/h"}


def test_without_openblas_the_environment_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_BLAS", ("no-such-package", "lib.so"))
    assert blas.engine_environment({"HOME": "/h"}) == {"HOME": "/h"}


def test_without_a_fortran_runtime_openblas_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_RUNTIME", ("no-such-package", "libs"))
    monkeypatch.setattr(blas, "_system_has_fortran", lambda: False)
    assert "LD_PRELOAD" not in blas.engine_environment({"XDG_CACHE_HOME": str(tmp_path)})


@linux_only
def test_a_cache_folder_that_cannot_be_made_costs_only_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet").write_text("in the way")
    monkeypatch.setattr(blas, "_system_has_fortran", lambda: False)
    assert "LD_PRELOAD" not in blas.engine_environment({"XDG_CACHE_HOME": str(tmp_path)})


@linux_only
def test_a_program_run_through_it_has_openblas_loaded_and_its_status_is_ours(tmp_path: Path) -> None:
    look = "import sys; sys.exit(7 if 'libopenblas.so' in open('/proc/self/maps').read() else 1)"
    run = subprocess.run(
        [sys.executable, "-m", "worker.blas", sys.executable, "-c", look],
        env={"XDG_CACHE_HOME": str(tmp_path), "PATH": ""},
        timeout=60,
        check=False,
    )
    assert run.returncode == 7


def test_no_program_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        blas.main([])
    assert raised.value.code == 2
    assert "usage" in capsys.readouterr().err
