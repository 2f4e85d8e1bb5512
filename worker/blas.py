"""A fast BLAS for the engine child on Linux: `python -m worker.blas PROGRAM ARGS...` runs any program with it.

The mlx-cpu wheel carries the reference BLAS (4 GFLOP/s on the development machine); OpenBLAS from the cmeel-openblas
wheel, put in front by the dynamic linker, gives 12-330. That wheel expects a libgfortran from the system; the mlx-cpu
wheel brings one under another name, so we link it to the expected one in a folder of ours. Imports no mlx.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NoReturn

_BLAS = ("cmeel-openblas", "cmeel.prefix/lib/libopenblas.so")
_RUNTIME = ("mlx-cpu", "mlx_cpu.libs")
_FORTRAN = "libgfortran.so.5"
_THREADS = "OPENBLAS_NUM_THREADS"
#: MLX allocates each array anew on a CPU. glibc takes large ones from the kernel page by page and gives them back at
#: once, which cost more than the arithmetic on them: GELU of 1,024 x 1,536 numbers took 20 ms, and 9 ms like this.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


def engine_environment(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with OpenBLAS in front, on all cores but one; unchanged on macOS, or when OpenBLAS could not be loaded.

    Its threads wait by spinning. On 2 cores, products of 16 rows took 62 ms with 2 threads and 76-87 ms with 1; with
    one other busy process 1,118 ms with 2 and 104 ms with 1. Coordinator and agent are such processes.
    """
    blas = _located(*_BLAS)
    if sys.platform != "linux" or blas is None:
        return dict(env)
    runtime = _fortran_folder(_cache_folder(env))
    if runtime is None and not _system_has_fortran():
        return dict(env)
    threads = str(max((os.cpu_count() or 1) - 1, 1))
    return with_library({_THREADS: threads, **_MALLOC, **env}, blas, runtime)


def with_library(env: Mapping[str, str], library: Path, folder: Path | None) -> dict[str, str]:
    """`env` with `library` loaded first and `folder` searched first; applying it twice changes nothing more."""
    changed = dict(env)
    _put_first(changed, "LD_PRELOAD", str(library))
    if folder is not None:
        _put_first(changed, "LD_LIBRARY_PATH", str(folder))
    return changed


def _put_first(env: dict[str, str], name: str, value: str) -> None:
    present = [part for part in env.get(name, "").split(":") if part and part != value]
    env[name] = ":".join([value, *present])


def _located(package: str, path: str) -> Path | None:
    try:
        found = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        return None
    return found if found.exists() else None


def _cache_folder(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fleet"


def _fortran_folder(cache: Path) -> Path | None:
    """A folder with the bundled Fortran runtime under the names the linker looks for; None without one."""
    bundle = _located(*_RUNTIME)
    fortran = sorted(bundle.glob("libgfortran-*")) if bundle else []
    if bundle is None or not fortran:
        return None
    links = {_FORTRAN: fortran[0], **{path.name: path for path in bundle.glob("libquadmath-*")}}
    mark = hashlib.sha256("|".join(map(str, links.values())).encode()).hexdigest()[:12]
    folder = cache / f"blas-{mark}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, target in links.items():
            if not (folder / name).exists():
                (folder / name).symlink_to(target)
    except FileExistsError:
        pass  # another engine made the same link first
    except OSError:
        return None  # nowhere to put it: slow, but it runs
    return folder


def _system_has_fortran() -> bool:
    try:
        ctypes.CDLL(_FORTRAN)
    except OSError:
        return False
    return True


def main(argv: Sequence[str]) -> NoReturn:
    """Replaces this process by `argv`, with OpenBLAS in front."""
    if not argv:
        print("usage: python -m worker.blas PROGRAM ARGS...", file=sys.stderr)
        sys.exit(2)
    os.execvpe(argv[0], list(argv), engine_environment(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
